"""Multigrid in the one training loop: shapes, rates and records of each step, statistics, states, and what is refused.

The schedule, of 16 records: three epochs of 2 frames in steps of 8 clips at 16 pixels, 4 at 23 and 4 at 23, then three
of 4 frames in steps of 4 at 16, 2 at 23 and 1 at 32, over and over; the last of them at a tenth of the rate.
"""

from __future__ import annotations

import math
import shutil

import numpy as np
import paddle
import pytest
from small_runs import TOY, build, lines, same, use_toy, watch_records, weights

from paddlevideo_fast.arguments import ArgumentError
from paddlevideo_fast.config import ConfigError
from paddlevideo_fast.data.samplers import SampleKey
from paddlevideo_fast.engine.banner import banner, phases
from paddlevideo_fast.engine.phase import enter_phase
from paddlevideo_fast.engine.train import train
from paddlevideo_fast.ops.norm import split_state, sub_batch_norms

GRID = (
    "epochs=3",
    "multigrid={epoch_factor: 2, sub_batch: 2, long_cycle_shapes: [[0.5, 0.7071], [1, 1]]}",
    "schedule={name: step, milestones: [2], warmup_epochs: 1, warmup_start_lr: 0.001}",
    "data.batch_size=1",
)
SUB = (*GRID, "model.norm=sub")
COARSE = [(2, 16, 8), (2, 23, 4), (2, 23, 4)]
FULL = [(4, 16, 4), (4, 23, 2), (4, 32, 1)] * 2 + [(4, 16, 2)]
STEPS = [*COARSE * 3, *FULL * 3]
PHASE_ENDS = {9: 3, 23: 5, 30: 6}  # step -> epoch


def test_each_step_has_its_shape_its_rate_and_its_records(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, *GRID)
    seen, shapes = watch_records(run), []
    plain = run.augment
    run.augment = lambda batch, mix: (shapes.append(list(batch["clip"].shape)), plain(batch, mix))[1]
    train(run)
    assert shapes == [[clips, frames, crop, crop, 3] for frames, crop, clips in STEPS]
    rows = lines(tmp_path, "train")
    assert [(row["frames"], row["crop"], row["clips"]) for row in rows] == STEPS
    warm_up = [0.001 + (0.2 - 0.001) * done for done in (0, 8 / 16, 12 / 16)]  # to 4 times the rate of full clips
    rates = warm_up + [0.2] * 6 + [0.05] * 14 + [0.005] * 7
    assert [row["lr"] for row in rows] == pytest.approx(rates, rel=1e-6)
    for epoch in range(6):
        assert sorted(record for _, number, record in seen if number == epoch) == list(range(16))
    assert (run.epochs, run.progress.epoch, run.progress.step) == (6, 6, 30)


def test_the_batch_of_the_learning_rate_is_that_of_full_clips(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, *GRID, "accum_steps=2", "data.train.repeats=2", "optimizer.reference_batch=8")
    assert run.global_batch == 4
    assert run.learning_rate(2.0) == pytest.approx(4 * 0.05 * 4 / 8)
    train(run, max_steps=2)
    first = run.sampler
    first.seek(0)
    step = next(first.steps())
    assert [len(keys) for keys in step.micro_batches] == [16, 16]  # 8 x the full batch of 4, in two batches
    assert {(key.frames, key.crop) for keys in step.micro_batches for key in keys} == {(2, 16)}
    assert [row["clips"] for row in lines(tmp_path, "train")] == [32, 32]


def test_a_step_left_out_does_not_hold_the_rate_back(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, *GRID, "nonfinite.policy=skip")
    plain, calls = run.task.loss, []

    def loss(outputs, batch):
        calls.append(1)
        return plain(outputs, batch) * (math.nan if len(calls) == 4 else 1.0)

    run.task.loss = loss
    train(run, max_steps=10)
    assert run.progress.nonfinite == 1
    assert [row["lr"] for row in lines(tmp_path, "train")][7:] == pytest.approx([0.2, 0.2, 0.05], rel=1e-6)


def test_a_cosine_spans_the_longer_run_and_is_multiplied_by_the_batch(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, *GRID, "schedule={name: cosine}", "multigrid.milestones=[2]")
    for epoch, factor in ((0.0, 4), (1.5, 4), (3.0, 1), (4.5, 1), (5.75, 1)):
        assert run.learning_rate(epoch) == pytest.approx(factor * 0.05 * (1 + math.cos(math.pi * epoch / 6)) / 2)


