"""From a config to objects: the only place that reads a Config to construct anything.

Names are looked up in plain tables and their arguments checked against the constructors; constructors take ordinary
keyword arguments and never see the config.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddlevideo_fast.arguments import ArgumentError, check_arguments, lookup
from paddlevideo_fast.config import Config, ConfigError, EvalData
from paddlevideo_fast.data.annotations import VideoRecord
from paddlevideo_fast.data.augment_draws import draw_color_jitter, draw_erase
from paddlevideo_fast.data.crops import CROPS, EvalCrop
from paddlevideo_fast.data.dataset import ClipDataset
from paddlevideo_fast.data.plan import ClipRecipe
from paddlevideo_fast.data.randaugment import RandAugment
from paddlevideo_fast.data.readers import READERS, IsolatedReader, Reader, ShardReader, build_reader
from paddlevideo_fast.data.samplers import EvalSampler, TrainSampler, shards_in_use
from paddlevideo_fast.data.sampling import SAMPLINGS
from paddlevideo_fast.data.shards import shard_numbers
from paddlevideo_fast.engine.checkpoint import Checkpoints
from paddlevideo_fast.engine.construct import checked, construct, entry, naming, refuse_twice, section
from paddlevideo_fast.engine.distributed import Ranks
from paddlevideo_fast.engine.ema import Ema
from paddlevideo_fast.engine.inputs import (
    build_class_names,
    build_records,
    count_classes,
    find,
    num_classes,
    weights_file,
)
from paddlevideo_fast.engine.optim import OPTIMIZERS, build_optimizer
from paddlevideo_fast.engine.precise_bn import PreciseStatistics
from paddlevideo_fast.engine.precision import Precision
from paddlevideo_fast.engine.run import Evaluation, Training
from paddlevideo_fast.engine.schedules import build_learning_rate, build_phases
from paddlevideo_fast.engine.tasks import TASKS, Classification
from paddlevideo_fast.loaders.dali_loader import DaliLoader
from paddlevideo_fast.loaders.dali_reader import DaliReader, load_dali
from paddlevideo_fast.loaders.thread_loader import PREFETCH_BATCHES, ThreadLoader
from paddlevideo_fast.models import MODELS, create_model
from paddlevideo_fast.models.weights.load import load_weights
from paddlevideo_fast.ops.augment import DeviceAugment
from paddlevideo_fast.ops.norm import running_statistics
from paddlevideo_fast.phases import Schedule

logger = logging.getLogger("paddlevideo_fast")

READER_KINDS: dict[str, type[Reader]] = {**READERS, "dali": DaliReader}  # what data.reader may name


def build_model(config: Config, any_length: bool = False) -> paddle.nn.Layer:
    """Makes the model; frames and size come from ``data`` where the constructor asks for them.

    Args:
        config: The config.
        any_length: The frames of clips will change; a model that would insist on a number is told none.

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
        if any_length and key == "num_frames" and argument in accepted and _takes_none(kind, argument):
            arguments[argument] = None
    head = arguments.get("head", "adaptive")
    if any_length and head.startswith("convolutional"):
        text = "pools clips of one length; multigrid trains with adaptive, whose weights fit a test with this head too"
        raise config.error("model.head", f"{head} {text}")
    fitting = entry(TASKS, config, "task").convolutional_head
    if head.startswith("convolutional") and head != fitting:
        text = f"averages other probabilities; task {config.task.name} takes {fitting}"
        raise config.error("model.head", f"{head} {text}")
    with naming(config, "model", config.model.name, config.model.arguments):
        return create_model(config.model.name, **arguments)


def _takes_none(kind: Callable, argument: str) -> bool:
    with contextlib.suppress(ArgumentError):
        check_arguments(kind, {argument: None}, "model", elsewhere=inspect.signature(kind).parameters)
        return True
    return False


