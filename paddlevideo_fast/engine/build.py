"""From a config to objects: the only place that reads a Config to construct anything.

Names are looked up in plain tables and their arguments checked against the constructors; constructors take ordinary
keyword arguments and never see the config.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddlevideo_fast.arguments import ArgumentError, check_arguments, lookup
from paddlevideo_fast.config import Config, ConfigError, EvalData, Named, resolve_path
from paddlevideo_fast.data.annotations import VideoRecord, load_annotations, load_class_names
from paddlevideo_fast.data.augment_draws import draw_color_jitter, draw_erase
from paddlevideo_fast.data.crops import CROPS, EvalCrop
from paddlevideo_fast.data.dataset import ClipDataset
from paddlevideo_fast.data.plan import ClipRecipe
from paddlevideo_fast.data.readers import READERS, IsolatedReader, build_reader
from paddlevideo_fast.data.readers.frames import check_frame_folders
from paddlevideo_fast.data.samplers import EvalSampler, TrainSampler
from paddlevideo_fast.data.sampling import SAMPLINGS
from paddlevideo_fast.engine.checkpoint import Checkpoints
from paddlevideo_fast.engine.distributed import Ranks
from paddlevideo_fast.engine.ema import Ema
from paddlevideo_fast.engine.optim import build_optimizer
from paddlevideo_fast.engine.precision import Precision
from paddlevideo_fast.engine.tasks import TASKS, Classification
from paddlevideo_fast.loaders.paddle_loader import PaddleLoader
from paddlevideo_fast.models import MODELS, create_model
from paddlevideo_fast.models.weights.load import load_weights
from paddlevideo_fast.ops.augment import DeviceAugment
from paddlevideo_fast.schedule import SCHEDULES

logger = logging.getLogger("paddlevideo_fast")


@dataclass
class Evaluation:
    """One data set to evaluate on.

    Attributes:
        records: Its annotations.
        loader: Batches of this rank's share.
        num_views: Views of each record.
        average: What is averaged over the views, "probability" or "logit".
    """

    records: list[VideoRecord]
    loader: PaddleLoader
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
    loader: PaddleLoader
    augment: DeviceAugment
    validation: Evaluation | None
    model: paddle.nn.Layer
    parallel_model: paddle.nn.Layer
    forward: Callable
    optimizer: Any
    precision: Precision
    ema: Ema | None
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


@contextlib.contextmanager
def naming(where: str) -> Iterator[None]:
    """Puts the section of the config in front of what a constructor says of its arguments.

    Raises:
        ConfigError: In the place of a ValueError, TypeError, LookupError or ImportError.
    """
    try:
        yield
    except (ArgumentError, ConfigError):
        raise
    except (ValueError, TypeError, LookupError, ImportError) as error:
        raise ConfigError(f"{where}: {error}") from error


def construct(table: Mapping[str, Callable], named: Named, where: str, **more: Any) -> Any:
    """Calls the table's entry with the arguments beside its name in the config, and ``more``.

    Raises:
        ArgumentError: Unknown name or argument.
        ConfigError: The entry refuses a value.
    """
    kind = lookup(table, named.name, where)
    for argument, value in more.items():
        if argument in named.arguments:
            raise ConfigError(f"{where}.{argument}: remove this key; its value, {value!r}, comes from another section")
    arguments = {**named.arguments, **more}
    check_arguments(kind, arguments, f"{where} {named.name}")
    with naming(f"{where} {named.name}"):
        return kind(**arguments)


def build_model(config: Config) -> paddle.nn.Layer:
    """Makes the model; frames and size come from ``data`` where the constructor asks for them.

    Raises:
        ConfigError: The model's own argument contradicts ``data``.
        ArgumentError: Unknown name or argument.
    """
    arguments = config.model.arguments
    accepted = inspect.signature(lookup(MODELS, config.model.name, "model")).parameters
    shape = {"num_segments": "num_frames", "num_frames": "num_frames", "crop_size": "crop_size"}
    for argument, key in shape.items():
        value = getattr(config.data, key)
        if argument in accepted and arguments.setdefault(argument, value) not in (None, value):
            raise ConfigError(f"model.{argument} is {arguments[argument]}, but data.{key} is {value}")
    with naming(f"model {config.model.name}"):
        return create_model(config.model.name, **arguments)


def build_task(config: Config) -> Classification:
    """Makes the task; the number of classes is the model's."""
    return construct(TASKS, config.task, "task", num_classes=num_classes(config))


