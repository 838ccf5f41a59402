"""Stops and resumes training runs on every rank of one start of the launcher, and leaves what they did behind.

Started by the launcher: FOLDER is where the runs are, MOTION the data set, OVERRIDES a JSON list. Of each run there is
NAME.RANK.npz, the arrays at its end, and NAME.RANK.json, the [step, epoch, record] that counted, in order.
"""

import json
import math
import os
import signal
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import numpy as np
from small_runs import build, watch_records, weights

from paddlevideo_fast.engine.distributed import start_ranks
from paddlevideo_fast.engine.stop import StoppedOnRequestError, StopRequest
from paddlevideo_fast.engine.train import train

FOLDER, MOTION, OVERRIDES = Path(os.environ["FOLDER"]), Path(os.environ["MOTION"]), json.loads(os.environ["OVERRIDES"])


class PowerCutError(BaseException):
    """Ends a run without giving it a chance to save."""


def go(name, *more, resume=False, cut=None, ask=None, spoil=None):
    """Trains a run with ``more`` overrides.

    In the step after ``cut`` it breaks off, in the one after ``ask`` the last rank is asked to stop, and in the one
    after ``spoil`` a clip of the last rank is NaN.
    """
    run = build(MOTION, FOLDER / name, *OVERRIDES, *more, ranks=ranks)
    plain, stop = run.task.backward, StopRequest()

    def backward(*arguments):
        if run.progress.step == cut:
            raise PowerCutError
        if run.progress.step == ask and ranks.rank == ranks.size - 1:
            os.kill(os.getpid(), signal.SIGTERM)
        if run.progress.step == spoil and ranks.rank == ranks.size - 1:
            arguments[1]["clip"][0] = math.nan
        return plain(*arguments)

    run.task.backward = backward
    seen = watch_records(run)
    outcome = "done"
    try:
        with stop.listening():
            train(run, resume=resume, stop=stop)
    except PowerCutError:
        outcome = "cut"
    except StoppedOnRequestError as error:
        outcome = f"stopped by {error.signal_number}"
    part = f"{name}.{'resumed' if resume else 'first'}.{ranks.rank}"
    (FOLDER / f"{part}.json").write_text(
        json.dumps({"outcome": outcome, "seen": seen, "step": run.progress.step, "nonfinite": run.progress.nonfinite})
    )
    np.savez(FOLDER / f"{part}.npz", **weights(run.model), **{f"ema.{k}": v for k, v in weights(run.ema.model).items()})
    ranks.barrier()


ranks = start_ranks()
go("whole")
go("cut", cut=7)
go("cut", resume=True)
go("asked", ask=1)
go("asked", resume=True)
go("to_one", cut=7)
go("to_two", resume=True)
go("spoilt", "nonfinite.policy=skip", spoil=4)
