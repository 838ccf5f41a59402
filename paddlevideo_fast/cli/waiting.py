"""Tells at the end of a training whether reading was what took the time, and what would change that."""

from __future__ import annotations

import json
import os
from pathlib import Path

from paddlevideo_fast.config import Config

TELLING_SHARE = 1 / 3
LEAST_SECONDS = 5.0  # below this it is the start of the readers that counts


def explain_waiting(metrics: Path, config: Config) -> str | None:
    """Returns how much of the last epoch was spent waiting for data, and the remedies; None where it was little.

    Args:
        metrics: ``metrics.jsonl`` of the run.
        config: Config of the run.
    """
    waited, seconds = measure_waiting(metrics)
    if waited < LEAST_SECONDS or waited < TELLING_SHARE * seconds:
        return None
    return f"{waited / seconds:.0%} of the last epoch went by waiting for data; to change: {_remedies(config)}"


def measure_waiting(metrics: Path) -> tuple[float, float]:
    """Returns the seconds of the last epoch that were spent waiting for data, and those spent training in all."""
    lines = metrics.read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["phase"] == "train"]
    waited = seconds = 0.0
    for before, row in zip([{"step": 0}, *rows], rows):
        if row["epoch"] == rows[-1]["epoch"]:
            steps = row["step"] - before["step"]
            waited, seconds = waited + steps * row["reader_cost"], seconds + steps * row["batch_cost"]
    return waited, seconds


def _remedies(config: Config) -> str:
    data = config.data
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    remedies = []
    if data.num_workers < cores:
        remedies.append(f"data.num_workers={data.num_workers} up to the cores ({cores} here, shared by the ranks)")
    if data.reader.name == "frames":
        remedies.append("smaller pictures")
    else:
        if data.reader.name != "fused":
            remedies.append(f"data.reader={data.reader.name} to fused")
        side = data.crop_size * 8 // 7
        remedies.append(f"the videos prepared once by tools/data/prepare_videos.py --short-side {side}")
    return "; ".join(remedies)
