"""The phases of a run: epochs in which every step has the same frames and learning rate, and crop and batch recur.

A run without multigrid is one phase. Pure arithmetic; ``multigrid.py`` makes the phases of the others.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Phase:
    """Epochs of one shape and one learning rate.

    Attributes:
        start: First epoch.
        end: The epoch after the last.
        batch_size: Clips of a step over all ranks and accumulated batches, at ``crop_size``.
        num_frames: Frames of a clip.
        crop_size: Side of the largest crop in pixels.
        lr_multiplier: Factor on the base learning rate: the decay of the stage times the growth of the batch.
        bn_splits: Sub-batches a rank's batch is normalised in.
        bn_sync_ranks: Ranks whose batches are normalised together; 1 unless a rank's batch is below a sub-batch.
        frame_stride_max: Strides are drawn from the base stride up to this one, so that short clips span as much time;
            None where the sampling has no stride.
        short_cycle: (crop, batch) of one step after the other, over and over in an epoch; one entry without a short
            cycle.
    """

    start: int
    end: int
    batch_size: int
    num_frames: int
    crop_size: int
    lr_multiplier: float
    bn_splits: int
    bn_sync_ranks: int
    frame_stride_max: int | None
    short_cycle: tuple[tuple[int, int], ...]

    @property
    def epochs(self) -> int:
        """Length of the phase."""
        return self.end - self.start

    @property
    def clips_per_cycle(self) -> int:
        """Clips of one short cycle."""
        return sum(batch for _, batch in self.short_cycle)

    @property
    def mean_batch(self) -> float:
        """Clips of a step on average."""
        return self.clips_per_cycle / len(self.short_cycle)

    @property
    def pixels_per_clip(self) -> float:
        """Frames times crop squared, on average over the clips of an epoch."""
        pixels = sum(batch * self.num_frames * crop**2 for crop, batch in self.short_cycle)
        return pixels / self.clips_per_cycle

    def step_at(self, position: int) -> tuple[int, int, int]:
        """Tells the step that comes after ``position`` clips of an epoch.

        The place in the short cycle follows from the clips consumed by all ranks, whatever their number.

        Returns:
            Its crop, its clips, and those that are left of it: fewer where the position lies within the step.
        """
        offset = position % self.clips_per_cycle
        for crop, batch in self.short_cycle:
            if offset < batch:
                return crop, batch, batch - offset
            offset -= batch
        raise AssertionError("an offset lies within the cycle")

    def whole_steps(self, num_clips: int) -> int:
        """Returns the clips of those steps of an epoch that ``num_clips`` clips fill."""
        filled = num_clips - num_clips % self.clips_per_cycle
        ends = itertools.accumulate((batch for _, batch in self.short_cycle), initial=filled)
        return max(end for end in ends if end <= num_clips)

    def num_steps(self, num_clips: int) -> int:
        """Counts the steps of an epoch's first ``num_clips`` clips, one that is cut off included."""
        cycles, rest = divmod(num_clips, self.clips_per_cycle)
        starts = itertools.accumulate((batch for _, batch in self.short_cycle[:-1]), initial=0)
        return cycles * len(self.short_cycle) + sum(start < rest for start in starts)


