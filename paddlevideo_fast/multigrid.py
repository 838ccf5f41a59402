"""Multigrid training as arithmetic: which clips, how many of them and at which learning rate, epoch by epoch.

Coarse clips are cheap, so that many more of them fit into a step. The *long cycle* runs through shapes of clips from
coarse to full within each stage of the learning rate and ends with a phase of full clips for fine-tuning. The *short
cycle* changes the crop from step to step within a phase. The batch grows by what a clip shrinks, and the learning
rate with the batch of the long cycle; the short cycle leaves it alone.

Source: Wu et al., "A Multigrid Method for Efficiently Training Video Models", CVPR 2020, arXiv 1912.00998; numbers and
rounding after PySlowFast, ``slowfast/utils/multigrid.py`` and ``slowfast/datasets/multigrid_helper.py``.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paddlevideo_fast.phases import Phase, Schedule, batch_per_rank, bn_groups

LONG_CYCLE = ((0.25, 0.5**0.5), (0.5, 0.5**0.5), (0.5, 1.0), (1.0, 1.0))
"""Frames and crop of the shapes of a long cycle, relative to the full clip."""

SHORT_CYCLE = (0.5, 0.5**0.5)
"""Crops of a short cycle relative to the full one, before the phase's own crop."""

USUAL_STAGES = (94 / 239, 154 / 239, 196 / 239)
"""Milestones of the Kinetics-400 recipe as shares of the run."""

CYCLES = ("repeated", "single")

LR_SCALINGS = {"linear": 1.0, "sqrt": 0.5}
"""The power of the batch's growth that the learning rate grows with."""


@dataclass(frozen=True)
class MultigridRate:
    """The learning rate of a multigrid run as a function of progress in epochs.

    It is the base schedule's rate times the multiplier of the phase. The warm-up keeps its length and its start, and
    rises to the rate that holds where it ends.

    Args:
        schedule: The phases.
        base: The rate before multipliers, with its warm-up: constant where the phases hold the decay, or, not in the
            paper's code, a cosine over ``schedule.epochs`` for phases built with ``gamma=None``.

    Source: PySlowFast, ``slowfast/utils/lr_policy.py``, steps_with_relative_lrs.
    """

    schedule: Schedule
    base: Callable[[float], float]

    def __call__(self, progress_epochs: float) -> float:
        """Returns the rate at ``progress_epochs``: whole epochs done plus the done share of the current one."""
        warmup, start = self.base.warmup_epochs, self.base.warmup_start_lr
        if progress_epochs >= warmup:
            return self.base(progress_epochs) * self.schedule.at(progress_epochs).lr_multiplier
        target = self.base(warmup) * self.schedule.at(warmup).lr_multiplier
        return start + (target - start) * (progress_epochs / warmup)


@dataclass(frozen=True)
class _Shape:
    """A shape of the long cycle: batches relative to that of the full clip."""

    num_frames: int
    crop_size: int
    batch_factor: int
    short_cycle: tuple[tuple[int, int], ...]  # (crop, batch factor)
    mean_factor: float


