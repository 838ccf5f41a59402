"""Bring weights of another toolkit: python tools/convert_weights.py --source NAME --model NAME IN OUT.pdparams"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

from paddlevideo_fast.cli.convert_weights import main

if __name__ == "__main__":
    main()
