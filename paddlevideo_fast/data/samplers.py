"""Which clips a rank reads, in which order and at which shape.

A sampler yields batches of :class:`SampleKey`. The shape travels in the key, so nothing that reads clips has state to
change when the shape does. The position of a training sampler counts the records all ranks together have consumed in
the epoch, which is why a run can resume with another number of ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from paddlevideo_fast.phases import Phase, Schedule, steady_schedule


class SampleKey(NamedTuple):
    """One clip to read.

    Attributes:
        epoch: Seeds the draws together with ``index`` and ``repeat``.
        index: Row of the annotations; below 0 it stands for the row ``~index`` with weight 0, which a rank reads only
            to keep in step with the others.
        frames: Frames of the clip.
        crop: Side of the square clip in pixels.
        view: Evaluation view, ``clip * num_crops + crop``.
        repeat: Number of this augmented copy when a record is repeated in a batch.
    """

    epoch: int
    index: int
    frames: int
    crop: int
    view: int = 0
    repeat: int = 0


@dataclass(frozen=True)
class Step:
    """One optimiser step.

    Attributes:
        num_records: Records all ranks together consume in it.
        num_clips: ``num_records`` times the repeats: what the loss of the step is averaged over.
        micro_batches: This rank's keys, one list for each of the accumulated batches; equally many on every rank.
    """

    num_records: int
    num_clips: int
    micro_batches: list[list[SampleKey]]


class TrainSampler:
    """Every record once an epoch in a seeded order, split over ranks and accumulated batches.

    The order of an epoch depends on (seed, epoch) alone, with ``shards`` on those too. A step takes the next
    ``batch_size * ranks * accum_steps`` records, or as many more as its shape has in the ``schedule``; the last step of
    an epoch takes what is left, shared as evenly as possible, unless ``drop_last``.

    Args:
        num_records: Rows of the annotations.
        batch_size: Records of full clips per rank and accumulated batch.
        frames: Frames of a full clip.
        crop: Side of a full clip in pixels.
        schedule: Frames, crop and clips of each step; its full batch is that of ``batch_size``, ``ranks``,
            ``accum_steps`` and ``repeats``. None has full clips throughout.
        repeats: Augmented clips made of each record in the same batch.
        accum_steps: Batches accumulated for one optimiser step.
        ranks: World size.
        rank: This process.
        seed: Seeds the order.
        drop_last: Leave out the records that do not fill a whole step.
        shards: Number of the shard each record lies in, int [num_records]; None shuffles all records at once.
        shuffle_shards: Shards mixed at a time; see ``order_by_shards``.
    """

    def __init__(
        self,
        num_records: int,
        batch_size: int,
        frames: int,
        crop: int,
        *,
        schedule: Schedule | None = None,
        repeats: int = 1,
        accum_steps: int = 1,
        ranks: int = 1,
        rank: int = 0,
        seed: int = 0,
        drop_last: bool = False,
        shards: Sequence[int] | None = None,
        shuffle_shards: int = 4,
    ):
        if shards is not None and len(shards) != num_records:
            raise ValueError(f"shards has {len(shards)} entries for {num_records} records")
        self.shards, self.shuffle_shards = shards, shuffle_shards
        self.num_records = num_records
        self.repeats, self.accum_steps, self.ranks, self.rank = repeats, accum_steps, ranks, rank
        self.seed, self.drop_last = seed, drop_last
        self.epoch = self.position = 0
        self.records_per_step = batch_size * ranks * accum_steps
        self.schedule = schedule or steady_schedule(self.records_per_step * repeats, frames, crop, epochs=1)
        first = max(phase.short_cycle[0][1] for phase in self.schedule.phases) // repeats
        if drop_last and num_records < first:
            raise ValueError(
                f"drop_last leaves nothing: {num_records} records do not fill one step of {first} "
                f"({first // (ranks * accum_steps)} per rank x {ranks} ranks x {accum_steps} accumulated)"
            )

    @property
    def phase(self) -> Phase:
        """The phase of the current epoch."""
        return self.schedule.at(self.epoch)

    @property
    def records_per_epoch(self) -> int:
        """Records the current epoch consumes."""
        if not self.drop_last:
            return self.num_records
        return self.phase.whole_steps(self.num_records * self.repeats) // self.repeats

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of the current epoch."""
        return self.phase.num_steps(self.records_per_epoch * self.repeats)

    def seek(self, epoch: int, position: int = 0) -> None:
        """Moves to an epoch, past the ``position`` records that were consumed in it."""
        self.epoch, self.position = epoch, position

    def steps(self) -> Iterator[Step]:
        """Yields the optimiser steps from the current position to the end of the epoch."""
        rng = np.random.default_rng([self.seed, self.epoch])
        if self.shards is None:
            order = rng.permutation(self.num_records)
        else:
            order = order_by_shards(self.shards, self.shuffle_shards, rng)
        for start, stop, width, crop in self._spans():
            micro = [self._keys(order[i : min(i + width, stop)], crop) for i in range(start, stop, width)]
            yield Step(stop - start, (stop - start) * self.repeats, micro)

    def _spans(self) -> Iterator[tuple[int, int, int, int]]:
        """Yields the first record of each step, the one after the last, the records of a micro-batch, and the crop."""
        phase, position, end = self.phase, self.position, self.records_per_epoch
        while position < end:
            crop, batch, left = phase.step_at(position * self.repeats)
            stop = min(position + left // self.repeats, end)
            yield position, stop, batch // (self.repeats * self.accum_steps), crop
            position = stop

    def _keys(self, records: np.ndarray, crop: int) -> list[SampleKey]:
        mine, frames = np.array_split(records, self.ranks)[self.rank], self.phase.num_frames
        if len(mine) == 0:  # a clip of the data set, since the statistics of a local batch norm will see it
            return [SampleKey(self.epoch, ~int(records[self.rank % len(records)]), frames, crop)]
        return [
            SampleKey(self.epoch, int(index), frames, crop, repeat=repeat)
            for index in mine
            for repeat in range(self.repeats)
        ]

    def __iter__(self) -> Iterator[list[SampleKey]]:
        for step in self.steps():
            yield from step.micro_batches

    def onwards(self, epochs: int) -> Iterator[list[SampleKey]]:
        """Returns the batches from the current position to the end of ``epochs`` epochs, wherever this moves later."""
        return copy.copy(self)._through(epochs)

    def _through(self, epochs: int) -> Iterator[list[SampleKey]]:
        while self.epoch < epochs:
            yield from self
            self.seek(self.epoch + 1)

    def __len__(self) -> int:
        """Batches of this rank from the current position to the end of the epoch."""
        return sum(-(-(stop - start) // width) for start, stop, width, _ in self._spans())


def order_by_shards(shards: Sequence[int], window: int, rng: np.random.Generator) -> np.ndarray:
    """Draws an order of records in which no more than ``window`` shards are in use at any place.

    The shards are shuffled and a window slides over them, one shard at a time: where it moves on, the first of its
    shards is used up. The records of a shard are spread evenly, at random, over the places of the window that hold it.
    So each shard has to be read once, and one at a time, while every batch is drawn from ``window`` shards.

    Args:
        shards: Number of the shard each record lies in, int [N].
        window: At least 1. With as many as there are shards every order is as likely as any other.
        rng: Draws the order.

    Returns:
        int64 [N], a permutation.
    """
    numbers, shard = np.unique(np.asarray(shards), return_inverse=True)
    place = rng.permutation(len(numbers))[shard]
    last = max(0, len(numbers) - window)  # place of the window that ends with the last shard
    begin, end = np.maximum(place - window + 1, 0), np.minimum(place, last) + 1
    return np.argsort(begin + (end - begin) * rng.random(len(place)), kind="stable")


def shards_in_use(shards: Sequence[int], window: int, num_records: int) -> int:
    """Returns how many shards to keep so that hardly one is read twice, though records are read at the same time.

    Args:
        shards: Number of the shard each record lies in.
        window: As for ``order_by_shards``.
        num_records: Neighbours in that order, over all ranks, of which the first may be read last.
    """
    count = len(np.unique(np.asarray(shards)))
    passed = round(num_records * count / len(shards))  # shards the window leaves behind meanwhile
    return min(count, window + 1 + passed)


class EvalSampler:
    """All views of every record exactly once; the records are dealt to the ranks in turn.

    A batch holds whole records, so that all views of one share a decode: as many as fit into ``batch_size`` clips, or
    one with more.

    Args:
        num_records: Rows of the annotations.
        batch_size: Clips of a forward pass.
        frames: Frames of a clip.
        crop: Side of a clip in pixels.
        num_views: Views of a record.
        ranks: World size.
        rank: This process.
    """

    def __init__(
        self, num_records: int, batch_size: int, frames: int, crop: int, *, num_views: int = 1, ranks=1, rank=0
    ):
        self.batch_size = batch_size
        self.clips_per_batch = max(1, batch_size // num_views) * num_views
        self.keys = [
            SampleKey(0, index, frames, crop, view=view)
            for index in range(rank, num_records, ranks)
            for view in range(num_views)
        ]

    def __iter__(self) -> Iterator[list[SampleKey]]:
        for start in range(0, len(self.keys), self.clips_per_batch):
            yield self.keys[start : start + self.clips_per_batch]

    def __len__(self) -> int:
        return -(-len(self.keys) // self.clips_per_batch)
