"""The training loop against loops written out by hand, and its promises: resume, skipping, stopping, logging."""

from __future__ import annotations

import json
import math

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from small_runs import TOY, build, lines, losses, no_failures, same, use_toy, weights

from paddlevideo_fast.data.samplers import SampleKey
from paddlevideo_fast.engine import train as engine
from paddlevideo_fast.engine.build import build_model
from paddlevideo_fast.engine.checkpoint import read_state
from paddlevideo_fast.engine.failures import TooManyFailuresError
from paddlevideo_fast.engine.log import RunLog
from paddlevideo_fast.engine.saver import save
from paddlevideo_fast.engine.train import NonFiniteLossError, train
from paddlevideo_fast.models.weights.load import read_weights

MEAN, STD = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
LINE_KEYS = {"phase", "epoch", "step", "loss", "lr", "batch_cost", "reader_cost", "ips"}


def epoch_batches(run, epoch, batch):
    """The batches of an epoch as the documents promise them: a permutation seeded by (seed, epoch), in order."""
    order = np.random.default_rng([run.config.seed, epoch]).permutation(len(run.records))
    for start in range(0, len(order), batch):
        keys = [SampleKey(epoch, int(index), 4, 32) for index in order[start : start + batch]]
        samples = [run.loader.dataset[key] for key in keys]
        clip = np.stack([sample["clip"] for sample in samples]).astype(np.float32)
        scale, shift = (np.array(v, np.float32) for v in ([1 / s for s in STD], [-m / s for m, s in zip(MEAN, STD)]))
        clip = (clip * scale + shift).transpose(0, 4, 1, 2, 3)
        yield paddle.to_tensor(clip), paddle.to_tensor(np.array([sample["target"] for sample in samples]))


def bare_loop(run, model, optimizer, batch, num_steps, clip_norm=None):
    """Trains as one would by hand; returns the mean loss of each step."""
    model.train()
    found, epoch = [], 0
    while len(found) < num_steps:
        for clip, target in epoch_batches(run, epoch, batch):
            rows = -paddle.take_along_axis(F.log_softmax(model(clip)), target.unsqueeze(1), 1)
            loss = rows.sum() * (1 / len(target))  # in this order, for equality to the last bit
            loss.backward()
            if clip_norm:
                paddle.nn.utils.clip_grad_norm_([p for p in model.parameters() if not p.stop_gradient], clip_norm)
            optimizer.step()
            optimizer.clear_grad()
            found.append(loss.item())
            if len(found) == num_steps:
                break
        epoch += 1
    return found


def twin(run):
    """A second model with the weights the run starts from."""
    model = build_model(run.config)
    model.set_state_dict(run.model.state_dict())
    return model


@pytest.mark.parametrize("batch", [4, 6])  # 6 leaves a last batch of 4
def test_losses_and_weights_equal_a_bare_loop(motion, tmp_path, batch):
    run = build(motion, tmp_path, f"data.batch_size={batch}", "schedule={name: constant}", "optimizer.groups=uniform")
    model = twin(run)
    optimizer = paddle.optimizer.Momentum(0.05, 0.9, model.parameters(), weight_decay=5.0e-4)
    expected = bare_loop(run, model, optimizer, batch, 5)
    train(run, max_steps=5)
    np.testing.assert_allclose(losses(tmp_path), expected, rtol=1e-6)  # written with seven digits
    same(weights(run.model), weights(model))


