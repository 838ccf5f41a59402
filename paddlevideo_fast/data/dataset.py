"""The one dataset: record -> plan -> uint8 sample, and samples -> batch dict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from paddlevideo_fast.data.annotations import VideoRecord
from paddlevideo_fast.data.plan import ClipRecipe
from paddlevideo_fast.data.readers import Reader, Video
from paddlevideo_fast.data.samplers import SampleKey
from paddlevideo_fast.data.video import DamagedVideoError, VideoError, describe_source

Sample = dict[str, Any]


class ClipDataset:
    """Clips of annotated videos, addressed by :class:`SampleKey`.

    Args:
        records: The annotations.
        recipe: How clips are cut.
        reader: Opens the sources.
        make_target: Turns a record's label into the array the task wants; ``flipped`` tells that the clip was mirrored.
        use_what_decodes: Cut clips from the part of a damaged video that decodes, instead of refusing it.
    """

    def __init__(
        self,
        records: Sequence[VideoRecord],
        recipe: ClipRecipe,
        reader: Reader,
        make_target: Callable[[VideoRecord, bool], np.ndarray],
        use_what_decodes: bool = False,
    ):
        self.records, self.recipe, self.reader, self.make_target = records, recipe, reader, make_target
        self.use_what_decodes = use_what_decodes

    def __len__(self) -> int:
        return len(self.records)

    def describe(self, keys: Sequence[SampleKey], most: int = 8) -> str:
        """Returns where the records of some keys stand and what they name, for messages."""
        rows = list(dict.fromkeys(~key.index if key.index < 0 else key.index for key in keys))
        names = [f"{self.records[row].origin} {describe_source(self.records[row].source)}" for row in rows[:most]]
        return ", ".join(names) + (f" and {len(rows) - most} more" if len(rows) > most else "")

    def __getitem__(self, key: SampleKey) -> Sample:
        """Reads one clip.

        Returns:
            ``clip`` uint8 [T, H, W, 3], ``target``, ``index``, ``view``, ``weight`` 1.0 and ``aug``.

        Raises:
            VideoError: The source cannot be read; the message names the path and the reason.
        """
        return self.read([key])[0]

    def read(self, keys: Sequence[SampleKey]) -> list[Sample]:
        """Reads several clips of one record, opening it and decoding each frame once.

        Raises:
            VideoError: The source cannot be read, or is damaged and ``use_what_decodes`` is off.
        """
        source = self.records[keys[0].index].source
        try:
            return self._read(self.reader.open(source), keys)
        except DamagedVideoError as error:
            if not self.use_what_decodes:
                raise
            decodable = error.decodable
        while decodable:  # each attempt may find that less decodes than the one before promised
            try:
                return self._read(self.reader.open_first(source, decodable), keys)
            except DamagedVideoError as error:
                decodable = min(error.decodable, decodable - 1)
        raise VideoError(source, "damaged: not one frame decodes")

    def _read(self, video: Video, keys: Sequence[SampleKey]) -> list[Sample]:
        record = self.records[keys[0].index]
        with video:
            if video.damage and not self.use_what_decodes:
                raise DamagedVideoError(record.source, video.damage, video.info.num_frames)
            plans = [self.recipe.make_plan(record, video.info, key) for key in keys]
            clips = video.read([plan.view for plan in plans], size=plans[0].size)
        return [
            {
                "clip": clip if plan.transform is None else plan.transform(clip),
                "target": self.make_target(plan.record, plan.view.flip),
                "index": np.int64(key.index),
                "view": np.int64(key.view),
                "weight": np.float32(1),
                "aug": plan.aug,
            }
            for key, plan, clip in zip(keys, plans, clips)
        ]

    def read_batch(self, keys: Sequence[SampleKey]) -> Sample:
        """Reads a batch; a row that cannot be read repeats a good row with weight 0.

        Args:
            keys: The rows; neighbours of the same record are decoded together.

        Returns:
            The batch dict: ``clip`` uint8 [N, T, H, W, 3], ``target``, ``index`` int64 [N], ``view`` int64 [N],
            ``weight`` float32 [N], ``aug`` name -> float32 [N, ...], and ``errors``, a list of
            ``"list:row path: reason"`` strings, one for each unreadable record.
        """
        rows: list[Sample | None] = []
        errors = []
        for index, group in groupby(keys, key=lambda key: key.index):
            weight, row = (1, index) if index >= 0 else (0, ~index)
            group = [key._replace(index=row) for key in group]
            try:
                rows += [{**sample, "weight": np.float32(weight)} for sample in self.read(group)]
            except VideoError as error:
                rows += [None] * len(group)
                errors += [f"{self.records[row].origin}: {error}"] * weight  # the rank that has the row reports it
        stand_in = next((row for row in rows if row is not None), None) or self._empty(keys[0])
        rows = [{**stand_in, "weight": np.float32(0)} if row is None else row for row in rows]
        batch = collate(rows)
        batch["index"] = np.array([key.index for key in keys], np.int64)
        batch["view"] = np.array([key.view for key in keys], np.int64)
        batch["errors"] = errors
        return batch

    def _empty(self, key: SampleKey) -> Sample:
        """A black clip in the place of a batch without a single good row."""
        rng = np.random.default_rng(0)
        return {
            "clip": np.zeros([key.frames, key.crop, key.crop, 3], np.uint8),
            "target": np.zeros_like(self.make_target(self.records[0], False)),
            "aug": {name: np.zeros_like(draw(rng)) for name, draw in self.recipe.draws.items()}
            if self.recipe.train
            else {},
        }


def collate(samples: Sequence[Sample]) -> Sample:
    """Stacks samples along a new first axis; nested dicts stay dicts."""
    first = samples[0]
    return {
        name: collate([sample[name] for sample in samples])
        if isinstance(value, dict)
        else np.stack([sample[name] for sample in samples])
        for name, value in first.items()
    }
