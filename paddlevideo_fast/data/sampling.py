"""Which frames of a video make a clip.

A sampling is a small frozen object, called once a clip::

    indices = sampling(length, num_frames, clip, rng)     # int64 [num_frames], each in 0..length-1

``length`` is the number of frames to choose from, ``num_frames`` comes with the call because it may change from batch
to batch. With a generator the choice is random (training) and ``clip`` is ignored; with ``rng=None`` it depends on
``clip`` in 0..num_clips-1 alone (evaluation). Videos shorter than needed repeat frames; nothing is ever left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


def _check_call(length: int, num_frames: int, clip: int, num_clips: int, rng: np.random.Generator | None) -> None:
    if length < 1 or num_frames < 1:
        raise ValueError(f"length and num_frames must be at least 1, got length={length}, num_frames={num_frames}")
    if rng is None and not 0 <= clip < num_clips:
        raise ValueError(f"clip must be in 0..{num_clips - 1}, got {clip}")


def _check_positive(**fields: int) -> None:
    for name, value in fields.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")


def _start(last: int, clip: int, num_clips: int, rng: np.random.Generator | None) -> int:
    """First frame of a window that may start at 0..last: drawn, or spread evenly over the clips of an evaluation."""
    if rng is not None:
        return int(rng.integers(last + 1))
    if num_clips == 1:
        return last // 2
    return int(np.linspace(0, last, num_clips)[clip])


@dataclass(frozen=True)
class SegmentSampling:
    """One frame from each of ``num_frames`` equal segments, so that a clip spans the whole video.

    Training cuts the first ``num_frames * (length // num_frames)`` frames into segments of whole frames and draws one
    frame in each. Evaluation cuts the video into segments of ``length / num_frames`` frames (a fraction) and takes
    the frame at ``(1/2 + clip / num_clips) mod 1`` of each: the centre for one clip, centre and beginning for two,
    1/2, 5/6 and 1/6 for three. Where ``length < num_frames``, training takes the frames of the one-clip evaluation:
    each of them is repeated ``num_frames / length`` times on average, in order.

    Args:
        num_clips: Clips of an evaluation, at least 1.

    Source: TSN, arXiv 1608.00859, section 3.2; TSM, ops/dataset.py, ``_sample_indices``, ``_get_test_indices`` and
    ``twice_sample`` (there a training clip shorter than ``num_frames`` is its first frame, repeated).
    """

    num_clips: int = 1

    def __post_init__(self) -> None:
        _check_positive(num_clips=self.num_clips)

    def __call__(self, length: int, num_frames: int, clip: int = 0, rng: np.random.Generator | None = None):
        """Returns int64 [num_frames], ascending (see the module)."""
        _check_call(length, num_frames, clip, self.num_clips, rng)
        segment = np.arange(num_frames)
        whole = length // num_frames
        if rng is not None and whole > 0:
            return segment * whole + rng.integers(whole, size=num_frames)
        halves = 2 * self.num_clips
        fraction = 0.5 if rng is not None else (self.num_clips + 2 * clip) % halves / halves
        tick = length / num_frames
        return (tick * fraction + tick * segment).astype(np.int64)


@dataclass(frozen=True)
class DenseSampling:
    """Frames at a regular stride within a window of fixed length: ``window // num_frames`` frames apart.

    The window starts at 0..max(0, length - window): drawn in training, spread evenly from the first to the last
    start over the clips of an evaluation, in the middle if that has one clip. A video shorter than the window is
    repeated from its beginning, so indices then wrap around and do not ascend.

    Args:
        window: Frames the clip spans, at least 1.
        num_clips: Clips of an evaluation, at least 1; 10 as published.

    Source: TSM, ops/dataset.py, ``dense_sample`` (whose draw leaves out the last start, and whose validation with one
    clip is random as well).
    """

    window: int = 64
    num_clips: int = 1

    def __post_init__(self) -> None:
        _check_positive(window=self.window, num_clips=self.num_clips)

    def __call__(self, length: int, num_frames: int, clip: int = 0, rng: np.random.Generator | None = None):
        """Returns int64 [num_frames] (see the module)."""
        _check_call(length, num_frames, clip, self.num_clips, rng)
        stride = max(1, self.window // num_frames)
        start = _start(max(0, length - self.window), clip, self.num_clips, rng)
        return (start + stride * np.arange(num_frames)) % length


@dataclass(frozen=True)
class UniformSampling:
    """``num_frames`` frames, ``frame_stride`` apart: the "T x stride" of a model's name.

    The clip spans ``(num_frames - 1) * frame_stride + 1`` frames and starts anywhere it fits: drawn in training,
    spread evenly from the first to the last start over the clips of an evaluation, in the middle if that has one
    clip. In a video too short for it the clip starts at 0 and the last frame is repeated.

    Args:
        frame_stride: Frames from one index to the next, at least 1.
        num_clips: Clips of an evaluation, at least 1.
        base_frames: Frames of a clip the stride was chosen for. Where a training clip has fewer (multigrid), its stride
            is drawn: each from ``frame_stride`` to ``frame_stride * (base_frames // num_frames)`` is as likely, the
            last of which spans as much time as the full clip. None leaves the stride as it is.

    Source: SlowFast, arXiv 1812.03982, section 3 (T x tau). PySlowFast, datasets/decoder.py, spreads the T frames
    over ``T * tau`` frames instead (8 x 8 takes every ninth); the stride here is the one of the name. Its
    datasets/utils.py, ``get_random_sampling_rate``, for the drawn strides.
    """

    frame_stride: int = 1
    num_clips: int = 1
    base_frames: int | None = None

    def __post_init__(self) -> None:
        _check_positive(frame_stride=self.frame_stride, num_clips=self.num_clips)
        if self.base_frames is not None:
            _check_positive(base_frames=self.base_frames)

    def __call__(self, length: int, num_frames: int, clip: int = 0, rng: np.random.Generator | None = None):
        """Returns int64 [num_frames], ascending (see the module)."""
        _check_call(length, num_frames, clip, self.num_clips, rng)
        stride, most = self.frame_stride, (self.base_frames or num_frames) // num_frames
        if rng is not None and most > 1:
            stride = int(rng.integers(stride, stride * most + 1))
        span = (num_frames - 1) * stride + 1
        start = _start(max(0, length - span), clip, self.num_clips, rng)
        return np.minimum(start + stride * np.arange(num_frames), length - 1)


SAMPLINGS = {"segment": SegmentSampling, "dense": DenseSampling, "uniform": UniformSampling}
