"""Batch norm statistics against the values that really went into the norms, alone, averaged and over two ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import paddle
import pytest
from launched import ROOT, launch, logs
from paddle import nn
from small_runs import ALONE, TOY, build, config, config_file, losses, same, use_toy, weights

from paddlevideo_fast.config import ConfigError
from paddlevideo_fast.engine import build as builder
from paddlevideo_fast.engine.distributed import Ranks
from paddlevideo_fast.engine.precise_bn import PreciseStatistics
from paddlevideo_fast.engine.tasks import Classification
from paddlevideo_fast.engine.train import train

SCRIPT = ROOT / "tests" / "ranked_train.py"
PRECISE = "precise_bn={num_batches: 3}"


class Batches:
    """Stands in for a loader: the same batches in every epoch."""

    def __init__(self, clips):
        self.sampler, self.clips, self.epochs = self, clips, []

    def seek(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        yield from ({"clip": paddle.to_tensor(clip), "aug": {}, "target": None} for clip in self.clips)


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Conv3D(3, 4, 3), nn.BatchNorm3D(4), nn.ReLU())
        self.second = nn.Sequential(nn.Conv3D(4, 5, 3), nn.BatchNorm3D(5), nn.Dropout(0.5))
        self.frozen = nn.BatchNorm3D(5, use_global_stats=True)

    def forward(self, clip):
        return self.frozen(self.second(self.first(clip)))


def as_inputs(batch):
    return {"clip": paddle.transpose(batch["clip"], [0, 4, 1, 2, 3])}


def watch_norms(model):
    """A list of (name, mean, biased variance) that every batch adds to for each norm it goes through."""
    seen = []

    def hook(name):
        def look(layer, inputs):
            values = inputs[0].numpy().astype(np.float64)
            axes = tuple(axis for axis in range(values.ndim) if axis != 1)
            seen.append((name, values.mean(axes), values.var(axes)))

        return look

    for name, layer in model.named_sublayers():
        if hasattr(layer, "_variance") and not layer._use_global_stats:
            layer.register_forward_pre_hook(hook(name))
    return seen


def averages(seen):
    """The state that plain averages over the batches make."""
    names = dict.fromkeys(name for name, _, _ in seen)
    parts = {name: [row for row in seen if row[0] == name] for name in names}
    return {
        f"{name}.{statistic}": np.mean([row[place] for row in rows], axis=0)
        for name, rows in parts.items()
        for place, statistic in ((1, "_mean"), (2, "_variance"))
    }


def statistics(state):
    return {name: value for name, value in state.items() if name.endswith(("._mean", "._variance"))}


def clips(count):
    rng = np.random.default_rng(1)
    return [rng.normal(number, 1 + number, (2, 5, 6, 7, 3)).astype(np.float32) for number in range(count)]


def test_true_averages_of_the_batches_by_hand():
    paddle.seed(0)
    model, loader = Net(), Batches(clips(5))
    before, seen = weights(model), watch_norms(model)
    model.eval()
    PreciseStatistics(loader, 3, Classification(2), as_inputs, ALONE).update(model, model, epoch=7)
    after = weights(model)
    expected = averages(seen)
    assert len(seen) == 2 * 3 and len(expected) == 4 and loader.epochs == [7]
    for name, value in expected.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    same({k: v for k, v in after.items() if k not in expected}, {k: v for k, v in before.items() if k not in expected})
    assert not model.training and not model.frozen.training
    assert [model.first[1]._momentum, model.second[1]._momentum] == [0.9, 0.9]


def test_no_more_batches_than_an_epoch_has():
    model = Net()
    seen = watch_norms(model)
    PreciseStatistics(Batches(clips(2)), 200, Classification(2), as_inputs, ALONE).update(model, model, 0)
    assert len(seen) == 2 * 2 and model.training
    np.testing.assert_allclose(model.first[1]._variance.numpy(), averages(seen)["first.1._variance"], rtol=1e-4)


def test_a_fault_leaves_the_momentum_as_it_was():
    model = Net()

    def broken(clip):
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        PreciseStatistics(Batches(clips(1)), 1, Classification(2), as_inputs, ALONE).update(model, broken, 0)
    assert model.first[1]._momentum == 0.9


def test_training_does_not_notice(motion, tmp_path):
    """The same batches, losses and weights as without; only the statistics are other ones."""
    runs = {name: build(motion, tmp_path / name, *more) for name, more in (("plain", ()), ("precise", (PRECISE,)))}
    for run in runs.values():
        train(run)
    assert losses(tmp_path / "plain") == losses(tmp_path / "precise")
    plain, precise = (weights(run.model) for run in runs.values())
    names = statistics(plain)
    same({k: v for k, v in plain.items() if k not in names}, {k: v for k, v in precise.items() if k not in names})
    assert all(not np.allclose(plain[name], precise[name]) for name in names)


def test_what_is_saved_and_resumed_has_them(motion, tmp_path):
    train(build(motion, tmp_path / "whole", PRECISE, "data.num_workers=1", validate=True))
    train(build(motion, tmp_path / "parts", PRECISE, "data.num_workers=1", validate=True), max_steps=4)  # an epoch
    resumed = build(motion, tmp_path / "parts", PRECISE, "data.num_workers=1", validate=True)
    train(resumed, resume=True)
    last = [paddle.load(str(tmp_path / name / "checkpoints" / "last.pdparams")) for name in ("whole", "parts")]
    whole, parts = ({name: value.numpy() for name, value in state.items()} for state in last)
    same(whole, parts)
    same(parts, weights(resumed.model))
    seen = watch_norms(resumed.model)
    resumed.model.train()
    resumed.precise_bn.loader.sampler.seek(1)
    for batch, _ in zip(resumed.precise_bn.loader, range(3)):
        resumed.model(resumed.augment({"clip": batch["clip"]})["clip"])
    for name, value in averages(seen).items():
        np.testing.assert_allclose(whole[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def test_averaged_weights_get_statistics_of_their_own(motion, tmp_path):
    run = build(motion, tmp_path, PRECISE, "ema={decay: 0.9}", validate=True)
    train(run)
    trained, averaged = statistics(weights(run.model)), statistics(weights(run.ema.model))
    assert all(not np.allclose(trained[name], averaged[name]) for name in trained)
    saved = paddle.load(str(tmp_path / "checkpoints" / "last.pdparams"))
    same({name: value.numpy() for name, value in saved.items()}, weights(run.ema.model))
    seen = watch_norms(run.ema.model)
    run.precise_bn.update(run.ema.model, run.ema.model, 1)
    for name, value in averages(seen).items():
        np.testing.assert_allclose(averaged[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("norm", ["local", "sync"])
def test_two_ranks_average_the_batches_of_both(motion, tmp_path, norm):
    overrides = (PRECISE, "epochs=1", "data.batch_size=2", f"model.norm={norm}", "ema={decay: 0.5}")
    path = config_file(motion, tmp_path / "run", *overrides)
    done = launch(SCRIPT, "-c", path, "--no-validate", folder=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + logs(tmp_path)
    saved = paddle.load(str(tmp_path / "run" / "checkpoints" / "last.pdparams"))
    found = {name: value.numpy() for name, value in saved.items()}

    alone = build(motion, tmp_path / "alone", *overrides, "model.norm=local", "data.batch_size=4")
    alone.model.set_state_dict(found)
    seen = watch_norms(alone.model)
    for keys in batches_of_two_ranks(motion, tmp_path, overrides, joined=norm == "sync"):
        batch = alone.dataset.read_batch(keys)
        alone.model(alone.augment({"clip": paddle.to_tensor(batch["clip"])})["clip"])
    assert len(seen) == len(statistics(found)) // 2 * (3 if norm == "sync" else 6)
    for name, value in averages(seen).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


def batches_of_two_ranks(motion: Path, folder: Path, overrides, joined: bool):
    """The keys of the first three batches of each rank; those of both ranks together where they are joined."""
    settings = config(motion, folder / "keys", *overrides)
    records = builder.build_records(settings, "train", "small run")
    changes = {"seed": settings.seed + 1, "accum_steps": 1, "drop_last": True}
    samplers = [builder.build_train_sampler(settings, records, Ranks(rank, 2), **changes) for rank in (0, 1)]
    for sampler in samplers:
        sampler.seek(0)
    for number, pair in enumerate(zip(*samplers)):
        if number < 3:
            yield from [pair[0] + pair[1]] if joined else pair


def test_a_model_without_batch_norm_is_told_so(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    with pytest.raises(ConfigError, match="small run: precise_bn: toy has no batch norm whose statistics training upd"):
        build(motion, tmp_path, *TOY, PRECISE)


def test_an_epoch_smaller_than_a_batch_is_one_batch(motion, tmp_path):
    run = build(motion, tmp_path, PRECISE, "data.batch_size=40")
    assert len(run.precise_bn.loader.sampler) == 1