def test_accumulation_equals_the_whole_batch_with_a_short_last_step(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    runs, start = {}, None
    for name, batch, accum in (("whole", 6, 1), ("parts", 3, 2), ("single", 1, 6)):
        out = tmp_path / name
        runs[name] = build(motion, out, *TOY, f"data.batch_size={batch}", f"accum_steps={accum}")
        start = start or weights(runs[name].model)
        runs[name].model.set_state_dict(start)
        train(runs[name])
        assert [row["step"] for row in lines(out)] == [1, 2, 3, 4, 5, 6]  # 16 clips: 6, 6 and 4, twice
    for name in ("parts", "single"):
        np.testing.assert_allclose(losses(tmp_path / name), losses(tmp_path / "whole"), rtol=3e-6)
        same(weights(runs[name].model), weights(runs["whole"].model), rtol=1e-4, atol=1e-7)


def test_repeats_count_in_the_mean_and_in_the_global_batch(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(
        motion, tmp_path, *TOY, "data.train.repeats=2", "optimizer.reference_batch=16", "optimizer.groups=uniform"
    )
    model = twin(run)
    assert run.global_batch == 8
    order = np.random.default_rng([0, 0]).permutation(16)[:4]
    samples = [run.loader.dataset[SampleKey(0, int(i), 4, 32, repeat=r)] for i in order for r in (0, 1)]
    assert not np.array_equal(samples[0]["clip"], samples[1]["clip"])  # two augmented copies
    clip = (np.stack([s["clip"] for s in samples]) - np.array(MEAN)) / np.array(STD)
    clip = paddle.to_tensor(clip.transpose(0, 4, 1, 2, 3).astype(np.float32))
    target = paddle.to_tensor(np.array([s["target"] for s in samples]))
    expected = F.cross_entropy(model(clip), target).item()
    train(run, max_steps=1)
    assert losses(tmp_path) == pytest.approx([expected], rel=1e-5)
    assert lines(tmp_path)[0]["lr"] == pytest.approx(0.05 * 8 / 16)


def test_reading_goes_on_from_one_epoch_to_the_next(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, "data.num_workers=1", "epochs=3")
    begun, plain = [], run.loader.read
    run.loader.read = lambda batches: begun.append(1) or plain(batches)
    epochs, read_batch = [], run.dataset.read_batch
    run.dataset.read_batch = lambda keys: epochs.append((run.progress.epoch, keys[0].epoch)) or read_batch(keys)
    train(run)
    assert begun == [1] and [epoch for _, epoch in epochs] == [0] * 4 + [1] * 4 + [2] * 4
    assert any(read > trained for trained, read in epochs)  # while the epoch before was trained
    run.progress.epoch = 1
    engine.train_one_epoch(run, RunLog(None, False), no_failures())
    assert begun == [1, 1] and run.progress.epoch == 2


def test_gradients_are_clipped_by_their_global_norm(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, "optimizer={name: sgd, lr: 0.5, clip_norm: 0.001}", "schedule={name: constant}")
    before = weights(run.model)
    train(run, max_steps=1)
    moved = np.concatenate([(weights(run.model)[name] - before[name]).ravel() for name in before])
    assert np.linalg.norm(moved) == pytest.approx(0.5 * 0.001, rel=1e-3)


def test_learning_rate_follows_the_schedule_and_the_scaling_rule(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(
        motion, tmp_path, *TOY, "data.batch_size=2", "accum_steps=2",
        "optimizer.lr=0.4", "optimizer.reference_batch=32",
        "schedule={name: cosine, warmup_epochs: 0.5, warmup_start_lr: 0.04, final_lr: 0.004}", "epochs=3",
    )  # fmt: skip
    train(run)
    expected = []
    for step in range(12):  # 4 steps of 4 clips an epoch
        epoch = step / 4
        if epoch < 0.5:
            rate = 0.04 + (0.4 - 0.04) * epoch / 0.5
        else:
            rate = 0.004 + (0.4 - 0.004) * (1 + math.cos(math.pi * (epoch - 0.5) / 2.5)) / 2
        expected.append(rate * 4 / 32)
    assert [row["lr"] for row in lines(tmp_path, "train")] == pytest.approx(expected, rel=1e-6)


def test_every_line_says_what_it_promises(motion, tmp_path):
    run = build(motion, tmp_path, "log.interval=3", "epochs=2", validate=True)
    train(run)
    train_lines, valid_lines = lines(tmp_path, "train"), lines(tmp_path, "valid")
    assert [row["step"] for row in train_lines] == [3, 4, 6, 8]  # every third step, and the end of each epoch
    assert [row["epoch"] for row in train_lines] == [1, 1, 2, 2]
    assert all(row.keys() >= LINE_KEYS for row in train_lines)
    assert all(0 <= row["reader_cost"] <= row["batch_cost"] and row["ips"] > 0 for row in train_lines)
    assert [(row["epoch"], row["step"]) for row in valid_lines] == [(1, 4), (2, 8)]
    assert all(row["num_samples"] == 8 and row["num_failed"] == 0 for row in valid_lines)
    assert (tmp_path / "config.yaml").is_file()


def test_an_interval_holds_the_mean_over_its_clips(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    for interval in (1, 100):
        run = build(motion, tmp_path / str(interval), *TOY, "data.batch_size=6", f"log.interval={interval}", "epochs=1")
        if interval == 1:
            start = weights(run.model)
        run.model.set_state_dict(start)
        train(run)
    one, two, three = losses(tmp_path / "1")
    assert losses(tmp_path / "100") == pytest.approx([(6 * one + 6 * two + 4 * three) / 16], rel=1e-5)


def make_loss_infinite(run, at_step):
    """From the given step on the task's losses are NaN."""
    plain, calls = run.task.loss, []

    def loss(outputs, batch):
        calls.append(1)
        return plain(outputs, batch) * (math.nan if len(calls) == at_step else 1.0)

    run.task.loss = loss


@pytest.mark.parametrize("interval", [1, 3])
def test_a_loss_that_is_not_finite_stops_the_run(motion, tmp_path, monkeypatch, interval):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, f"log.interval={interval}", "optimizer.lr=0.25", "schedule={name: constant}")
    make_loss_infinite(run, at_step=5)
    order = np.random.default_rng([0, 1]).permutation(16)[:4]  # step 5 is the first of the second epoch
    with pytest.raises(NonFiniteLossError) as caught:
        train(run)
    message = str(caught.value)
    assert "since step 5" in message and "learning rate 0.25" in message
    assert sorted(line.strip().split(": ")[0] for line in message.splitlines()[1:]) == sorted(
        f"train.txt:{index + 1}" for index in order
    )
    state = read_state(tmp_path / "checkpoints" / "step_00000004.pdstate")
    assert all(np.isfinite(value).all() for value in state["model"].values())
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.pdstate")] == ["step_00000004.pdstate"]
    assert [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()][-1]["loss"] == "nan"


@pytest.mark.parametrize("amp", [False, True])
def test_a_clip_of_nan_ends_the_run_and_leaves_the_checkpoints(motion, tmp_path, monkeypatch, amp):
    """The pixels are NaN in step 7 alone; with a loss scaler the message tells its scale too."""
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, "log.interval=1", "optimizer.lr=0.25", "schedule={name: constant}", "epochs=9")
    spoil_clip(run, at_step=7)
    if amp:
        run.precision.scaler = UnitScaler()
    order = np.random.default_rng([0, 1]).permutation(16)[8:12]  # the third step of the second epoch
    with pytest.raises(NonFiniteLossError) as caught:
        train(run)
    message, *clips = str(caught.value).splitlines()
    assert "since step 7, learning rate 0.25" in message and ("loss scale 8192" in message) == amp
    assert sorted(line.strip().split(": ")[0] for line in clips) == sorted(f"train.txt:{i + 1}" for i in order)
    assert all(".mp4" in line for line in clips)
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.pdstate")] == ["step_00000004.pdstate"]
    for name in ("step_00000004.pdstate", "last.pdparams"):
        assert all(np.isfinite(value).all() for value in read_weights(tmp_path / "checkpoints" / name).values())
    assert json.loads((tmp_path / "checkpoints" / "last.json").read_text())["step"] == 4


@pytest.mark.parametrize("amp", [False, True])
def test_a_clip_of_nan_is_passed_over_by_policy(motion, tmp_path, monkeypatch, caplog, amp):
    use_toy(monkeypatch)
    monkeypatch.setattr(engine.logger, "propagate", True)
    run = build(motion, tmp_path, *TOY, "log.interval=1", "nonfinite={policy: skip}", "epochs=2")
    spoil_clip(run, at_step=7)
    if amp:
        run.precision.scaler = UnitScaler()
    order = np.random.default_rng([0, 1]).permutation(16)[8:12]
    train(run)
    assert (run.progress.step, run.progress.nonfinite, run.progress.trained) == (8, 1, 28)
    (said,) = [record.message for record in caplog.records if "skipped" in record.message]
    assert said.startswith("step 7 skipped: the loss or a gradient is not finite (1 of at most ")
    assert all(f"train.txt:{index + 1}: " in said for index in order)
    assert ("loss scale 8192" in said) == amp and "learning rate" in said
    assert all(np.isfinite(value).all() for value in weights(run.model).values())


def test_weights_that_break_behind_a_finite_loss_end_the_run_at_the_next_line(motion, tmp_path):
    run = build(motion, tmp_path, "epochs=3", "log.interval=3")
    spoil_clip(run, at_step=7)  # whose NaN the first ReLU makes 0, and the first convolution's gradient does not
    with pytest.raises(NonFiniteLossError) as caught:
        train(run)
    message, *clips = str(caught.value).splitlines()
    assert math.isfinite(losses(tmp_path)[-1])
    assert "since one of the steps 7 to 8, the first backbone.conv1.weight, though the loss is" in message
    order = np.random.default_rng([0, 1]).permutation(16)[8:]
    assert sorted(line.strip().split(": ")[0] for line in clips) == sorted(f"train.txt:{i + 1}" for i in order)
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.pdstate")] == ["step_00000004.pdstate"]


def test_a_step_left_out_leaves_the_batch_statistics_alone(motion, tmp_path, monkeypatch):
    run = build(motion, tmp_path, "nonfinite={policy: skip}", "epochs=1", "log.interval=1")
    spoil_clip(run, at_step=2)
    seen = []
    plain = engine.report
    monkeypatch.setattr(engine, "report", lambda *args: (seen.append(weights(run.model)), plain(*args)))
    train(run)  # and saves at its end, which it would not with a statistic that is not finite
    assert any(name.endswith("_variance") for name in seen[0])
    same(seen[0], seen[1])
    assert any((seen[1][name] != seen[2][name]).any() for name in seen[1] if name.endswith("_variance"))


class UnitScaler:
    """A loss scaler that says 8192 and leaves everything alone."""

    _found_inf = paddle.to_tensor([False])

    def scale(self, loss):
        return loss

    def unscale_(self, optimizer):
        pass

    def step(self, optimizer):
        optimizer.step()

    def update(self):
        pass

    def state_dict(self):
        return {"scale": np.array([8192], np.float32)}


def spoil_clip(run, at_step):
    """Makes one clip NaN in one step."""
    plain = run.augment

    def augment(batch, mix):
        batch = plain(batch, mix)
        if run.progress.step + 1 == at_step:
            batch["clip"][1] = math.nan
        return batch

    run.augment = augment


def test_a_step_that_is_skipped_changes_nothing(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, "nonfinite.policy=skip", "ema={decay: 0.5}", "epochs=1")
    make_loss_infinite(run, at_step=2)
    seen = []
    monkeypatch.setattr(engine, "report", lambda *args: seen.append((weights(run.model), weights(run.ema.model))))
    train(run)
    same(seen[0][0], seen[1][0])
    same(seen[0][1], seen[1][1])
    assert any((seen[1][0][name] != seen[2][0][name]).any() for name in seen[1][0])
    assert (run.progress.skipped, run.progress.nonfinite, run.progress.step, run.progress.trained) == (1, 1, 4, 12)
    assert run.ema.updates == 3


def test_too_many_skipped_steps_stop_the_run(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, "nonfinite={policy: skip, limit: 2}")
    monkeypatch.setattr(run.task, "loss", lambda outputs, batch: outputs.sum(axis=-1) * math.nan)
    with pytest.raises(NonFiniteLossError, match=r"in 3 steps, more than nonfinite.limit = 2.* step 3"):
        train(run)


def test_weights_that_are_not_finite_are_not_saved(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, "log.interval=100")
    train(run, max_steps=4)
    run.model.fc.bias.set_value(paddle.full([8], math.inf))
    with pytest.raises(NonFiniteLossError, match=r"1 arrays .* first fc.bias"):
        save(run, RunLog(None, False))
    run.progress.step += 1
    with pytest.raises(NonFiniteLossError):
        save(run, RunLog(None, False))
    assert len(list((tmp_path / "checkpoints").glob("*.pdstate"))) == 1


def broken_list(motion, tmp_path, num_broken):
    """The training list with its first rows naming files that are not there."""
    rows = (motion / "train.txt").read_text().splitlines()
    rows[:num_broken] = [f"train/missing_{number}.mp4 {number % 8}" for number in range(num_broken)]
    path = tmp_path / "broken.txt"
    path.write_text("\n".join(rows))
    return f"data.train={{annotations: {path}, root: {motion}}}"


def test_unreadable_files_are_left_out_of_the_mean_and_the_gradient(motion, tmp_path, monkeypatch, caplog):
    use_toy(monkeypatch)
    monkeypatch.setattr(engine.logger, "propagate", True)
    broken = broken_list(motion, tmp_path, 3)
    run = build(
        motion, tmp_path / "run", *TOY, broken, "data.batch_size=16", "epochs=2", "optimizer={name: sgd, lr: 0.1}",
        "schedule={name: constant}", "data.max_failed_share=0.2",
    )  # fmt: skip
    model = twin(run)
    clips, targets = [], []
    for index in range(3, 16):
        sample = run.loader.dataset[SampleKey(0, index, 4, 32)]
        clips.append((sample["clip"] - np.array(MEAN)) / np.array(STD))
        targets.append(sample["target"])
    rows = F.cross_entropy(
        model(paddle.to_tensor(np.stack(clips).transpose(0, 4, 1, 2, 3).astype(np.float32))),
        paddle.to_tensor(np.stack(targets)),
        reduction="none",
    )
    (rows.sum() / 16).backward()
    expected = {name: p.numpy() - 0.1 * p.grad.numpy() for name, p in model.named_parameters()}
    train(run, max_steps=1)
    assert losses(tmp_path / "run") == pytest.approx([rows.mean().item()], rel=1e-5)
    same(weights(run.model), expected, rtol=1e-4, atol=1e-6)
    reported = [record.message for record in caplog.records if "cannot read" in record.message]
    assert len(reported) == 3
    assert any("broken.txt:1: " in text and "missing_0.mp4" in text and "does not exist" in text for text in reported)


def test_a_batch_without_a_readable_file_is_no_broken_loss(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(
        motion, tmp_path / "run", *TOY, broken_list(motion, tmp_path, 4), "data.batch_size=1",
        "data.max_failed_share=1", "epochs=1",
    )  # fmt: skip
    train(run)
    found = losses(tmp_path / "run")
    assert len(found) == 16 and found.count("nan") == 4


def test_too_many_unreadable_files_stop_the_run(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path / "all", *TOY, broken_list(motion, tmp_path, 16))
    with pytest.raises(TooManyFailuresError, match=r"all of the first 8 .*broken.txt:\d+: .*missing_\d+.mp4: does not"):
        train(run)
    run = build(motion, tmp_path / "some", *TOY, broken_list(motion, tmp_path, 4), "data.max_failed_share=0.2")
    with pytest.raises(
        TooManyFailuresError, match=r"4 of the 16 reads of an epoch .* data.max_failed_share = 0.2 .*broken.txt"
    ):
        train(run)


def test_best_is_replaced_by_better_only(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, "epochs=4", validate=True)
    values = iter([0.5, 0.25, 0.5, 0.75])
    plain = run.task.summarize
    monkeypatch.setattr(run.task, "summarize", lambda *a, **k: {**plain(*a, **k), "top1": next(values)})
    saved = []
    plain_save = run.checkpoints.save_weights

    def save(name, state, facts):
        saved.append((name, facts["step"], facts["metrics"].get("top1")))
        return plain_save(name, state, facts)

    monkeypatch.setattr(run.checkpoints, "save_weights", save)
    train(run)
    assert [entry for entry in saved if entry[0] == "best"] == [("best", 4, 0.5), ("best", 16, 0.75)]
    assert [entry[1] for entry in saved if entry[0] == "last"] == [4, 8, 12, 16]
    assert run.progress.best == 0.75
    assert json.loads((tmp_path / "checkpoints" / "best.json").read_text())["metrics"]["top1"] == 0.75
    assert len(list((tmp_path / "checkpoints").glob("*.pdstate"))) == 2  # checkpoint.keep


def test_validation_and_checkpoints_at_their_intervals(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(
        motion,
        tmp_path,
        *TOY,
        "epochs=5",
        "valid_every_epochs=2",
        "checkpoint={every_epochs: 3, keep: 9}",
        validate=True,
    )
    train(run)
    assert [row["epoch"] for row in lines(tmp_path, "valid")] == [2, 4, 5]
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("*.pdstate")) == [
        "step_00000012.pdstate",
        "step_00000020.pdstate",
    ]


def test_without_validation_there_is_no_best(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    train(build(motion, tmp_path, *TOY, "epochs=1", validate=False))
    assert not lines(tmp_path, "valid")
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "last.json",
        "last.pdparams",
        "step_00000004.pdstate",
    ]


def test_the_averaged_weights_are_what_is_validated_and_saved(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, "ema={decay: 0.99}", "epochs=1", validate=True)
    train(run)
    for name in ("best", "last"):
        same(
            {k: v.numpy() for k, v in paddle.load(str(tmp_path / "checkpoints" / f"{name}.pdparams")).items()},
            weights(run.ema.model),
        )
    assert (weights(run.model)["fc.weight"] != weights(run.ema.model)["fc.weight"]).any()


def test_mixed_labels_train_towards_soft_targets(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, "augment.mixup_alpha=1.0", "task={name: classification, label_smoothing: 0.1}")
    train(run, max_steps=2)
    assert all(math.isfinite(loss) for loss in losses(tmp_path))
    assert "top1" not in lines(tmp_path)[0]  # which class a mixed clip has is not one answer


def test_visualdl_gets_the_same_numbers(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    train(build(motion, tmp_path, *TOY, "log={interval: 1, visualdl: true}"), max_steps=2)
    from visualdl import LogReader

    (file,) = (tmp_path / "visualdl").iterdir()
    points = LogReader(file_path=str(file)).get_data("scalar", "train/loss")
    assert [point.id for point in points] == [1, 2]
    assert [point.value for point in points] == pytest.approx(losses(tmp_path), rel=1e-6)


def test_the_log_is_closed_when_training_fails(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY)
    opened = []
    monkeypatch.setattr(engine, "RunLog", lambda *args, **kwargs: opened.append(RunLog(*args, **kwargs)) or opened[-1])
    monkeypatch.setattr(engine, "train_one_epoch", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(run)
    assert opened[0]._file.closed


def test_one_epoch_at_a_time(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY)
    with RunLog(None, False) as log:
        engine.train_one_epoch(run, log, no_failures())
    assert (run.progress.epoch, run.progress.position, run.progress.step) == (1, 0, 4)


def test_bad_files_raise_stops_at_the_first(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path / "run", *TOY, broken_list(motion, tmp_path, 1), "data.bad_files=raise")
    with pytest.raises(
        TooManyFailuresError, match=r"data.bad_files is raise. The first: broken.txt:1: .*missing_0.mp4"
    ):
        train(run)


def test_the_end_of_an_epoch_counts_what_failed(motion, tmp_path, monkeypatch, caplog):
    use_toy(monkeypatch)
    monkeypatch.setattr(engine.logger, "propagate", True)
    run = build(
        motion, tmp_path / "run", *TOY, broken_list(motion, tmp_path, 2), "epochs=1", "data.max_failed_share=0.2"
    )
    train(run)
    assert "2 of 16 reads failed so far and counted with weight 0: 2 records" in caplog.text


def test_the_batch_whose_loss_is_not_finite_is_kept(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    run = build(motion, tmp_path, *TOY, "log.interval=3")
    plain, broken_step = run.task.loss, 1
    spoil = lambda outputs, batch: plain(outputs, batch) * (math.nan if run.progress.step == broken_step else 1)  # noqa: E731
    monkeypatch.setattr(run.task, "loss", spoil)
    keys = None
    for number, step in enumerate(run.sampler.steps()):
        keys = step.micro_batches[0] if number == broken_step else keys
    with pytest.raises(NonFiniteLossError, match="since step 2"):
        train(run)
    with np.load(tmp_path / "nonfinite_step_2_rank_0.npz") as kept:
        assert kept["index"].tolist() == [key.index for key in keys]
        np.testing.assert_array_equal(kept["clip"], run.dataset.read_batch(keys)["clip"])
