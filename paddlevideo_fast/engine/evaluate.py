"""Evaluation: every record once, whatever the batch size and the number of ranks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle

from paddlevideo_fast.engine.distributed import Ranks
from paddlevideo_fast.engine.log import duration
from paddlevideo_fast.engine.run import Evaluation
from paddlevideo_fast.engine.tasks import Batch, Classification
from paddlevideo_fast.ops.augment import DeviceAugment

logger = logging.getLogger("paddlevideo_fast")

_SAY_EVERY_SECONDS = 15.0


class EvaluationError(RuntimeError):
    """No record could be read, or the model's scores are not numbers."""


@dataclass
class EvaluationResult:
    """What an evaluation found.

    Attributes:
        metrics: The task's metrics, ``loss``, and ``num_samples``, ``num_views``.
        failures: One ``"list:row path: reason"`` for each record that could not be read; they are in no metric.
    """

    metrics: dict[str, float]
    failures: list[str]


@paddle.no_grad()
def evaluate(
    model: paddle.nn.Layer,
    forward: Callable,
    task: Classification,
    data: Evaluation,
    ranks: Ranks,
    augment: DeviceAugment,
) -> EvaluationResult:
    """Evaluates a model; all ranks take part and all get the result.

    Args:
        model: Put into evaluation mode and back.
        forward: Calls the model, in the precision wanted.
        task: Scores rows and sums them up.
        data: What to evaluate on.
        ranks: The processes; each takes its share of the records.
        augment: Normalises the clips.

    Raises:
        EvaluationError: No record could be read, or scores are not finite.
    """
    was_training = model.training
    model.eval()
    rows: dict[str, list[np.ndarray]] = {name: [] for name in ("scores", "loss", "target", "index", "view")}
    failures: list[str] = []
    start = said = time.perf_counter()
    num_batches = len(data.loader.sampler)
    for number, batch in enumerate(data.loader, 1):
        failures += batch["errors"]
        for start_row in range(0, len(batch["index"]), data.loader.sampler.batch_size):
            part = augment(_take_rows(batch, start_row, data.loader.sampler.batch_size))
            outputs = forward(*task.inputs(part))
            good = part["weight"].numpy() > 0
            values = {
                "scores": task.evaluate(outputs, part),
                "loss": task.loss(outputs, part),
                **{name: part[name] for name in ("target", "index", "view")},
            }
            for name, value in values.items():
                rows[name].append(value.numpy()[good])
        if ranks.is_first and time.perf_counter() - said > _SAY_EVERY_SECONDS:
            said = time.perf_counter()
            left = (said - start) / number * (num_batches - number)
            logger.info("evaluating: batch %d/%d, eta %s", number, num_batches, duration(left))
    if was_training:
        model.train()
    mine = {name: np.concatenate(parts) for name, parts in rows.items() if parts}
    shares = ranks.gather((mine, failures))
    failures = sorted({failure for _, others in shares for failure in others})
    filled = [share for share, _ in shares if share and len(share["index"])]
    if not filled:
        raise EvaluationError(f"none of the {len(data.records)} records could be evaluated; the first: {failures[0]}")
    merged = {name: np.concatenate([share[name] for share in filled]) for name in rows}
    _check_finite(merged["scores"])
    complete = np.bincount(merged["index"])[merged["index"]] == data.num_views
    merged = {name: values[complete] for name, values in merged.items()}
    return EvaluationResult(_summarize(task, data, merged), failures)


def _take_rows(batch: Batch, start: int, count: int) -> Batch:
    """Returns a batch of some of the rows; a forward pass need not hold all views of a record."""
    return {
        name: _take_rows(value, start, count)
        if isinstance(value, dict)
        else value[start : start + count]
        if isinstance(value, paddle.Tensor)
        else value
        for name, value in batch.items()
    }


def _check_finite(scores: np.ndarray) -> None:
    broken = int((~np.isfinite(scores)).any(axis=1).sum())
    if broken:
        raise EvaluationError(
            f"the model's scores are not finite for {broken} of {len(scores)} clips; its weights or batch norm "
            "statistics are most likely not finite either"
        )


def _summarize(task: Classification, data: Evaluation, rows: dict[str, np.ndarray]) -> dict[str, Any]:
    columns = [rows[name] for name in ("scores", "target", "index", "view")]
    try:
        metrics = task.summarize(*columns, data.num_views, data.average)
    except ValueError as error:
        raise EvaluationError(f"there is no metric of these records: {error}") from error
    return {
        "loss": float(rows["loss"].astype(np.float64).mean()),
        **metrics,
        "num_samples": len(np.unique(rows["index"])),
        "num_views": data.num_views,
    }
