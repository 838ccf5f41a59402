"""What two CPU settings are worth: MKL_DEBUG_CPU_TYPE=5 on AMD processors, and OpenMP threads.

    python benchmark/bench_settings.py [--quick]

Each setting needs a process of its own, since it is read when Paddle is loaded; the processes take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

from report import RESULTS, write_report

SETTINGS = {
    "as Paddle comes": {},
    "MKL_DEBUG_CPU_TYPE=5": {"MKL_DEBUG_CPU_TYPE": "5"},
    "the same, 2 threads": {"MKL_DEBUG_CPU_TYPE": "5", "OMP_NUM_THREADS": "2"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"), help="these are settings of the CPU")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the tables")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure_step()))
        return
    repeats = 2 if args.quick else 3
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in SETTINGS}
    for _ in range(repeats):
        for name, variables in SETTINGS.items():
            plain = {key: value for key, value in os.environ.items() if key not in SETTINGS["the same, 2 threads"]}
            command = [sys.executable, __file__, "--measure"]
            done = subprocess.run(command, env={**plain, **variables}, capture_output=True, text=True, check=True)
            seconds[name].append(json.loads(done.stdout.splitlines()[-1]))
    rows = []
    for name, runs in seconds.items():
        row = {key: 1000 * statistics.median(run[key] for run in runs) for key in ("wall", "cpu", "product")}
        rows.append({"setting": name, **row})
    for row in rows:
        row["ratio"] = rows[0]["wall"] / row["wall"]
    columns = {
        "setting": "setting",
        "wall": "ms a step, wall",
        "cpu": "ms a step, CPU",
        "ratio": "speed-up (wall)",
        "product": "ms a 1024x1024 product, wall",
    }
    notes = [
        "A step (forward, backward, momentum SGD) of a quarter-width TSM-R18 on 16 clips of 8x64x64; medians of 6 "
        f"steps, and of {repeats} processes a setting, in turn.",
    ]
    write_report("settings", rows, columns, notes, args.output)


def measure_step() -> dict[str, float]:
    """Returns seconds: wall and CPU of one training step, wall of one matrix product; medians."""
    import paddle
    import paddle.nn.functional as F
    from report import measure

    from paddlevideo_fast.models import create_model

    paddle.seed(0)
    model = create_model("tsm_resnet18", num_classes=8, width=0.25)
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters())
    clip, target = paddle.randn([16, 3, 8, 64, 64]), paddle.randint(0, 8, [16])
    left, right = paddle.randn([1024, 1024]), paddle.randn([1024, 1024])

    def step() -> None:
        F.cross_entropy(model(clip), target).backward()
        optimizer.step()
        optimizer.clear_grad()

    timings = measure({"step": step, "product": lambda: left @ right}, repeats=6, warmup=2)
    return {"wall": timings["step"].wall, "cpu": timings["step"].cpu, "product": timings["product"].wall}


if __name__ == "__main__":
    main()
