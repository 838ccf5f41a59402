"""Packs the videos of a list into tar files for shared and object-store mounts.

python tools/data/make_shards.py train.txt /mnt/data/train_shards --root /data/videos --workers 8
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
        epilog="A run that was interrupted goes on with the same command. Exit status: 0 all videos are packed, 1 some "
        "cannot be read and were left out, 2 the list or an option is wrong, or the disk is full, 130 interrupted.",
    )
    parser.add_argument("inputs", metavar="LIST_OR_FOLDER", help="list of videos, or a folder of class folders")
    parser.add_argument("output", metavar="OUTPUT", help="folder for the shards and their index")
    add_list_options(parser)
    parser.add_argument("--size", type=float, default=256, metavar="MB", help="of a shard (default: 256)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order the videos are mixed in")
    parser.add_argument("--in-order", action="store_true", help="keep the order of the list")
    parser.add_argument(
        "--decode",
        choices=["none", "first", "sample", "all"],
        default="first",
        help="frames of each video to decode before it is packed (default: first)",
    )
    add_worker_options(parser, timeout=60)
    args = parser.parse_args()

    from paddlevideo_fast.prepare.shards import Options, make_shards

    def work() -> int:
        options = Options(int(args.size * 1e6), not args.in_order, args.seed, args.decode)
        places = {"root": args.root, "format": args.format, "classes": args.classes}
        return make_shards(args.inputs, args.output, options, **places, workers=args.workers, timeout=args.timeout)

    return exit_status("make_shards", work)


if __name__ == "__main__":
    sys.exit(main())
