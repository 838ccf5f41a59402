"""Extracts the frames of videos into folders of JPEG files.

python tools/data/extract_frames.py train.txt data/frames --short-side 256 --workers 8
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout, installed or not


def main() -> int:
    from paddlevideo_fast.cli.options import add_worker_options, exit_status

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", metavar="LIST_OR_FOLDER", help="rows 'path label', or a folder searched for videos")
    parser.add_argument("output", metavar="OUTPUT", help="gets one folder of frames a video; finished ones are kept")
    parser.add_argument("--short-side", type=int, help="pixels of the shorter side (default: as it is)")
    parser.add_argument("--quality", type=int, default=95, help="JPEG quality, 1 to 100 (default: 95)")
    add_worker_options(parser, timeout=600)
    parser.add_argument("--template", default="img_{:05d}.jpg", help="file name (default: img_{:05d}.jpg), from 1 on")
    parser.add_argument("--fps", type=float, help="frames per second to keep (default: all)")
    args = parser.parse_args()

    from paddlevideo_fast.prepare.frames import Options, extract_frames

    def work() -> int:
        options = Options(args.template, args.quality, args.short_side, args.fps)
        return extract_frames(args.inputs, args.output, options, args.workers, args.timeout)

    return exit_status("extract_frames", work)


if __name__ == "__main__":
    sys.exit(main())
