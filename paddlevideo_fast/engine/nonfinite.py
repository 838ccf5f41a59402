"""Losses, gradients and weights that are not finite: noticed, explained, and a run stopped or a step left out."""

from __future__ import annotations

import logging
import math

import numpy as np
import paddle

from paddlevideo_fast.data.samplers import SampleKey
from paddlevideo_fast.data.video import describe_source
from paddlevideo_fast.engine.checkpoint import write_atomically
from paddlevideo_fast.engine.interval import StepFacts
from paddlevideo_fast.engine.run import Training

logger = logging.getLogger("paddlevideo_fast")


class NonFiniteLossError(RuntimeError):
    """The loss is not finite; the message names the step, its learning rate and loss scale, and its clips."""


def broken_arrays(model: paddle.nn.Layer) -> list[str]:
    """Returns the names of weights and statistics that are not finite."""
    state = model.state_dict()
    finite = paddle.stack([paddle.isfinite(value).all() for value in state.values()]).numpy()
    return [name for name, is_finite in zip(state, finite) if not is_finite]


def explain_break(run: Training, loss_is_finite: bool, broken: StepFacts | None, steps: list[StepFacts]) -> str | None:
    """Looks at what the steps since the last line left behind; every rank must call it, all return the same.

    Args:
        run: The run.
        loss_is_finite: Whether the losses of all ranks were.
        broken: The first step whose loss on this rank was not.
        steps: All of them.

    Returns:
        What is broken, where, and since when; None if nothing is.
    """
    if not loss_is_finite:
        return _describe_loss(run, broken)
    names = broken_arrays(run.model)  # a ReLU makes 0 of NaN: weights can break behind a finite loss
    return _describe_weights(run, names, steps) if names else None


def _describe_loss(run: Training, broken: StepFacts | None) -> str:
    """Every rank must call it; all return the same words, about the rank where it happened."""
    if broken is not None:
        keep_batch(run, broken)
        broken = (broken.number, broken.rate, run.ranks.rank, _name_clips(run, broken.keys))
    shares = [share for share in run.ranks.gather(broken) if share is not None]
    number, rate, rank, clips = min(shares, default=(run.progress.step, math.nan, run.ranks.rank, "  unknown"))
    where = f" on rank {rank}" if run.ranks.size > 1 else ""
    return (
        f"the loss is not finite since step {number}{where}, {_say_rate(run, rate)}; no checkpoint has been "
        f"written since. A lower optimizer.lr, optimizer.clip_norm or nonfinite.policy=skip may help. The clips of the "
        f"batch:\n{clips}"
    )


def _describe_weights(run: Training, names: list[str], steps: list[StepFacts]) -> str:
    first, last = steps[0].number, steps[-1].number
    since = f"step {first}" if first == last else f"one of the steps {first} to {last}"
    clips = "\n".join(run.ranks.gather(_name_clips(run, [key for facts in steps for key in facts.keys])))
    return (
        f"{len(names)} arrays of the model are not finite since {since}, the first {names[0]}, though the loss is; "
        f"{_say_rate(run, steps[-1].rate)}; no checkpoint has been written since. A lower optimizer.lr, "
        "optimizer.clip_norm or nonfinite.policy=skip may help; log.interval=1 finds the step. The clips of these "
        f"steps:\n{clips}"
    )


def _say_rate(run: Training, rate: float) -> str:
    scale = f", loss scale {run.precision.scaler.state_dict()['scale'].item():g}" if run.precision.scaler else ""
    return f"learning rate {rate:g}{scale}"


def _name_clips(run: Training, keys: list[SampleKey]) -> str:
    rows = dict.fromkeys(run.records[key.index] for key in keys if key.index >= 0)
    return "\n".join(f"  {record.origin}: {describe_source(record.source)}" for record in rows)


def keep_batch(run: Training, broken: StepFacts) -> None:
    """Writes the batch of a broken step for inspection: its pixels, targets and rows, read again from their keys."""
    batch = run.dataset.read_batch(broken.keys)
    path = run.output_dir / f"nonfinite_step_{broken.number}_rank_{run.ranks.rank}.npz"
    arrays = {name: value for name, value in batch.items() if isinstance(value, np.ndarray)}
    write_atomically(path, lambda file: np.savez_compressed(file, **arrays))
    logger.warning("the batch whose loss is not finite is in %s", path.absolute())


def is_finite(run: Training, step_loss: paddle.Tensor, parameters: list[paddle.Tensor]) -> bool:
    """Looks at the loss and the gradients of a step, on all ranks; all return the same.

    A ReLU makes 0 of NaN, so that gradients can be broken where the loss is not. A loss scaler looks at them itself.
    """
    found = [step_loss]
    if run.precision.scaler is None:
        found += [parameter.grad.astype("float32").sum() for parameter in parameters if parameter.grad is not None]
    return bool(np.isfinite(run.ranks.sum(paddle.stack(found)).numpy()).all())


def count_skipped(run: Training, rate: float, keys: list[SampleKey]) -> None:
    """Counts a step left out and names its clips.

    Args:
        run: The run.
        rate: Learning rate of the step.
        keys: The clips of this rank.

    Raises:
        NonFiniteLossError: There were more than ``nonfinite.limit``.
    """
    run.progress.skipped += 1
    run.progress.nonfinite += 1
    count, limit = run.progress.nonfinite, run.config.nonfinite.limit
    logger.warning(
        "step %d skipped: the loss or a gradient is not finite (%d of at most %d), %s. The clips of the step:\n%s",
        run.progress.step,
        count,
        limit,
        _say_rate(run, rate),
        _name_clips(run, keys),
    )
    if count > limit:
        raise NonFiniteLossError(
            f"the loss or a gradient was not finite in {count} steps, more than nonfinite.limit = {limit}; the last is "
            f"step {run.progress.step}"
        )