def num_classes(config: Config) -> int:
    """Returns ``model.num_classes``, which task, annotations and class names share."""
    value = config.model.arguments.get("num_classes")
    if value is None:
        raise ConfigError("model.num_classes: this key is required")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"model.num_classes: must be a whole number of at least 1, given {value!r}")
    return value


def build_class_names(config: Config, config_path: str | Path) -> list[str] | None:
    """Reads the class names, one for each class of the model, or None where the config names no file."""
    if config.data.class_names is None:
        return None
    path = resolve_path(config.data.class_names, config_path, "data.class_names")
    names = load_class_names(path)
    if len(names) != num_classes(config):
        raise ConfigError(f"{path} has {len(names)} class names, but model.num_classes is {num_classes(config)}")
    return names


def build_records(config: Config, phase: str, config_path: str | Path) -> list[VideoRecord]:
    """Reads the annotations of a phase and logs where they were found."""
    section = getattr(config.data, phase)
    if section is None:
        raise ConfigError(f"{config_path}: data.{phase}: this key is required")
    path = resolve_path(section.annotations, config_path, f"data.{phase}.annotations")
    root = resolve_path(section.root, config_path, f"data.{phase}.root") if section.root is not None else None
    records = load_annotations(path, format=section.format, root=root, num_classes=num_classes(config))
    logger.info("data.%s: %d records from %s", phase, len(records), path)
    check_frame_folders(records)
    return records


def build_recipe(config: Config, phase: str) -> ClipRecipe:
    """Makes the rule by which a phase cuts clips out of videos."""
    data, section = config.data, getattr(config.data, phase)
    if "num_clips" in data.sampling.arguments:
        raise ConfigError("data.sampling.num_clips: write it under data.valid or data.test; training takes one clip")
    if phase != "train":
        sampling = construct(SAMPLINGS, data.sampling, "data.sampling", num_clips=section.num_clips)
        rule = EvalCrop(section.short_side or section.crop_size or data.crop_size, section.num_crops)
        return ClipRecipe(sampling, rule, train=False, num_crops=section.num_crops)
    unknown = [label for pair in (section.flip_labels or {}).items() for label in pair if label >= num_classes(config)]
    if unknown:
        raise ConfigError(f"data.train.flip_labels: class {unknown[0]}, but model.num_classes is {num_classes(config)}")
    crop = construct(CROPS, section.crop, "data.train.crop")
    with naming(f"data.train.crop {section.crop.name}"):  # some rules see only in a call that a size does not fit
        crop(4 * data.crop_size, 3 * data.crop_size, data.crop_size, 0, np.random.default_rng(0))
    draws: dict[str, Callable] = {}
    if config.augment.color_jitter is not None:
        draws["color_jitter"] = partial(draw_color_jitter, **config.augment.color_jitter.model_dump())
    if config.augment.erase is not None:
        draws["erase"] = partial(draw_erase, probability=config.augment.erase.probability)
    return ClipRecipe(
        construct(SAMPLINGS, data.sampling, "data.sampling"),
        crop,
        train=True,
        flip=section.flip,
        draws=draws,
        seed=config.seed,
    )


def build_augment(config: Config, phase: str) -> DeviceAugment:
    """Makes what turns the pixels of a phase into model inputs."""
    data, augment = config.data, config.augment
    if phase != "train":
        with naming("data.mean and data.std"):
            return DeviceAugment(data.mean, data.std)
    mixes = augment.mixup_alpha > 0 or augment.cutmix_alpha > 0
    return replace(
        build_augment(config, "valid"),
        jitter_hue=augment.color_jitter is not None and augment.color_jitter.hue > 0,
        erase_fill=augment.erase.fill if augment.erase else "zero",
        num_classes=num_classes(config) if mixes else None,
        label_smoothing=config.task.arguments.get("label_smoothing", 0.0) if mixes else 0.0,
    )


