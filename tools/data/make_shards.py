"""Packs the videos of a list into tar files for shared and object-store mounts.

python tools/data/make_shards.py train.txt /mnt/data/train_shards --root /data/videos --workers 8
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
        epilog="A run that was interrupted goes on with the same command. Exit status: 0 all videos are packed, 1 some "
        "cannot be read and were left out, 2 the list or an option is wrong, or the disk is full.",
    )
    parser.add_argument("inputs", metavar="LIST_OR_FOLDER", help="list of videos, or a folder of class folders")
    parser.add_argument("output", metavar="OUTPUT", help="folder for the shards and their index")
    parser.add_argument("--root", metavar="DIR", help="folder of the videos (default: that of the list)")
    parser.add_argument("--format", default="auto", metavar="NAME", help="format of the list (default: auto)")
    parser.add_argument("--classes", metavar="FILE", help="class names, for lists that name labels")
    parser.add_argument("--size", type=float, default=256, metavar="MB", help="of a shard (default: 256)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order the videos are mixed in")
    parser.add_argument("--in-order", action="store_true", help="keep the order of the list")
    parser.add_argument(
        "--decode",
        choices=["none", "first", "sample", "all"],
        default="first",
        help="frames of each video to decode before it is packed (default: first)",
    )
    parser.add_argument("--workers", type=int, default=cores, metavar="N", help="at once (default: one a core)")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="S", help="seconds to look at a video")
    args = parser.parse_args()

    from paddlevideo_fast.cli.options import explain
    from paddlevideo_fast.prepare.shards import Options, make_shards

    try:
        options = Options(int(args.size * 1e6), not args.in_order, args.seed, args.decode)
        places = {"root": args.root, "format": args.format, "classes": args.classes}
        left_out = make_shards(args.inputs, args.output, options, **places, workers=args.workers, timeout=args.timeout)
    except (ValueError, OSError, ImportError) as error:
        print(f"make_shards: {explain(error)}", file=sys.stderr)
        return 2
    return 1 if left_out else 0


if __name__ == "__main__":
    sys.exit(main())
