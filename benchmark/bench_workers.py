"""What reader threads are worth: a step with 0, 1, 2 and 4 of them, on real videos.

    python benchmark/bench_workers.py [-c CONFIG] [--workers 0 1 2 4] [--quick] [--device cpu|gpu]

All numbers of workers take turns in one process; each reads and trains the same clips. The default config needs the
motion data set: python tools/data/make_motion_dataset.py data/motion
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

from report import RESULTS, measure, write_report

from paddlevideo_fast.cli.runtime import prepare

GUIDE = {0: (1.763, 4.539), 4: (0.578, 13.837)}  # PaddleVideo, docs/zh-CN/accelerate.md: SlowFast, batch 8, one V100


class ReaderCosts:
    """Stands in for the run's log and keeps the ``reader_cost`` of every line."""

    def __init__(self):
        self.seconds: list[float] = []

    def record(self, phase, epoch, step, values) -> None:
        self.seconds.append(values["reader_cost"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", default="configs/quickstart/motion_tsm.yaml", help="what to train")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4], help="numbers of threads to compare")
    parser.add_argument("--steps", type=int, default=20, help="steps a measurement")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"), help="where to train (default: cpu)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the tables")
    args = parser.parse_args()
    prepare()
    import paddle

    from paddlevideo_fast.config import load_config
    from paddlevideo_fast.engine import build, train
    from paddlevideo_fast.engine.distributed import Ranks
    from paddlevideo_fast.engine.failures import Failures

    paddle.set_device(args.device)
    costs = {workers: ReaderCosts() for workers in args.workers}

    def make_run(workers: int):
        overrides = [f"data.num_workers={workers}", "log.interval=1000000", f"output_dir={args.output / 'workers_run'}"]
        run = build.build_training(load_config(args.config, overrides), args.config, Ranks(0, 1), validate=False)
        failures = Failures(run.config.data.max_failed_share)

        def steps() -> None:
            run.progress.epoch = run.progress.position = 0
            train.train_one_epoch(run, costs[workers], failures, max_steps=run.progress.step + args.steps)

        return run, steps

    runs = {workers: make_run(workers) for workers in args.workers}
    repeats = 3 if args.quick else 5
    synchronise = paddle.device.synchronize if args.device == "gpu" else None
    timings = measure({workers: steps for workers, (_, steps) in runs.items()}, repeats, synchronise=synchronise)
    clips = next(iter(runs.values()))[0].global_batch
    rows = []
    for workers, timing in timings.items():
        batch_cost = timing.wall / args.steps
        row = {"workers": workers, "batch_cost": batch_cost, "ips": clips / batch_cost}
        row["reader_cost"] = statistics.median(costs[workers].seconds[1:])
        row["main_cpu"] = timing.cpu / args.steps
        row["ratio"] = timings[args.workers[0]].wall / timing.wall
        if workers in GUIDE:
            row["guide"] = "{} s, {} clips/s".format(*GUIDE[workers])
        rows.append(row)
    columns = {
        "workers": "workers",
        "batch_cost": "batch cost, s",
        "reader_cost": "of it waiting for the reader, s",
        "main_cpu": "CPU of the main process, s",
        "ips": "clips/s",
        "ratio": f"speed-up over {args.workers[0]}",
        "guide": "PaddleVideo's guide (SlowFast, one V100)",
    }
    notes = [
        f"{args.config}: {args.steps} steps a measurement, the numbers of workers in turn, {repeats} rounds, medians.",
        "The guide's figures (docs/zh-CN/accelerate.md of PaddleVideo) are of another model and machine: 3.04 times "
        "there, as the reader takes most of the step. Workers help as far as the reader's share and the cores go.",
    ]
    write_report("workers", rows, columns, notes, args.output)


if __name__ == "__main__":
    main()
