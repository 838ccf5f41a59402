"""Multigrid on two ranks: equal shares of every shape, one model, and the order that one rank goes on with.

16 records. Two coarse epochs of one step at 16 pixels, 16 clips, and then two full ones: 8 clips at 16 pixels, 4 at 23,
2 at 32, 2 at 16. The full batch, two clips, is one of each rank, or two of a rank alone.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from launched import ROOT, launch, logs
from small_runs import TOY, build, lines, losses, same, use_toy, watch_records, weights

from paddlevideo_fast.engine.train import train

COMMON = (
    "epochs=2",
    "multigrid={epoch_factor: 2, sub_batch: 2, long_cycle_shapes: [[0.5, 0.7071], [1, 1]]}",
    "schedule={name: step, milestones: [1]}",
    "checkpoint={every_steps: 4, keep: 99}",
    "optimizer.lr=0.02",
)
OVERRIDES = {"sub": [*COMMON, "data.batch_size=1", "model.norm=sub"], "toy": [*COMMON, *TOY, "data.batch_size=1"]}
STEPS = [(0, 16), (1, 16), *[(epoch, clips) for epoch in (2, 3) for clips in (8, 4, 2, 2)]]


@pytest.fixture(scope="module")
def runs(motion, tmp_path_factory) -> Path:
    """What tests/ranked_multigrid.py leaves behind."""
    folder = tmp_path_factory.mktemp("ranked")
    environment = {"MOTION": str(motion), "OVERRIDES": json.dumps(OVERRIDES)}
    done = launch(ROOT / "tests" / "ranked_multigrid.py", folder=folder, **environment)
    assert done.returncode == 0, done.stdout[-3000:] + logs(folder)
    return folder


def notes(folder: Path, part: str) -> list[dict]:
    return [json.loads((folder / f"{part}.{rank}.json").read_text()) for rank in (0, 1)]


def arrays(folder: Path, part: str) -> list[dict]:
    return [dict(np.load(folder / f"{part}.{rank}.npz")) for rank in (0, 1)]


def test_each_rank_has_half_of_every_step_and_every_record_counts_once(runs):
    ours, theirs = (note["seen"] for note in notes(runs, "whole.first"))
    for step, (epoch, clips) in enumerate(STEPS, 1):
        for rank in (ours, theirs):
            assert [entry[1] for entry in rank if entry[0] == step] == [epoch] * (clips // 2)
    for epoch in range(4):
        assert sorted(record for _, number, record in ours + theirs if number == epoch) == list(range(16))
    assert [row["clips"] for row in lines(runs / "whole", "train")] == [clips for _, clips in STEPS]


def test_the_ranks_end_with_one_model(runs):
    first, second = arrays(runs, "whole.first")
    same(first, second)
    assert all(np.isfinite(value).all() for value in first.values())


def test_batch_norm_takes_ranks_together_where_they_have_few_clips(runs):
    """Coarse clips are four of a rank, in parts of two. A full one is alone on its rank: two ranks together."""
    for note in notes(runs, "whole.first"):
        assert note["groups"] == [[[2, 1]]] * 2 + [[[1, 2]]] * 8


def test_a_run_cut_off_in_a_short_cycle_ends_as_if_never_stopped(runs):
    assert max(entry[0] for entry in notes(runs, "cut.first")[0]["seen"]) == 5
    assert min(entry[0] for entry in notes(runs, "cut.resumed")[0]["seen"]) == 5  # from the state of 4
    whole = arrays(runs, "whole.first")
    for rank, end in enumerate(arrays(runs, "cut.resumed")):
        same(end, whole[rank])


@pytest.fixture
def toy(monkeypatch):
    use_toy(monkeypatch)


def test_two_ranks_train_as_one_with_the_whole_batch(runs, motion, tmp_path, toy):
    alone = build(motion, tmp_path / "alone", *OVERRIDES["toy"], "data.batch_size=2")
    train(alone)
    np.testing.assert_allclose(losses(runs / "toy"), losses(tmp_path / "alone"), rtol=2e-5)
    same(arrays(runs, "toy.first")[0], weights(alone.model), rtol=1e-4, atol=1e-6)


def test_one_rank_goes_on_in_the_short_cycle_of_two(runs, motion, toy):
    """Left in the third epoch after a step of 8 clips and one of 4: two of 2 are to come, at 32 pixels and at 16."""
    run = build(motion, runs / "to_one", *OVERRIDES["toy"], "data.batch_size=2")
    seen = watch_records(run)
    train(run, resume=True)
    rows = lines(runs / "to_one", "train")
    assert [(row["frames"], row["crop"], row["clips"]) for row in rows[2:6]] == [
        (4, 16, 8), (4, 23, 4), (4, 32, 2), (4, 16, 2)
    ]  # fmt: skip
    before = [entry for note in notes(runs, "to_one.first") for entry in note["seen"] if entry[0] <= 4]
    assert sorted(record for _, epoch, record in before + seen if epoch == 2) == list(range(16))
    assert sorted({step for step, _, _ in seen}) == [5, 6, 7, 8, 9, 10]
    same(weights(run.model), arrays(runs, "toy.first")[0], rtol=1e-4, atol=1e-6)
