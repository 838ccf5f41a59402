"""The dataset: labels that follow a flip, one decode for many views, and rows that cannot be read."""

from __future__ import annotations

import pickle
import random

import numpy as np
import pytest

from paddlevideo_fast.data.annotations import VideoRecord, load_annotations
from paddlevideo_fast.data.augment_draws import draw_color_jitter
from paddlevideo_fast.data.crops import EvalCrop, RandomResizedCrop
from paddlevideo_fast.data.dataset import ClipDataset, collate
from paddlevideo_fast.data.plan import ClipRecipe
from paddlevideo_fast.data.readers import READERS, build_reader
from paddlevideo_fast.data.samplers import SampleKey
from paddlevideo_fast.data.sampling import SegmentSampling
from paddlevideo_fast.data.targets import ClassTarget
from paddlevideo_fast.data.video import DamagedVideoError, VideoError, View


def jitter(rng):
    return draw_color_jitter(rng, 0.4)


TRAIN = ClipRecipe(SegmentSampling(), RandomResizedCrop(), train=True, flip=0.5, draws={"color_jitter": jitter}, seed=1)
VALID = ClipRecipe(SegmentSampling(2), EvalCrop(36, 3), train=False, num_crops=3)


class CountingReader:
    """Counts how often a source is opened and how many pictures are decoded."""

    def __init__(self, reader):
        self.reader, self.opened, self.decoded = reader, [], []

    def open(self, source):
        self.opened.append(source)
        video = self.reader.open(source)
        plain = video.pictures

        def pictures(indices):
            self.decoded.append(list(indices))
            return plain(indices)

        video.pictures = pictures
        return video


def dataset_of(motion, recipe=TRAIN, reader=None, labels=None, extra=()):
    records = [*load_annotations(motion / "train.txt"), *extra]
    return ClipDataset(records, recipe, reader or build_reader("pyav"), ClassTarget(labels or {}))


def keys_of(indices, **more):
    return [SampleKey(0, index, 4, 32, **more) for index in indices]


def same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        if isinstance(left[name], dict):
            same(left[name], right[name])
        else:
            np.testing.assert_array_equal(left[name], right[name], err_msg=name)


def test_a_sample_is_what_the_plan_says(motion):
    dataset = dataset_of(motion, labels={0: 1, 1: 0})
    for index in range(16):
        key = SampleKey(3, index, 4, 32)
        record = dataset.records[index]
        plan = TRAIN.make_plan(record, build_reader("pyav").probe(record.source), key)
        sample = dataset[key]
        clip = build_reader("pyav").read(record.source, plan.view.indices, plan.view.crop, (32, 32), plan.view.flip)
        np.testing.assert_array_equal(sample["clip"], clip)
        assert sample["clip"].dtype == np.uint8 and sample["clip"].shape == (4, 32, 32, 3)
        mirrored = {0: 1, 1: 0}.get(record.label, record.label)
        assert sample["target"] == (mirrored if plan.view.flip else record.label)
        assert (sample["index"], sample["view"], sample["weight"]) == (index, 0, 1)
        np.testing.assert_array_equal(sample["aug"]["color_jitter"], plan.aug["color_jitter"])


def test_a_sample_does_not_depend_on_who_reads_it_when_and_with_whom(motion):
    dataset = dataset_of(motion)
    keys = keys_of(range(8))
    alone = [dataset[key] for key in keys]
    shuffled = random.Random(1).sample(keys, 8)
    batch = dataset.read_batch(shuffled)
    for row, key in enumerate(shuffled):
        sample = {name: value[row] for name, value in batch.items() if name not in ("aug", "errors")}
        sample["aug"] = {name: value[row] for name, value in batch["aug"].items()}
        same(sample, alone[key.index])
    copied = pickle.loads(pickle.dumps(dataset))  # as in another process
    np.random.seed(7)
    same(copied[keys[3]], alone[3])


@pytest.mark.parametrize("name", sorted(set(READERS) - {"frames"}))
def test_a_sample_does_not_depend_on_the_reader(motion, name):
    package = READERS[name].package
    if package:
        pytest.importorskip(package)
    keys = keys_of(range(4))
    expected = dataset_of(motion).read_batch(keys)
    found = dataset_of(motion, reader=build_reader(name)).read_batch(keys)
    assert found["errors"] == []
    np.testing.assert_array_equal(found["target"], expected["target"])
    assert np.abs(found["clip"].astype(int) - expected["clip"]).mean() < 2.0  # colour conversions round differently


