"""Plans: every draw follows from the key, spans are cut where a frame is shown, nothing of an evaluation is random."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from paddlevideo_fast.data.annotations import VideoRecord
from paddlevideo_fast.data.augment_draws import draw_color_jitter, draw_erase
from paddlevideo_fast.data.crops import EvalCrop, RandomResizedCrop
from paddlevideo_fast.data.plan import ClipRecipe, frame_span, with_labels_of
from paddlevideo_fast.data.samplers import SampleKey
from paddlevideo_fast.data.sampling import SegmentSampling, UniformSampling
from paddlevideo_fast.data.video import VideoError, VideoInfo

INFO = VideoInfo(num_frames=100, fps=25.0, width=320, height=240, duration=4.0)
RECORD = VideoRecord("clip.mp4", 3, origin="list.txt:7")
KEY = SampleKey(epoch=2, index=5, frames=8, crop=64)


def recipe(**changes):
    draws = {"color_jitter": lambda rng: draw_color_jitter(rng, 0.4), "erase": lambda rng: draw_erase(rng, 0.5)}
    options = dict(train=True, flip=0.5, draws=draws, seed=9)
    return ClipRecipe(SegmentSampling(), RandomResizedCrop(), **{**options, **changes})


def flat(plan):
    aug = {name: value.tolist() for name, value in plan.aug.items()}
    return np.asarray(plan.view.indices).tolist(), plan.view.crop, plan.view.flip, plan.size, aug


def test_the_same_key_gives_the_same_plan():
    assert flat(recipe().make_plan(RECORD, INFO, KEY)) == flat(recipe().make_plan(RECORD, INFO, KEY))


def test_every_part_of_the_key_and_the_seed_changes_it():
    plain = flat(recipe().make_plan(RECORD, INFO, KEY))
    others = [
        flat(recipe().make_plan(RECORD, INFO, KEY._replace(**{name: 1}))) for name in ("epoch", "index", "repeat")
    ]
    others.append(flat(recipe(seed=10).make_plan(RECORD, INFO, KEY)))
    for other in others:
        assert other[0] != plain[0] and other[1] != plain[1] and other[4] != plain[4]
    # epoch, index and repeat are not mixed up with one another
    swapped = [SampleKey(1, 2, 8, 64), SampleKey(2, 1, 8, 64), SampleKey(1, 1, 8, 64, repeat=2)]
    assert len({str(flat(recipe().make_plan(RECORD, INFO, key))) for key in swapped}) == 3


def test_the_transform_is_drawn_last_and_changes_no_other_draw():
    plain, more = (
        recipe(draw_transform=draw).make_plan(RECORD, INFO, KEY) for draw in (None, lambda rng: rng.integers(1000))
    )
    assert plain.transform is None and flat(plain) == flat(more)
    rng = np.random.default_rng([9, 2, 5, 0])
    SegmentSampling()(100, 8, 0, rng), RandomResizedCrop()(320, 240, 64, 0, rng), rng.random()
    draw_color_jitter(rng, 0.4), draw_erase(rng, 0.5)
    assert more.transform == rng.integers(1000)
    fixed = ClipRecipe(SegmentSampling(), EvalCrop(256), train=False, draw_transform=lambda rng: rng.integers(1000))
    assert fixed.make_plan(RECORD, INFO, KEY).transform is None


def test_draws_come_in_one_order_from_one_generator():
    rng = np.random.default_rng([9, 2, 5, 0])
    indices = SegmentSampling()(100, 8, 0, rng)
    box, _ = RandomResizedCrop()(320, 240, 64, 0, rng)
    flip = rng.random() < 0.5
    aug = {"color_jitter": draw_color_jitter(rng, 0.4), "erase": draw_erase(rng, 0.5)}
    assert flat(recipe().make_plan(RECORD, INFO, KEY)) == (
        indices.tolist(), box, flip, (64, 64), {name: value.tolist() for name, value in aug.items()}
    )  # fmt: skip


def test_draws_may_follow_only_after_the_rest_so_that_switching_one_on_changes_no_crop():
    with_draws, without = recipe(), recipe(draws={})
    assert flat(with_draws.make_plan(RECORD, INFO, KEY))[:4] == flat(without.make_plan(RECORD, INFO, KEY))[:4]


def test_flips_come_as_often_as_asked():
    flips = [recipe(flip=0.3).make_plan(RECORD, INFO, KEY._replace(index=i)).view.flip for i in range(2000)]
    assert np.mean(flips) == pytest.approx(0.3, abs=0.035)
    assert all(type(flip) is bool for flip in flips)
    assert not any(recipe(flip=0.0).make_plan(RECORD, INFO, KEY._replace(index=i)).view.flip for i in range(200))


def test_a_training_clip_has_the_labels_from_its_first_frame_to_its_last():
    """PySlowFast's Charades: what occurs in a gap between two frames of the clip counts too."""
    record = RECORD._replace(label=((0,), (0, 2), (), (3,), (4,)))
    assert with_labels_of(record, np.array([1, 3])).label == ((0, 2), (), (3,))
    assert with_labels_of(record, np.array([4, 4])).label == ((4,),)
    for label in (3, (1, 2), (), None, {"verb": 1}):
        assert with_labels_of(RECORD._replace(label=label), np.array([1, 3])).label == label
    table = RECORD._replace(label=tuple((number,) for number in range(100)))
    plan = recipe().make_plan(table, INFO, KEY)
    first, last = plan.view.indices[0], plan.view.indices[-1]
    assert plan.record == table._replace(label=table.label[first : last + 1])
    fixed = ClipRecipe(SegmentSampling(), EvalCrop(256), train=False)
    assert fixed.make_plan(table, INFO, KEY).record is table


