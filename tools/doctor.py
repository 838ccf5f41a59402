"""Say what works on this machine: python tools/doctor.py [-c CONFIG]"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

from paddlevideo_fast.cli.doctor import main

if __name__ == "__main__":
    main()
