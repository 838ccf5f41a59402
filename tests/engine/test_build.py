"""From config to objects: names and values nobody offers end in one sentence that names the key."""

from __future__ import annotations

import numpy as np
import pytest
from small_runs import ALONE, TOY, build, config, use_toy

from paddlevideo_fast.arguments import ArgumentError
from paddlevideo_fast.config import ConfigError
from paddlevideo_fast.data.readers import IsolatedReader, VideoError
from paddlevideo_fast.data.samplers import SampleKey
from paddlevideo_fast.engine import build as module
from paddlevideo_fast.engine.distributed import Ranks


@pytest.mark.parametrize(
    ("override", "kind", "message"),
    [
        ("model.name=tsm_resnet19", ArgumentError, "unknown model 'tsm_resnet19'; did you mean 'tsm_resnet18'"),
        ("model.widht=1", ArgumentError, "model tsm_resnet18: unknown argument 'widht'; did you mean 'width'"),
        ("model.width=0.01", ConfigError, "model tsm_resnet18: width is 0.01"),
        ("model.shift_div=2", ConfigError, "model tsm_resnet18: shift_div is 2"),
        ("model.num_segments=5", ConfigError, "model.num_segments is 5, but data.num_frames is 4"),
        ("model.num_classes=null", ConfigError, "model.num_classes: this key is required"),
        (
            "model.num_classes=eight",
            ConfigError,
            "model.num_classes: must be a whole number of at least 1, given 'eight'",
        ),
        ("model.num_classes=7", ConfigError, "classes.txt has 8 class names, but model.num_classes is 7"),
        ("data.sampling.name=segments", ArgumentError, "unknown data.sampling 'segments'; did you mean 'segment'"),
        ("data.sampling.stride=2", ArgumentError, "data.sampling segment: unknown argument 'stride'"),
        ("data.sampling.num_clips=2", ConfigError, "data.sampling.num_clips: write it under data.valid or data.test"),
        (
            "data.sampling={name: uniform, frame_stride: 0}",
            ConfigError,
            "data.sampling uniform: frame_stride must be an",
        ),
        (
            "data.train.crop={name: multi_scale, scales: [2]}",
            ConfigError,
            "data.train.crop multi_scale: scales must be in",
        ),
        ("data.train.crop={name: random_resized, scale: 3}", ConfigError, "data.train.crop random_resized: "),
        (
            "data.train.crop={name: random_short_side, short_side: [16, 20]}",
            ConfigError,
            "data.train.crop random_short_side: a crop of 32 pixels does not fit in a short side of 16..20",
        ),
        ("data.train.drop_last=true", ConfigError, "data.train: drop_last leaves nothing: 16 records"),
        ("data.train.annotations=none.txt", ConfigError, "small run: data.train.annotations: none.txt: there is no /"),
        ("data.train.format=video_list", ValueError, "format 'video_list' is not one of auto, video"),
        ("data.reader=pyavv", ArgumentError, "reader 'pyavv'; did you mean 'pyav'"),
        ("data.std=[0.2, 0.2, 0.2]", ConfigError, "data.mean and data.std: std must be in units of 0..255"),
        ("optimizer.name=lamb", ArgumentError, "unknown optimizer 'lamb'"),
        ("optimizer.momentum=much", ArgumentError, "optimizer momentum: momentum must be a number, given 'much'"),
        ("schedule.name=linear", ArgumentError, "unknown schedule 'linear'"),
        ("schedule.warmup_epochs=9", ConfigError, r"schedule cosine: epochs must be above warmup_epochs \(9\), got 2"),
        ("schedule.base_lr=1", ConfigError, "schedule.base_lr: remove this key; its value, 0.05, comes from another"),
        (
            "task={name: classification, label_smoothing: 2}",
            ConfigError,
            "task classification: label_smoothing must be",
        ),
        ("task={name: classification, num_classes: 8}", ConfigError, "task.num_classes: remove this key"),
    ],
)
def test_a_config_that_cannot_be_built(motion, tmp_path, override, kind, message):
    more = ["data.batch_size=32"] if "drop_last" in override else []
    with pytest.raises(kind, match=message):
        build(motion, tmp_path, override, *more)


