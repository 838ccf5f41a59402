"""From a decoded PyAV frame to the RGB picture a viewer sees: colours and orientation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def orientation(frame: Any) -> tuple[int, bool]:
    """Returns (quarter turns clockwise, mirrored upside down before the turn) that show a frame upright.

    Source: FFmpeg's ``libavutil/display.h``: nine 32-bit numbers (a, b, u, c, d, v, x, y, w) of which a, b, c, d are
    the rotation, 16.16 fixed point.
    """
    data = frame.side_data.get("DISPLAYMATRIX")
    if data is None:
        return 0, False
    a, b, _, c, d = (int(value) for value in np.frombuffer(bytes(data), np.int32)[:5])
    return round(math.degrees(math.atan2(b, a)) / 90) % 4, a * d - b * c < 0


def orient(picture: np.ndarray, turns: int, mirrored: bool) -> np.ndarray:
    """Turns uint8 [H, W, 3] as ``orientation`` says; the result is contiguous."""
    if mirrored:
        picture = picture[::-1]
    return np.ascontiguousarray(np.rot90(picture, -turns))


def make_converter() -> Callable[[Any, int, int], np.ndarray]:
    """Returns a function (frame, width, height) -> uint8 [height, width, 3] RGB.

    Colour matrix and range are those the frame is tagged with; an untagged one counts as BT.601, limited range.
    """
    from av.video.reformatter import Interpolation, VideoReformatter

    scaler = VideoReformatter()
    # Without the last two flags the conversion is biased by one to two levels.
    flags = Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT

    def convert(frame: Any, width: int, height: int) -> np.ndarray:
        return scaler.reformat(frame, width, height, "rgb24", interpolation=flags, threads=1).to_ndarray()

    return convert
