"""A resumed run continues to the last bit, refuses what is not its own, and never mixes with an earlier run."""

from __future__ import annotations

import numpy as np
import pytest
from small_runs import TOY, build, lines, losses, same, use_toy, weights

from paddlevideo_fast.engine.checkpoint import CheckpointError, read_state
from paddlevideo_fast.engine.train import train


def test_resume_continues_to_the_last_bit(motion, tmp_path):
    overrides = ("ema={decay: 0.9}", "epochs=3", "model.dropout=0.5", "data.train.flip=0.5", "augment.mixup_alpha=0.4")
    whole = build(motion, tmp_path / "whole", *overrides, validate=True)
    start = weights(whole.model)
    train(whole)
    first = build(motion, tmp_path / "parts", *overrides, validate=True)
    first.model.set_state_dict(start)
    first.ema.model.set_state_dict(start)
    train(first, max_steps=4)  # one epoch
    second = build(motion, tmp_path / "parts", *overrides, validate=True)
    train(second, resume=True)
    same(weights(second.model), weights(whole.model))
    same(weights(second.ema.model), weights(whole.ema.model))
    last = [read_state(sorted((tmp_path / name / "checkpoints").glob("*.pdstate"))[-1]) for name in ("whole", "parts")]
    assert last[0]["optimizer"].keys() == last[1]["optimizer"].keys()
    for key, value in last[0]["optimizer"].items():
        np.testing.assert_array_equal(value, last[1]["optimizer"][key], err_msg=key)
    assert last[0]["progress"] == last[1]["progress"]
    assert type(second.progress.best) is float
    timed = {"batch_cost", "reader_cost", "ips", "eta_seconds", "memory_mb"}
    cut = [
        [{k: v for k, v in row.items() if k not in timed} for row in lines(tmp_path / n)] for n in ("whole", "parts")
    ]
    assert cut[0] == cut[1]


@pytest.mark.parametrize("optimizer", ["{name: adamw, lr: 0.01, weight_decay: 0.1}", "{name: sgd, lr: 0.05}"])
def test_resume_in_mid_epoch_with_other_optimisers(motion, tmp_path, monkeypatch, optimizer):
    use_toy(monkeypatch)
    overrides = (*TOY, f"optimizer={optimizer}")
    whole = build(motion, tmp_path / "whole", *overrides)
    start = weights(whole.model)
    train(whole, max_steps=7)
    first = build(motion, tmp_path / "parts", *overrides)
    first.model.set_state_dict(start)
    assert (train(first, max_steps=2).epoch, first.progress.position) == (0, 8)
    second = build(motion, tmp_path / "parts", *overrides)
    train(second, resume=True, max_steps=7)
    same(weights(second.model), weights(whole.model))
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("model.width=0.25", "of another shape"),
        ("model.name=tsm_resnet50", "unknown|missing"),
        ("data.train.annotations={valid}", "number of records: 16, this run's: 8"),
        ("data.train.annotations={swapped}", "records: "),
        ("optimizer.name=adamw", "optimizer: momentum, this run's: adamw"),
        ("seed=3", "seed: 0, this run's: 3"),
        ("ema={decay: 0.9}", "averaged weights: False, this run's: True"),
    ],
)
def test_resume_refuses_the_state_of_another_run(motion, tmp_path, change, named):
    train(build(motion, tmp_path / "run"), max_steps=1)
    rows = (motion / "train.txt").read_text().splitlines()
    swapped = tmp_path / "swapped.txt"
    swapped.write_text("\n".join([*rows[:-2], rows[-1], rows[-2]]))
    change = change.replace("{valid}", str(motion / "valid.txt")).replace("{swapped}", str(swapped))
    extra = [f"data.train.root={motion}"] if "swapped" in change else []
    other = build(motion, tmp_path / "run", change, *extra)
    before = weights(other.model)
    with pytest.raises(CheckpointError, match=named):
        train(other, resume=True)
    same(weights(other.model), before)


def test_resume_of_a_finished_run_does_nothing(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    train(build(motion, tmp_path, *TOY))
    before = sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "checkpoints").iterdir())
    progress = train(build(motion, tmp_path, *TOY), resume=True)
    assert (progress.epoch, progress.step) == (2, 8)
    assert before == sorted((path.name, path.stat().st_mtime_ns) for path in (tmp_path / "checkpoints").iterdir())


def test_a_resumed_run_logs_every_step_once(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    train(build(motion, tmp_path, *TOY, validate=True), max_steps=4)
    with open(tmp_path / "metrics.jsonl", "a") as file:  # the run went on and was killed in the middle of a line
        file.write('{"phase": "train", "epoch": 2, "step": 5, "loss": 9}\n{"phase": "train", "epo')
    train(build(motion, tmp_path, *TOY, validate=True), resume=True)
    assert [row["step"] for row in lines(tmp_path, "train")] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [row["step"] for row in lines(tmp_path, "valid")] == [4, 8]
    assert 9 not in losses(tmp_path)


def test_a_fresh_run_does_not_mix_with_an_earlier_one(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    train(build(motion, tmp_path, *TOY, "epochs=3"))
    old = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    train(build(motion, tmp_path, *TOY), max_steps=1)
    assert {path.name for path in (tmp_path / "earlier_1" / "checkpoints").iterdir()} == old
    assert len(lines(tmp_path)) == 1
    assert [path.name for path in (tmp_path / "checkpoints").glob("*.pdstate")] == ["step_00000001.pdstate"]