def test_an_evaluation_draws_nothing():
    fixed = ClipRecipe(UniformSampling(2, num_clips=3), EvalCrop(256, 3), train=False, num_crops=3, flip=0.5, seed=1)
    plans = [
        [fixed.make_plan(RECORD, INFO, SampleKey(e, i, 8, 224, view=v)) for v in range(9)] for e, i in ((0, 0), (4, 7))
    ]
    assert [flat(plan) for plan in plans[0]] == [flat(plan) for plan in plans[1]]
    starts = [int(plan.view.indices[0]) for plan in plans[0]]
    assert starts == [
        0,
        0,
        0,
        42,
        42,
        42,
        85,
        85,
        85,
    ]  # the last of 86 possible starts is 85; the middle, 42.5, rounds down
    # short side 240 -> 256: a crop of 224 is 210 pixels of the source, and 320 leaves 110 to either side
    assert [plan.view.crop.x for plan in plans[0][:3]] == [0, 55, 110]
    assert all(plan.view.crop.width == plan.view.crop.height == 210 for plan in plans[0])
    assert all(plan.aug == {} and not plan.view.flip for plan in plans[0])
    assert isinstance(plans[0][0].aug, Mapping)


def test_the_shape_is_that_of_the_key():
    plan = recipe().make_plan(RECORD, INFO, KEY._replace(frames=3, crop=17))
    assert len(plan.view.indices) == 3 and plan.size == (17, 17)


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, (0, 100)),
        (0.0, 4.0, (0, 100)),
        (1.0, 2.0, (25, 25)),  # frames 25 to 49 are shown from 1.00 to 1.96 s
        (1.01, 2.0, (26, 24)),  # frame 25 was shown before 1.01 s
        (1.0, 2.01, (25, 26)),  # frame 50 is shown at 2.00 s
        (None, 0.5, (0, 13)),  # 0.48 s is frame 12
        (3.0, None, (75, 25)),
        (3.0, 99.0, (75, 25)),  # beyond the end
        (1.01, 1.02, (26, 1)),  # between two frames: the next one
        (0.1 + 0.2, 0.8, (8, 12)),  # 0.30000000000000004 s x 25 = 7.5
        (0.04 * 3, 0.04 * 7, (3, 4)),  # 0.12 x 25 = 3.0000000000000004 is frame 3
    ],
)
def test_the_frames_of_a_span(start, end, expected):
    assert frame_span(RECORD._replace(start=start, end=end), INFO) == expected


@pytest.mark.parametrize(("start", "end"), [(4.0, 5.0), (100.0, None), (2.0, 2.0), (3.0, 1.0)])
def test_a_span_outside_the_video(start, end):
    with pytest.raises(VideoError, match=r"clip.mp4: [\d.]+ s to [\d.]+ s is outside the video of 4.00 s"):
        frame_span(RECORD._replace(start=start, end=end), INFO)


def test_a_span_needs_a_frame_rate():
    with pytest.raises(VideoError, match="need a frame rate, and this source has none"):
        frame_span(RECORD._replace(start=1.0), INFO._replace(fps=0.0))


def test_indices_stay_inside_the_span():
    record = RECORD._replace(start=2.0, end=3.0)
    for index in range(100):
        indices = recipe().make_plan(record, INFO, KEY._replace(index=index, frames=16)).view.indices
        assert 50 <= min(indices) and max(indices) < 75
