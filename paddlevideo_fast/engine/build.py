"""From a config to objects: the only place that reads a Config to construct anything.

Names are looked up in plain tables and their arguments checked against the constructors; constructors take ordinary
keyword arguments and never see the config.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddlevideo_fast.arguments import lookup
from paddlevideo_fast.config import Config, ConfigError, EvalData, resolve_path, with_values
from paddlevideo_fast.data.annotations import FORMATS, VideoRecord, load_annotations, load_class_names
from paddlevideo_fast.data.augment_draws import draw_color_jitter, draw_erase
from paddlevideo_fast.data.crops import CROPS, EvalCrop
from paddlevideo_fast.data.dataset import ClipDataset
from paddlevideo_fast.data.plan import ClipRecipe
from paddlevideo_fast.data.readers import READERS, IsolatedReader, Reader, ShardReader, build_reader
from paddlevideo_fast.data.readers.frames import check_frame_folders
from paddlevideo_fast.data.samplers import EvalSampler, TrainSampler, shards_in_use
from paddlevideo_fast.data.sampling import SAMPLINGS
from paddlevideo_fast.data.shards import shard_numbers
from paddlevideo_fast.engine.checkpoint import Checkpoints
from paddlevideo_fast.engine.construct import checked, construct, entry, naming, refuse_twice
from paddlevideo_fast.engine.distributed import Ranks
from paddlevideo_fast.engine.ema import Ema
from paddlevideo_fast.engine.optim import OPTIMIZERS, build_optimizer
from paddlevideo_fast.engine.precision import Precision
from paddlevideo_fast.engine.tasks import TASKS, Classification
from paddlevideo_fast.loaders.dali_loader import DaliLoader
from paddlevideo_fast.loaders.dali_reader import DaliReader, load_dali
from paddlevideo_fast.loaders.thread_loader import PREFETCH_BATCHES, ThreadLoader
from paddlevideo_fast.models import MODELS, create_model
from paddlevideo_fast.models.weights.load import load_weights
from paddlevideo_fast.ops.augment import DeviceAugment
from paddlevideo_fast.schedule import SCHEDULES

logger = logging.getLogger("paddlevideo_fast")

MOST_OFFERED = 6
READER_KINDS: dict[str, type[Reader]] = {**READERS, "dali": DaliReader}  # what data.reader may name


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


def build_model(config: Config) -> paddle.nn.Layer:
    """Makes the model; frames and size come from ``data`` where the constructor asks for them.

    Raises:
        ConfigError: The model's own argument contradicts ``data``.
        ArgumentError: Unknown name or argument.
    """
    kind = entry(MODELS, config, "model")
    arguments, accepted = checked(kind, config, "model"), inspect.signature(kind).parameters
    shape = {"num_segments": "num_frames", "num_frames": "num_frames", "crop_size": "crop_size"}
    for argument, key in shape.items():
        value = getattr(config.data, key)
        if argument in accepted and arguments.setdefault(argument, value) not in (None, value):
            where = config.origin(f"model.{argument}")
            raise ConfigError(f"{where}: model.{argument} is {arguments[argument]}, but data.{key} is {value}")
    with naming(config, "model", config.model.name, config.model.arguments):
        return create_model(config.model.name, **arguments)


def build_task(config: Config) -> Classification:
    """Makes the task; the number of classes is the model's."""
    return construct(TASKS, config, "task", num_classes=num_classes(config))


def num_classes(config: Config) -> int:
    """Returns ``model.num_classes``, which task, annotations and class names share."""
    value = config.model.arguments.get("num_classes")
    if value is None:
        raise config.error("model.num_classes", "this key is required, or data.class_names to count")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise config.error("model.num_classes", f"must be a whole number of at least 1, given {value!r}")
    return value


def count_classes(config: Config, config_path: str | Path) -> Config:
    """Returns the config with ``model.num_classes``, counted in the class names where they alone are given."""
    kind = entry(MODELS, config, "model")
    given = config.model.arguments.get("num_classes")
    is_asked = given is None and "num_classes" in inspect.signature(kind).parameters
    if not is_asked or config.data.class_names is None:
        return config
    path = find(config, "data.class_names", config_path)
    count = len(load_class_names(path))
    logger.info("model.num_classes: %d, the class names in %s", count, path)
    return with_values(config, {"model": {"num_classes": count}})


