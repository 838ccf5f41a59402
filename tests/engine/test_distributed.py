"""Two processes over gloo against one: the same losses and weights, the same validation, and failures that end."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import paddle
import pytest
from launched import ROOT, launch, logs, processes_of
from small_runs import TOY, build, config_file, lines, losses, same, use_toy, weights

from paddlevideo_fast.engine.distributed import Ranks
from paddlevideo_fast.engine.train import train

SCRIPT = ROOT / "tests" / "ranked_train.py"


def short_list(motion: Path, folder: Path, rows: int) -> str:
    """An override: the first rows of the training list, without random crops to keep it simple."""
    path = folder / f"first_{rows}.txt"
    path.write_text("".join((motion / "train.txt").open().readlines()[:rows]))
    return f"data.train={{annotations: {path}, root: {motion}}}"


def both(motion, folder, alone, overrides, **options):
    """Trains with two ranks, and alone with the whole batch, from the same weights; returns the arrays of all three."""
    run = build(motion, folder / "alone", *overrides, f"data.batch_size={alone}", "accum_steps=1", validate=True)
    start = folder / "start.npz"
    np.savez(start, **weights(run.model))
    path = config_file(motion, folder / "ranked", *overrides)
    done = launch(SCRIPT, "-c", path, folder=folder, START=str(start), **options)
    assert done.returncode == 0, done.stdout[-3000:] + logs(folder)
    train(run)
    return weights(run.model), *(dict(np.load(folder / f"rank{rank}.npz")) for rank in (0, 1))


def test_with_sync_norm_two_ranks_equal_one(motion, tmp_path):
    # 15 clips in steps of 6, 6 and 3; in the last the ranks hold 2 clips and 1.
    overrides = ("model.norm=sync", "data.batch_size=3", short_list(motion, tmp_path, 15), "optimizer.lr=0.02")
    alone, first, second = both(motion, tmp_path, 6, overrides)
    same(first, second)
    np.testing.assert_allclose(losses(tmp_path / "ranked"), losses(tmp_path / "alone"), rtol=1e-5)
    assert len(losses(tmp_path / "alone")) == 6
    same(first, alone, rtol=1e-4, atol=1e-5)
    ours, theirs = lines(tmp_path / "ranked", "valid"), lines(tmp_path / "alone", "valid")
    assert [row["num_samples"] for row in ours] == [8, 8]
    assert [row["loss"] for row in ours] == pytest.approx([row["loss"] for row in theirs], rel=1e-4)


def test_accumulation_over_two_ranks_equals_one_batch(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    # 13 clips in steps of 8 and 5; the last step's second batch is one clip: the second rank has none.
    overrides = (*TOY, "data.batch_size=2", "accum_steps=2", short_list(motion, tmp_path, 13), "ema={decay: 0.9}")
    alone, first, second = both(motion, tmp_path, 8, overrides)
    same(first, second)
    np.testing.assert_allclose(losses(tmp_path / "ranked"), losses(tmp_path / "alone"), rtol=1e-5)
    assert len(losses(tmp_path / "alone")) == 4
    same(first, alone, rtol=1e-4, atol=1e-6)


def test_with_local_norm_the_ranks_agree_and_the_test_repeats_the_validation(motion, tmp_path):
    overrides = ("data.batch_size=4", "epochs=1", "model.dropout=0.5")
    path = config_file(motion, tmp_path / "run", *overrides)
    done = launch(SCRIPT, "-c", path, folder=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + logs(tmp_path)
    first, second = (dict(np.load(tmp_path / f"rank{rank}.npz")) for rank in (0, 1))
    same(first, second)  # batch norm statistics among them
    best = tmp_path / "run" / "checkpoints" / "best.pdparams"
    same({name: value.numpy() for name, value in paddle.load(str(best)).items()}, first)
    test = [f"data.test.annotations={motion / 'valid.txt'}", f"output_dir={tmp_path / 'test'}", "data.num_workers=1"]
    done = launch(ROOT / "tools" / "test.py", "-c", path, "-w", best, "-o", *test, folder=tmp_path / "two")
    assert done.returncode == 0, done.stdout[-3000:] + logs(tmp_path / "two")
    two = json.loads((tmp_path / "test" / "results.json").read_text())
    (valid,) = lines(tmp_path / "run", "valid")
    for name in ("top1", "top5", "mean_class_accuracy", "num_samples", "num_views"):
        assert two[name] == pytest.approx(valid[name], rel=1e-6)
    assert two["loss"] == pytest.approx(valid["loss"], rel=1e-6)

    alone = subprocess.run(
        [sys.executable, ROOT / "tools" / "test.py", "-c", path, "-w", best, "-o", *test],
        capture_output=True,
        text=True,
    )
    assert alone.returncode == 0, alone.stderr
    assert json.loads((tmp_path / "test" / "results.json").read_text()) == two


@pytest.mark.parametrize(
    ("fault", "message"),
    [("raise", "error: the fault of the second rank"), ("nan", "error: the loss is not finite since step 2 on rank 1")],
)
def test_a_fault_of_one_rank_ends_the_run_with_a_message(motion, tmp_path, fault, message):
    path = config_file(motion, tmp_path / "run", *TOY, "data.num_workers=1")
    done = launch(SCRIPT, "-c", path, folder=tmp_path, BREAK=fault)
    assert done.returncode != 0
    assert message in done.stdout + done.stderr + logs(tmp_path)
    assert message in done.stdout + done.stderr  # and not only in a file
    assert "train.txt:" in logs(tmp_path) or fault == "raise"
    assert not (tmp_path / "rank0.npz").exists()
    deadline = time.monotonic() + 10
    while processes_of(path) and time.monotonic() < deadline:
        time.sleep(0.2)  # the reader processes of a rank that was shot notice it soon
    assert not processes_of(path)


def test_alone_nothing_is_exchanged():
    ranks = Ranks(0, 1)
    value = paddle.to_tensor([1.0, 2.0])
    assert ranks.sum(value) is value
    assert ranks.gather({"a": 1}) == [{"a": 1}]
    model = paddle.nn.Linear(1, 1)
    assert ranks.wrap_model(model) is model
    with ranks.no_sync(model):
        ranks.barrier()
