"""What a training says of the time it waited for data."""

from __future__ import annotations

import json

import pytest
from small_runs import config, config_file

from paddlevideo_fast.cli import train, waiting


def write(path, rows):
    """Writes (epoch, step, reader_cost, batch_cost) as lines of ``metrics.jsonl``, with a validation among them."""
    keys = ("epoch", "step", "reader_cost", "batch_cost")
    lines = [{"phase": "train", **dict(zip(keys, row))} for row in rows]
    lines.insert(1, {"phase": "valid", "epoch": 1, "step": rows[0][1], "top1": 1.0})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_the_last_epoch_is_summed_over_steps(tmp_path):
    path = write(tmp_path / "m.jsonl", [(1, 10, 9.0, 9.0), (2, 20, 0.5, 1.0), (2, 24, 0.25, 2.0)])
    assert waiting.measure_waiting(path) == (10 * 0.5 + 4 * 0.25, 10 * 1.0 + 4 * 2.0)


def test_a_run_without_steps_waited_for_nothing(tmp_path):
    (tmp_path / "m.jsonl").write_text("")
    assert waiting.measure_waiting(tmp_path / "m.jsonl") == (0, 0)


@pytest.mark.parametrize(
    ("reader_cost", "batch_cost", "said"),
    [(0.6, 1.0, "60% of the last epoch"), (0.3, 1.0, None), (0.04, 0.05, None)],  # the last: 4 seconds
)
def test_only_what_counts_is_said(motion, tmp_path, reader_cost, batch_cost, said):
    path = write(tmp_path / "m.jsonl", [(1, 100, reader_cost, batch_cost)])
    found = waiting.explain_waiting(path, config(motion, tmp_path))
    assert found is None if said is None else found.startswith(said)


def test_the_remedies_are_those_that_are_left(motion, tmp_path, monkeypatch):
    monkeypatch.setattr(waiting.os, "sched_getaffinity", lambda pid: set(range(4)), raising=False)
    path = write(tmp_path / "m.jsonl", [(1, 100, 0.6, 1.0)])

    def remedies(*overrides):
        return waiting.explain_waiting(path, config(motion, tmp_path, *overrides)).partition("to change: ")[2]

    workers = "data.num_workers=2 up to the cores (4 here, shared by the ranks)"
    frames = "the videos prepared once by tools/data/prepare_videos.py --short-side 36"  # crops of 32
    assert remedies("data.num_workers=2", "data.reader=pyav") == f"{workers}; data.reader=pyav to fused; {frames}"
    assert remedies("data.num_workers=4") == frames
    assert remedies("data.num_workers=4", "data.reader=frames") == "smaller pictures"


def test_training_says_it_at_its_end(motion, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(waiting, "LEAST_SECONDS", 0)
    monkeypatch.setattr(waiting, "TELLING_SHARE", 0)
    train.main(["-c", str(config_file(motion, tmp_path / "run", "data.valid=null")), "--max-steps", "1"])
    last = (tmp_path / "run" / "log.txt").read_text().splitlines()[-1]
    assert "of the last epoch went by waiting for data; to change: data.num_workers=0 up to the cores" in last
