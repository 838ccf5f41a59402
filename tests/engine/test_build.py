"""From config to objects: names and values nobody offers end in one sentence that names the key."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
from small_runs import ALONE, TOY, build, config, config_file, use_toy

from paddlevideo_fast.arguments import ArgumentError
from paddlevideo_fast.config import ConfigError, load_config
from paddlevideo_fast.data.readers import IsolatedReader, VideoError
from paddlevideo_fast.data.samplers import SampleKey
from paddlevideo_fast.engine import build as module
from paddlevideo_fast.engine.distributed import Ranks
from paddlevideo_fast.schedule import SCHEDULES


@pytest.mark.parametrize(
    ("override", "kind", "message"),
    [
        ("model.name=tsm_resnet19", ArgumentError, "unknown model 'tsm_resnet19'; did you mean 'tsm_resnet18'"),
        (
            "model.widht=1",
            ArgumentError,
            r"model.widht \(tsm_resnet18\): unknown argument 'widht'; did you mean 'width'",
        ),
        ("model.width=0.01", ConfigError, r"small run: model.width \(tsm_resnet18\): width is 0.01"),
        ("model.shift_div=2", ConfigError, r"model.shift_div \(tsm_resnet18\): shift_div is 2"),
        ("model.num_segments=5", ConfigError, "model.num_segments is 5, but data.num_frames is 4"),
        (
            "model.num_classes=eight",
            ConfigError,
            "model.num_classes: must be a whole number of at least 1, given 'eight'",
        ),
        (
            "model={name: videomae_small, embed_dim: 24, depth: 1, num_heads: 2}",
            ConfigError,
            "model.name: videomae_small is no classifier, and classification needs one",
        ),
        ("model.num_classes=7", ConfigError, "classes.txt has 8 class names, but model.num_classes is 7"),
        ("data.sampling.name=segments", ArgumentError, "unknown data.sampling 'segments'; did you mean 'segment'"),
        ("data.sampling.stride=2", ArgumentError, r"data.sampling.stride \(segment\): unknown argument 'stride'"),
        ("data.sampling.num_clips=2", ConfigError, "data.sampling.num_clips: write it under data.valid or data.test"),
        (
            "data.sampling={name: uniform, frame_stride: 0}",
            ConfigError,
            r"data.sampling.frame_stride \(uniform\): frame_stride must be an",
        ),
        (
            "data.train.crop={name: multi_scale, scales: [2]}",
            ConfigError,
            r"data.train.crop.scales \(multi_scale\): scales must be in",
        ),
        (
            "data.train.crop={name: random_resized, scale: 3}",
            ArgumentError,
            r"data.train.crop.scale \(random_resized\): scale must be a list of 2 numbers, given 3",
        ),
        (
            "data.train.crop={name: random_resized, scale: [3, 4]}",
            ConfigError,
            r"data.train.crop.scale \(random_resized\): scale must be \(low, high\) with .* got \(3, 4\)",
        ),
        ("model.width=abc", ArgumentError, r"model.width \(tsm_resnet18\): width must be a number, given 'abc'"),
        (
            "model={name: i3d_resnet50, num_classes: 8, width: 0.125, head: convolutional_sigmoid}",
            ConfigError,
            "model.head: convolutional_sigmoid averages other probabilities; task classification takes convolutional$",
        ),
        ("model.norm=batch", ArgumentError, r"model.norm \(tsm_resnet18\): unknown norm 'batch'"),
        (
            "schedule={name: step, milestones: 3}",
            ArgumentError,
            r"schedule.milestones \(step\): milestones must be a list of numbers, given 3",
        ),
        ("schedule.name=step", ArgumentError, r"schedule \(step\): argument 'milestones' is missing. Arguments: mile"),
        (
            "data.train.crop={name: random_short_side, short_side: [16, 20]}",
            ConfigError,
            r"data.train.crop \(random_short_side\): a crop of 32 pixels does not fit in a short side of 16..20",
        ),
        (
            "data.train.crop={name: random_short_side, short_side: [36, 40], base_crop_size: 0}",
            ConfigError,
            r"data.train.crop.base_crop_size \(random_short_side\): base_crop_size must be at least 1 pixel, got 0",
        ),
        ("data.train.drop_last=true", ConfigError, "data.train.drop_last: drop_last leaves nothing: 16 records"),
        ("data.train.annotations=none.txt", ConfigError, "small run: data.train.annotations: none.txt: there is no /"),
        (
            "data.train.format=video_list",
            ArgumentError,
            "data.train.format: unknown format 'video_list'; did.* Valid names: auto, avion",
        ),
        ("data.reader=pyavv", ArgumentError, "data.reader.name: unknown data.reader 'pyavv'; did you mean 'pyav'"),
        ("data.fallback=pyavv", ArgumentError, "data.fallback: unknown reader 'pyavv'; did you mean 'pyav'"),
        (
            "data.reader={name: fused, thread: 2}",
            ArgumentError,
            r"data.reader.thread \(fused\): unknown argument 'thread'; did you mean 'threads'",
        ),
        (
            "data.reader={name: pyav, threads: two}",
            ArgumentError,
            r"data.reader.threads \(pyav\): threads must be a whole number, given 'two'",
        ),
        ("data.reader={name: pyav, threads: -1}", ArgumentError, "threads must be at least 0, given -1"),
        ("data.reader={name: frames, threads: 2}", ArgumentError, r"data.reader.threads \(frames\): unknown argument"),
        ("data.std=[0.2, 0.2, 0.2]", ConfigError, "data.std: std must be in units of 0..255"),
        ("optimizer.name=lamb", ArgumentError, "unknown optimizer 'lamb'"),
        (
            "optimizer.momentum=much",
            ArgumentError,
            r"optimizer.momentum \(momentum\): momentum must be a number, given 'much'",
        ),
        ("optimizer.momentum=5", ArgumentError, "momentum must be from 0 to below 1, given 5"),
        ("optimizer={name: adamw, lr: 1, beta2: 1.5}", ArgumentError, "beta2 must be from 0 to below 1, given 1.5"),
        ("optimizer.grad_clip=1", ArgumentError, "grad_clip is not given here; use optimizer.clip_norm"),
        (
            "optimizer.layer_decay=0.75",
            ConfigError,
            r"small run: optimizer.layer_decay \(momentum\): layer_decay is for models of one stack of blocks; this",
        ),
        ("schedule.name=linear", ArgumentError, "unknown schedule 'linear'"),
        (
            "schedule.warmup_epochs=9",
            ConfigError,
            r"schedule.warmup_epochs \(cosine\): epochs must be above warmup_epochs \(9\), got 2",
        ),
        ("schedule.base_lr=1", ConfigError, "schedule.base_lr: remove this key; its value, 0.05, comes from another"),
        (
            "task={name: classification, label_smoothing: 2}",
            ArgumentError,
            r"task.label_smoothing \(classification\): label_smoothing must be",
        ),
        ("task={name: classification, num_classes: 8}", ConfigError, "task.num_classes: remove this key"),
    ],
)
def test_a_config_that_cannot_be_built(motion, tmp_path, override, kind, message):
    more = ["data.batch_size=32"] if "drop_last" in override else []
    with pytest.raises(kind, match=message):
        build(motion, tmp_path, override, *more)


def test_an_unknown_key_is_told_what_can_be_given(motion, tmp_path):
    with pytest.raises(ArgumentError) as caught:
        build(motion, tmp_path, "optimizer.lrr=1")
    message = str(caught.value)
    assert "optimizer.lrr (momentum): unknown argument 'lrr'; did you mean 'lr'?" in message
    listing = message.split("Valid arguments: ")[1]
    assert listing.startswith(
        "lr, reference_batch, weight_decay, groups, layer_decay, clip_norm, momentum=0.9, use_nes"
    )
    assert not any(word in listing for word in ("parameters", "learning_rate", "grad_clip", "name"))
    with pytest.raises(ArgumentError) as caught:
        build(motion, tmp_path, "schedule.warmup=1")
    assert "base_lr" not in str(caught.value) and "warmup_epochs=0.0" in str(caught.value)


def test_the_option_that_gave_a_value_is_named(motion, tmp_path):
    path = config_file(motion, tmp_path / "run")
    with pytest.raises(ArgumentError) as caught:
        module.build_model(load_config(path, ["epochs=1", "model.width=abc"]))
    message = "-o model.width=abc: model.width (tsm_resnet18): width must be a number, given 'abc'."
    assert str(caught.value) == message
    with pytest.raises(
        ConfigError, match="^-o data.train.annotations=no.txt: data.train.annotations: no.txt: found ne"
    ):
        module.build_records(load_config(path, ["data.train.annotations=no.txt"]), "train", path)


NAMED = {
    "model": ({"tsm_resnet18": module.MODELS["tsm_resnet18"]}, "num_classes: 8, width: 0.125", module.build_model),
    "data.sampling": (module.SAMPLINGS, "", lambda config: module.build_recipe(config, "train")),
    "data.train.crop": (module.CROPS, "", lambda config: module.build_recipe(config, "train")),
    "schedule": (SCHEDULES, "milestones: [1]", lambda config: module.build_learning_rate(config, 8)(0.5)),
    "task": (module.TASKS, "", module.build_task),
    "data.reader": (module.READERS, "", module.build_configured_reader),
}


@pytest.mark.parametrize("value", ["abc", "1", "-1", "0", "null", "true", "[]", "[1, x]", "[2, 1]", "{a: 1}", ".nan"])
@pytest.mark.parametrize("section", NAMED)
def test_whatever_is_given_is_taken_or_refused_in_words(motion, tmp_path, section, value):
    path = config_file(motion, tmp_path / "run")
    table, needed, make = NAMED[section]
    for name, kind in table.items():
        accepted = inspect.signature(kind).parameters
        named = f"{section}={{name: {name}, {needed if needed.split(':')[0] in accepted else ''}}}"
        for argument in accepted:
            option = f"{section}.{argument}={value}"
            try:
                make(load_config(path, [named, option]))
            except (ArgumentError, ConfigError) as error:
                assert f"-o {option}: " in str(error) and section in str(error)
                assert not re.search(r"not supported|object|unexpected|iterable|convert|operand", str(error))


def test_numbers_as_text_reach_constructors_as_numbers(motion, tmp_path):
    settings = config(motion, tmp_path, "model.width='1.25e-1'", "schedule.final_lr='1e-3'")
    assert module.build_model(settings).backbone.out_channels == 64
    assert module.build_learning_rate(settings, 8)(2.0) == pytest.approx(1e-3)


def test_constructors_called_by_name_get_numbers_for_text_too():
    model = module.create_model("tsm_resnet18", num_classes=8, width="1.25e-1")
    assert model.backbone.out_channels == 64
    optimizer = module.build_optimizer(model, "momentum", 0.1, 0.0, "uniform", {"momentum": "8e-1"})
    assert optimizer._momentum == 0.8


def test_classes_are_counted_where_only_their_names_are_given(motion, tmp_path, caplog):
    with caplog.at_level("INFO", "paddlevideo_fast"):
        run = build(motion, tmp_path, "model.num_classes=null")
    assert run.config.model.arguments["num_classes"] == run.model.head.fc.weight.shape[1] == 8
    assert f"model.num_classes: 8, the class names in {motion}/classes.txt" in caplog.text
    settings = config(motion, tmp_path, "model.num_classes=null", "data.class_names=null")
    with pytest.raises(ConfigError, match="model.num_classes: this key is required, or data.class_names to count"):
        module.num_classes(module.count_classes(settings, "run.yaml"))


def test_a_folder_is_no_weights_and_its_weights_are_offered(motion, tmp_path):
    with pytest.raises(ConfigError, match=f"weights: {tmp_path} is a folder; and no weights are in it"):
        build(motion, tmp_path / "run", f"weights={tmp_path}")
    for name in ("step_1.pdstate", "best.pdparams"):
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        (tmp_path / "checkpoints" / name).touch()
    offer = f"name a file in it: {tmp_path}/checkpoints/best.pdparams, {tmp_path}/checkpoints/step_1.pdstate"
    with pytest.raises(ConfigError) as caught:
        module.weights_file(tmp_path, "-w")
    assert str(caught.value) == f"-w: {tmp_path} is a folder; {offer}"


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


def test_arguments_of_the_reader_reach_it_and_its_fallback(motion, tmp_path):
    made = module.build_configured_reader(config(motion, tmp_path, "data.reader={name: decord, threads: 3}"))
    assert (made.first.threads, made.second.threads, made.second.name) == (3, 3, "pyav")
    made = module.build_configured_reader(config(motion, tmp_path, "data.reader={threads: 2}", "data.max_frames=9"))
    assert (made.name, made.threads, made.limits.max_frames) == ("fused", 2, 9)
    twice = config(motion, tmp_path, "data.reader={name: pyav, max_pixels: 5}", "data.max_pixels=100")
    with pytest.raises(ConfigError, match="data.reader.max_pixels: remove this key; its value, 100, comes from anoth"):
        module.build_configured_reader(twice)


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


def test_rand_augment_and_dali_do_not_go_together(motion, tmp_path):
    with pytest.raises(
        ConfigError, match="data.train.rand_augment: works on frames in the host's memory, where data.re"
    ):
        build(motion, tmp_path, "data.train.rand_augment=rand-m7-n4-mstd0.5-inc1", "data.reader=dali")


def test_rand_augment_reaches_the_clips_of_training(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    policy = "data.train.rand_augment={magnitude: 9, num_layers: 3, probability: 1.0}"
    plain, augmented = (build(motion, tmp_path, *TOY, *more, validate=True) for more in ((), (policy,)))
    keys = [SampleKey(0, index, 4, 32) for index in range(4)]
    clips, changed = (run.dataset.read_batch(keys) for run in (plain, augmented))
    assert all((one != other).any() for one, other in zip(clips["clip"], changed["clip"]))
    assert (clips["target"] == changed["target"]).all()
    views = [run.validation.loader.dataset[keys[0]]["clip"] for run in (plain, augmented)]
    np.testing.assert_array_equal(*views)


def test_an_evaluation_crop_that_the_model_cannot_take_is_told_before_training(motion, tmp_path):
    vit = "model={name: vit_small_patch16, num_classes: 8, embed_dim: 24, depth: 1, num_heads: 2}"
    message = r"small run: data.valid.crop_size.*4 frames of 40x40 cannot be cut into patches of 2 frames of 16x16"
    with pytest.raises(ConfigError, match=message):
        build(
            motion,
            tmp_path / "run",
            vit,
            f"data.valid={{annotations: {motion}/valid.txt, crop_size: 40}}",
            validate=True,
        )
    assert build(motion, tmp_path / "run", vit, validate=True).model.training
