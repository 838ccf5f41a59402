"""From a decoded PyAV frame to the RGB picture a viewer sees: colours and orientation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from paddlevideo_fast.data.video import CropBox


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


def turn(plane: np.ndarray, turns: int, mirrored: bool) -> np.ndarray:
    """Turns [H, W] or [H, W, 3] as ``orientation`` says; the result is a view."""
    return np.rot90(plane[::-1] if mirrored else plane, -turns)


def turn_back(box: CropBox, width: int, height: int, turns: int, mirrored: bool) -> CropBox:
    """Returns where a box of the shown picture lies in the coded one, of ``width`` x ``height`` pixels."""
    x, y, box_width, box_height = box
    for step in range(turns % 4, 0, -1):  # the picture before this quarter turn clockwise
        before = height if step % 2 else width  # its height
        x, y, box_width, box_height = y, before - x - box_width, box_height, box_width
    return CropBox(x, height - y - box_height if mirrored else y, box_width, box_height)


class Converter:
    """Makes RGB of decoded frames, with FFmpeg's scaler where the size changes.

    Colour matrix and range are those the frame is tagged with; an untagged one counts as BT.601, limited range.
    """

    def __init__(self):
        from av.video.reformatter import Interpolation, VideoReformatter

        self._scaler = VideoReformatter()
        # Without the last two flags the conversion is biased by one to two levels.
        self._flags = Interpolation.BILINEAR | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT

    def __call__(self, frame: Any, width: int, height: int) -> list[np.ndarray]:
        """Returns the red, green and blue planes, uint8 [height, width] each.

        Where it scales, FFmpeg writes separate planes more than three times as fast as interleaved ones. One value in
        hundreds differs, by one level, so pictures that are not scaled are converted the plain way.
        """
        scaled = (width, height) != (frame.width, frame.height)
        kind = "gbrp" if scaled else "rgb24"
        made = self._scaler.reformat(frame, width, height, kind, interpolation=self._flags, threads=1)
        if scaled:
            green, blue, red = (as_array(plane, np.uint8)[:, :width] for plane in made.planes)
            return [red, green, blue]
        picture = as_array(made.planes[0], np.uint8)[:, : 3 * width]
        return [picture[:, channel::3] for channel in range(3)]


def as_array(plane: Any, dtype: type) -> np.ndarray:
    """Returns the memory of a PyAV plane, [H, samples of a padded row]; writing to it writes to the frame."""
    return np.frombuffer(plane, dtype).reshape(-1, plane.line_size // np.dtype(dtype).itemsize)


class BoxConverter:
    """Makes RGB of one box of each decoded frame, scaled to one size.

    The box is cut from the planes of the frame, so that no pixel outside is scaled or converted.

    Args:
        box: In the coded picture; chroma is interpolated where an odd offset falls between its samples.
        size: (width, height) of the result.
    """

    def __init__(self, box: CropBox, size: tuple[int, int]):
        self._box, self._size = box, size
        self._convert, self._cut = Converter(), None

    @staticmethod
    def takes(frame: Any) -> bool:
        """Whether a frame has the planes to cut from: one for each component, chroma of full or half size."""
        form = frame.format
        planar = [component.plane for component in form.components] == list(range(len(form.components)))
        halved = form.chroma_width(64) >= 32 and form.chroma_height(64) >= 32
        return planar and halved and not (form.is_rgb or form.is_big_endian or frame.interlaced_frame)

    def __call__(self, frame: Any) -> list[np.ndarray]:
        """Returns the red, green and blue planes, uint8 [height, width] each."""
        x, y, width, height = self._box
        if (x, y, width, height) == (0, 0, frame.width, frame.height):
            return self._convert(frame, *self._size)
        if self._cut is None:
            self._cut = empty_like(frame, width, height)
            halved = frame.format.chroma_height(2) == 1, frame.format.chroma_width(2) == 1
            luma, chroma = (
                [RowCut(y, height), RowCut(x, width)],
                [
                    RowCut(y, height, halved[0], ROUND_UP),
                    RowCut(x, width, halved[1], ROUND_DOWN),
                ],
            )
            self._cuts = [chroma if component.is_chroma else luma for component in frame.format.components]
            self._dtype = np.uint8 if frame.format.components[0].bits <= 8 else np.uint16
        for (rows, columns), source, target in zip(self._cuts, frame.planes, self._cut.planes, strict=True):
            samples = rows(as_array(source, self._dtype)[: source.height, : source.width])
            samples = columns(samples.T).T
            as_array(target, self._dtype)[: len(samples), : samples.shape[1]] = samples
        return self._convert(self._cut, *self._size)


ROUND_UP, ROUND_DOWN = 128, 127  # halves, in 256ths: one for each direction, so that the two do not add up to a bias


class RowCut:
    """Takes the rows of a plane that belong to rows of the picture.

    Args:
        offset: First row of the picture.
        count: Rows of the picture.
        halved: The plane has a row for every two of the picture, and so has the result: (count + 1) // 2. Where offset
            or count is odd its rows lie between those of the plane and are interpolated: FFmpeg takes a plane of n
            rows for 2 n rows of the picture, also where they are 2 n - 1.
        rounding: What is added before a division by 256.
    """

    def __init__(self, offset: int, count: int, halved: bool = False, rounding: int = ROUND_UP):
        self._count = (count + 1) // 2 if halved else count
        self._first = offset // 2 if halved else offset
        self._weights = None
        if halved and (offset % 2 or count % 2):
            rows = np.arange(self._count)
            places = (offset + (rows + 0.5) * count / len(rows)) / 2 - 0.5
            # The distance of a place from the row before it falls along the way, from at most 1 to at least 0.
            self._first = math.floor(places[-1]) - len(rows) + 1
            lower = np.rint(256 * (places - self._first - rows)).astype(np.uint16)[:, None]
            self._weights, self._rounding = (256 - lower, lower), rounding

    def __call__(self, samples: np.ndarray) -> np.ndarray:
        """Returns uint8 or uint16 [rows, columns], a view where nothing is interpolated."""
        if self._weights is None:
            return samples[self._first : self._first + self._count]
        upper, lower = self._weights
        if samples.dtype != np.uint8:
            upper, lower = upper.astype(np.uint32), lower.astype(np.uint32)
        mean = self._rows(samples, self._first) * upper
        mean += self._rows(samples, self._first + 1) * lower
        mean += mean.dtype.type(self._rounding)
        mean >>= 8
        return mean.astype(samples.dtype)

    def _rows(self, samples: np.ndarray, first: int) -> np.ndarray:
        if 0 <= first <= len(samples) - self._count:
            return samples[first : first + self._count]
        # Beyond its edges the plane goes on as at the edge.
        return samples[np.clip(np.arange(first, first + self._count), 0, len(samples) - 1)]


def empty_like(frame: Any, width: int, height: int) -> Any:
    """Returns a frame of another size with the pixel format and the tags of this one, chroma siting included."""
    from av.video.reformatter import Interpolation, VideoReformatter

    return VideoReformatter().reformat(frame, width, height, interpolation=Interpolation.POINT, threads=1)


def interleave(planes: Sequence[np.ndarray], out: np.ndarray) -> np.ndarray:
    """Writes three uint8 [H, W] planes into uint8 [H, W, 3] and returns it."""
    for channel, plane in enumerate(planes):
        out[..., channel] = plane
    return out


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