def build_task(config: Config) -> Classification:
    """Makes the task; the number of classes is the model's."""
    return construct(TASKS, config, "task", num_classes=num_classes(config))


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
    crop = _construct_for_shapes(CROPS, config, "data.train.crop", base_crop_size=data.crop_size)
    rule = section.crop
    sides = {side for phase in build_phases(config).phases for side, _ in phase.short_cycle}
    for side in sorted(sides, reverse=True):
        with naming(config, "data.train.crop", rule.name, rule.arguments):  # some see only in a call what does not fit
            crop(4 * data.crop_size, 3 * data.crop_size, side, 0, np.random.default_rng(0))
    draws: dict[str, Callable] = {}
    if config.augment.color_jitter is not None:
        draws["color_jitter"] = partial(draw_color_jitter, **config.augment.color_jitter.model_dump())
    if config.augment.erase is not None:
        draws["erase"] = partial(draw_erase, probability=config.augment.erase.probability)
    return ClipRecipe(
        _construct_for_shapes(SAMPLINGS, config, "data.sampling", base_frames=data.num_frames),
        crop,
        train=True,
        flip=section.flip,
        draws=draws,
        draw_transform=RandAugment(**section.rand_augment.model_dump()) if section.rand_augment else None,
        seed=config.seed,
    )


def _construct_for_shapes(table: dict[str, Callable], config: Config, key: str, **base: int) -> Any:
    """Calls an entry; with multigrid it is told the full clip it was chosen for, if it asks and the config is mute."""
    accepted, given = inspect.signature(entry(table, config, key)).parameters, section(config, key).arguments
    asked = {name: value for name, value in base.items() if name in accepted and name not in given}
    return construct(table, config, key, **(asked if config.multigrid else {}))


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
    task.check(records)
    if trains and data.train.rand_augment is not None and data.reader.name == "dali":
        text = "works on frames in the host's memory, where data.reader dali leaves none; take another reader"
        raise config.error("data.train.rand_augment", text)
    reader = build_configured_reader(config)
    shards = shard_numbers(records) if trains else None  # an evaluation reads the members in the order they lie in
    if shards is not None:
        most = max(batch for each in build_phases(config, ranks).phases for _, batch in each.short_cycle)
        records_ahead = most // (config.accum_steps * data.train.repeats)
        ahead = max(1, PREFETCH_BATCHES * data.num_workers) * records_ahead
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


def _build_optimizer(config: Config, model: paddle.nn.Layer, lr: float) -> Any:
    settings, kind = config.optimizer, entry(OPTIMIZERS, config, "optimizer")
    parameters = inspect.signature(kind).parameters.values()
    # Only numbers can be given; the rest of a Paddle optimiser's arguments are objects, which the code makes.
    objects = [p.name for p in parameters if not isinstance(p.default, (int, float))]
    arguments = checked(kind, config, "optimizer", elsewhere=["learning_rate", *objects])
    decay = settings.layer_decay
    with naming(config, "optimizer", settings.name, [*arguments, "layer_decay"]):
        return build_optimizer(model, settings.name, lr, settings.weight_decay, settings.groups, arguments, decay)


def build_train_sampler(config: Config, records: list[VideoRecord], ranks: Ranks, **changes: Any) -> TrainSampler:
    """Makes the order in which a rank takes the training records; ``changes`` replace arguments."""
    data, section = config.data, config.data.train
    arguments = {
        "schedule": build_phases(config, ranks.size),
        "repeats": section.repeats,
        "accum_steps": config.accum_steps,
        "seed": config.seed,
        "drop_last": section.drop_last,
        "shards": shard_numbers(records),
        "shuffle_shards": section.shuffle_shards,
    }
    with naming(config, "data.train", arguments=type(section).model_fields):
        sampler = TrainSampler(
            len(records),
            data.batch_size,
            data.num_frames,
            data.crop_size,
            ranks=ranks.size,
            rank=ranks.rank,
            **{**arguments, **changes},
        )
    sampler.seek(sampler.schedule.phases[-1].start)  # whose epochs have the most batches, for loaders to see
    return sampler