@dataclass(frozen=True)
class Schedule:
    """The phases of a run.

    Attributes:
        phases: In order, without gaps; none is empty, the last one has the full shape.
        base_epochs: Epochs of the run without multigrid.
    """

    phases: tuple[Phase, ...]
    base_epochs: int

    @property
    def epochs(self) -> int:
        """Epochs of the run."""
        return self.phases[-1].end

    def at(self, epoch: float) -> Phase:
        """Returns the phase of an epoch, counted from 0; after the end, the last.

        Raises:
            ValueError: ``epoch`` is below 0.
        """
        if not epoch >= 0:
            raise ValueError(f"epoch must be at least 0, got {epoch}")
        index = bisect_right(self.phases, epoch, key=lambda phase: phase.end)
        return self.phases[min(index, len(self.phases) - 1)]

    def without_short_cycle(self, parts: int = 1) -> Schedule:
        """Returns phases whose steps all have the phase's own crop, each a ``parts``-th of the phase's batch."""
        phases = [
            replace(phase, batch_size=batch, short_cycle=((phase.crop_size, batch),))
            for phase in self.phases
            for batch in [phase.batch_size // parts]
        ]
        return replace(self, phases=tuple(phases))

    def pixels_left(self, progress_epochs: float) -> float:
        """Returns the pixels that are still to be seen, frames counted, for each clip of an epoch."""
        left = [(phase.end - max(phase.start, progress_epochs), phase) for phase in self.phases]
        return sum(epochs * phase.pixels_per_clip for epochs, phase in left if epochs > 0)

    def iterations(self, num_clips: int) -> float:
        """Returns the steps of the run with ``num_clips`` an epoch; the cut-off ends of epochs count as their share."""
        return sum(phase.epochs * num_clips / phase.mean_batch for phase in self.phases)

    @property
    def iteration_saving(self) -> float:
        """Steps without multigrid over steps with it: the ideal speed-up, where a step takes the same time always."""
        return self.base_epochs / self.phases[-1].batch_size / self.iterations(1)

    @property
    def compute_saving(self) -> float:
        """Pixels seen without multigrid over pixels seen with it: the ideal speed-up, where time goes by pixels."""
        full = self.phases[-1]
        seen = sum(phase.epochs * phase.pixels_per_clip for phase in self.phases)
        return self.base_epochs * full.num_frames * full.crop_size**2 / seen


def steady_schedule(
    batch_size: int,
    num_frames: int,
    crop_size: int,
    epochs: int,
    ranks: int = 1,
    accum_steps: int = 1,
    frame_stride: int | None = 1,
    sub_batch: int = 8,
) -> Schedule:
    """Returns the one phase of a run without multigrid.

    Args:
        batch_size, num_frames, crop_size, epochs, ranks, accum_steps, frame_stride, sub_batch: As ``build_schedule``.
    """
    splits, sync_ranks = bn_groups(batch_per_rank(batch_size, ranks, accum_steps), ranks, sub_batch)
    cycle = ((crop_size, batch_size),)
    phase = Phase(0, epochs, batch_size, num_frames, crop_size, 1.0, splits, sync_ranks, frame_stride, cycle)
    return Schedule((phase,), epochs)


def bn_groups(share: int, ranks: int, sub_batch: int = 8) -> tuple[int, int]:
    """Divides the clips that batch norm sees into groups of about ``sub_batch``.

    Args:
        share: Clips of a rank's forward pass, at the largest crop of a phase.
        ranks: Processes.
        sub_batch: Clips wanted in a group.

    Returns:
        (sub-batches of a rank's batch, ranks that share their statistics); one of them is 1. Groups are equal, and no
        smaller than wanted where the batch is not, else no larger.

    Source: PySlowFast, ``slowfast/utils/multigrid.py``, update_long_cycle, without the demand that all divides.
    """
    if share >= sub_batch:
        return _divisor(share, share // sub_batch), 1
    return 1, _divisor(ranks, sub_batch // share)


def _divisor(number: int, limit: int) -> int:
    """The largest divisor of a number that is not above a limit."""
    return next(divisor for divisor in range(min(number, limit), 0, -1) if number % divisor == 0)


def batch_per_rank(batch_size: int, ranks: int, accum_steps: int) -> int:
    """Returns the clips of a rank's forward pass.

    Raises:
        ValueError: The batch does not divide; the error says which would.
    """
    parts = ranks * accum_steps
    share, rest = divmod(batch_size, parts)
    if share < 1 or rest:
        valid = [size for size in (share * parts, (share + 1) * parts) if size]
        raise ValueError(
            f"a batch of {batch_size} clips does not divide into {ranks} ranks x {accum_steps} accumulated batches; "
            f"{' or '.join(map(str, valid))} would"
        )
    return share


def phases_table(schedule: Schedule, clips_per_epoch: int) -> list[tuple[str, ...]]:
    """Describes each phase in a row of words, after a row of titles.

    ``lr x`` is the factor on the base learning rate, ``parts`` the sub-batches of batch norm, ``ranks`` those it takes
    together, ``steps`` counts all epochs of the phase, and ``pixels`` is its share in the pixels of the run.
    """
    titles = ("epochs", "frames", "stride up to", "crop", "batch", "lr x", "parts", "ranks", "steps", "pixels")
    pixels = [phase.epochs * phase.pixels_per_clip for phase in schedule.phases]
    rows = [
        (
            f"{phase.start}-{phase.end}",
            f"{phase.num_frames}",
            f"{phase.frame_stride_max or '-'}",
            "/".join(str(crop) for crop, _ in phase.short_cycle),
            "/".join(str(batch) for _, batch in phase.short_cycle),
            f"{phase.lr_multiplier:.4g}",
            f"{phase.bn_splits}",
            f"{phase.bn_sync_ranks}",
            f"{phase.epochs * phase.num_steps(clips_per_epoch)}",
            f"{share / sum(pixels):.1%}",
        )
        for phase, share in zip(schedule.phases, pixels)
    ]
    return [titles, *rows]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table, its columns to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows]
