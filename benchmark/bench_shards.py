"""Shards instead of single files: what a clip costs, and how much is read in how many pieces.

    python benchmark/bench_shards.py [--records 48] [--quick]

The same clips with the same plans, read by the fused reader in this thread, from files and from shards in turn; each
measurement is an epoch that begins with no shard in memory. All is on a local disk and in its page cache, so the table
says what shards cost where they gain nothing. Runs without Paddle.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

from clip_list import make_dataset, make_sampler, write_list
from report import RESULTS, measure, write_report

from paddlevideo_fast.data.annotations import load_annotations
from paddlevideo_fast.data.readers import ShardReader, build_reader
from paddlevideo_fast.data.samplers import shards_in_use
from paddlevideo_fast.data.shards import shard_numbers
from paddlevideo_fast.prepare.shards import Options, make_shards

BATCH, WINDOW, SHARD_BYTES = 8, 4, 5_000_000  # WINDOW as data.train.shuffle_shards


def prepare_epoch(annotations: Path) -> Callable[[], dict[int, int]]:
    """Returns what reads an epoch of a list or of shards, and returns the CRC-32 of each clip by its row."""
    records = load_annotations(annotations)
    shards = shard_numbers(records)
    reader = build_reader("fused")
    sampler = make_sampler(len(records), BATCH, shards=shards, shuffle_shards=WINDOW)
    kept = shards_in_use(shards, WINDOW, BATCH) if shards else 0

    def read() -> dict[int, int]:
        dataset = make_dataset(records, ShardReader(reader, kept) if shards else reader)
        batches = (dataset.read_batch(keys) for keys in sampler)
        return {int(row): zlib.crc32(clip) for batch in batches for row, clip in zip(batch["index"], batch["clip"])}

    return read


def count_reads(read: Callable[[], dict[int, int]]) -> tuple[dict[int, int], int, float]:
    """Calls a function; returns its result, and the read calls and the megabytes it took, page cache included."""
    before = io_counters()
    result = read()
    after = io_counters()
    return result, after["syscr"] - before["syscr"], (after["rchar"] - before["rchar"]) / 1e6


def io_counters() -> dict[str, int]:
    lines = Path("/proc/self/io").read_text().splitlines()
    return {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=48, help="clips of an epoch")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"), help="clips are read by the CPU")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the tables")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        annotations, packed = write_list(Path(scratch), args.records), Path(scratch) / "shards"
        make_shards(str(annotations), str(packed), Options(SHARD_BYTES, shuffle=False))
        epochs = {"single files": prepare_epoch(annotations), "shards": prepare_epoch(packed)}
        first = {name: count_reads(epoch) for name, epoch in epochs.items()}
        later = {name: count_reads(epoch) for name, epoch in epochs.items()}
        if first["single files"][0] != first["shards"][0]:
            raise SystemExit("the clips from shards are not those from the files")
        repeats = 3 if args.quick else 9
        timings = measure(epochs, repeats)
        opened = {"single files": args.records, "shards": len(list(packed.glob("*.tar")))}
    rows = []
    for name, timing in timings.items():
        row = {"source": name, "opened": opened[name], "amount": later[name][2] / args.records}
        row["first_calls"], row["later_calls"] = first[name][1] / args.records, later[name][1] / args.records
        row["cpu"], row["wall"] = 1000 * timing.cpu / args.records, 1000 * timing.wall / args.records
        rows.append({**row, "ratio": timings["single files"].cpu / timing.cpu})
    columns = {
        "source": "read from",
        "cpu": "CPU, ms a clip",
        "wall": "wall, ms a clip",
        "ratio": "speed-up over single files (CPU)",
        "opened": "files",
        "first_calls": "read calls a clip, first epoch",
        "later_calls": "later epochs",
        "amount": "MB read a clip",
    }
    notes = [
        f"{args.records} videos of 340x256, 10 s, 8 segments of each; shards of {SHARD_BYTES / 1e6:g} MB, {WINDOW} "
        f"mixed. {repeats} epochs in turn, medians; the clips are the same bytes (CRC-32).",
        "A local disk, everything in its page cache, one thread; no network mount was measured.",
    ]
    write_report("shards", rows, columns, notes, args.output)


if __name__ == "__main__":
    main()
