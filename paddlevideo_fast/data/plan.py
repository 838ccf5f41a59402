"""From one record to everything that will be done to it: every random choice is drawn here, before anything is read.

A plan needs only the video's :class:`VideoInfo`. Its Generator is seeded from (seed, epoch, index, repeat), so a sample
is the same whatever worker, rank or reader takes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from paddlevideo_fast.data.annotations import VideoRecord
from paddlevideo_fast.data.samplers import SampleKey
from paddlevideo_fast.data.video import VideoError, VideoInfo, View


@dataclass(frozen=True)
class ClipPlan:
    """What to read and what the device will do to it.

    Attributes:
        view: Frames, crop and flip for the reader.
        size: Height and width of the clip in pixels.
        aug: Per-sample draws of the device augmentation, name -> float32 array of a fixed shape.
    """

    view: View
    size: tuple[int, int]
    aug: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class ClipRecipe:
    """How one phase cuts clips out of videos.

    Attributes:
        sampling: Frame sampling, ``sampling(length, num_frames, clip, rng) -> int64 [num_frames]``.
        crop: Crop rule, ``crop(width, height, crop_size, view, rng) -> (CropBox, flip)``.
        train: Draw at random; otherwise every choice is the evaluation's fixed one.
        num_crops: Crops of each evaluation clip; view = clip * num_crops + crop.
        flip: Probability of a horizontal flip in training.
        draws: Device augmentation drawn per sample, name -> ``draw(rng) -> float32 array``.
        seed: Seed of the run.
    """

    sampling: Callable
    crop: Callable
    train: bool
    num_crops: int = 1
    flip: float = 0.0
    draws: Mapping[str, Callable] = field(default_factory=dict)
    seed: int = 0

    def make_plan(self, record: VideoRecord, info: VideoInfo, key: SampleKey) -> ClipPlan:
        """Draws the plan of one sample.

        Args:
            record: The annotation; ``start`` and ``end`` in seconds limit the frames.
            info: The facts about the video.
            key: Which sample, at which shape.

        Raises:
            VideoError: The record's time span holds no frame of this video.
        """
        rng = np.random.default_rng([self.seed, key.epoch, key.index, key.repeat]) if self.train else None
        clip, crop_number = divmod(key.view, self.num_crops)
        first, length = frame_span(record, info)
        indices = first + self.sampling(length, key.frames, clip, rng)
        box, flip = self.crop(info.width, info.height, key.crop, crop_number, rng)
        if rng is None:
            return ClipPlan(View(indices, box, flip), (key.crop, key.crop))
        flip = bool(rng.random() < self.flip)
        aug = {name: draw(rng) for name, draw in self.draws.items()}
        return ClipPlan(View(indices, box, flip), (key.crop, key.crop), aug)


def frame_span(record: VideoRecord, info: VideoInfo) -> tuple[int, int]:
    """Returns the first frame of a record's time span and the number of its frames.

    A frame belongs to the span if it is shown in [start, end); at least one frame is returned where the span lies
    inside the video.

    Raises:
        VideoError: The span lies outside the video, or is given for a source without a frame rate.
    """
    if record.start is None and record.end is None:
        return 0, info.num_frames
    if info.fps <= 0:
        raise VideoError(record.source, "start and end need a frame rate, and this source has none")
    duration = info.num_frames / info.fps
    start, end = record.start or 0.0, duration if record.end is None else record.end
    first = math.ceil(start * info.fps - 1e-6)
    last = min(math.ceil(end * info.fps - 1e-6), info.num_frames)
    if end <= start or first >= info.num_frames:
        raise VideoError(record.source, f"{start:g} s to {end:g} s is outside the video of {duration:.2f} s")
    return first, max(1, last - first)