def build_schedule(
    batch_size: int,
    num_frames: int,
    crop_size: int,
    milestones: Sequence[float] | None,
    epochs: int,
    gamma: float | None = 0.1,
    long_cycle: bool = True,
    short_cycle: bool = True,
    epoch_factor: float = 1.5,
    ranks: int = 1,
    accum_steps: int = 1,
    frame_stride: int | None = 1,
    long_cycle_shapes: Sequence[tuple[float, float]] = LONG_CYCLE,
    cycle: str = "repeated",
    lr_scaling: str = "linear",
    sub_batch: int = 8,
    frames_unit: int = 1,
    crop_unit: int = 1,
) -> Schedule:
    """Builds the phases of a multigrid run from the recipe of a run without.

    Args:
        batch_size: Clips of a step of the recipe: per rank x ranks x accumulated batches x repeats.
        num_frames: Frames of the full clip.
        crop_size: Side of the full crop in pixels.
        milestones: Epochs of the recipe at which the rate falls, rising, between 0 and ``epochs``. They divide the
            long cycles also where the rate falls otherwise; None then takes those of the Kinetics-400 recipe.
        epochs: Epochs of the recipe.
        gamma: Factor at each milestone; None where another schedule lowers the rate, so that the multipliers are those
            of the batch alone.
        long_cycle: Run through ``long_cycle_shapes``.
        short_cycle: Change the crop from step to step.
        epoch_factor: Epochs of the run over those of the recipe.
        ranks: Processes.
        accum_steps: Batches accumulated for a step.
        frame_stride: Frames from one to the next in the full clip; None where the sampling has no stride.
        long_cycle_shapes: (frames, crop) of each shape relative to the full clip, which comes last.
        cycle: "repeated", a cycle in each stage of the rate and full clips to end with, or "single", one cycle over the
            run with as many steps at each shape, to compare with.
        lr_scaling: How the rate follows the batch: "linear", as published, for SGD; or "sqrt", not in the paper, which
            AdamW wants (Malladi et al., arXiv 2205.10287).
        sub_batch: Clips that batch norm takes together.
        frames_unit: Frames of every clip are the nearest multiple of it: the tubelets of a transformer.
        crop_unit: Sides of every crop are the nearest multiple of it: the patches of a transformer.

    Returns:
        The schedule. Phases that rounding leaves without an epoch are not in it.

    Raises:
        ValueError: The values do not make a schedule; the error says which would.

    Source: PySlowFast, ``slowfast/utils/multigrid.py``, init_multigrid. Where that stops with an error (a long cycle
    alone; batches that neither sub-batches nor groups of ranks divide) this does the nearest thing that works. The
    paper compares a single cycle but no code of it is published: here every stage of the rate keeps its share of the
    steps, and the cycle's last shape is the fine-tuning.
    """
    if not (long_cycle or short_cycle):
        raise ValueError("multigrid needs long_cycle, short_cycle or both")
    if cycle not in CYCLES:
        raise ValueError(f"cycle must be one of {', '.join(CYCLES)}, got {cycle!r}")
    if lr_scaling not in LR_SCALINGS:
        raise ValueError(f"lr_scaling must be one of {', '.join(LR_SCALINGS)}, got {lr_scaling!r}")
    for name, value in (("epoch_factor", epoch_factor), ("sub_batch", sub_batch), ("frame_stride", frame_stride)):
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be above 0, got {value}")
    milestones = usual_milestones(epochs) if milestones is None else list(milestones)
    _check_milestones(milestones, epochs)
    units = (frames_unit, crop_unit)
    full = _shape(num_frames, crop_size, (1.0, 1.0), short_cycle, units)
    shapes = [_shape(num_frames, crop_size, factors, short_cycle, units) for factors in long_cycle_shapes]
    if not shapes or shapes[-1] != full:
        raise ValueError(f"long_cycle_shapes must end with the full shape, (1, 1), got {list(long_cycle_shapes)}")
    decay = 1.0 if gamma is None else gamma
    if not long_cycle:
        parts = _short_only(full, milestones, epochs, epoch_factor)
    elif cycle == "repeated":
        parts = _repeated(shapes, milestones, epochs, epoch_factor)
    else:
        parts = _single(shapes, milestones, epochs, epoch_factor)
    share = batch_per_rank(batch_size, ranks, accum_steps)
    phases, start = [], 0
    for end, shape, stage in parts:
        if end == start:
            continue
        splits, sync_ranks = bn_groups(share * shape.batch_factor, ranks, sub_batch)
        phases.append(
            Phase(
                start=start,
                end=end,
                batch_size=batch_size * shape.batch_factor,
                num_frames=shape.num_frames,
                crop_size=shape.crop_size,
                lr_multiplier=decay**stage * shape.batch_factor ** LR_SCALINGS[lr_scaling],
                bn_splits=splits,
                bn_sync_ranks=sync_ranks,
                frame_stride_max=frame_stride and frame_stride * (num_frames // shape.num_frames),
                short_cycle=tuple((crop, batch_size * factor) for crop, factor in shape.short_cycle),
            )
        )
        start = end
    if not phases or (phases[-1].num_frames, phases[-1].crop_size) != (num_frames, crop_size):
        raise ValueError(
            f"{epochs} epochs times {epoch_factor} with milestones {milestones} end before the full shape has its "
            "turn; take more epochs, or milestones further from the end"
        )
    return Schedule(tuple(phases), epochs)


def usual_milestones(epochs: int) -> list[int]:
    """Returns the milestones of the Kinetics-400 recipe (94, 154, 196 of 239 epochs) for a run of ``epochs``."""
    return sorted({round(share * epochs) for share in USUAL_STAGES} - {0, epochs})


def _shape(
    num_frames: int, crop_size: int, factors: Sequence[float], short_cycle: bool, units: tuple[int, int]
) -> _Shape:
    frames = round(_multiple(num_frames * factors[0], units[0]))
    crop = round(_multiple(crop_size * factors[1], units[1]))
    if frames < 1 or crop < 1:
        raise ValueError(
            f"the shape {tuple(factors)} of {num_frames} frames at {crop_size} has {frames} frames at {crop}; "
            "long_cycle_shapes has to hold larger ones"
        )
    volume = num_frames * crop_size**2

    def batch_of(side: float) -> int:
        return round(volume / (frames * side**2))

    if batch_of(crop) < 1:
        raise ValueError(f"the shape {tuple(factors)} is larger than the full one, and a batch of it no whole clip")
    steps, factors_of_steps = [], []
    for factor in SHORT_CYCLE if short_cycle else ():
        side = _multiple(factor * crop_size, units[1])
        if round(side) <= crop:
            steps.append((round(side), batch_of(crop) * round((crop / side) ** 2)))
            factors_of_steps.append(batch_of(side))
    steps.append((crop, batch_of(crop)))
    factors_of_steps.append(batch_of(crop))
    # The epochs are divided by batches rounded one by one, the steps by products of rounded factors, as published.
    return _Shape(frames, crop, batch_of(crop), tuple(steps), sum(factors_of_steps) / len(factors_of_steps))


def _multiple(value: float, unit: int) -> float:
    """The nearest multiple of a unit, at least one; of 1, the value as it is, for the arithmetic of the original."""
    return value if unit == 1 else unit * max(1, round(value / unit))


_Part = tuple[int, _Shape, int]  # the epoch it ends before, its shape, the stage of the rate: milestones passed


def _short_only(full: _Shape, milestones: Sequence[float], epochs: int, epoch_factor: float) -> list[_Part]:
    ends = [int(epoch * epoch_factor) for epoch in (*milestones, epochs)]
    return [(end, full, stage) for stage, end in enumerate(ends)]


def _repeated(shapes: Sequence[_Shape], milestones: Sequence[float], epochs: int, epoch_factor: float) -> list[_Part]:
    """A cycle in each stage of the rate with equally many steps at each shape, then full clips to fine-tune."""
    if not milestones:
        raise ValueError("repeated cycles need a milestone to fine-tune after, got none")
    whole = sum(shape.mean_factor for shape in shapes)
    plan, steps = [], 0.0  # steps in units of an epoch of the recipe
    for stage, (start, end) in enumerate(itertools.pairwise((0, *milestones))):
        for shape in shapes:
            length = (end - start) * shape.mean_factor / whole
            steps += length / shape.mean_factor
            plan.append((length, shape, stage))
    # The fine-tuning takes as few steps, beside what it takes in the recipe, as the cycles do.
    saving = milestones[-1] / steps
    full = shapes[-1]
    plan.append(((epochs - milestones[-1]) / saving * full.mean_factor, full, len(milestones)))
    parts = _rounded(plan, epochs * epoch_factor)
    start, end = parts[-2][0], parts[-1][0]
    return [*parts[:-1], ((start + end) // 2, full, parts[-2][2]), parts[-1]]


def _single(shapes: Sequence[_Shape], milestones: Sequence[float], epochs: int, epoch_factor: float) -> list[_Part]:
    """One cycle over the run, equally many steps at each shape; the stages of the rate keep their share of steps."""
    changes = [epochs * number / len(shapes) for number in range(1, len(shapes))]
    cuts = sorted({0.0, *changes, *milestones, float(epochs)})
    plan = []
    for start, end in itertools.pairwise(cuts):
        shape = shapes[bisect_right(changes, start)]
        plan.append(((end - start) * shape.mean_factor, shape, bisect_right(milestones, start)))
    parts = _rounded(plan, epochs * epoch_factor)
    return [*parts[:-1], (round(epochs * epoch_factor), *parts[-1][1:])]  # whatever the sum's last digit


def _rounded(plan: Sequence[tuple[float, _Shape, int]], total: float) -> list[_Part]:
    """Stretches lengths to a total and rounds where each ends."""
    stretch = total / sum(length for length, _, _ in plan)
    ends = itertools.accumulate(length * stretch for length, _, _ in plan)
    return [(round(end), shape, stage) for end, (_, shape, stage) in zip(ends, plan)]


def _check_milestones(milestones: Sequence[float], epochs: int) -> None:
    for before, after in itertools.pairwise((0, *milestones, epochs)):
        if not before < after:
            raise ValueError(f"milestones must rise between 0 and epochs ({epochs}), got {list(milestones)}")
