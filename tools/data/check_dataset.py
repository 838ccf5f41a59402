"""Checks every video of a list: which rows are bad and why, and what the others are like.

python tools/data/check_dataset.py train.txt --workers 8 --clean train_good.txt --report output/check
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout, installed or not


def main() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit status: 0 all rows are good, 1 some are bad, 2 the list itself or an option is wrong.",
    )
    parser.add_argument("list", metavar="LIST", help="list of videos or frame folders, or a folder of class folders")
    parser.add_argument("--root", metavar="DIR", help="folder of the videos (default: that of the list)")
    parser.add_argument("--format", default="auto", metavar="NAME", help="format of the list (default: auto)")
    parser.add_argument("--classes", metavar="FILE", help="class names, for lists that name labels; checks ids too")
    parser.add_argument(
        "--reader",
        default="pyav",
        metavar="NAME",
        help="pyav, fused, decord or opencv (default: pyav, which passes over no picture)",
    )
    parser.add_argument("--workers", type=int, default=cores, metavar="N", help="processes (default: one a core)")
    parser.add_argument(
        "--decode",
        choices=["first", "sample", "all"],
        default="all",
        help="frames to decode: the first, eight over the whole length, or every one (default: all)",
    )
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="S", help="seconds a video may take (default: 60)"
    )
    parser.add_argument("--clean", metavar="OUT.txt", help="write the good rows, as they are, to this file")
    parser.add_argument("--report", metavar="DIR", help="write report.json and report.png to this folder")
    args = parser.parse_args()

    from paddlevideo_fast.cli.options import explain
    from paddlevideo_fast.prepare.check import check_dataset

    try:
        return 1 if check_dataset(args.list, **{k: v for k, v in vars(args).items() if k != "list"}) else 0
    except (ValueError, OSError, ImportError) as error:
        print(f"check_dataset: {explain(error)}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
