"""Multigrid on this machine: measured against ideal time, and accuracy against time.

    python benchmark/bench_multigrid.py [--only TABLE ...] [--seeds N ...] [--quick] [--output DIR]

multigrid_speed: a small SlowFast and a small TSM trained by the whole schedule, data loading included, beside the time
that the throughput at each shape, measured by itself, promises. multigrid_accuracy: the small SlowFast with and without
multigrid on a hard motion data set, and a picture of the curves. Minutes, and an hour and a half on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

from paddlevideo_fast.cli.runtime import prepare

prepare()

from report import RESULTS, write_report

from paddlevideo_fast.config import load_config
from paddlevideo_fast.engine.build import build_augment, build_evaluation, build_task, build_training
from paddlevideo_fast.engine.distributed import Ranks
from paddlevideo_fast.engine.evaluate import evaluate
from paddlevideo_fast.engine.run import Training
from paddlevideo_fast.engine.train import refine_statistics, train
from paddlevideo_fast.plots import plot_accuracy_over_time
from paddlevideo_fast.prepare.motion import make_motion_dataset

QUICKSTART = Path(__file__).resolve().parents[1] / "configs" / "quickstart"
ALONE = Ranks(0, 1)
STEPS_AT_A_SHAPE = 8
TRAVEL = 0.4  # of the camera: a data set on which the standard schedule does not reach 1
OFF = "multigrid="
RUNNING = "precise_bn="  # batch norm statistics as they are


@dataclass(frozen=True)
class Recipe:
    """A configuration with multigrid; ``options`` make it of one without."""

    name: str
    config: Path
    options: tuple[str, ...] = ()


SLOWFAST = Recipe("SlowFast-R50, an eighth as wide", QUICKSTART / "motion_slowfast_multigrid.yaml")
TSM = Recipe(
    "TSM-R18, a quarter as wide",
    QUICKSTART / "motion_tsm.yaml",
    ("multigrid={milestones: [5, 8]}", "model.norm=sub", "data.batch_size=8", "optimizer.lr=0.015"),
)

SPEED_COLUMNS = {
    "model": "model",
    "part": "part of the schedule",
    "epochs": "epochs",
    "shape": "clips x frames x side",
    "steps": "steps",
    "measured": "measured, s",
    "ideal": "ideal, s",
    "share": "ideal / measured",
    "standard": "standard schedule, s",
    "speedup": "speed-up, measured",
    "ideal_speedup": "speed-up, ideal",
}
ACCURACY_COLUMNS = {
    "seed": "seed",
    "schedule": "schedule",
    "epochs": "epochs",
    "steps": "steps",
    "minutes": "minutes",
    "top1_running": "test top-1, running statistics",
    "top1": "test top-1",
    "time_share": "time, of the standard schedule",
    "difference": "top-1 less that of the standard schedule",
}

Rows = list[dict[str, Any]]


def build(data: Path, folder: Path, recipe: Recipe, options: Sequence[str], validate: bool = False) -> Training:
    """Return a run on the motion data set that is still to be trained."""
    fixed = [
        f"output_dir={folder}",
        f"data.class_names={data}/classes.txt",
        *(f"data.{phase}.annotations={data}/{phase}.txt" for phase in ("train", "valid", "test")),
        "log={interval: 1, visualdl: false}",
        "checkpoint.keep=1",
    ]
    config = load_config(recipe.config, [*fixed, *recipe.options, *options])
    return build_training(config, recipe.config, ALONE, validate=validate)


def metrics(folder: Path) -> Rows:
    """Return the rows of a run's metrics."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def shape_of(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["clips"], row["frames"], row["crop"]


def throughput(data: Path, scratch: Path, recipe: Recipe, shape: tuple[int, int, int]) -> float:
    """Return clips a second of training at one shape alone."""
    clips, frames, crop = shape
    folder = scratch / "x".join(map(str, shape))
    options = [f"data.batch_size={clips}", f"data.num_frames={frames}", f"data.crop_size={crop}", "epochs=99"]
    options += [OFF, RUNNING, "data.train.drop_last=true"]  # every step is a full one
    train(build(data, folder, recipe, options), max_steps=STEPS_AT_A_SHAPE)
    costs = [row["batch_cost"] for row in metrics(folder)]
    return clips / statistics.median(costs[2:])  # the first two warm up


def speed_rows(data: Path, scratch: Path, recipe: Recipe) -> Rows:
    """Return a row for every phase of one recipe's schedule, and one for the whole."""
    training = build(data, scratch / "multigrid", recipe, [RUNNING])
    train(training)
    rows = [row for row in metrics(scratch / "multigrid") if row["phase"] == "train"]
    counts = Counter(shape_of(row) for row in rows)
    usual = [shape for shape, count in counts.items() if count > 1]
    speeds = {shape: throughput(data, scratch, recipe, shape) for shape in usual}
    settings = training.config.data
    base = speeds[settings.batch_size, settings.num_frames, settings.crop_size]
    standard = training.config.epochs * len(training.records) / base

    def ideal(row: dict[str, Any]) -> float:
        shape = shape_of(row)  # the last step of an epoch has fewer clips than any other
        speed = speeds.get(shape) or next(v for k, v in sorted(speeds.items(), reverse=True) if k[1:] == shape[1:])
        return shape[0] / speed

    phases: dict[tuple, Rows] = defaultdict(list)
    for row in rows:
        phase = training.schedule.at(row["epoch"] - 1)
        phases[phase.start, phase.end, phase.batch_size, phase.num_frames, phase.crop_size].append(row)
    found = [
        {"model": recipe.name, "part": f"phase {number}", "epochs": f"{start}-{end}", "shape": f"{b}x{t}x{s}"}
        | _sums(part, ideal)
        for number, ((start, end, b, t, s), part) in enumerate(phases.items(), 1)
    ]
    whole = {"model": recipe.name, "part": "whole", "epochs": f"0-{training.epochs}", **_sums(rows, ideal)}
    speedups = {"speedup": standard / whole["measured"], "ideal_speedup": standard / whole["ideal"]}
    return [*found, whole | {"standard": standard} | speedups]