def test_a_phase_ends_with_a_validation_of_full_clips_and_a_state(motion, tmp_path, monkeypatch, caplog):
    use_toy(monkeypatch)
    rare = ("valid_every_epochs=100", "checkpoint={every_epochs: 100, keep: 9}")
    run = build(motion, tmp_path, *TOY, *GRID, *rare, validate=True)
    assert {(key.frames, key.crop) for key in run.validation.loader.sampler.keys} == {(4, 32)}
    with caplog.at_level("INFO", "paddlevideo_fast"):
        train(run)
    assert {row["step"]: row["epoch"] for row in lines(tmp_path, "valid")} == PHASE_ENDS
    assert [int(path.stem.removeprefix("step_")) for path in run.checkpoints.states()] == list(PHASE_ENDS)
    said = [record.message for record in caplog.records if record.message.startswith("phase ")]
    assert said == [
        "phase 1/3, epochs 1 to 3: 2 frames, clips of a step: 8 of 16x16, 4 of 23x23, 4 of 23x23",
        "phase 2/3, epochs 4 to 5: 4 frames, clips of a step: 4 of 16x16, 2 of 23x23, 1 of 32x32",
        "phase 3/3, epochs 6 to 6: 4 frames, clips of a step: 4 of 16x16, 2 of 23x23, 1 of 32x32",
    ]
    assert "  6 epochs in the place of 3: " in caplog.text


def test_the_banner_tells_the_phases(motion, tmp_path):
    run = build(motion, tmp_path, *SUB)
    assert banner(run)["epochs"] == "6 in 3 phases over 16 records"
    assert banner(run)["clips"].startswith("up to 4 frames of 32x32")
    assert banner(run)["learning rate"] == "step, starts at 0.001, peak 0.2, not scaled to the batch"
    table = [" ".join(line.split()) for line in phases(run)]
    assert table[1].startswith("0-3 2 - 16/23/23 8/4/4 4 2 1 9 ")
    assert table[2].startswith("3-5 4 - 16/23/32 4/2/1 1 1 1 14 ")
    assert phases(build(motion, tmp_path / "plain")) == []


def test_the_time_left_goes_by_pixels(motion, tmp_path, monkeypatch):
    """After the first coarse epoch two more are left and three of full clips, whose steps have more pixels."""
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, *GRID)
    train(run, max_steps=3)
    coarse, full = (
        sum(f * s**2 * n for f, s, n in shapes) for shapes in (COARSE, [(4, 16, 4), (4, 23, 2), (4, 32, 1)])
    )
    assert run.schedule.pixels_left(run.epochs_done) * 16 == pytest.approx(2 * coarse + 3 * full * 16 / 7)


# --- batch norm


def parts(model) -> set[int]:
    return {layer.splits for _, layer in sub_batch_norms(model)}


def test_batch_norm_follows_the_phase_and_keeps_its_statistics(motion, tmp_path):
    run = build(motion, tmp_path, *SUB, "ema.decay=0.9")
    train(run, max_steps=9)
    assert parts(run.model) == {2}  # 4 clips of a rank in twos
    split = {name: value.numpy().reshape([2, -1]) for name, value in split_state(run.model).items()}
    layers = dict(sub_batch_norms(run.model))
    for name, layer in layers.items():
        means, variances = split[f"{name}.mean"].astype(np.float64), split[f"{name}.variance"].astype(np.float64)
        assert not np.allclose(means[0], means[1])
        mean = means.mean(0)
        np.testing.assert_allclose(layer._mean.numpy(), mean, rtol=1e-5, atol=1e-6, err_msg=name)
        expected = variances.mean(0) + ((means - mean) ** 2).mean(0)
        np.testing.assert_allclose(layer._variance.numpy(), expected, rtol=1e-5, atol=1e-6, err_msg=name)
    saved = {k: v.numpy() for k, v in paddle.load(str(tmp_path / "checkpoints" / "last.pdparams")).items()}
    whole = weights(run.model)
    statistics = {name for name in whole if name.endswith(("_mean", "_variance"))}
    same({name: saved[name] for name in statistics}, {name: whole[name] for name in statistics})
    same(weights(run.ema.model), saved)

    assert run.progress.epoch == 3
    enter_phase(run)  # full clips, one of a rank
    assert parts(run.model) == {1}
    same(weights(run.model), whole)
    run.progress.epoch = 0
    enter_phase(run)
    for name, layer in layers.items():
        for part in layer._split_mean.numpy().reshape([2, -1]):
            np.testing.assert_array_equal(part, whole[f"{name}._mean"])


