"""Writes the embedded demo data set: MP4 clips of a moving camera, lists, class names and captions."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout, installed or not


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("output", help="folder to write; clips already in it are kept")
    parser.add_argument("--train", type=int, default=720, metavar="N", help="training clips")
    parser.add_argument("--valid", type=int, default=120, metavar="N", help="validation clips")
    parser.add_argument("--test", type=int, default=120, metavar="N", help="test clips")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="the same seed gives the same videos")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), metavar="N", help="processes")
    parser.add_argument(
        "--size", type=int, nargs=2, default=(112, 240), metavar=("MIN", "MAX"), help="pixels a side, least and most"
    )
    parser.add_argument(
        "--duration", type=float, nargs=2, default=(1.5, 4.0), metavar=("MIN", "MAX"), help="seconds, least and most"
    )
    parser.add_argument(
        "--travel",
        type=float,
        default=1.0,
        metavar="PART",
        help="way of the camera over the usual; less is harder",
    )
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    from paddlevideo_fast.cli.options import explain
    from paddlevideo_fast.prepare.motion import make_motion_dataset

    try:
        make_motion_dataset(
            options.output,
            options.train,
            options.valid,
            options.test,
            seed=options.seed,
            size=tuple(options.size),
            duration=tuple(options.duration),
            travel=options.travel,
            workers=options.workers,
            progress=True,
        )
    except (ValueError, OSError) as error:
        raise SystemExit(f"make_motion_dataset: {explain(error)}") from None


if __name__ == "__main__":
    main()