def _sums(rows: Rows, ideal) -> dict[str, float]:
    measured, promised = sum(row["batch_cost"] for row in rows), sum(map(ideal, rows))
    return {"steps": len(rows), "measured": measured, "ideal": promised, "share": promised / measured}


def accuracy_rows(data: Path, scratch: Path, seeds: Sequence[int], output: Path) -> Rows:
    """Return two rows a seed, and draw the validation accuracy of all runs over time.

    A run that is over is kept in ``output``, so that a benchmark that was stopped goes on, and seeds can be measured
    by processes of their own.
    """
    rows, curves = [], []
    for seed in seeds:
        for schedule, options in (("standard", [OFF]), ("multigrid", [])):
            kept = output / "multigrid_accuracy" / f"{schedule}_{seed}.json"
            if kept.is_file():
                print(f"taken from {kept}; without it the run is made again", file=sys.stderr, flush=True)
                found = json.loads(kept.read_text())
            else:
                found = accuracy_run(data, scratch / kept.stem, [f"seed={seed}", *options])
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(found) + "\n")
            curves.append((schedule, found.pop("curve")))
            rows.append({"seed": seed, "schedule": schedule, **found})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        standard, multigrid = rows[-2:]
        multigrid["time_share"] = multigrid["minutes"] / standard["minutes"]
        multigrid["difference"] = multigrid["top1"] - standard["top1"]
    plot_accuracy_over_time(curves, output / "multigrid_accuracy.png")
    return rows


def accuracy_run(data: Path, folder: Path, options: Sequence[str]) -> dict[str, Any]:
    """Train the small SlowFast once; return its row of the table, and its curve of (minutes, validation top-1).

    Its batch norm statistics are made precise once, when it is trained: the weights do not depend on them.
    """
    training = build(data, folder, SLOWFAST, [*options, "valid_every_epochs=2"], validate=True)
    precise, training.precise_bn = training.precise_bn, None
    train(training)
    seconds, curve = 0.0, []
    for row in metrics(folder):
        if row["phase"] == "train":
            seconds += row["batch_cost"]
        else:
            curve.append((seconds / 60, row["top1"]))
    found = {"epochs": training.epochs, "steps": training.progress.step, "top1_running": test_accuracy(training)}
    start = time.perf_counter()
    training.model.train()
    training.precise_bn = precise
    refine_statistics(training)
    seconds += time.perf_counter() - start
    return found | {"minutes": seconds / 60, "top1": test_accuracy(training), "curve": curve}


def test_accuracy(training) -> float:
    """Return the top-1 of a trained run on the test set."""
    config = training.config
    data = build_evaluation(config, "test", SLOWFAST.config, build_task(config), ALONE)
    result = evaluate(training.model, training.forward, training.task, data, ALONE, build_augment(config, "test"))
    return result.metrics["top1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = ("multigrid_speed", "multigrid_accuracy")
    parser.add_argument("--only", nargs="+", choices=tables, default=tables, metavar="TABLE", help=", ".join(tables))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="of the accuracy table")
    parser.add_argument("--quick", action="store_true", help="fewer clips; accuracy of one seed")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if "multigrid_speed" in args.only:
            data = make_motion_dataset(Path(scratch) / "motion", train=240 if args.quick else 720, valid=120, test=120)
            folders = {recipe: Path(scratch) / recipe.config.stem for recipe in (SLOWFAST, TSM)}
            rows = [row for recipe, folder in folders.items() for row in speed_rows(data, folder, recipe)]
            notes = [
                "Measured: the sum of the steps of a run by the whole schedule, waiting for the readers included. "
                "Ideal: the clips at each shape over the throughput of a run at that shape alone; the standard one "
                "likewise.",
                "Motion data set; configs/quickstart/motion_slowfast_multigrid.yaml, and motion_tsm.yaml with "
                "multigrid; the base shape is that of the last phase.",
            ]
            write_report("multigrid_speed", rows, SPEED_COLUMNS, notes, args.output)
        if "multigrid_accuracy" in args.only:
            data = make_motion_dataset(
                Path(scratch) / "hard", train=1440, valid=120, test=400, travel=TRAVEL, workers=os.cpu_count() or 1
            )
            seeds = args.seeds[:1] if args.quick else args.seeds
            rows = accuracy_rows(data, Path(scratch) / "accuracy", seeds, args.output)
            notes = [
                f"Motion data set of 1,440 clips made with --travel {TRAVEL}, 400 unseen test clips. Minutes are of "
                "the steps, waiting for the readers included, and of the precise batch norm statistics at the end. The "
                "curves are of running statistics.",
            ]
            write_report("multigrid_accuracy", rows, ACCURACY_COLUMNS, notes, args.output)


if __name__ == "__main__":
    main()
