"""Learning rates as pure functions of training progress.

A schedule is called with the progress in epochs, a float: optimiser steps done divided by the optimiser steps of an
epoch (whole epochs done plus the done share of the current one, where epochs differ in length). The learning rate of
a step therefore depends on arithmetic alone, and a resumed run continues with exactly the rates of an unbroken one.

Every schedule is linear in its learning rates: to scale a whole recipe, floor and warm-up start included, multiply
what the schedule returns.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Schedule = Callable[[float], float]


def scaled_lr(base_lr: float, global_batch: float, reference_batch: float) -> float:
    """Scales a learning rate in proportion to the batch.

    Args:
        base_lr: The rate tuned for ``reference_batch``.
        global_batch: Clips an optimiser step sees: clips per rank x ranks x accumulation steps x repeats.
        reference_batch: Clips an optimiser step of the tuned recipe saw.

    Returns:
        ``base_lr * global_batch / reference_batch``.

    Raises:
        ValueError: A batch is not positive.

    Source: Goyal et al., "Accurate, Large Minibatch SGD", arXiv 1706.02677, section 2.1.
    """
    if not (global_batch > 0 and reference_batch > 0):
        raise ValueError(f"batches must be above 0, got global_batch={global_batch}, reference_batch={reference_batch}")
    return base_lr * global_batch / reference_batch


@dataclass(frozen=True)
class ConstantSchedule:
    """One learning rate throughout, after an optional linear warm-up.

    Args:
        base_lr: The rate, at least 0.
        warmup_epochs: Length of the linear rise from ``warmup_start_lr`` to ``base_lr``; 0 for none.
        warmup_start_lr: The rate of the very first step, at least 0.

    Source: AVION pre-trains this way (``--fix-lr``, no warm-up).
    """

    base_lr: float
    warmup_epochs: float = 0.0
    warmup_start_lr: float = 0.0

    def __post_init__(self):
        _check_rates(self, "base_lr", "warmup_start_lr")
        _check_warmup(self.warmup_epochs)

    def __call__(self, progress_epochs: float) -> float:
        """Returns the learning rate at ``progress_epochs`` (at least 0)."""
        return _with_warmup(lambda _: self.base_lr, self.warmup_epochs, self.warmup_start_lr, progress_epochs)


@dataclass(frozen=True)
class StepSchedule:
    """The learning rate falls by ``gamma`` at each milestone, after an optional linear warm-up.

    Args:
        base_lr: The rate before the first milestone, at least 0.
        milestones: Epochs, rising, above 0; a step that starts exactly at a milestone already has the lower rate.
        gamma: Factor at each milestone, above 0.
        warmup_epochs: Length of the linear rise; it ends at the rate the steps have there. 0 for none.
        warmup_start_lr: The rate of the very first step, at least 0.

    Source: TSM ``main.py`` (adjust_learning_rate); PySlowFast ``slowfast/utils/lr_policy.py``
    (steps_with_relative_lrs) for the warm-up.
    """

    base_lr: float
    milestones: Sequence[float]
    gamma: float = 0.1
    warmup_epochs: float = 0.0
    warmup_start_lr: float = 0.0

    def __post_init__(self):
        object.__setattr__(self, "milestones", tuple(self.milestones))
        _check_rates(self, "base_lr", "warmup_start_lr")
        _check_warmup(self.warmup_epochs)
        if not (self.gamma > 0 and math.isfinite(self.gamma)):
            raise ValueError(f"gamma must be above 0, got {self.gamma}")
        previous = 0.0
        for milestone in self.milestones:
            if not milestone > previous:
                raise ValueError(f"milestones must be above 0 and rise, got {list(self.milestones)}")
            previous = milestone

    def __call__(self, progress_epochs: float) -> float:
        """Returns the learning rate at ``progress_epochs`` (at least 0)."""
        return _with_warmup(self._steps, self.warmup_epochs, self.warmup_start_lr, progress_epochs)

    def _steps(self, progress_epochs: float) -> float:
        return self.base_lr * self.gamma ** bisect_right(self.milestones, progress_epochs)


@dataclass(frozen=True)
class CosineSchedule:
    """The learning rate falls along half a cosine to ``final_lr``, after an optional linear warm-up.

    Two conventions are in use and differ throughout the run:

    * ``cosine_after_warmup=True``: the warm-up rises to ``base_lr`` and the whole half cosine follows it. AVION
      (``avion/optim/schedulers.py``), VideoMAE (``utils.py``, cosine_scheduler), MViT in PySlowFast
      (``COSINE_AFTER_WARMUP True``), timm with ``warmup_prefix=True``.
    * ``cosine_after_warmup=False``: the cosine counts from epoch 0 and the warm-up replaces its beginning, rising to
      the rate the cosine has at the end of the warm-up, below ``base_lr``. SlowFast and I3D in PySlowFast
      (``slowfast/utils/lr_policy.py``; the default there).

    AVION and VideoMAE tabulate the warm-up so that its last step, not the one after, has ``base_lr``: their warm-up
    is one step shorter than the one here.

    Args:
        base_lr: The rate at the top of the cosine, at least 0.
        epochs: Length of the run, warm-up included; beyond it the rate stays at ``final_lr``.
        final_lr: The rate at the end of the run, from 0 to ``base_lr``.
        warmup_epochs: Length of the linear rise, below ``epochs``; 0 for none.
        warmup_start_lr: The rate of the very first step, at least 0.
        cosine_after_warmup: Where the cosine counts from; see above.

    Source: Loshchilov and Hutter, "SGDR", arXiv 1608.03983, equation 5 without restarts.
    """

    base_lr: float
    epochs: float
    final_lr: float = 0.0
    warmup_epochs: float = 0.0
    warmup_start_lr: float = 0.0
    cosine_after_warmup: bool = True

    def __post_init__(self):
        _check_rates(self, "base_lr", "final_lr", "warmup_start_lr")
        _check_warmup(self.warmup_epochs)
        if self.final_lr > self.base_lr:
            raise ValueError(f"final_lr must not be above base_lr, got {self.final_lr} > {self.base_lr}")
        if not (self.epochs > self.warmup_epochs and math.isfinite(self.epochs)):
            raise ValueError(f"epochs must be above warmup_epochs ({self.warmup_epochs}), got {self.epochs}")

    def __call__(self, progress_epochs: float) -> float:
        """Returns the learning rate at ``progress_epochs`` (at least 0)."""
        return _with_warmup(self._cosine, self.warmup_epochs, self.warmup_start_lr, progress_epochs)

    def _cosine(self, progress_epochs: float) -> float:
        start = self.warmup_epochs if self.cosine_after_warmup else 0.0
        done = min((progress_epochs - start) / (self.epochs - start), 1.0)
        return self.final_lr + 0.5 * (self.base_lr - self.final_lr) * (1.0 + math.cos(math.pi * done))


SCHEDULES = {"step": StepSchedule, "cosine": CosineSchedule, "constant": ConstantSchedule}


def _with_warmup(after: Schedule, warmup_epochs: float, warmup_start_lr: float, progress_epochs: float) -> float:
    if not progress_epochs >= 0:
        raise ValueError(f"progress_epochs must be at least 0, got {progress_epochs}")
    if progress_epochs >= warmup_epochs:
        return after(progress_epochs)
    target = after(warmup_epochs)
    return warmup_start_lr + (target - warmup_start_lr) * (progress_epochs / warmup_epochs)


def _check_rates(schedule: Schedule, *names: str) -> None:
    for name in names:
        value = getattr(schedule, name)
        if not (value >= 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be a finite number of at least 0, got {value}")


def _check_warmup(warmup_epochs: float) -> None:
    if not (warmup_epochs >= 0 and math.isfinite(warmup_epochs)):
        raise ValueError(f"warmup_epochs must be a finite number of at least 0, got {warmup_epochs}")
