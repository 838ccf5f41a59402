"""Runs the train command with a model the tests bring along, and leaves each rank's arrays behind.

Started by the launcher: FOLDER is where rank0.npz, rank1.npz go; BREAK names a fault of rank 1, "raise" or "nan".
"""

import math
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import numpy as np
from small_runs import Toy, weights

from paddlevideo_fast import models
from paddlevideo_fast.cli.train import main
from paddlevideo_fast.engine import train as engine

models.MODELS["toy"] = Toy
plain_train = engine.train


def train(run, **options):
    fault = os.environ.get("BREAK", "") if run.ranks.rank == 1 else ""
    plain_loss, steps = run.task.loss, []

    def loss(outputs, batch):
        steps.append(1)
        if fault == "raise" and len(steps) == 2:
            raise engine.NonFiniteLossError("the fault of the second rank")
        return plain_loss(outputs, batch) * (math.nan if fault == "nan" and len(steps) == 2 else 1.0)

    run.task.loss = loss
    start = os.environ.get("START")
    if start:
        run.model.set_state_dict(dict(np.load(start)))
    plain_train(run, **options)
    np.savez(Path(os.environ["FOLDER"]) / f"rank{run.ranks.rank}.npz", **weights(run.model))


engine.train = train
main()
