"""Repeated augmentation: several crops of the same frames from one decode, against a decode for each.

    python benchmark/bench_repeats.py [--quick]

The clips are those of bench_readers, 340x256, eight segments. A repeat draws its own box and flip of the same record;
its frames are the same where the sampling is fixed (first table rows), or drawn anew, as in training.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

import numpy as np
from bench_readers import draw_segments, measure_turns, ms
from reader_clips import make_clips
from report import RESULTS, write_report

from paddlevideo_fast.data.crops import RandomResizedCrop
from paddlevideo_fast.data.readers import View, build_reader

SIZE = (224, 224)


def read_together(path: str, views: list[View]) -> None:
    with build_reader("fused").open(path) as video:
        video.read(views, SIZE)


def read_apart(path: str, views: list[View]) -> None:
    for view in views:
        read_together(path, [view])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--device", default="cpu", choices=("cpu",), help="nothing runs on a device here")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the tables")
    args = parser.parse_args()
    rounds = 5 if args.quick else 15
    paths = [str(path) for path in make_clips("340x256", 3)]
    infos = {path: build_reader("fused").probe(path) for path in paths}
    rng, crop = np.random.default_rng(0), RandomResizedCrop()

    def views(path: str, count: int, same: bool) -> list[View]:
        info, first = infos[path], draw_segments(infos[path], rng)
        frames = [first if same else draw_segments(info, rng) for _ in range(count)]
        boxes = [crop(info.width, info.height, SIZE[0], 0, rng)[0] for _ in range(count)]
        return [View(indices, box, bool(rng.random() < 0.5)) for indices, box in zip(frames, boxes)]

    rows = []
    for same in (True, False):
        for count in (1, 2, 4):
            turns = [[(path, views(path, count, same)) for path in paths] for _ in range(rounds + 1)]
            timings = measure_turns({"together": partial(read_together), "apart": partial(read_apart)}, turns)
            one, many = (ms(timings[name], len(paths) * count) for name in ("together", "apart"))
            ratio = float(np.median([a.cpu / b.cpu for a, b in zip(timings["apart"], timings["together"])]))
            frames = "the same" if same else "drawn anew"
            rows.append({"frames": frames, "repeats": count, "cpu": one["cpu"], "apart": many["cpu"], "ratio": ratio})
    columns = {
        "frames": "frames of a repeat",
        "repeats": "repeats",
        "cpu": "one decode: CPU, ms a clip",
        "apart": "a decode each: CPU, ms a clip",
        "ratio": "speed-up",
    }
    write_report("repeats", rows, columns, [f"{rounds} rounds, in turn, medians."], args.output)


if __name__ == "__main__":
    main()
