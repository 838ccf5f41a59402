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


def jpeg_frame_header(data: bytes) -> bytes | None:
    """Returns the part of a JPEG's frame header that holds precision, height and width; None if it has none.

    Source: ITU-T T.81, B.1.1.4 (segments) and B.2.2 (frame header).
    """
    position = 2
    while position + 9 <= len(data) and data[position] == 0xFF:
        marker, size = data[position + 1], int.from_bytes(data[position + 2 : position + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return data[position + 4 : position + 9]
        # Fill bytes and markers without a segment may come between.
        position += 1 if marker == 0xFF else 2 if marker in (0x01, 0xD8) else 2 + size
    return None


def image_size(data: bytes) -> tuple[int, int] | None:
    """Returns (width, height) of a JPEG or PNG from its header; None if it has none."""
    if data.startswith(b"\x89PNG") and len(data) >= 24:  # PNG specification, 11.2.2: IHDR comes first
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    header = jpeg_frame_header(data) if data.startswith(b"\xff\xd8") else None
    return (int.from_bytes(header[3:5], "big"), int.from_bytes(header[1:3], "big")) if header else None