def test_a_batch_has_the_shapes_of_the_contract(motion):
    batch = dataset_of(motion).read_batch(keys_of([4, 2, 9]))
    assert batch["clip"].shape == (3, 4, 32, 32, 3) and batch["clip"].dtype == np.uint8
    assert batch["target"].tolist() == [dataset_of(motion).records[i].label for i in (4, 2, 9)]
    for name, dtype in (("target", np.int64), ("index", np.int64), ("view", np.int64), ("weight", np.float32)):
        assert batch[name].shape == (3,) and batch[name].dtype == dtype
    assert batch["aug"]["color_jitter"].shape == (3, 4)
    assert batch["errors"] == []


def test_views_and_repeats_of_a_record_are_decoded_once(motion):
    reader = CountingReader(build_reader("pyav"))
    dataset = dataset_of(motion, VALID, reader)
    keys = [SampleKey(0, 5, 4, 32, view=view) for view in range(6)]
    batch = dataset.read_batch(keys)
    assert reader.opened == [dataset.records[5].source]
    (decoded,) = reader.decoded
    assert 4 < len(decoded) == len(set(decoded)) <= 8  # two clips of four frames, three crops from the same pictures
    assert batch["view"].tolist() == [0, 1, 2, 3, 4, 5]
    for row, key in enumerate(keys):
        np.testing.assert_array_equal(batch["clip"][row], dataset[key]["clip"])
    reader = CountingReader(build_reader("pyav"))
    dataset = dataset_of(motion, TRAIN, reader)
    dataset.read_batch([SampleKey(0, index, 4, 32, repeat=repeat) for index in (2, 7) for repeat in (0, 1, 2)])
    assert reader.opened == [dataset.records[2].source, dataset.records[7].source]


def test_an_unreadable_row_repeats_a_good_one_with_weight_zero(motion, tmp_path):
    (tmp_path / "noise.mp4").write_bytes(b"no video at all")
    extra = [
        VideoRecord(str(tmp_path / "gone.mp4"), 1, origin="list.txt:17"),
        VideoRecord(str(tmp_path / "noise.mp4"), 2, origin="list.txt:18"),
        load_annotations(motion / "train.txt")[0]._replace(start=90.0, origin="list.txt:19"),
    ]
    dataset = dataset_of(motion, extra=extra)
    batch = dataset.read_batch(keys_of([16, 3, 17, 18, 4]))
    good = dataset.read_batch(keys_of([3, 4]))
    assert batch["weight"].tolist() == [0, 1, 0, 0, 1]
    assert batch["index"].tolist() == [16, 3, 17, 18, 4]
    for row, source in enumerate([0, 0, 0, 0, 1]):
        np.testing.assert_array_equal(batch["clip"][row], good["clip"][source])
        assert batch["target"][row] == good["target"][source]
        np.testing.assert_array_equal(batch["aug"]["color_jitter"][row], good["aug"]["color_jitter"][source])
    missing, noise, late = batch["errors"]
    assert missing.startswith("list.txt:17: ") and "gone.mp4: does not exist" in missing
    assert noise.startswith("list.txt:18: ") and "noise.mp4: not a video file" in noise
    assert late.startswith("list.txt:19: ") and late.count("list.txt") == 1 and "is outside the video" in late


def test_a_record_that_fails_is_one_error_however_many_rows_it_has(motion):
    dataset = dataset_of(motion, VALID, extra=[VideoRecord("/gone.mp4", 1, origin="list.txt:17")])
    keys = [SampleKey(0, index, 4, 32, view=view) for index in (16, 0) for view in range(6)]
    batch = dataset.read_batch(keys)
    assert len(batch["errors"]) == 1
    assert batch["weight"].tolist() == [0] * 6 + [1] * 6
    assert batch["view"].tolist() == [*range(6), *range(6)]


def test_a_batch_without_a_good_row_is_black_and_weighs_nothing(motion):
    extra = [VideoRecord("/gone.mp4", 1, origin="list.txt:17"), VideoRecord("/lost.mp4", 5, origin="list.txt:18")]
    dataset = dataset_of(motion, extra=extra)
    batch = dataset.read_batch(keys_of([16, 17]))
    usual = dataset.read_batch(keys_of([0, 1]))
    assert batch.keys() == usual.keys()
    for name in ("clip", "target", "index", "view", "weight"):
        assert batch[name].shape == usual[name].shape and batch[name].dtype == usual[name].dtype, name
    assert batch["aug"]["color_jitter"].shape == (2, 4)
    assert not batch["clip"].any() and batch["weight"].tolist() == [0, 0] and len(batch["errors"]) == 2