def build_precise_bn(
    config: Config, dataset: ClipDataset, task: Classification, model: paddle.nn.Layer, ranks: Ranks
) -> PreciseStatistics | None:
    """Makes what recomputes the batch norm statistics, if it is asked for.

    Raises:
        ConfigError: The model has no batch norm that training updates.
    """
    if config.precise_bn is None:
        return None
    if not running_statistics(model):
        text = f"{config.model.name} has no batch norm whose statistics training updates; remove this key"
        raise config.error("precise_bn", text)
    schedule = build_phases(config, ranks.size).without_short_cycle(config.accum_steps)
    most = max(phase.batch_size for phase in schedule.phases) // config.data.train.repeats
    whole = len(dataset.records) >= most  # else an epoch is one smaller batch
    # Another seed, another order than that of training's own batches.
    changes = {"schedule": schedule, "seed": config.seed + 1, "accum_steps": 1, "drop_last": whole}
    sampler = build_train_sampler(config, dataset.records, ranks, **changes)
    loader = build_loader(config, dataset, sampler)
    return PreciseStatistics(loader, config.precise_bn.num_batches, task, build_augment(config, "train"), ranks)


def check_shapes(config: Config, model: paddle.nn.Layer, schedule: Schedule) -> None:
    """Shows the model a clip of the smallest shape of training where that is not the only one.

    Raises:
        ConfigError: It cannot take it.
    """
    frames = min(phase.num_frames for phase in schedule.phases)
    if frames < config.data.num_frames:  # another crop alone is no other network
        show_clip(config, "multigrid", model, frames, min(side for p in schedule.phases for side, _ in p.short_cycle))


def check_evaluation(config: Config, phase: str, model: paddle.nn.Layer) -> None:
    """Shows the model a clip of an evaluation whose crop is not that of training.

    Raises:
        ConfigError: It cannot take it.
    """
    crop = getattr(config.data, phase).crop_size
    if crop not in (None, config.data.crop_size):
        show_clip(config, f"data.{phase}.crop_size", model, config.data.num_frames, crop)


@paddle.no_grad()
def show_clip(config: Config, key: str, model: paddle.nn.Layer, num_frames: int, crop_size: int) -> None:
    """Lets the model see a black clip, so that what it cannot take is told at once and not after an epoch.

    Raises:
        ConfigError: It cannot take it; ``key`` is blamed.
    """
    was_training = model.training
    model.eval()
    with naming(config, key):
        model(paddle.zeros([1, 3, num_frames, crop_size, crop_size]))
    if was_training:
        model.train()


def build_training(config: Config, config_path: str | Path, ranks: Ranks, validate: bool = True) -> Training:
    """Makes everything a training run works with.

    Raises:
        ConfigError, ArgumentError, AnnotationError, WeightsError: What does not fit, and what would.
    """
    config = count_classes(config, config_path)
    task = build_task(config)
    class_names = build_class_names(config, config_path)
    records = build_records(config, "train", config_path)
    data = config.data
    sampler = build_train_sampler(config, records, ranks)
    dataset = build_dataset(config, "train", records, task, ranks.size)
    loader = build_loader(config, dataset, sampler)
    validation = None
    if validate and data.valid is not None:
        validation = build_evaluation(config, "valid", config_path, task, ranks)

    paddle.seed(config.seed)
    any_length = len({phase.num_frames for phase in sampler.schedule.phases}) > 1
    model = build_model(config, any_length)
    if config.weights is not None:
        weights = weights_file(find(config, "weights", config_path), f"{config.origin('weights')}: weights")
        load_weights(model, weights, reset_head=config.reset_head)
    check_shapes(config, model, sampler.schedule)
    if validation is not None:
        check_evaluation(config, "valid", model)
    ema = Ema(model, build_model(config, any_length), config.ema.decay) if config.ema else None
    learning_rate = build_learning_rate(config, sampler.records_per_step * sampler.repeats)
    optimizer = _build_optimizer(config, model, learning_rate(0.0))
    precision = Precision(config.amp)
    model, optimizer = precision.prepare(model, optimizer)
    parallel_model = ranks.wrap_model(model)
    return Training(
        config=config,
        ranks=ranks,
        task=task,
        schedule=sampler.schedule,
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
        precise_bn=build_precise_bn(config, dataset, task, model, ranks),
        learning_rate=learning_rate,
        checkpoints=Checkpoints(Path(config.output_dir) / "checkpoints", config.checkpoint.keep),
    )
