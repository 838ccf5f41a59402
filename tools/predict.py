"""Classify videos: python tools/predict.py -c CONFIG -w WEIGHTS INPUT [INPUT ...]"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

from paddlevideo_fast.cli.predict import main

if __name__ == "__main__":
    main()
