"""Checks every video of a list: which rows are bad and why, and what the others are like.

python tools/data/check_dataset.py train.txt --workers 8 --clean train_good.txt --report output/check
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout, installed or not


def main() -> int:
    from paddlevideo_fast.cli.options import add_list_options, add_worker_options, exit_status

    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit status: 0 all rows are good, 1 some are bad, 2 the list itself or an option is wrong, "
        "130 interrupted.",
    )
    parser.add_argument("list", metavar="LIST", help="list of videos or frame folders, or a folder of class folders")
    add_list_options(parser)
    parser.add_argument(
        "--reader",
        default="pyav",
        metavar="NAME",
        help="pyav, fused, decord or opencv (default: pyav, which passes over no picture)",
    )
    add_worker_options(parser, timeout=60)
    parser.add_argument(
        "--decode",
        choices=["first", "sample", "all"],
        default="all",
        help="frames to decode: the first, eight over the whole length, or every one (default: all)",
    )
    parser.add_argument("--clean", metavar="OUT.txt", help="write the good rows, as they are, to this file")
    parser.add_argument("--report", metavar="DIR", help="write report.json and report.png to this folder")
    args = vars(parser.parse_args())

    from paddlevideo_fast.prepare.check import check_dataset

    return exit_status("check_dataset", lambda: check_dataset(args.pop("list"), **args), goes_on=False)


if __name__ == "__main__":
    sys.exit(main())
