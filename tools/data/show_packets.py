"""Draws which pictures of a video are decoded for a clip: python tools/data/show_packets.py clip.mp4 --segments 8"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout, installed or not

from paddlevideo_fast.cli.packets import main

if __name__ == "__main__":
    sys.exit(main())
