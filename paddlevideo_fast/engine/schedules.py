"""From a config to what a run does when: its phases, and its learning rate."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

from paddlevideo_fast.config import Config
from paddlevideo_fast.data.sampling import SAMPLINGS
from paddlevideo_fast.engine.construct import checked, construct, entry, naming
from paddlevideo_fast.models import MODELS
from paddlevideo_fast.multigrid import MultigridRate, build_schedule
from paddlevideo_fast.phases import Schedule, steady_schedule
from paddlevideo_fast.schedule import SCHEDULES, ConstantSchedule, StepSchedule


def build_phases(config: Config, ranks: int = 1) -> Schedule:
    """Makes the phases of a run; without multigrid there is one.

    Raises:
        ConfigError: The values of ``multigrid`` and ``schedule`` make no schedule.
    """
    data, multigrid = config.data, config.multigrid
    common = {
        "batch_size": data.batch_size * ranks * config.accum_steps * (data.train.repeats if data.train else 1),
        "num_frames": data.num_frames,
        "crop_size": data.crop_size,
        "epochs": config.epochs,
        "ranks": ranks,
        "accum_steps": config.accum_steps,
        "frame_stride": _frame_stride(config),
    }
    if multigrid is None:
        return steady_schedule(**common)
    arguments = multigrid.model_dump() | {"gamma": None}
    kind = entry(SCHEDULES, config, "schedule")
    if kind is StepSchedule:
        if multigrid.milestones is not None:
            raise config.error("multigrid.milestones", "remove this key; schedule.milestones are taken")
        steps = {"gamma": StepSchedule.gamma} | checked(kind, config, "schedule", elsewhere=["base_lr"])
        arguments |= {name: steps[name] for name in ("milestones", "gamma")}
    elif "epochs" in config.schedule.arguments:
        raise config.error("schedule.epochs", "remove this key; with multigrid the schedule is as long as the run")
    frames_unit, crop_unit = clip_units(config)
    with naming(config, "multigrid", arguments=type(multigrid).model_fields):
        return build_schedule(**common, **arguments, frames_unit=frames_unit, crop_unit=crop_unit)


def _frame_stride(config: Config) -> int | None:
    return getattr(construct(SAMPLINGS, config, "data.sampling"), "frame_stride", None)


def clip_units(config: Config) -> tuple[int, int]:
    """Returns what the frames and the sides of the model's clips are multiples of: its tubelets and patches.

    SlowFast has ``alpha`` frames for each of its slow pathway. A patch that is no argument is in the model's name.
    """
    kind = entry(MODELS, config, "model")
    defaults = {parameter.name: parameter.default for parameter in inspect.signature(kind).parameters.values()}
    arguments = defaults | checked(kind, config, "model", elsewhere=defaults)
    patch = re.search(r"patch(\d+)", config.model.name)
    pixels = arguments.get("patch_size", patch and int(patch[1])) or 1
    return arguments.get("tubelet_size") or arguments.get("alpha") or 1, pixels


def build_learning_rate(config: Config, global_batch: int) -> Callable[[float], float]:
    """Makes the learning rate as a function of progress in epochs, scaled linearly to the global batch if asked.

    With multigrid it also follows the batch of the phase, and the phases hold the decay of a step schedule.
    """
    kind, phases = entry(SCHEDULES, config, "schedule"), build_phases(config)
    given = {"base_lr": config.optimizer.lr}
    if "epochs" in inspect.signature(kind).parameters and "epochs" not in config.schedule.arguments:
        given["epochs"] = phases.epochs
    rate = construct(SCHEDULES, config, "schedule", **given)
    if config.multigrid:
        steady = ConstantSchedule(rate.base_lr, rate.warmup_epochs, rate.warmup_start_lr)
        rate = MultigridRate(phases, steady if kind is StepSchedule else rate)
    reference = config.optimizer.reference_batch
    factor = global_batch / reference if reference else 1.0
    return lambda progress: factor * rate(progress)