def find(config: Config, key: str, config_path: str | Path) -> Path:
    """Finds the path that a dotted key of the config holds."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return resolve_path(value, config_path, key, config.origin(key))


def weights_file(path: str | Path, where: str) -> Path:
    """Returns the path of weights, unless it is a folder.

    Args:
        path: What was given as weights.
        where: What gave it, for the error.

    Raises:
        ConfigError: It is a folder; the error offers the weights in it.
    """
    path = Path(path).expanduser()
    if not path.is_dir():
        return path
    found = [str(file) for ending in ("pdparams", "pdstate") for file in sorted(path.rglob(f"*.{ending}"))]
    more = f" and {len(found) - MOST_OFFERED} more" if len(found) > MOST_OFFERED else ""
    offer = f"name a file in it: {', '.join(found[:MOST_OFFERED])}{more}" if found else "and no weights are in it"
    raise ConfigError(f"{where}: {path.absolute()} is a folder; {offer}")


def build_class_names(config: Config, config_path: str | Path) -> list[str] | None:
    """Reads the class names, one for each class of the model, or None where the config names no file."""
    if config.data.class_names is None:
        return None
    path = find(config, "data.class_names", config_path)
    names = load_class_names(path)
    if len(names) != num_classes(config):
        text = f"{path} has {len(names)} class names, but model.num_classes is {num_classes(config)}"
        raise config.error("data.class_names", text)
    return names


def build_records(config: Config, phase: str, config_path: str | Path) -> list[VideoRecord]:
    """Reads the annotations of a phase and logs where they were found."""
    section = getattr(config.data, phase)
    if section is None:
        raise config.error(f"data.{phase}", "this key is required")
    with naming(config, f"data.{phase}.format"):
        lookup({"auto": None, **dict.fromkeys(FORMATS)}, section.format, "format")
    path = find(config, f"data.{phase}.annotations", config_path)
    root = find(config, f"data.{phase}.root", config_path) if section.root is not None else None
    records = load_annotations(path, format=section.format, root=root, num_classes=num_classes(config))
    logger.info("data.%s: %d records from %s", phase, len(records), path)
    check_frame_folders(records)
    return records


def build_recipe(config: Config, phase: str) -> ClipRecipe:
    """Makes the rule by which a phase cuts clips out of videos."""
    data, section = config.data, getattr(config.data, phase)
    if "num_clips" in data.sampling.arguments:
        text = "write it under data.valid or data.test; training takes one clip"
        raise config.error("data.sampling.num_clips", text)
    if phase != "train":
        sampling = construct(SAMPLINGS, config, "data.sampling", num_clips=section.num_clips)
        rule = EvalCrop(section.short_side or section.crop_size or data.crop_size, section.num_crops)
        return ClipRecipe(sampling, rule, train=False, num_crops=section.num_crops)
    unknown = [label for pair in (section.flip_labels or {}).items() for label in pair if label >= num_classes(config)]
    if unknown:
        text = f"class {unknown[0]}, but model.num_classes is {num_classes(config)}"
        raise config.error("data.train.flip_labels", text)
    crop, rule = construct(CROPS, config, "data.train.crop"), section.crop
    with naming(config, "data.train.crop", rule.name, rule.arguments):  # some see only in a call what does not fit
        crop(4 * data.crop_size, 3 * data.crop_size, data.crop_size, 0, np.random.default_rng(0))
    draws: dict[str, Callable] = {}
    if config.augment.color_jitter is not None:
        draws["color_jitter"] = partial(draw_color_jitter, **config.augment.color_jitter.model_dump())
    if config.augment.erase is not None:
        draws["erase"] = partial(draw_erase, probability=config.augment.erase.probability)
    return ClipRecipe(
        construct(SAMPLINGS, config, "data.sampling"),
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
        with naming(config, "data", arguments=("mean", "std")):
            return DeviceAugment(data.mean, data.std)
    mixes = augment.mixup_alpha > 0 or augment.cutmix_alpha > 0
    return replace(
        build_augment(config, "valid"),
        jitter_hue=augment.color_jitter is not None and augment.color_jitter.hue > 0,
        erase_fill=augment.erase.fill if augment.erase else "zero",
        num_classes=num_classes(config) if mixes else None,
        label_smoothing=config.task.arguments.get("label_smoothing", 0.0) if mixes else 0.0,
    )


def build_configured_reader(config: Config) -> Reader:
    """Makes the reader with its fallback, limits and time limit; its packages are loaded."""
    data = config.data
    if data.fallback is not None:
        with naming(config, "data.fallback"):
            lookup(READERS, data.fallback, "reader")
    limits = {"max_pixels": data.max_pixels, "max_frames": data.max_frames}
    limits = {argument: value for argument, value in limits.items() if value is not None}
    kind = entry(READER_KINDS, config, "data.reader")
    if kind is DaliReader:
        return _build_dali_reader(config, {**limits, "fallback": data.fallback})
    refuse_twice(config, "data.reader", limits)
    arguments = checked(kind, config, "data.reader", elsewhere=limits)
    with naming(config, "data.reader", data.reader.name, arguments):
        reader = build_reader(data.reader.name, data.fallback, **arguments, **limits)
    return reader if data.read_timeout is None else IsolatedReader(reader, data.read_timeout)


def _build_dali_reader(config: Config, given: dict[str, Any]) -> DaliReader:
    if config.data.read_timeout is not None:
        text = "DALI decodes the files of a batch together and cannot limit each; remove this key (data.timeout stays)"
        raise config.error("data.read_timeout", text)
    with naming(config, "data.reader", "dali"):
        load_dali()
    return construct({"dali": DaliReader}, config, "data.reader", **given)


def build_loader(
    config: Config, dataset: ClipDataset, sampler: TrainSampler | EvalSampler
) -> ThreadLoader | DaliLoader:
    """Makes the loader of a dataset."""
    data = config.data
    if data.reader.name == "dali":
        return DaliLoader(dataset, build_configured_reader(config), sampler, data.num_workers, data.timeout)
    return ThreadLoader(dataset, sampler, data.num_workers, data.timeout)


def build_dataset(
    config: Config, phase: str, records: list[VideoRecord], task: Classification, ranks: int = 1
) -> ClipDataset:
    """Makes the dataset of a phase."""
    data, trains = config.data, phase == "train"
    reader = build_configured_reader(config)
    shards = shard_numbers(records) if trains else None  # an evaluation reads the members in the order they lie in
    if shards is not None:
        ahead = max(1, PREFETCH_BATCHES * data.num_workers) * data.batch_size * ranks
        reader = ShardReader(reader, shards_in_use(shards, data.train.shuffle_shards, ahead))
        logger.info("data.train: %d shards, up to %d of them in memory", max(shards) + 1, reader.num_shards)
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
    loader = build_loader(config, dataset, sampler)
    return Evaluation(records, loader, num_views, section.average)


def build_learning_rate(config: Config, global_batch: int) -> Callable[[float], float]:
    """Makes the learning rate as a function of progress in epochs, scaled linearly to the global batch if asked."""
    kind = entry(SCHEDULES, config, "schedule")
    given = {"base_lr": config.optimizer.lr}
    if "epochs" in inspect.signature(kind).parameters and "epochs" not in config.schedule.arguments:
        given["epochs"] = config.epochs
    rate = construct(SCHEDULES, config, "schedule", **given)
    reference = config.optimizer.reference_batch
    factor = global_batch / reference if reference else 1.0
    return lambda progress: factor * rate(progress)


def _build_optimizer(config: Config, model: paddle.nn.Layer, lr: float) -> Any:
    settings, kind = config.optimizer, entry(OPTIMIZERS, config, "optimizer")
    parameters = inspect.signature(kind).parameters.values()
    # Only numbers can be given; the rest of a Paddle optimiser's arguments are objects, which the code makes.
    objects = [p.name for p in parameters if not isinstance(p.default, (int, float))]
    arguments = checked(kind, config, "optimizer", elsewhere=["learning_rate", *objects])
    with naming(config, "optimizer", settings.name, arguments):
        return build_optimizer(model, settings.name, lr, settings.weight_decay, settings.groups, arguments)


def build_training(config: Config, config_path: str | Path, ranks: Ranks, validate: bool = True) -> Training:
    """Makes everything a training run works with.

    Raises:
        ConfigError, ArgumentError, AnnotationError, WeightsError: What does not fit, and what would.
    """
    config = count_classes(config, config_path)
    task = build_task(config)
    class_names = build_class_names(config, config_path)
    records = build_records(config, "train", config_path)
    data, section = config.data, config.data.train
    with naming(config, "data.train", arguments=type(section).model_fields):
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
            shards=shard_numbers(records),
            shuffle_shards=section.shuffle_shards,
        )
    dataset = build_dataset(config, "train", records, task, ranks.size)
    loader = build_loader(config, dataset, sampler)
    validation = None
    if validate and data.valid is not None:
        validation = build_evaluation(config, "valid", config_path, task, ranks)

    paddle.seed(config.seed)
    model = build_model(config)
    if config.weights is not None:
        weights = weights_file(find(config, "weights", config_path), f"{config.origin('weights')}: weights")
        load_weights(model, weights, reset_head=config.reset_head)
    ema = Ema(model, build_model(config), config.ema.decay) if config.ema else None
    learning_rate = build_learning_rate(config, sampler.records_per_step * section.repeats)
    optimizer = _build_optimizer(config, model, learning_rate(0.0))
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