def test_a_phase_that_is_not_there(motion, tmp_path):
    settings = config(motion, tmp_path, "data.test=null")
    with pytest.raises(ConfigError, match="data.test: this key is required"):
        module.build_evaluation(settings, "test", "run.yaml", module.build_task(settings), ALONE)


def test_frames_and_size_of_the_data_reach_the_model(motion, tmp_path):
    assert module.build_model(config(motion, tmp_path)).num_segments == 4
    assert module.build_model(config(motion, tmp_path, "model.num_segments=null")).num_segments is None


def test_the_scaling_rule(motion, tmp_path):
    settings = config(motion, tmp_path, "optimizer.reference_batch=64", "schedule={name: constant}")
    assert module.build_learning_rate(settings, 256)(0.0) == pytest.approx(0.05 * 4)
    settings = config(motion, tmp_path, "schedule={name: constant}")
    assert module.build_learning_rate(settings, 256)(0.0) == pytest.approx(0.05)


def test_a_schedule_may_have_a_length_of_its_own(motion, tmp_path):
    settings = config(motion, tmp_path, "schedule={name: cosine, epochs: 4}")
    assert module.build_learning_rate(settings, 8)(2.0) == pytest.approx(0.05 / 2)


def test_the_global_batch(motion, tmp_path):
    run = build(motion, tmp_path, "data.batch_size=2", "accum_steps=3", "data.train.repeats=2")
    assert run.global_batch == 12
    sampler = module.TrainSampler(16, 2, 4, 32, repeats=2, accum_steps=3, ranks=2)
    assert sampler.records_per_step == 12


def test_an_evaluation_of_one_rank_has_its_share(motion, tmp_path):
    settings = config(motion, tmp_path, "data.valid.num_clips=2")
    data = module.build_evaluation(settings, "valid", "run.yaml", module.build_task(settings), Ranks(1, 3))
    assert [key.index for key in data.loader.sampler.keys] == [1, 1, 4, 4, 7, 7]
    assert data.num_views == 2


def test_mixing_makes_soft_targets_with_the_smoothing_of_the_task(motion, tmp_path):
    task = "task={name: classification, label_smoothing: 0.1}"
    plain = module.build_augment(config(motion, tmp_path, task), "train")
    assert plain.num_classes is None and plain.label_smoothing == 0
    mixed = module.build_augment(config(motion, tmp_path, task, "augment.cutmix_alpha=1"), "train")
    assert mixed.num_classes == 8 and mixed.label_smoothing == 0.1
    assert module.build_augment(config(motion, tmp_path, task, "augment.cutmix_alpha=1"), "valid").num_classes is None


def test_limits_and_the_time_limit_reach_the_reader(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    plain = build(motion, tmp_path, *TOY).dataset.reader
    assert not isinstance(plain, IsolatedReader)
    run = build(motion, tmp_path, *TOY, "data.read_timeout=7", "data.max_pixels=100", "data.reader=decord")
    reader = run.dataset.reader
    assert isinstance(reader, IsolatedReader) and reader.timeout == 7
    assert reader.reader.first.limits.max_pixels == reader.reader.second.limits.max_pixels == 100
    with pytest.raises(VideoError, match="max_pixels"):
        run.dataset[SampleKey(0, 0, 4, 32)]


def test_reading_in_a_child_gives_the_same_clips(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    runs = [build(motion, tmp_path, *TOY, *more) for more in ((), ("data.read_timeout=60",))]
    clips = [run.dataset[SampleKey(0, 3, 4, 32)]["clip"] for run in runs]
    np.testing.assert_array_equal(clips[0], clips[1])


def test_an_evaluation_never_uses_a_part_of_a_video(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, "data.bad_files=use_what_decodes", validate=True)
    assert run.dataset.use_what_decodes
    assert not run.validation.loader.dataset.use_what_decodes


def test_flips_to_classes_that_are_not_there_are_refused(motion, tmp_path):
    with pytest.raises(ConfigError, match="data.train.flip_labels: class 9, but model.num_classes is 8"):
        build(motion, tmp_path, "data.train.flip=0.5", "data.train.flip_labels={0: 9, 9: 0}")
