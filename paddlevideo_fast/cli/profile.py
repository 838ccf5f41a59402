"""``tools/profile.py``: show where the time of a training goes, and what would help most."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddlevideo_fast.cli.options import config_parser, cores, fail, parse, start
from paddlevideo_fast.cli.runtime import prepare

if TYPE_CHECKING:
    from paddlevideo_fast.config import Config
    from paddlevideo_fast.engine.build import Training
    from paddlevideo_fast.engine.distributed import Ranks


def main(argv: list[str] | None = None) -> None:
    """Parses the command line, measures, and writes ``profile.json`` and ``profile.png``."""
    args = _parse(argv)
    notes = prepare()
    from paddlevideo_fast.arguments import ArgumentError
    from paddlevideo_fast.config import ConfigError, load_config, resolve_paths
    from paddlevideo_fast.data.annotations import AnnotationError

    try:
        config = resolve_paths(load_config(args.config, args.override, weights=args.weights), args.config)
    except ConfigError as error:
        raise fail(error) from None

    from paddlevideo_fast.engine.failures import TooManyFailuresError
    from paddlevideo_fast.engine.nonfinite import NonFiniteLossError
    from paddlevideo_fast.loaders.thread_loader import LoaderError
    from paddlevideo_fast.models.weights.load import WeightsError

    folder = Path(args.output or config.output_dir)
    ranks = start(folder, notes)
    expected = (ConfigError, ArgumentError, AnnotationError, WeightsError, LoaderError, TooManyFailuresError)
    try:
        if args.paced and ranks.size > 1:
            raise ConfigError("--paced measures the loader of one process; run it without the launcher")
        measure = measure_pace if args.paced else measure_training
        result = measure(config, args, ranks)
        if ranks.is_first:
            _write(result, folder)
    except (*expected, NonFiniteLossError, OSError) as error:
        raise fail(error, ranks.rank) from None


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = config_parser(
        "Run steps of a training and show where the time goes; the weights are not kept. Or, with --paced, measure how "
        "fast the reader threads deliver when nothing is computed.",
        weights_required=False,
    )
    parser.add_argument("--steps", type=int, default=40, metavar="N", help="steps to measure; batches with --paced")
    parser.add_argument("--paced", action="store_true", help="clips/s of the loader alone, by number of workers")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=None, metavar="K", help="with --paced: numbers to compare"
    )
    parser.add_argument(
        "--step-time", type=float, default=None, metavar="S", help="with --paced: how many workers feed a step of S s"
    )
    parser.add_argument("--output", default=None, metavar="DIR", help="folder of the results instead of output_dir")
    args = parse(parser, argv)
    if args.steps < 2:
        parser.error(f"--steps {args.steps}: must be at least 2, one watched and one plain")
    if args.workers is not None and min(args.workers) < 1:
        parser.error(f"--workers {min(args.workers)}: must be at least 1")
    if args.step_time is not None and not 0 < args.step_time < math.inf:
        parser.error(f"--step-time {args.step_time}: must be above 0 seconds")
    if not args.paced and (args.workers, args.step_time) != (None, None):
        parser.error("--workers and --step-time go with --paced; a profile takes data.num_workers from the config")
    return args


def measure_training(config: Config, args: argparse.Namespace, ranks: Ranks) -> dict[str, Any]:
    """Profiles a training; every rank must call it. Returns: the content of ``profile.json``, of this rank."""
    import paddle

    from paddlevideo_fast.cli.bottleneck import FORMULAS, Measured, judge
    from paddlevideo_fast.engine.build import build_training
    from paddlevideo_fast.engine.profile import profile_training

    run = build_training(config, args.config, ranks, validate=False)
    step, reader = profile_training(run, args.steps)
    data, batches = config.data, config.accum_steps
    per_batch = reader.clips / reader.batches if reader.batches else 0.0
    sums = {kind: sum(getattr(reader, kind).values()) for kind in ("wall", "cpu")}
    measured = Measured(
        step=step.plain_seconds,
        watched=step.watched_seconds,
        parts=step.parts,
        cpu=step.cpu_seconds if data.read_timeout is None else None,
        batches=batches,
        batch_read=sums["wall"] * per_batch,
        pixels_wall=(reader.wall["decode"] + reader.wall["convert"]) * per_batch,
        pixels_cpu=(reader.cpu["decode"] + reader.cpu["convert"]) * per_batch,
        workers=step.workers,
        cores=max(1.0, cores() / int(os.environ.get("PADDLE_LOCAL_SIZE", 1))),
        core_share=1.0 if paddle.device.get_device().startswith("gpu") else step.core_share,
    )
    return {
        "mode": "training",
        "config": str(args.config),
        "device": paddle.device.get_device(),
        "ranks": ranks.size,
        "cores": measured.cores,
        "reader": data.reader.name,
        "num_workers": measured.workers,
        "batches_per_step": batches,
        "clips_per_step": step.clips,
        "steps": {"warmup": step.warmup, "profiled": step.watched, "plain": step.plain},
        "step_seconds": step.plain_seconds,
        "profiled_step_seconds": step.watched_seconds,
        "clips_per_second": step.clips / step.plain_seconds,
        "process_cpu_seconds": step.cpu_seconds,
        "core_share": step.core_share,
        "parts": step.parts,
        "clip": {
            "clips": reader.clips,
            "unreadable": reader.failed,
            "wall_seconds": sums["wall"],
            "cpu_seconds": sums["cpu"],
            "wall": reader.wall,
            "cpu": reader.cpu,
        },
        "batch_read_seconds": measured.batch_read,
        "verdict": judge(measured, _settings(run)),
        "formulas": FORMULAS,
    }


def _settings(run: Training) -> dict[str, Any]:
    import paddle

    augment = run.config.augment
    on_gpu = paddle.device.get_device().startswith("gpu")
    return {
        "reader": run.config.data.reader.name,
        "crop_size": run.config.data.crop_size,
        "on_gpu": on_gpu,
        "amp_possible": on_gpu and not run.precision.active,
        "augments": augment.color_jitter is not None or augment.erase is not None,
        "accum_steps": run.config.accum_steps,
    }


def measure_pace(config: Config, args: argparse.Namespace, ranks: Ranks) -> dict[str, Any]:
    """Measures the loader without a model. Returns: the content of ``profile.json``."""
    import paddle

    from paddlevideo_fast.config import with_values
    from paddlevideo_fast.data.samplers import TrainSampler
    from paddlevideo_fast.data.shards import shard_numbers
    from paddlevideo_fast.engine.build import build_dataset, build_loader, build_records, build_task, count_classes
    from paddlevideo_fast.engine.profile import pace

    config = count_classes(config, args.config)
    records, data = build_records(config, "train", args.config), config.data
    dataset = build_dataset(config, "train", records, build_task(config))
    sampler = TrainSampler(
        len(records),
        data.batch_size,
        data.num_frames,
        data.crop_size,
        repeats=data.train.repeats,
        seed=config.seed,
        drop_last=data.train.drop_last,
        shards=shard_numbers(records),
        shuffle_shards=data.train.shuffle_shards,
    )
    workers = sorted(set(args.workers or range(1, max(cores(), data.num_workers) + 1)))
    wanted, batches = -(-args.steps // workers[-1]) * workers[-1], []
    while len(batches) < wanted:  # as many epochs as it takes
        batches += sampler
        sampler.seek(sampler.epoch + 1)
    batches = batches[:wanted]
    loaders = {k: build_loader(with_values(config, {"data": {"num_workers": k}}), dataset, batches) for k in workers}
    paces = pace(loaders, sum(map(len, batches)))
    clips = data.batch_size * data.train.repeats * config.accum_steps
    rows = [{**vars(each), "feeds_step_seconds": clips / each.clips_per_second} for each in paces]
    needed = None
    if args.step_time is not None:
        enough = [row["workers"] for row in rows if row["feeds_step_seconds"] <= args.step_time]
        needed = {
            "step_seconds": args.step_time,
            "clips_per_second": clips / args.step_time,
            "workers": min(enough, default=None),
        }
    return {
        "mode": "paced",
        "config": str(args.config),
        "device": paddle.device.get_device(),
        "cores": cores(),
        "reader": data.reader.name,
        "clips_per_step": clips,
        "batches": wanted,
        "paces": rows,
        "step_time": needed,
    }


def _write(result: dict[str, Any], folder: Path) -> None:
    """Prints the table and writes the files."""
    from paddlevideo_fast.engine.checkpoint import write_atomically
    from paddlevideo_fast.engine.log import to_json
    from paddlevideo_fast.plots import plot_profile

    text = to_json(result, indent=2) + "\n"
    write_atomically(folder / "profile.json", lambda file: file.write(text.encode()))
    if result["mode"] == "paced":
        print("\n".join(pace_table(result)))
    else:
        plot_profile(result["parts"], result["clip"]["cpu"], folder / "profile.png")
        print("\n".join(step_table(result)))
    print(f"written: {(folder / 'profile.json').absolute()}", flush=True)


def step_table(result: dict[str, Any]) -> list[str]:
    """Returns the lines that show a profile."""
    whole, clip, steps = result["profiled_step_seconds"], result["clip"], result["steps"]
    lines = [
        f"step of {result['clips_per_step']:g} clips, {result['ranks']} x {result['device']}: "
        f"{result['step_seconds']:.4f} s, {result['clips_per_second']:.1f} clips/s ({steps['plain']} plain steps)",
        f"{'main thread':<16}{'seconds':>9}{'share':>8}   ({steps['profiled']} profiled steps)",
    ]
    for name, seconds in result["parts"].items():
        lines.append(f"  {name:<14}{seconds:9.4f}{seconds / whole:8.1%}")
    lines += [f"  {'sum':<14}{whole:9.4f}", f"{'reading a clip':<16}{'wall ms':>9}{'CPU ms':>9}{'share':>8}"]
    for name, seconds in clip["wall"].items():
        share = seconds / clip["wall_seconds"] if clip["wall_seconds"] else 0.0
        lines.append(f"  {name:<14}{1000 * seconds:9.3f}{1000 * clip['cpu'][name]:9.3f}{share:8.1%}")
    lines.append(
        f"  {'sum':<14}{1000 * clip['wall_seconds']:9.3f}{1000 * clip['cpu_seconds']:9.3f}   {clip['clips']} clips in "
        f"{result['num_workers']} threads, {clip['unreadable']} unreadable"
    )
    return [*lines, result["verdict"]["text"]]


def pace_table(result: dict[str, Any]) -> list[str]:
    """Returns the lines that show what the loader delivers."""
    lines = [f"{'workers':>7}{'clips/s':>10}{'CPU ms a clip':>15}{'feeds a step of':>17}"]
    for row in result["paces"]:
        lines.append(
            f"{row['workers']:>7}{row['clips_per_second']:>10.1f}{1000 * row['cpu_per_clip']:>15.2f}"
            f"{row['feeds_step_seconds']:>15.4f} s"
        )
    needed = result["step_time"]
    if needed is None:
        return lines
    best = max(row["clips_per_second"] for row in result["paces"])
    wanted = f"a step of {needed['step_seconds']:g} s takes {needed['clips_per_second']:.1f} clips/s"
    if needed["workers"] is None:
        return [*lines, f"{wanted}: no number of workers here delivers that, the most is {best:.1f}"]
    return [*lines, f"{wanted}: data.num_workers={needed['workers']} delivers that"]
