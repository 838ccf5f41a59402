"""The numbers of the steps between two log lines, kept on the device until the line is due."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import paddle

from paddlevideo_fast.data.samplers import SampleKey, Step
from paddlevideo_fast.engine.distributed import Ranks


@dataclass(frozen=True)
class StepFacts:
    """What to tell of a step whose loss turns out not to be finite.

    Attributes:
        number: Optimiser step, from 1.
        rate: Its learning rate.
        keys: The clips of this rank.
    """

    number: int
    rate: float
    keys: list[SampleKey]


class Interval:
    """Sums over the rows of the steps since the last log line.

    Args:
        ranks: Joins the sums of all ranks when they are read.

    Attributes:
        shape: ``frames``, ``crop`` and ``clips``, over all ranks, of the last step.
        steps: The steps, once for each of their batches.
    """

    def __init__(self, ranks: Ranks):
        self.ranks = ranks
        self.shape: dict[str, int] = {}
        self._reset()

    def _reset(self) -> None:
        self._start = time.perf_counter()
        self._reader_seconds = 0.0
        self._clips = self._pixels = 0
        self._sums: dict[str, paddle.Tensor] = {}
        self._step_losses: list[paddle.Tensor] = []
        self.steps: list[StepFacts] = []

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Counts the time inside as waiting for the reader."""
        start = time.perf_counter()
        yield
        self._reader_seconds += time.perf_counter() - start

    @paddle.no_grad()
    def add(self, values: dict[str, paddle.Tensor], weight: paddle.Tensor) -> None:
        """Adds the rows of a batch.

        Args:
            values: Name -> float [N]; among them ``loss``.
            weight: float [N], 0 for a row that stands in for an unreadable one.
        """
        rows = {name: (value * weight).sum() for name, value in values.items()}
        rows["weight"] = weight.sum()
        for name, value in rows.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._step_losses.append(rows["loss"])

    def finish_step(self, number: int, rate: float, step: Step) -> None:
        """Counts an optimiser step."""
        key = step.micro_batches[0][0]  # there is one on every rank
        self.shape = {"frames": key.frames, "crop": key.crop, "clips": step.num_clips}
        self._clips += step.num_clips
        self._pixels += step.num_clips * key.frames * key.crop**2
        self.steps += [StepFacts(number, rate, keys) for keys in step.micro_batches]

    def read(self) -> tuple[dict[str, float], bool, StepFacts | None]:
        """Waits for the device, joins the ranks and starts a new interval.

        Returns:
            The mean of each value over the rows that counted (NaN if none did), ``batch_cost`` and ``reader_cost`` in
            seconds a step, ``ips`` in clips a second over all ranks, ``seconds_per_pixel`` of these clips; whether the
            losses of all ranks were finite; and the first step whose loss on this rank was not.
        """
        names = sorted(self._sums)
        sums = dict(zip(names, self.ranks.sum(paddle.stack([self._sums[name] for name in names])).numpy().tolist()))
        losses = paddle.stack(self._step_losses).numpy()
        broken = next((facts for facts, loss in zip(self.steps, losses) if not np.isfinite(loss)), None)
        seconds = time.perf_counter() - self._start
        num_steps = len({facts.number for facts in self.steps})
        is_finite, weight = math.isfinite(sums["loss"]), sums.pop("weight")
        values = {name: total / weight if weight else float("nan") for name, total in sums.items()}
        values |= {
            "batch_cost": seconds / num_steps,
            "reader_cost": self._reader_seconds / num_steps,
            "ips": self._clips / seconds,
            "seconds_per_pixel": seconds / self._pixels,
        }
        self._reset()
        return values, is_finite, broken