def build_dataset(config: Config, phase: str, records: list[VideoRecord], task: Classification) -> ClipDataset:
    """Makes the dataset of a phase."""
    data, trains = config.data, phase == "train"
    if data.fallback is not None:
        lookup(READERS, data.fallback, "data.fallback")
    limits = {"max_pixels": data.max_pixels, "max_frames": data.max_frames}
    with naming("data.reader"):
        reader = build_reader(data.reader, data.fallback, **{k: v for k, v in limits.items() if v is not None})
    if data.read_timeout is not None:
        reader = IsolatedReader(reader, data.read_timeout)
    return ClipDataset(
        records,
        build_recipe(config, phase),
        reader,
        task.targets((data.train.flip_labels if trains else None) or {}),
        use_what_decodes=trains and data.bad_files == "use_what_decodes",  # an evaluation never changes a sample
    )


def build_evaluation(
    config: Config, phase: str, config_path: str | Path, task: Classification, ranks: Ranks
) -> Evaluation:
    """Makes what is needed to evaluate on ``valid`` or ``test``."""
    records = build_records(config, phase, config_path)
    section: EvalData = getattr(config.data, phase)
    num_views = section.num_clips * section.num_crops
    sampler = EvalSampler(
        len(records),
        section.batch_size or config.data.batch_size,
        config.data.num_frames,
        section.crop_size or config.data.crop_size,
        num_views=num_views,
        ranks=ranks.size,
        rank=ranks.rank,
    )
    dataset = build_dataset(config, phase, records, task)
    loader = PaddleLoader(dataset, sampler, config.data.num_workers, config.data.timeout)
    return Evaluation(records, loader, num_views, section.average)


def build_learning_rate(config: Config, global_batch: int) -> Callable[[float], float]:
    """Makes the learning rate as a function of progress in epochs, scaled linearly to the global batch if asked."""
    kind = lookup(SCHEDULES, config.schedule.name, "schedule")
    given = {"base_lr": config.optimizer.lr}
    if "epochs" in inspect.signature(kind).parameters and "epochs" not in config.schedule.arguments:
        given["epochs"] = config.epochs
    rate = construct(SCHEDULES, config.schedule, "schedule", **given)
    reference = config.optimizer.reference_batch
    factor = global_batch / reference if reference else 1.0
    return lambda progress: factor * rate(progress)


def build_training(config: Config, config_path: str | Path, ranks: Ranks, validate: bool = True) -> Training:
    """Makes everything a training run works with.

    Raises:
        ConfigError, ArgumentError, AnnotationError, WeightsError: What does not fit, and what would.
    """
    task = build_task(config)
    class_names = build_class_names(config, config_path)
    records = build_records(config, "train", config_path)
    data, section = config.data, config.data.train
    with naming("data.train"):
        sampler = TrainSampler(
            len(records),
            data.batch_size,
            data.num_frames,
            data.crop_size,
            repeats=section.repeats,
            accum_steps=config.accum_steps,
            ranks=ranks.size,
            rank=ranks.rank,
            seed=config.seed,
            drop_last=section.drop_last,
        )
    dataset = build_dataset(config, "train", records, task)
    loader = PaddleLoader(dataset, sampler, data.num_workers, data.timeout)
    validation = None
    if validate and data.valid is not None:
        validation = build_evaluation(config, "valid", config_path, task, ranks)

    paddle.seed(config.seed)
    model = build_model(config)
    if config.weights is not None:
        load_weights(model, resolve_path(config.weights, config_path, "weights"), reset_head=config.reset_head)
    ema = Ema(model, build_model(config), config.ema.decay) if config.ema else None
    settings = config.optimizer
    learning_rate = build_learning_rate(config, sampler.records_per_step * section.repeats)
    with naming(f"optimizer {settings.name}"):
        optimizer = build_optimizer(
            model, settings.name, learning_rate(0.0), settings.weight_decay, settings.groups, settings.arguments
        )
    precision = Precision(config.amp)
    model, optimizer = precision.prepare(model, optimizer)
    parallel_model = ranks.wrap_model(model)
    return Training(
        config=config,
        ranks=ranks,
        task=task,
        records=records,
        class_names=class_names,
        sampler=sampler,
        dataset=dataset,
        loader=loader,
        augment=build_augment(config, "train"),
        validation=validation,
        model=model,
        parallel_model=parallel_model,
        forward=precision.wrap(parallel_model),
        optimizer=ranks.wrap_optimizer(optimizer),
        precision=precision,
        ema=ema,
        learning_rate=learning_rate,
        checkpoints=Checkpoints(Path(config.output_dir) / "checkpoints", config.checkpoint.keep),
    )
