"""Reading ahead by threads against Paddle's worker processes: throughput, CPU time, first batches, memory.

    python benchmark/bench_loaders.py [--workers 1 2] [--records 48] [--quick]

Each measurement is an interpreter of its own, the kinds in turn, and is killed with all its processes if it takes too
long. A second table says what stacking a batch and handing it to Paddle cost beside decoding it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import zlib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

from clip_list import make_dataset, make_sampler, write_list
from processes import cpu_seconds, megabytes, run_apart
from report import RESULTS, measure, write_report

from paddlevideo_fast.cli.runtime import prepare
from paddlevideo_fast.data.annotations import load_annotations
from paddlevideo_fast.data.dataset import ClipDataset, collate

KINDS = ("threads", "processes", "persistent processes")
BATCH, EPOCHS = 8, 4
LONGEST_SECONDS = 300  # of one measurement, which takes 10 to 20 unless the machine is busy


class BatchItems:
    """The dataset as ``paddle.io.DataLoader`` takes it: an item is a batch, as a thread reads whole batches too."""

    def __init__(self, dataset: ClipDataset):
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, keys):
        return self.dataset.read_batch(keys)


class BatchKeys:
    """The sampler's batches as the only item each of a ``batch_sampler``."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self):
        return ([keys] for keys in self.sampler)


def make_loader(kind: str, dataset: ClipDataset, sampler, workers: int):
    if kind == "threads":
        from paddlevideo_fast.loaders.thread_loader import ThreadLoader

        return ThreadLoader(dataset, sampler, workers, LONGEST_SECONDS)
    import paddle

    return paddle.io.DataLoader(
        BatchItems(dataset),
        batch_sampler=BatchKeys(sampler),
        collate_fn=lambda items: items[0],
        num_workers=workers,
        prefetch_factor=2,
        use_shared_memory=True,
        persistent_workers=kind == "persistent processes",
    )


def measure_loader(kind: str, workers: int, annotations: str) -> dict[str, float]:
    """Reads some epochs; the last one is not timed, as memory and checksum are taken in it."""
    records = load_annotations(annotations)
    sampler = make_sampler(len(records), BATCH)
    loader = make_loader(kind, make_dataset(records), sampler, workers)
    firsts, walls, cpus = [], [], []
    for epoch in range(EPOCHS):
        sampler.seek(epoch)
        wall, cpu = time.perf_counter(), cpu_seconds()
        for number, _ in enumerate(loader):
            if number == 0:
                firsts.append(time.perf_counter() - wall)
        walls.append(time.perf_counter() - wall)
        cpus.append(cpu_seconds() - cpu)
    checksum, memory = 0, []
    for batch in loader:
        memory.append(megabytes())
        checksum = zlib.crc32(batch["clip"].numpy(), checksum)
    return {
        "ips": len(records) / statistics.median(walls[1:]),
        "cpu": 1000 * statistics.median(cpus[1:]) / len(records),
        "first": firsts[0],
        "next_first": statistics.median(firsts[1:]),
        "rss": max(rss for rss, _ in memory),
        "pss": max(pss for _, pss in memory),
        "checksum": checksum,
    }


def report_loaders(annotations: Path, records: int, workers: list[int], rounds: int, output: Path) -> None:
    """Measures and writes the table of loaders."""
    found = {(kind, number): [] for number in workers for kind in KINDS}
    for turn in range(rounds):
        for kind, number in list(found)[:: 1 if turn % 2 == 0 else -1]:
            options = ["--measure", kind, str(number), str(annotations)]
            result = run_apart([sys.executable, "-W", "ignore", __file__, *options], LONGEST_SECONDS)
            found[kind, number].append(result)
    if len({one["checksum"] for measured in found.values() for one in measured if one}) > 1:
        raise SystemExit("the loaders did not read the same clips")
    rows = []
    for (kind, number), measured in found.items():
        row = {"kind": kind, "workers": number}
        if hung := measured.count(None):
            row["result"] = f"hung (killed after {LONGEST_SECONDS} s), {hung} of {rounds}"
        whole = [one for one in measured if one]
        rows.append({**row, **{name: statistics.median(one[name] for one in whole) for name in (whole or [{}])[0]}})
    columns = {
        "kind": "read ahead by",
        "workers": "workers",
        "ips": "clips/s",
        "cpu": "CPU, ms a clip",
        "first": "first batch of the first epoch, s",
        "next_first": "of a later epoch, s",
        "pss": "memory (PSS), MB",
        "rss": "RSS, MB",
        **({"result": "result"} if any("result" in row for row in rows) else {}),
    }
    notes = [
        f"{records} clips an epoch, each a file of 340x256, 10 s, read as 8 segments; batches of {BATCH}; nothing is "
        f"computed on them. Medians of {rounds} interpreters in turn, each of {EPOCHS - 1} epochs after the first.",
        "Processes: paddle.io.DataLoader with shared memory. CPU and memory are of all processes together; RSS counts "
        "what they share more than once, PSS does not. All read the same bytes (CRC-32 of an epoch).",
    ]
    write_report("loaders", rows, columns, notes, output)


def report_stages(annotations: Path, repeats: int, output: Path) -> None:
    """Measures and writes the table of what happens to a batch between its files and Paddle."""
    import paddle

    records = load_annotations(annotations)
    dataset = make_dataset(records)
    keys = next(iter(make_sampler(len(records), BATCH)))
    samples = [dataset[key] for key in keys]
    stacked = collate(samples)["clip"]
    stages = {
        "reading: open, decode, crop, scale": lambda: [dataset[key] for key in keys],
        "stacking the arrays": lambda: collate(samples),
        "handing them to Paddle (CPU)": lambda: paddle.to_tensor(stacked, place="cpu"),
    }
    timings = measure(stages, repeats)
    total = sum(timing.cpu for timing in timings.values())
    rows = [
        {"stage": name, "wall": 1000 * timing.wall, "cpu": 1000 * timing.cpu, "share": 100 * timing.cpu / total}
        for name, timing in timings.items()
    ]
    columns = {"stage": "of a batch", "cpu": "CPU, ms", "wall": "wall, ms", "share": "share of the CPU time, %"}
    notes = [f"uint8 {list(stacked.shape)}, {stacked.nbytes / 1e6:.1f} MB. {repeats} repeats in turn, medians."]
    write_report("loaders_stages", rows, columns, notes, output)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2], help="numbers of workers to compare")
    parser.add_argument("--records", type=int, default=48, help="clips of an epoch")
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"), help="batches stay on the CPU")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the tables")
    parser.add_argument("--measure", nargs=3, metavar=("KIND", "WORKERS", "LIST"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    prepare()
    if args.measure:
        kind, workers, annotations = args.measure
        import paddle

        paddle.set_device("cpu")
        print(json.dumps(measure_loader(kind, int(workers), annotations)), flush=True)
        return
    with tempfile.TemporaryDirectory() as scratch:
        annotations = write_list(Path(scratch), args.records)
        report_loaders(annotations, args.records, args.workers, 1 if args.quick else 3, args.output)
        report_stages(annotations, 5 if args.quick else 15, args.output)


if __name__ == "__main__":
    main()
