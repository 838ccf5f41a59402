"""What reading clips of videos costs with the fused reader: CPU time, in milliseconds a clip."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from paddlevideo_fast.data.crops import RandomResizedCrop
from paddlevideo_fast.data.readers import VideoInfo, View, build_reader
from paddlevideo_fast.data.sampling import SegmentSampling, UniformSampling

SIZE = 224  # pixels a side of a clip

Draw = Callable[[VideoInfo, np.random.Generator], np.ndarray]


def draw_segments(info: VideoInfo, rng: np.random.Generator) -> np.ndarray:
    """Draws a frame of each of 8 segments, as TSN and TSM sample."""
    return SegmentSampling()(info.num_frames, 8, rng=rng)


def draw_dense(info: VideoInfo, rng: np.random.Generator) -> np.ndarray:
    """Draws 32 frames with stride 2, as SlowFast samples."""
    return UniformSampling(frame_stride=2)(info.num_frames, 32, rng=rng)


SAMPLINGS: dict[str, Draw] = {"8 segments": draw_segments, "32 frames, stride 2": draw_dense}


def draw_view(info: VideoInfo, draw: Draw, rng: np.random.Generator) -> View:
    """Draws a clip: frames, the box of a random resized crop, mirrored half the time."""
    box, _ = RandomResizedCrop()(info.width, info.height, SIZE, 0, rng)
    return View(draw(info, rng), box, bool(rng.random() < 0.5))


def read_fused(path: str, view: View) -> np.ndarray:
    """Reads a clip of a file that nothing is known of yet: opening it and listing its packets is part of the cost."""
    return build_reader("fused").read(path, view.indices, view.crop, (SIZE, SIZE), view.flip)


def compare_reading(pairs: Sequence[tuple[str, str]], clips: int = 5) -> dict[str, Mapping[str, float]]:
    """Measures reading before and after.

    Args:
        pairs: Source and the file made of it.
        clips: Draws of each pair; the median counts.

    Returns:
        before, after: CPU ms a clip, means over the pairs; ratio; by the name of the sampling.
    """
    result = {}
    for name, draw in SAMPLINGS.items():
        means = np.mean([_median_ms(pair, draw, clips) for pair in pairs], axis=0)
        before, after = (round(float(value), 2) for value in means)
        result[name] = {"before": before, "after": after, "ratio": round(before / after, 2)}
    return result


def _median_ms(paths: Sequence[str], draw: Draw, clips: int) -> np.ndarray:
    """Returns the CPU ms a clip of each file, read in turn so that other load on the machine hits all of them."""
    infos, taken = [build_reader("fused").probe(path) for path in paths], np.empty((clips, len(paths)))
    for clip in range(clips):
        for number, (path, info) in enumerate(zip(paths, infos, strict=True)):
            view = draw_view(info, draw, np.random.default_rng(clip))
            start = time.process_time()
            read_fused(path, view)
            taken[clip, number] = 1000 * (time.process_time() - start)
    return np.median(taken, axis=0)
