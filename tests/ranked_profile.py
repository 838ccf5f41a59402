"""Profiles a small training in several ranks; FOLDER is where rank0.json and rank1.json go.

Each rank also takes the same steps without watching, and says how far the weights are apart.
"""

import json
import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import numpy as np
from small_runs import TOY, Toy, build, no_failures, weights

from paddlevideo_fast import models
from paddlevideo_fast.engine.distributed import start_ranks
from paddlevideo_fast.engine.log import RunLog
from paddlevideo_fast.engine.profile import profile_training
from paddlevideo_fast.engine.train import train_one_epoch

models.MODELS["toy"] = Toy
motion, folder = Path(sys.argv[1]), Path(os.environ["FOLDER"])
ranks = start_ranks()
overrides = (*TOY, "data.batch_size=1", "epochs=4", "accum_steps=2")
watched = build(motion, folder / "watched", *overrides, ranks=ranks)
step, _ = profile_training(watched, 4)
plain = build(motion, folder / "plain", *overrides, ranks=ranks)
while plain.progress.step < watched.progress.step:
    train_one_epoch(plain, RunLog(None, visualdl=False), no_failures(), max_steps=watched.progress.step)
before, after = weights(watched.model), weights(plain.model)
apart = max(float(np.abs(before[name] - after[name]).max()) for name in after)
result = {"parts": step.parts, "apart": apart, "steps": watched.progress.step}
(folder / f"rank{ranks.rank}.json").write_text(json.dumps(result))
