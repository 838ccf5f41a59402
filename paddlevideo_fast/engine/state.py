"""What of a run is kept: the training state a resumed run continues from, and the facts beside its weights."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from paddlevideo_fast.data.annotations import VideoRecord
from paddlevideo_fast.data.video import describe_source
from paddlevideo_fast.engine.checkpoint import CheckpointError, optimizer_state, set_optimizer_state
from paddlevideo_fast.engine.phase import enter_phase
from paddlevideo_fast.engine.run import Training
from paddlevideo_fast.models.weights.load import explain_misfit, set_state
from paddlevideo_fast.ops.norm import load_split_state, split_state

STATE_FORMAT = 2


def training_state(run: Training, log_bytes: int) -> dict[str, Any]:
    """Returns everything a resumed run needs, as nested dicts of tensors, numbers and strings.

    Args:
        run: The run, between two steps.
        log_bytes: Length of ``metrics.jsonl``, whose later lines a resumed run writes anew.
    """
    return {
        "log_bytes": log_bytes,
        "format": STATE_FORMAT,
        "run": _identity(run),
        "progress": asdict(run.progress),
        "class_names": run.class_names,
        "model": run.model.state_dict(),
        "splits": split_state(run.model),
        "optimizer": optimizer_state(run.optimizer, run.model),
        "scaler": run.precision.scaler.state_dict() if run.precision.scaler else None,
        "ema": run.ema.model.state_dict() if run.ema else None,
        "ema_updates": run.ema.updates if run.ema else 0,
    }


def restore(run: Training, state: dict[str, Any]) -> int:
    """Puts a training state back.

    Returns:
        The bytes of ``metrics.jsonl`` that belong to it.

    Raises:
        CheckpointError: The state belongs to another model, data set, optimiser, seed or version.
    """
    own_identity = {"format": STATE_FORMAT, **_identity(run)}
    identity = {"format": state.get("format"), **state.get("run", {})}
    wrong = [
        f"its {name}: {identity.get(name)}, this run's: {value}"
        for name, value in own_identity.items()
        if identity.get(name) != value
    ]
    own = run.model.state_dict(use_hook=False)
    misfit = explain_misfit(own, state.get("model", {}))
    if wrong or misfit:
        raise CheckpointError(f"the training state is of another run; {'; '.join([*wrong, *misfit])}")
    set_state(own, state["model"])
    set_optimizer_state(run.optimizer, run.model, state["optimizer"])
    if run.precision.scaler and state["scaler"]:
        run.precision.scaler.load_state_dict(state["scaler"])
    if run.ema:
        set_state(run.ema.model.state_dict(), state["ema"])
        run.ema.updates = state["ema_updates"]
    run.progress.__init__(**state["progress"])
    enter_phase(run)
    load_split_state(run.model, state.get("splits", {}))
    return state["log_bytes"]


def facts(run: Training, metrics: dict[str, float] | None = None) -> dict[str, Any]:
    """Returns what stands beside weights: the model, its classes and how far it was trained."""
    model = run.config.model
    return {
        "model": {"name": model.name, **model.arguments},
        "class_names": run.class_names,
        "epoch": run.progress.epoch,
        "step": run.progress.step,
        "metrics": metrics or {},
    }


def _identity(run: Training) -> dict[str, Any]:
    """What has to be the same for a state to be a state of this run."""
    return {
        "seed": run.config.seed,
        "optimizer": run.config.optimizer.name,
        "averaged weights": run.ema is not None,
        "number of records": len(run.records),
        "records": fingerprint(run.records),
        "shards mixed at a time": run.sampler.shuffle_shards if run.sampler.shards is not None else None,
    }


def fingerprint(records: Sequence[VideoRecord]) -> str:
    """Returns a short digest of file names, labels and spans, in their order; where the files lie does not count."""
    digest = hashlib.sha256()
    for record in records:
        name = os.path.basename(describe_source(record.source))
        digest.update(json.dumps([name, record.label, record.start, record.end]).encode())
    return digest.hexdigest()[:16]
