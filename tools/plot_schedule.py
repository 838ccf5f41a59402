"""Print and draw a multigrid schedule: python tools/plot_schedule.py -c CONFIG --ranks 8"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

from paddlevideo_fast.cli.plot_schedule import main

if __name__ == "__main__":
    sys.exit(main())
