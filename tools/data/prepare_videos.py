"""Re-encodes the videos of a data set once, so that reading clips of them costs a fraction in every epoch.

python tools/data/prepare_videos.py train.txt /data/prepared --root /data/videos --short-side 256
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
        epilog="Exit status: 0 all videos are there, 1 some are bad and left out of the new list, 2 the list, an "
        "option or the output folder is wrong, 130 interrupted; the same command goes on where it ended.",
    )
    parser.add_argument("inputs", metavar="LIST_OR_FOLDER", help="list of videos, or a folder searched for videos")
    parser.add_argument("output", metavar="OUTPUT", help="folder for the new videos, their list and report.json")
    add_list_options(parser)
    parser.add_argument(
        "--encode",
        default="b7-fastdecode",
        metavar="NAME",
        help="default, g30, b7, b7-fastdecode, b15-fastdecode or intra: from small files to fast ones "
        "(default: b7-fastdecode); see docs/preparing.md",
    )
    parser.add_argument(
        "--short-side",
        type=int,
        default=256,
        metavar="N",
        help="pixels of the shorter side, 0 to keep sizes; smaller videos are never enlarged (default: 256)",
    )
    parser.add_argument("--crf", type=float, default=23.0, help="x264's quality, 0 (best) to 51 (default: 23)")
    add_worker_options(parser, timeout=3600)
    parser.add_argument(
        "--redo", action="store_true", help="replace files stored with other settings or of another source"
    )
    args = vars(parser.parse_args())

    from paddlevideo_fast.prepare.encode import Settings
    from paddlevideo_fast.prepare.videos import prepare_videos

    def work() -> int:
        settings = Settings(args.pop("encode"), args.pop("short_side") or None, args.pop("crf"))
        return prepare_videos(settings=settings, **args)

    return exit_status("prepare_videos", work)


if __name__ == "__main__":
    sys.exit(main())