def test_precise_statistics_are_of_the_phases_own_shape(motion, tmp_path, monkeypatch):
    run = build(motion, tmp_path, *SUB, "precise_bn.num_batches=99", "ema.decay=0.5")
    sampler = run.precise_bn.loader.sampler
    for epoch, shape, batch in ((0, (2, 23), 4), (2, (2, 23), 4), (3, (4, 32), 1)):
        sampler.seek(epoch)
        batches = list(sampler)
        assert [len(keys) for keys in batches] == [batch] * (16 // batch)
        assert {(key.frames, key.crop) for keys in batches for key in keys} == {shape}
    epochs, plain = [], run.precise_bn.update

    def update(model, forward, epoch):
        epochs.append((epoch, parts(model)))
        plain(model, forward, epoch)
        for _, layer in sub_batch_norms(model):
            if layer.splits == 2:
                np.testing.assert_allclose(
                    layer._mean.numpy(), layer._split_mean.numpy().reshape([2, -1]).mean(0), rtol=1e-5, atol=1e-6
                )

    monkeypatch.setattr(run.precise_bn, "update", update)
    train(run)
    assert epochs[2] == (2, {2})  # at the end of a phase, before the next one's parts
    assert [epoch for epoch, _ in epochs] == [0, 1, 2, 3, 4, 5]


# --- resuming

CLOCK = ("batch_cost", "reader_cost", "ips", "eta_seconds", "memory_mb")
EVERYTHING = (
    *SUB,
    "model.dropout=0.5",
    "optimizer.clip_norm=1.0",
    "augment.mixup_alpha=0.8",
    "data.train.flip=0.5",
    "data.sampling={name: uniform, frame_stride: 2}",
    "log.interval=2",
)


def numbers(folder):
    return [{key: value for key, value in line.items() if key not in CLOCK} for line in lines(folder)]


@pytest.fixture(scope="module", params=["ema.decay=0.9", "precise_bn.num_batches=2"])
def unbroken(motion, tmp_path_factory, request):
    """A run that leaves a state after each step, and one that leaves none but those of its epochs."""
    folder = tmp_path_factory.mktemp("unbroken")
    for name, every in (("each", "checkpoint={every_steps: 1, keep: 99}"), ("whole", "checkpoint.keep=99")):
        run = build(motion, folder / name, *EVERYTHING, request.param, every, validate=True)
        train(run)
    return request.param, folder, run


def end(run):
    arrays = weights(run.model) | {name: value.numpy() for name, value in split_state(run.model).items()}
    return arrays | ({f"ema.{k}": v for k, v in weights(run.ema.model).items()} if run.ema else {})


@pytest.mark.parametrize("step", [2, 9, 11, 23])  # 9 and 23 end phases
def test_a_run_resumed_anywhere_ends_as_one_never_stopped(motion, tmp_path, unbroken, step):
    more, folder, whole = unbroken
    shutil.copytree(folder / "each", tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("step_*.pdstate"):
        if int(path.stem.removeprefix("step_")) > step:
            path.unlink()
    run = build(motion, tmp_path / "run", *EVERYTHING, more, "checkpoint.keep=99", validate=True)
    train(run, resume=True)
    assert run.progress == whole.progress
    same(end(run), end(whole))
    ours, theirs = numbers(tmp_path / "run"), numbers(folder / "whole")
    assert [row for row in ours if row["step"] > step + 1] == [row for row in theirs if row["step"] > step + 1]


# --- what is built, and what is refused


@pytest.mark.parametrize(
    ("model", "argument", "expected"),
    [
        ("{name: tsm_resnet18, num_classes: 8, width: 0.125}", "num_segments", None),
        ("{name: slowfast_resnet50, num_classes: 8, width: 0.125, alpha: 2}", "num_frames", None),
        ("{name: slow_resnet50, num_classes: 8, width: 0.125, num_frames: 4}", "num_frames", None),
        ("{name: vit_small_patch16, num_classes: 8, embed_dim: 24, depth: 1, num_heads: 2}", "grid", (2, 2, 2)),
    ],
)
def test_models_take_clips_of_any_length(motion, tmp_path, model, argument, expected):
    more = ("optimizer={name: adamw, lr: 0.001}",) if "vit" in model else ()
    run = build(motion, tmp_path, *GRID, f"model={model}", "ema.decay=0.9", *more)
    assert getattr(run.model, argument) == getattr(run.ema.model, argument) == expected
    short_only = "multigrid={long_cycle: false}"
    run = build(motion, tmp_path, *GRID, f"model={model}", short_only, *more)
    assert getattr(run.model, argument) == (expected or 4)


def test_clips_of_a_transformer_are_whole_patches(motion, tmp_path):
    model = "model={name: timesformer_base_patch16, num_classes: 8, embed_dim: 24, depth: 1, num_heads: 2}"
    size = ("data.crop_size=64", "data.valid.short_side=64", "data.test.short_side=64")
    run = build(motion, tmp_path, *GRID, model, *size, "data.num_frames=5")
    assert [phase.short_cycle for phase in run.schedule.phases[:2]] == [
        ((32, 8), (48, 4), (48, 4)),  # 2 of 5 frames (2.5 is rounded to even) at 48 of 64 pixels: 4.4 clips for one
        ((32, 4), (48, 2), (64, 1)),
    ]
    model = "model={name: vit_small_patch16, num_classes: 8, embed_dim: 24, depth: 1, num_heads: 2, patch_size: 8}"
    run = build(motion, tmp_path, *GRID, model, *size, "data.num_frames=6")
    assert {(phase.num_frames, phase.crop_size) for phase in run.schedule.phases} == {(4, 48), (6, 64)}


def test_crops_and_strides_keep_what_a_clip_shows(motion, tmp_path):
    rules = ("data.train.crop={name: random_short_side, short_side: [36, 40]}", "data.sampling={name: uniform}")
    recipe = build(motion, tmp_path, *SUB, *rules).dataset.recipe
    assert (recipe.crop.base_crop_size, recipe.sampling.base_frames) == (32, 4)
    recipe = build(motion, tmp_path, "data.batch_size=1", *rules).dataset.recipe
    assert (recipe.crop.base_crop_size, recipe.sampling.base_frames) == (None, None)
    given = "data.train.crop={name: random_short_side, short_side: [36, 40], base_crop_size: null}"
    recipe = build(motion, tmp_path, *SUB, given, "data.sampling={name: uniform, base_frames: 8}").dataset.recipe
    assert (recipe.crop.base_crop_size, recipe.sampling.base_frames) == (None, 8)


def test_a_clip_is_the_same_whoever_reads_it_at_whatever_shape(motion, tmp_path):
    run = build(motion, tmp_path, *SUB, "data.sampling={name: uniform, frame_stride: 2}")
    keys = [SampleKey(0, 3, 2, 16), SampleKey(0, 3, 4, 32), SampleKey(0, 3, 2, 16)]
    first, _, again = (run.dataset[key] for key in keys)
    np.testing.assert_array_equal(first["clip"], again["clip"])
    assert first["clip"].shape == (2, 16, 16, 3)


@pytest.mark.parametrize(
    ("overrides", "kind", "message"),
    [
        (["multigrid={long_cycle: false, short_cycle: false}"], ConfigError, "needs long_cycle, short_cycle or both"),
        (["multigrid.epoch_facto=1"], ConfigError, "multigrid.epoch_facto: unknown key .* did you mean 'epoch_factor'"),
        (["multigrid.cycle=twice"], ConfigError, "multigrid.cycle: 'twice' is not one of 'repeated' or 'single'"),
        (["multigrid.long_cycle_shapes=[[0.5]]"], ConfigError, r"multigrid.long_cycle_shapes.0: list should have"),
        (
            ["multigrid.long_cycle_shapes=[[0.5, 0.5]]"],
            ConfigError,
            "small run: multigrid.long_cycle_shapes: long_cycle_shapes must end with the full shape",
        ),
        (["multigrid.long_cycle_shapes=[[0.1, 1], [1, 1]]"], ConfigError, "long_cycle_shapes: the shape .* 0 frames"),
        (["multigrid.milestones=[1]"], ConfigError, "multigrid.milestones: remove this key; schedule.milestones are"),
        (["schedule={name: cosine, epochs: 3}"], ConfigError, "schedule.epochs: remove this key; with multigrid"),
        (["schedule={name: step, milestones: [5]}"], ConfigError, r"milestones must rise between 0 and epochs \(3\)"),
        (["schedule={name: step}"], ArgumentError, r"schedule \(step\): argument 'milestones' is missing"),
        (
            ["model={name: slowfast_resnet50, num_classes: 8, width: 0.125, alpha: 2, head: convolutional}"],
            ConfigError,
            "model.head: convolutional pools clips of one length; multigrid trains with adaptive",
        ),
        (
            ["model={name: i3d_resnet50, num_classes: 8}", "multigrid.long_cycle_shapes=[[0.2, 1], [1, 1]]"],
            ConfigError,
            "multigrid: .*the clip has 1 frame; .* pools pairs of frames",
        ),
        (["data.train.drop_last=true", "data.batch_size=4"], ConfigError, "16 records do not fill one step of 32"),
        (
            ["data.train.crop={name: random_short_side, short_side: [33, 40], base_crop_size: 48}"],
            ConfigError,
            r"data.train.crop.base_crop_size|a crop of 32 pixels does not fit in a short side of 22",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_so_is_refused(motion, tmp_path, overrides, kind, message):
    with pytest.raises(kind, match=message):
        build(motion, tmp_path, *GRID, *overrides)
