"""The whole way on the embedded data set: python tools/demo.py [--compare]"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this checkout, installed or not

from paddlevideo_fast.cli.demo import main

if __name__ == "__main__":
    main(ROOT)
