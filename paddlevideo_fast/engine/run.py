"""A run and its parts, as ``engine/build.py`` makes them: what is trained, what is evaluated, how far it has come."""

from __future__ import annotations

import math
from collections.abc import Callable
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
from paddlevideo_fast.engine.tasks import Classification
from paddlevideo_fast.loaders.dali_loader import DaliLoader
from paddlevideo_fast.loaders.thread_loader import ThreadLoader
from paddlevideo_fast.ops.augment import DeviceAugment


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
        trained: Records of the steps that changed the weights; the learning rate follows these.
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


@dataclass
class Training:
    """Everything a training run works with; made by :func:`build_training`."""

    config: Config
    ranks: Ranks
    task: Classification
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

    @property
    def global_batch(self) -> int:
        """Clips of an optimiser step: per rank x ranks x accumulated x repeats."""
        return self.sampler.records_per_step * self.sampler.repeats

    @property
    def output_dir(self) -> Path:
        """Folder of the run."""
        return Path(self.config.output_dir)

    @property
    def evaluated_model(self) -> paddle.nn.Layer:
        """The averaged model where there is one."""
        return self.ema.model if self.ema else self.model
