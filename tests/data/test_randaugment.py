"""RandAugment against timm: golden/randaugment.json holds what its operations make of a small picture."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import PIL
import pytest

from paddlevideo_fast.data.annotations import VideoRecord
from paddlevideo_fast.data.crops import RandomResizedCrop
from paddlevideo_fast.data.dataset import ClipDataset
from paddlevideo_fast.data.plan import ClipRecipe
from paddlevideo_fast.data.randaugment import NAMES, Operation, RandAugment, argument_of, augment_frames
from paddlevideo_fast.data.samplers import SampleKey
from paddlevideo_fast.data.sampling import SegmentSampling
from paddlevideo_fast.data.targets import ClassTarget
from paddlevideo_fast.data.video import VideoInfo

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "randaugment.json").read_text())
MADE_BY = GOLDEN.pop("made by")
SAME_PILLOW = MADE_BY.endswith(f"Pillow {PIL.__version__}")
TIMM_NAMES = {"TranslateXRel": "TranslateX", "TranslateYRel": "TranslateY"}


def picture() -> np.ndarray:
    """The picture of parity/make_golden_randaugment.py."""
    y, x, colour = np.meshgrid(np.arange(24), np.arange(32), np.arange(3), indexing="ij")
    return (30 + (((x * 7 + y * 13 + colour * 50) ^ (x * y // 3)) % 190)).astype(np.uint8)


def parsed(key):
    name, level, sign, increasing, interpolation = re.fullmatch(
        r"(\w+) level=([\d.]+) sign=(-?1) inc=([01]) (\w+)", key
    ).groups()
    name = TIMM_NAMES.get(name, name.removesuffix("Increasing"))
    return name, float(level), int(sign), increasing == "1", interpolation


def test_every_operation_equals_timm_at_every_level():
    seen = set()
    for key, (argument, mean, digest) in GOLDEN.items():
        name, level, sign, increasing, interpolation = parsed(key)
        seen.add(name)
        own = argument_of(name, level, sign, increasing)
        assert own == argument, key
        made = augment_frames(picture()[None], [Operation(name, own, interpolation)])[0]
        if mean is None:  # no bit is kept
            assert name == "Posterize" and made.max() == 0
            continue
        assert made.dtype == np.uint8 and made.mean() == pytest.approx(mean, abs=0.05), key
        if SAME_PILLOW:
            assert hashlib.sha256(made.tobytes()).hexdigest() == digest, key
    assert seen == set(NAMES) and len(GOLDEN) == 320


def test_all_frames_get_the_same_operations_in_order():
    frames = np.stack([picture(), picture()[::-1], picture() // 2])
    operations = [Operation("Rotate", 21.0, "bilinear"), Operation("Equalize"), Operation("TranslateX", -0.3)]
    made = augment_frames(frames, operations)
    for frame, out in zip(frames, made):
        single = frame[None]
        for operation in operations:
            single = augment_frames(single, [operation])
        np.testing.assert_array_equal(out, single[0])
    assert not np.array_equal(made, augment_frames(frames, operations[::-1]))


def test_the_frames_stay_as_they_were():
    frames = picture()[None]
    augment_frames(frames, [Operation("Invert")])
    np.testing.assert_array_equal(frames[0], picture())


def draws(count=4000, **arguments):
    augment, rng = RandAugment(**arguments), np.random.default_rng(0)
    return [augment.draw(rng) for _ in range(count)]


def test_draws_follow_timm():
    """Each of four operations, out of fifteen with replacement, is applied with a chance of a half."""
    clips = draws(magnitude=7, num_layers=4, std=0.5, increasing=True)
    lengths = Counter(len(operations) for operations in clips)
    expected = [1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16]
    np.testing.assert_allclose([lengths[n] / len(clips) for n in range(5)], expected, atol=0.03)
    counts = Counter(operation.name for operations in clips for operation in operations)
    np.testing.assert_allclose([counts[name] / sum(counts.values()) for name in NAMES], 1 / 15, atol=0.01)
    turns = np.array([op.argument for operations in clips for op in operations if op.name == "Rotate"])
    assert np.mean(turns > 0) == pytest.approx(0.5, abs=0.06)
    assert np.abs(turns).mean() == pytest.approx(21.0, abs=0.2)  # level 7 of 10 is 21 of 30 degrees
    assert np.abs(turns).std() == pytest.approx(1.5, abs=0.15)
    assert {op.interpolation for operations in clips for op in operations} == {"bilinear", "bicubic"}


def test_the_level_is_cut_to_its_range():
    turns = [abs(op.argument) for ops in draws(magnitude=10, std=2.0) for op in ops if op.name == "Rotate"]
    assert max(turns) == 30.0 and min(turns) < 27 and np.mean(np.array(turns) == 30.0) == pytest.approx(0.5, abs=0.08)


def test_a_fixed_interpolation_and_a_certain_application():
    clips = draws(100, num_layers=3, probability=1.0, interpolation="bicubic")
    assert {len(operations) for operations in clips} == {3}
    assert {op.interpolation for operations in clips for op in operations} == {"bicubic"}


def test_draws_depend_on_the_generator_alone():
    augment = RandAugment(9, 3, 0.5)
    assert augment.draw(np.random.default_rng(5)) == augment.draw(np.random.default_rng(5))


def test_a_call_draws_a_transform_or_none():
    certain, rng = RandAugment(9, 3, 0.5, probability=1.0), np.random.default_rng(5)
    operations = certain.draw(np.random.default_rng(5))
    made = certain(rng)(picture()[None])
    np.testing.assert_array_equal(made, augment_frames(picture()[None], operations))
    assert RandAugment(probability=0.0)(rng) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"magnitude": 11}, r"magnitude must be in 0..10, got 11"),
        ({"num_layers": 0}, "num_layers must be at least 1, got 0"),
        ({"std": float("inf")}, "std must be a number of at least 0, got inf"),
        ({"probability": 1.5}, "probability must be in 0..1, got 1.5"),
        ({"interpolation": "nearest"}, "interpolation must be random, bilinear or bicubic, got 'nearest'"),
    ],
)
def test_impossible_values_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        RandAugment(**arguments)


class StillReader:
    """Gives every view the same three pictures."""

    def open(self, source):
        return self

    info, damage = VideoInfo(num_frames=30, fps=25.0, width=32, height=24, duration=1.2), None

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        pass

    def read(self, views, size):
        return [np.stack([picture()] * 3) for _ in views]


def test_the_dataset_applies_what_was_planned():
    augment = RandAugment(9, 3, 0.5, probability=1.0)
    recipe = ClipRecipe(SegmentSampling(), RandomResizedCrop(), train=True, draw_transform=augment, seed=4)
    records = [VideoRecord("a.mp4", 0), VideoRecord("b.mp4", 1)]
    dataset = ClipDataset(records, recipe, StillReader(), ClassTarget())
    keys = [SampleKey(1, index, 3, 24, repeat=repeat) for index in (0, 1) for repeat in (0, 1)]
    batch = dataset.read_batch(keys)
    for key, clip in zip(keys, batch["clip"]):
        plan = recipe.make_plan(records[key.index], StillReader.info, key)
        np.testing.assert_array_equal(clip, plan.transform(np.stack([picture()] * 3)))
    assert len({clip.tobytes() for clip in batch["clip"]}) == 4