def test_a_row_below_zero_is_read_and_weighs_nothing(motion):
    dataset = dataset_of(motion, extra=[VideoRecord("/gone.mp4", 1, origin="list.txt:17")])
    for row in (0, 5):
        batch = dataset.read_batch([SampleKey(0, ~row, 4, 32)])
        usual = dataset.read_batch([SampleKey(0, row, 4, 32)])
        np.testing.assert_array_equal(batch["clip"], usual["clip"])
        assert batch["weight"].tolist() == [0] and batch["index"].tolist() == [~row]
        assert batch["weight"].dtype == np.float32
    batch = dataset.read_batch(keys_of([~16, 3]))
    assert batch["errors"] == [] and batch["weight"].tolist() == [0, 1]  # told by the rank whose row it is
    assert dataset.read_batch(keys_of([16, 3]))["errors"]


def test_collate_keeps_nested_names():
    parts = [{"a": np.array(n), "b": {"c": np.zeros(2), "d": {"e": np.float32(n)}}} for n in range(3)]
    joined = collate(parts)
    assert joined["a"].tolist() == [0, 1, 2]
    assert joined["b"]["c"].shape == (3, 2) and joined["b"]["d"]["e"].tolist() == [0, 1, 2]


def test_what_goes_to_workers_can_be_pickled(motion):
    dataset = dataset_of(motion, labels={0: 1, 1: 0})
    key = SampleKey(0, 0, 4, 32)
    same(pickle.loads(pickle.dumps(dataset))[key], dataset[key])
    assert pickle.loads(pickle.dumps(View([1, 2]))).indices == [1, 2]


class DamagedVideo:
    """A video of which only the first frames decode, however many are asked for."""

    def __init__(self, video, promised, decodable, damage):
        self.video, self.decodable, self.damage = video, decodable, damage
        self.info = video.info._replace(num_frames=promised)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.video.close()

    def read(self, views, size):
        if max(max(view.indices) for view in views) >= self.decodable:
            raise DamagedVideoError("damaged.mp4", "decoding stopped", self.decodable)
        return self.video.read(views, size)


class DamagedReader:
    def __init__(self, decodable, damage=None):
        self.reader, self.decodable, self.damage, self.asked = build_reader("pyav"), decodable, damage, []

    def open(self, source):
        return self.open_first(source, 50)

    def open_first(self, source, num_frames):
        self.asked.append(num_frames)
        return DamagedVideo(self.reader.open(source), num_frames, self.decodable, self.damage)


def test_what_decodes_of_a_damaged_video_is_used_on_request_only(motion):
    key = SampleKey(0, 0, 4, 32)
    strict = dataset_of(motion, VALID, DamagedReader(3))
    with pytest.raises(DamagedVideoError, match="decoding stopped"):
        strict[key]
    reader = DamagedReader(3)
    dataset = dataset_of(motion, VALID, reader)
    dataset.use_what_decodes = True
    whole = build_reader("pyav").read(dataset.records[0].source, [0, 1, 1, 2])  # 3 frames in 4 segments, centres
    box = EvalCrop(36, 3)(whole.shape[2], whole.shape[1], 32, 0)[0]
    expected = build_reader("pyav").read(dataset.records[0].source, [0, 1, 1, 2], box, (32, 32))
    np.testing.assert_array_equal(dataset[key]["clip"], expected)
    assert reader.asked == [50, 3]


def test_a_video_of_which_nothing_decodes_ends_in_an_error(motion):
    reader = DamagedReader(0)
    dataset = dataset_of(motion, VALID, reader)
    dataset.use_what_decodes = True
    with pytest.raises(VideoError, match="not one frame decodes"):
        dataset[SampleKey(0, 0, 4, 32)]


def test_visible_damage_counts_as_unreadable_unless_what_decodes_is_wanted(motion):
    dataset = dataset_of(motion, VALID, DamagedReader(50, damage="the file ends in the middle"))
    with pytest.raises(DamagedVideoError, match="the file ends in the middle"):
        dataset[SampleKey(0, 0, 1, 32)]
