"""What a run tells: the console, the lines of metrics.jsonl, and the banner."""

from __future__ import annotations

import json
import logging
import math

import pytest
from small_runs import build, lines

from paddlevideo_fast.engine.banner import banner
from paddlevideo_fast.engine.log import RunLog, duration, say_metrics, setup_logging, to_json


def strict(text):
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_numbers_json_does_not_know_are_text():
    value = {"a": math.nan, "b": [math.inf, -math.inf, 1.5], "c": {"d": (math.nan,)}, "e": 3, "f": None, "g": "ü"}
    assert strict(to_json(value)) == {
        "a": "nan", "b": ["inf", "-inf", 1.5], "c": {"d": ["nan"]}, "e": 3, "f": None, "g": "ü"
    }  # fmt: skip
    assert float("nan") != float(strict(to_json(value))["a"])  # and reads back as the number
    assert "ü" in to_json(value)


def test_a_line_has_phase_epoch_and_step_and_seven_digits(tmp_path):
    with RunLog(tmp_path, visualdl=False) as log:
        log.record("train", 1, 2, {"loss": 1 / 3, "lr": 1e-12 / 3, "count": 123456789, "broken": math.nan})
    assert lines(tmp_path) == [
        {
            "phase": "train",
            "epoch": 1,
            "step": 2,
            "loss": 0.3333333,
            "lr": 3.333333e-13,
            "count": 123456789,
            "broken": "nan",
        }
    ]
    strict((tmp_path / "metrics.jsonl").read_text())


def test_lines_are_there_at_once_and_a_resumed_run_adds_to_them(tmp_path):
    log = RunLog(tmp_path, visualdl=False)
    log.record("train", 1, 1, {"loss": 1.0})
    assert len(lines(tmp_path)) == 1
    log.close()
    with RunLog(tmp_path, visualdl=False) as log:
        log.record("train", 1, 2, {"loss": 1.0})
    assert [row["step"] for row in lines(tmp_path)] == [1, 2]


def test_other_ranks_write_nothing(tmp_path):
    with RunLog(None, visualdl=True) as log:
        log.record("train", 1, 1, {"loss": 1.0})
    assert not list(tmp_path.iterdir())


def test_only_the_first_rank_tells_what_is_usual(tmp_path, capsys):
    logger = logging.getLogger("paddlevideo_fast")
    before = logger.handlers[:], logger.propagate, logger.level
    try:
        setup_logging(0, tmp_path / "out")
        logger.info("usual")
        setup_logging(3, tmp_path / "other")
        logger.info("hidden")
        logger.warning("strange")
    finally:
        logger.handlers[:], logger.propagate = before[:2]
        logger.setLevel(before[2])
    first, other = capsys.readouterr().out.splitlines()
    assert first.endswith("INFO    usual") and "rank" not in first
    assert "rank 3 WARNING" in other and other.endswith("strange")
    assert (tmp_path / "out" / "log.txt").read_text().strip() == first
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00:00"), (59.6, "0:01:00"), (61, "0:01:01"), (3725, "1:02:05"), (360000, "100:00:00")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_metrics_on_one_line():
    assert say_metrics({"top1": 0.5, "num_samples": 8}) == "top1 0.5000  num_samples 8"


def test_the_banner_tells_batch_rate_and_fast_paths(motion, tmp_path):
    run = build(
        motion, tmp_path, "data.batch_size=2", "accum_steps=3", "data.train.repeats=2", "optimizer.lr=0.1",
        "optimizer.reference_batch=64", "schedule={name: cosine, warmup_epochs: 1, warmup_start_lr: 0.01}",
    )  # fmt: skip
    rows = banner(run)
    assert rows["global batch"] == "12 clips = 2 per rank x 1 ranks x 3 accumulated x 2 repeats"
    assert rows["learning rate"].startswith("cosine, starts at 0.001875, peak 0.01875 = 0.1 x 12 / 64")
    assert rows["epochs"] == "2 of 3 steps over 16 records"
    assert "native" in rows["fast path: temporal_shift"]
    assert rows["precision"] == "float32"
    assert rows["output"] == str(tmp_path)
    plain = banner(build(motion, tmp_path, "model.impl=reference", "model.norm=sync"))
    assert plain["learning rate"].endswith("not scaled to the batch")
    assert "reference" in plain["fast path: temporal_shift"] and "all-reduce" in plain["fast path: norm"]
