"""What a resumed run should know of the run it continues."""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path

from paddlevideo_fast.arguments import ArgumentError
from paddlevideo_fast.config import Config, ConfigError, load_config
from paddlevideo_fast.engine.build import Training, build_learning_rate

logger = logging.getLogger("paddlevideo_fast")


def warn_of_other_rates(run: Training) -> None:
    """Warns of settings that make the learning rate jump where a run is resumed, with their values and the rates."""
    with contextlib.suppress(ConfigError, ArgumentError):  # of a version with other keys: nothing to compare with
        before = load_config(run.output_dir / "config.yaml")
        old, new = _settings(before), _settings(run.config)
        changed = [f"{key} was {old[key]} and is {new[key]}" for key in new if old[key] != new[key]]
        if not changed:
            return
        epochs = _epochs_begun(run.output_dir / "metrics.jsonl")
        rates = [rate(epochs) for rate in (build_learning_rate(before, run.global_batch), run.learning_rate)]
        logger.warning(
            "resuming with other settings: %s; after %d epochs the learning rate was to be %.4g and is now %.4g",
            "; ".join(changed), epochs, *rates,
        )  # fmt: skip


def _settings(config: Config) -> dict[str, object]:
    optimizer = config.optimizer
    rates = {"optimizer.lr": optimizer.lr, "optimizer.reference_batch": optimizer.reference_batch}
    multigrid = config.multigrid.model_dump() if config.multigrid else None
    return {"epochs": config.epochs, **rates, "schedule": config.schedule.model_dump(), "multigrid": multigrid}


def _epochs_begun(path: Path) -> int:
    """Returns the number, from 1, of the epoch that the last training line of a run is of; 0 without one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    rows = (json.loads(line) for line in reversed(lines) if line.endswith("}"))
    return next((row["epoch"] for row in rows if row["phase"] == "train"), 0)
