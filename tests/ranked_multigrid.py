"""Multigrid on every rank of one start of the launcher: runs never stopped, cut off and resumed, or left for one rank.

Started by the launcher: FOLDER is where the runs are, MOTION the data set, OVERRIDES a JSON object: kind -> list. Of
each run there is PART.RANK.npz, the arrays at its end, and PART.RANK.json: ``seen``, [step, epoch, record] for each row
that counted, and ``groups``, how batch norm divided each batch.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import numpy as np
from small_runs import Toy, build, watch_records, weights

from paddlevideo_fast import models
from paddlevideo_fast.engine.distributed import start_ranks
from paddlevideo_fast.engine.train import train
from paddlevideo_fast.ops.norm import split_state, sub_batch_norms

models.MODELS["toy"] = Toy
FOLDER, MOTION, OVERRIDES = Path(os.environ["FOLDER"]), Path(os.environ["MOTION"]), json.loads(os.environ["OVERRIDES"])
ranks = start_ranks()


class PowerCutError(BaseException):
    """Ends a run without giving it a chance to save."""


def go(name, kind, resume=False, cut=None):
    """Trains a run of a kind of overrides; in the step after ``cut`` it breaks off."""
    run = build(MOTION, FOLDER / name, *OVERRIDES[kind], ranks=ranks)
    seen, groups, plain = watch_records(run), [], run.task.backward

    def backward(*arguments):
        if run.progress.step == cut:
            raise PowerCutError
        groups.append(sorted({(layer.splits, layer.sync_ranks) for _, layer in sub_batch_norms(run.model)}))
        return plain(*arguments)

    run.task.backward = backward
    with contextlib.suppress(PowerCutError):
        train(run, resume=resume)
    part = f"{name}.{'resumed' if resume else 'first'}.{ranks.rank}"
    (FOLDER / f"{part}.json").write_text(json.dumps({"seen": seen, "groups": groups}))
    splits = {name: value.numpy() for name, value in split_state(run.model).items()}
    np.savez(FOLDER / f"{part}.npz", **weights(run.model), **splits)
    ranks.barrier()


go("whole", "sub")
go("cut", "sub", cut=5)
go("cut", "sub", resume=True)
go("toy", "toy")
go("to_one", "toy", cut=5)
