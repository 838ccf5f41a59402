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
    """What to read, and what host and device will do to it.

    Attributes:
        record: The annotation; of labels given by frame a training clip has those from its first frame to its last.
        view: Frames, crop and flip for the reader.
        size: Height and width of the clip in pixels.
        aug: Per-sample draws of the device augmentation, name -> float32 array of a fixed shape.
        transform: What the host does to the decoded frames, uint8 [T, H, W, 3] to the same shape; None does nothing.
    """

    record: VideoRecord
    view: View
    size: tuple[int, int]
    aug: Mapping[str, np.ndarray] = field(default_factory=dict)
    transform: Callable[[np.ndarray], np.ndarray] | None = None


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
        draw_transform: Draws what the host does to the frames in training, ``draw_transform(rng) -> transform``;
            None does nothing. It draws last, so that every other draw is the same without it.
        seed: Seed of the run.
    """

    sampling: Callable
    crop: Callable
    train: bool
    num_crops: int = 1
    flip: float = 0.0
    draws: Mapping[str, Callable] = field(default_factory=dict)
    draw_transform: Callable | None = None
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
            return ClipPlan(record, View(indices, box, flip), (key.crop, key.crop))
        flip = bool(rng.random() < self.flip)
        aug = {name: draw(rng) for name, draw in self.draws.items()}
        transform = self.draw_transform(rng) if self.draw_transform else None
        return ClipPlan(with_labels_of(record, indices), View(indices, box, flip), (key.crop, key.crop), aug, transform)


def with_labels_of(record: VideoRecord, indices: np.ndarray) -> VideoRecord:
    """Returns a record with the labels of a clip, where its label is a table with a tuple of classes a frame.

    Args:
        record: The annotation.
        indices: The frames of the clip, int [T]; what is annotated between them counts too.

    Source: PySlowFast ``datasets/charades.py``.
    """
    table = record.label
    if not (isinstance(table, tuple) and table and isinstance(table[0], tuple)):
        return record
    return record._replace(label=table[int(indices.min()) : int(indices.max()) + 1])


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
