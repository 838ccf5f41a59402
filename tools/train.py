"""Train a model: python tools/train.py -c CONFIG [-o key=value ...]"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

from paddlevideo_fast.cli.train import main

if __name__ == "__main__":
    main()
