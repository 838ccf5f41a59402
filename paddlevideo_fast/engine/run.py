"""A run and its parts, as ``engine/build.py`` makes them: what is trained, what is evaluated, how far it has come."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paddle

from paddlevideo_fast.config import Config
from paddlevideo_fast.data.annotations import VideoRecord
from paddlevideo_fast.data.dataset import ClipDataset
from paddlevideo_fast.data.samplers import TrainSampler
from paddlevideo_fast.engine.checkpoint import Checkpoints
from paddlevideo_fast.engine.distributed import Ranks
from paddlevideo_fast.engine.ema import Ema
from paddlevideo_fast.engine.precise_bn import PreciseStatistics
from paddlevideo_fast.engine.precision import Precision
from paddlevideo_fast.engine.tasks import Batch, Classification
from paddlevideo_fast.loaders.dali_loader import DaliLoader
from paddlevideo_fast.loaders.thread_loader import ThreadLoader
from paddlevideo_fast.ops.augment import DeviceAugment
from paddlevideo_fast.phases import Schedule


@dataclass
class Evaluation:
    """One data set to evaluate on.

    Attributes:
        records: Its annotations.
        loader: Batches of this rank's share.
        num_views: Views of each record.
        average: How views are joined: the mean of "probability" or "logit", or the "max" of the probabilities.
    """

    records: list[VideoRecord]
    loader: ThreadLoader | DaliLoader
    num_views: int
    average: str


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        epoch: The epoch in progress, from 0.
        position: Records consumed in it over all ranks.
        step: Optimiser steps in all, the skipped ones among them.
        skipped: Steps left out because a loss or a gradient was not finite.
        nonfinite: Those of them whose loss was not; a gradient that overflows is a loss scaler's routine.
        trained: Records of the steps that changed the weights; without multigrid the learning rate follows these.
        unvalidated: The epoch just finished is still to be validated.
        best: Best value of the task's metric so far.
    """

    epoch: int = 0
    position: int = 0
    step: int = 0
    skipped: int = 0
    nonfinite: int = 0
    trained: int = 0
    unvalidated: bool = False
    best: float = -math.inf

    @property
    def last_epoch(self) -> int:
        """The epoch of the last step, from 0."""
        return max(self.epoch - (self.position == 0), 0)


@dataclass
class Training:
    """Everything a training run works with; made by :func:`build_training`."""

    config: Config
    ranks: Ranks
    task: Classification
    schedule: Schedule
    records: list[VideoRecord]
    class_names: list[str] | None
    sampler: TrainSampler
    dataset: ClipDataset
    loader: ThreadLoader | DaliLoader
    augment: DeviceAugment
    validation: Evaluation | None
    model: paddle.nn.Layer
    parallel_model: paddle.nn.Layer
    forward: Callable
    optimizer: Any
    precision: Precision
    ema: Ema | None
    precise_bn: PreciseStatistics | None
    learning_rate: Callable[[float], float]
    checkpoints: Checkpoints
    progress: Progress = field(default_factory=Progress)
    _ahead: tuple[int, Iterator[Batch]] | None = None  # batches from the beginning of an epoch on

    def batches(self) -> Iterator[Batch]:
        """Returns the batches from where the sampler stands to the end: those under way, if the last epoch was whole.

        Readers so need not begin anew with each epoch.
        """
        ahead, self._ahead = self._ahead, None
        if ahead is not None and (self.progress.epoch, self.progress.position) == (ahead[0], 0):
            return ahead[1]
        return self.loader.read(self.sampler.onwards(self.epochs))

    def finish_epoch(self, batches: Iterator[Batch]) -> None:
        """Counts an epoch; the rest of its batches are those of the next."""
        self.progress.epoch, self.progress.position = self.progress.epoch + 1, 0
        self._ahead = (self.progress.epoch, batches)

    @property
    def global_batch(self) -> int:
        """Full clips of an optimiser step: per rank x ranks x accumulated x repeats."""
        return self.sampler.records_per_step * self.sampler.repeats

    @property
    def epochs(self) -> int:
        """Epochs of the run; with multigrid not those of the config."""
        return self.schedule.epochs

    @property
    def epochs_done(self) -> float:
        """Whole epochs done plus the done share of the current one."""
        return self.progress.epoch + self.progress.position / self.sampler.records_per_epoch

    @property
    def rate_progress(self) -> float:
        """What the learning rate is a function of, in epochs.

        Without multigrid steps that were left out do not count. With it they do, or the rate would lag behind the
        batch it belongs to.
        """
        if self.config.multigrid is None:
            return self.progress.trained / self.sampler.records_per_epoch
        return self.epochs_done

    @property
    def ends_phase(self) -> bool:
        """True after the last step of a phase."""
        return self.progress.position == 0 and any(phase.end == self.progress.epoch for phase in self.schedule.phases)

    @property
    def output_dir(self) -> Path:
        """Folder of the run."""
        return Path(self.config.output_dir)

    @property
    def evaluated_model(self) -> paddle.nn.Layer:
        """The averaged model where there is one."""
        return self.ema.model if self.ema else self.model
