"""Cuts long videos into chunks of one length, so that reading a clip does not depend on how long its video is.

python tools/data/make_chunks.py /data/epic/videos /data/epic/chunks --seconds 15 --short-side 288
python tools/data/make_chunks.py /data/epic/video_320p_15sec --index-only
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout, installed or not


def parse_arguments() -> argparse.Namespace:
    from paddlevideo_fast.cli.options import add_worker_options

    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Exit status: 0 all videos are cut, 1 some are bad, 2 a path or an option is wrong or the disk is full, "
        "130 interrupted; the same command goes on where it ended.",
    )
    parser.add_argument("inputs", metavar="INPUT", help="a video, or a folder searched for videos")
    parser.add_argument("output", metavar="OUTPUT", nargs="?", help="gets a folder of chunks for each video")
    parser.add_argument("--seconds", type=int, metavar="N", help="length of a chunk (default: 15)")
    parser.add_argument(
        "--short-side",
        type=int,
        default=288,
        metavar="N",
        help="pixels of the shorter side, 0 to keep sizes; smaller videos are never enlarged (default: 288)",
    )
    parser.add_argument(
        "--encode",
        default="b7-fastdecode",
        metavar="NAME",
        help="default, g30, b7, b7-fastdecode, b15-fastdecode or intra: from small files to fast ones "
        "(default: b7-fastdecode)",
    )
    parser.add_argument("--crf", type=float, default=23.0, help="x264's quality, 0 (best) to 51 (default: 23)")
    add_worker_options(parser, timeout=6 * 3600)
    parser.add_argument(
        "--index-only",
        action="store_true",
        help="cut nothing: write chunks.json into each folder of chunks in INPUT that was made elsewhere",
    )
    args = parser.parse_args()
    if args.index_only == (args.output is not None):
        parser.error("--index-only takes INPUT alone" if args.index_only else "OUTPUT is missing")
    return args


def main() -> int:
    args = parse_arguments()
    from paddlevideo_fast.cli.options import exit_status
    from paddlevideo_fast.prepare.chunks import index_folders, make_chunks
    from paddlevideo_fast.prepare.cut import Cut
    from paddlevideo_fast.prepare.encode import Settings

    def work() -> int:
        if args.index_only:
            return index_folders(args.inputs, args.seconds, args.workers, args.timeout)
        settings = Settings(args.encode, args.short_side or None, args.crf)
        cut = Cut(15 if args.seconds is None else args.seconds, settings)
        return make_chunks(args.inputs, args.output, cut, args.workers, args.timeout)

    return exit_status("make_chunks", work)


if __name__ == "__main__":
    sys.exit(main())
