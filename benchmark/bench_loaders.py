"""Reading ahead by threads against Paddle's worker processes: throughput, start, memory.

    python benchmark/bench_loaders.py [--workers 1 2] [--quick]

Each measurement is a process of its own, the kinds in turn. The clips are synthesised, 340x256, ten seconds, read by
the fused reader as eight segments; nothing is computed on them. Memory is the proportional set size of all processes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

from reader_clips import make_clips
from report import RESULTS, write_report

CLIPS, BATCH, EPOCHS = 96, 8, 4


class KeyBatches:
    """What ``paddle.io.DataLoader`` reads from: an item is a batch, as each thread reads whole batches too."""

    def __init__(self, dataset, batches):
        self.dataset, self.batches = dataset, batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number):
        batch = self.dataset.read_batch(self.batches[number])
        return {name: batch[name] for name in ("clip", "target", "index", "view", "weight")}


def make_loader(kind: str, path: Path, workers: int):
    """Returns (loader, sampler) of one kind."""
    import av  # noqa: F401  before paddle's libraries
    import numpy as np
    import paddle

    from paddlevideo_fast.data.crops import RandomResizedCrop
    from paddlevideo_fast.data.dataset import ClipDataset
    from paddlevideo_fast.data.plan import ClipRecipe
    from paddlevideo_fast.data.readers import build_reader
    from paddlevideo_fast.data.records import VideoRecord
    from paddlevideo_fast.data.samplers import TrainSampler
    from paddlevideo_fast.data.sampling import SegmentSampling
    from paddlevideo_fast.loaders.thread_loader import ThreadLoader

    records = [VideoRecord(str(path), 0, origin=str(row)) for row in range(CLIPS)]
    recipe = ClipRecipe(SegmentSampling(), RandomResizedCrop(), train=True, flip=0.5)
    dataset = ClipDataset(records, recipe, build_reader("fused"), lambda record, flipped: np.int64(record.label))
    sampler = TrainSampler(CLIPS, BATCH, 8, 224)
    if kind == "threads":
        return ThreadLoader(dataset, sampler, workers, 120), sampler
    loader = paddle.io.DataLoader(
        KeyBatches(dataset, list(sampler)),
        batch_size=None,
        shuffle=False,
        num_workers=workers,
        prefetch_factor=2,
        persistent_workers=True,
    )
    return loader, sampler


def measure(kind: str, path: Path, workers: int) -> dict[str, float]:
    """Runs in a process of its own; the first epoch warms up and is left out, but for the first batch."""
    start = time.perf_counter()
    loader, sampler = make_loader(kind, path, workers)
    first, rates = [], []
    for epoch in range(EPOCHS):
        sampler.seek(epoch)
        begin = time.perf_counter()
        for number, _ in enumerate(loader):
            if number == 0:
                first.append(time.perf_counter() - begin)
        rates.append(CLIPS / (time.perf_counter() - begin))
    seconds = time.perf_counter() - start
    used = resources()
    return {
        "clips_per_second": statistics.median(rates[1:]),
        "first_batch": first[0],
        "next_first_batch": statistics.median(first[1:]),
        "memory_mb": used["memory_mb"],
        "cpu": used["cpu"],
        "wall": seconds,
    }


def resources() -> dict[str, float]:
    """Memory and CPU seconds of this process and its children that still run."""
    family = [os.getpid(), *map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())]
    memory = cpu = 0.0
    for pid in family:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        memory += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        cpu += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return {"memory_mb": memory, "cpu": cpu}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers of readers")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--device", default="cpu", choices=("cpu",), help="nothing runs on a device here")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the tables")
    parser.add_argument("--measure", nargs=3, metavar=("KIND", "FILE", "WORKERS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure[0], Path(args.measure[1]), int(args.measure[2]))), flush=True)
        os._exit(0)
    path = make_clips("340x256", 1)[0]
    found: dict[tuple[str, int], list[dict]] = {}
    for _ in range(1 if args.quick else 3):
        for workers in args.workers:
            for kind in ("threads", "processes"):
                command = [sys.executable, "-W", "ignore", __file__, "--measure", kind, str(path), str(workers)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found.setdefault((kind, workers), []).append(json.loads(done.stdout.splitlines()[-1]))
    rows = []
    for (kind, workers), measured in found.items():
        row = {name: statistics.median(each[name] for each in measured) for name in measured[0]}
        rows.append({"kind": kind, "workers": workers, **row})
    columns = {
        "kind": "read ahead by",
        "workers": "workers",
        "clips_per_second": "clips/s",
        "first_batch": "first batch, s",
        "next_first_batch": "first batch of later epochs, s",
        "memory_mb": "memory, MB",
        "cpu": "CPU, s",
    }
    notes = [f"{CLIPS} clips an epoch in batches of {BATCH}, {EPOCHS} epochs; {path.name}; medians of {len(measured)}."]
    write_report("loaders", rows, columns, notes, args.output)


if __name__ == "__main__":
    main()
