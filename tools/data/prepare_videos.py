"""Re-encodes the videos of a data set once, so that reading clips of them costs a fraction in every epoch.

python tools/data/prepare_videos.py train.txt /data/prepared --root /data/videos --short-side 256
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
        epilog="Exit status: 0 all videos are there, 1 some are bad and left out of the new list, 2 the list, an "
        "option or the output folder is wrong, 130 interrupted; the same command goes on where it ended.",
    )
    parser.add_argument("inputs", metavar="LIST_OR_FOLDER", help="list of videos, or a folder searched for videos")
    parser.add_argument("output", metavar="OUTPUT", help="folder for the new videos, their list and report.json")
    parser.add_argument("--root", metavar="DIR", help="folder of the videos (default: that of the list)")
    parser.add_argument("--format", default="auto", metavar="NAME", help="format of the list (default: auto)")
    parser.add_argument("--classes", metavar="FILE", help="class names, for lists that name labels")
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
    parser.add_argument("--workers", type=int, default=cores, metavar="N", help="processes (default: one a core)")
    parser.add_argument("--timeout", type=float, default=3600.0, metavar="S", help="seconds a video may take (3600)")
    parser.add_argument(
        "--redo", action="store_true", help="replace files stored with other settings or of another source"
    )
    args = vars(parser.parse_args())

    from paddlevideo_fast.cli.options import explain
    from paddlevideo_fast.prepare.encode import Settings
    from paddlevideo_fast.prepare.videos import prepare_videos

    try:
        settings = Settings(args.pop("encode"), args.pop("short_side") or None, args.pop("crf"))
        return 1 if prepare_videos(settings=settings, **args) else 0
    except (ValueError, OSError, ImportError) as error:
        print(f"prepare_videos: {explain(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("prepare_videos: interrupted; the same command goes on from here", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
