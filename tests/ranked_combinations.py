"""Runs rows of combinations on every rank of one start of the launcher: ROWS, LISTS are JSON, MOTION, FOLDER paths."""

import json
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from combinations import run_row

from paddlevideo_fast.engine.distributed import start_ranks

ranks = start_ranks()
for number, row in json.loads(os.environ["ROWS"]):
    run_row(row, Path(os.environ["MOTION"]), json.loads(os.environ["LISTS"]), Path(os.environ["FOLDER"], number), ranks)
    ranks.barrier()
