"""Two ranks stopped in an epoch and resumed, to the last bit or with another number; and a broken step of one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from launched import ROOT, launch, logs
from small_runs import build, lines, same, watch_records

from paddlevideo_fast.engine.checkpoint import Checkpoints
from paddlevideo_fast.engine.train import train

# 15 records, 2 epochs. Two ranks take steps of 4 (1 x 2 ranks x 2 accumulated), 4, 4 and 3; one rank takes 2 at a time.
RECORDS, EPOCHS = 15, 2
OVERRIDES = (
    f"epochs={EPOCHS}",
    "data.batch_size=1",
    "accum_steps=2",
    "ema.decay=0.9",
    "model.dropout=0.5",
    "optimizer.clip_norm=1.0",
    "augment.mixup_alpha=0.8",
    "data.train.flip=0.5",
    "checkpoint={every_steps: 6, keep: 9}",
    "log.interval=3",
)


@pytest.fixture(scope="module")
def runs(motion, tmp_path_factory) -> Path:
    """What tests/ranked_resume.py leaves behind; ``to_two`` it takes over from a run of one rank that ends here."""
    folder = tmp_path_factory.mktemp("ranked")
    rows = folder / "rows.txt"
    rows.write_text("".join((motion / "train.txt").open().readlines()[:RECORDS]))
    overrides = [*OVERRIDES, f"data.train.annotations={rows}", f"data.train.root={motion}"]
    (folder / "overrides.json").write_text(json.dumps(overrides))
    run = build(motion, folder / "to_two", *overrides)
    seen = watch_records(run)
    train(run, max_steps=6)
    (folder / "to_two.first.0.json").write_text(json.dumps({"seen": seen}))
    done = launch(
        ROOT / "tests" / "ranked_resume.py", folder=folder, MOTION=str(motion), OVERRIDES=json.dumps(overrides)
    )
    assert done.returncode == 0, done.stdout[-3000:] + logs(folder)
    return folder


def arrays(folder: Path, part: str) -> list[dict]:
    """The arrays at the end of a part, of both ranks."""
    return [dict(np.load(folder / f"{part}.{rank}.npz")) for rank in (0, 1)]


def notes(folder: Path, part: str) -> list[dict]:
    """What the ranks noted of a part."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{part}.?.json"))]


def taken(parts: list[dict], after: int = 0, until: int = 99) -> list[list[int]]:
    """The records of each epoch, sorted, of the steps after one and until another."""
    seen = [entry for part in parts for entry in part["seen"] if after < entry[0] <= until]
    return [sorted(record for _, epoch, record in seen if epoch == number) for number in range(EPOCHS)]


def test_two_ranks_cut_off_in_an_epoch_end_as_if_never_stopped(runs):
    assert [note["outcome"] for note in notes(runs, "cut.first")] == ["cut", "cut"]
    assert {entry[0] for note in notes(runs, "cut.resumed") for entry in note["seen"]} == {7, 8}  # from the state of 6
    whole, resumed = arrays(runs, "whole.first"), arrays(runs, "cut.resumed")
    same(whole[0], whole[1])
    same(resumed[0], whole[0])
    same(resumed[1], whole[0])
    clock = {"batch_cost", "reader_cost", "ips", "eta_seconds", "memory_mb"}
    ours, theirs = (
        [{k: v for k, v in row.items() if k not in clock} for row in lines(runs / n)] for n in ("cut", "whole")
    )
    assert ours == theirs


def test_every_record_counts_once_an_epoch(runs):
    everything = [list(range(RECORDS))] * EPOCHS
    assert taken(notes(runs, "whole.first")) == everything
    first, resumed = taken(notes(runs, "cut.first"), until=6), taken(notes(runs, "cut.resumed"))
    assert len(first[1]) == 8 and len(resumed[1]) == 7 and not resumed[0]
    assert [sorted(a + b) for a, b in zip(first, resumed)] == everything


def test_a_stop_asked_of_one_rank_is_taken_by_both_at_the_next_line(runs):
    assert [(note["outcome"], note["step"]) for note in notes(runs, "asked.first")] == [("stopped by 15", 3)] * 2
    states = [path.stem for path in Checkpoints(runs / "asked" / "checkpoints", 9).states()]
    assert states == ["step_00000003", "step_00000004", "step_00000006", "step_00000008"]  # 4 and 8 end an epoch
    everything = taken(notes(runs, "asked.first") + notes(runs, "asked.resumed"))
    assert everything == [list(range(RECORDS))] * EPOCHS


def test_only_running_statistics_feel_a_state_between_the_regular_ones(runs):
    """To write it, the ranks agree on the statistics of their own clips, which a run never stopped does not then."""
    whole, resumed = arrays(runs, "whole.first"), arrays(runs, "asked.resumed")
    statistics = {name for name in whole[0] if name.endswith(("_mean", "_variance"))}
    assert statistics
    for name, value in whole[0].items():
        if name in statistics:
            np.testing.assert_allclose(resumed[0][name], value, rtol=1e-5, atol=1e-7, err_msg=name)
        else:
            np.testing.assert_array_equal(resumed[0][name], value, err_msg=name)
    same(resumed[0], resumed[1])


def test_two_ranks_take_over_from_one(runs):
    first, resumed = taken(notes(runs, "to_two.first"), until=6), taken(notes(runs, "to_two.resumed"))
    assert [len(records) for records in first] == [12, 0] and [len(records) for records in resumed] == [3, 15]
    assert [sorted(a + b) for a, b in zip(first, resumed)] == [list(range(RECORDS))] * EPOCHS
    ends = arrays(runs, "to_two.resumed")
    same(ends[0], ends[1])


def test_one_rank_takes_over_from_two(runs, motion):
    run = build(motion, runs / "to_one", *json.loads((runs / "overrides.json").read_text()))
    seen = watch_records(run)
    train(run, resume=True)
    first, resumed = taken(notes(runs, "to_one.first"), until=6), taken([{"seen": seen}])
    assert [len(records) for records in first] == [15, 8] and [len(records) for records in resumed] == [0, 7]
    assert [sorted(a + b) for a, b in zip(first, resumed)] == [list(range(RECORDS))] * EPOCHS


def test_a_clip_of_nan_on_one_rank_is_passed_over_by_both(runs):
    assert [(note["outcome"], note["nonfinite"]) for note in notes(runs, "spoilt.first")] == [("done", 1)] * 2
    ends = arrays(runs, "spoilt.first")
    same(ends[0], ends[1])
    assert all(np.isfinite(value).all() for value in ends[0].values())
    said = logs(runs)
    assert said.count("step 5 skipped: the loss or a gradient is not finite (1 of at most") == 2
    first, second = (note["seen"] for note in notes(runs, "spoilt.first"))
    for _, _, record in [entry for entry in first + second if entry[0] == 5]:
        assert f"  rows.txt:{record + 1}: " in said
