"""What the engine costs: its step time over a bare hand-written loop on the same model and the same batches.

    python benchmark/bench_loop.py [--quick] [--device cpu|gpu]

Both read batches that lie in memory, so that nothing but the loops differs; they take turns, epoch by epoch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not


from report import RESULTS, measure, write_report

from paddlevideo_fast.cli.runtime import prepare

STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"), help="where to run (default: cpu)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the tables")
    args = parser.parse_args()
    prepare()
    import paddle

    paddle.set_device(args.device)
    engine, bare = make_loops(args.output / "loop_run")
    synchronise = paddle.device.synchronize if args.device == "gpu" else None
    repeats = 3 if args.quick else 9
    timings = measure({"engine": engine, "bare": bare}, repeats, synchronise=synchronise)
    rows = [
        {"loop": name, "wall": 1000 * t.wall / STEPS, "cpu": 1000 * t.cpu / STEPS, "least": 1000 * t.wall_min / STEPS}
        for name, t in timings.items()
    ]
    for key in ("wall", "cpu", "least"):
        rows[0][f"{key}_over"] = 100 * (rows[0][key] / rows[1][key] - 1)
    columns = {
        "loop": "loop",
        "wall": "ms a step, wall (median)",
        "wall_over": "over bare, %",
        "cpu": "ms a step, CPU (median)",
        "cpu_over": "over bare, %",
        "least": "ms a step, wall (least)",
        "least_over": "over bare, %",
    }
    notes = [
        f"Quarter-width TSM-R18, 16 clips of 8x64x64, momentum SGD; epochs of {STEPS} steps in turn, {repeats} each; "
        "batches come from memory. The engine logs every 10 steps, to a file and VisualDL; the bare loop reads its "
        "loss as often.",
        "Expected: at most 3 %, since the engine adds a handful of small operations to a step.",
    ]
    write_report("loop", rows, columns, notes, args.output)


def make_loops(output_dir: Path):
    """Returns the two loops, each a call that trains one epoch of ``STEPS`` steps."""
    import numpy as np
    import paddle
    import paddle.nn.functional as F

    from paddlevideo_fast.config import validate
    from paddlevideo_fast.engine import build, train
    from paddlevideo_fast.engine.distributed import Ranks
    from paddlevideo_fast.engine.failures import Failures
    from paddlevideo_fast.engine.log import RunLog

    config = validate(
        {
            "model": {"name": "tsm_resnet18", "num_classes": 8, "width": 0.25},
            "data": {
                "num_frames": 8,
                "crop_size": 64,
                "batch_size": 16,
                "sampling": {"name": "segment"},
                "num_workers": 0,
                "train": {"annotations": str(write_list(output_dir, STEPS * 16))},
            },
            "optimizer": {"name": "momentum", "lr": 0.01, "weight_decay": 5e-4},
            "schedule": {"name": "cosine"},
            "epochs": 100,
            "output_dir": str(output_dir),
        },
        "bench_loop",
    )
    run = build.build_training(config, "bench_loop.yaml", Ranks(0, 1))
    rng = np.random.default_rng(0)
    batch = {
        "clip": rng.integers(0, 256, (16, 8, 64, 64, 3), np.uint8),
        "target": rng.integers(0, 8, 16),
        "index": np.arange(16),
        "view": np.zeros(16, np.int64),
        "weight": np.ones(16, np.float32),
        "aug": {},
        "errors": [],
    }
    run.loader.dataset.read_batch = lambda keys: batch
    log = RunLog(output_dir, visualdl=True)

    def engine():
        train.train_one_epoch(run, log, Failures(0.1))

    paddle.seed(0)
    model = build.build_model(config)
    optimizer = paddle.optimizer.Momentum(0.01, parameters=model.parameters(), weight_decay=5e-4)
    mean, std = (paddle.to_tensor(v, dtype="float32") for v in (config.data.mean, config.data.std))

    def bare():
        model.train()
        for step in range(STEPS):
            clip = (paddle.to_tensor(batch["clip"]).astype("float32") - mean) / std
            loss = F.cross_entropy(model(clip.transpose([0, 4, 1, 2, 3])), paddle.to_tensor(batch["target"]))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            if step % 10 == 9:
                loss.item()

    return engine, bare


def write_list(folder: Path, rows: int) -> Path:
    """Writes a list of files that are never opened."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "train.txt"
    path.write_text("".join(f"clip_{row}.mp4 {row % 8}\n" for row in range(rows)))
    return path


if __name__ == "__main__":
    main()
