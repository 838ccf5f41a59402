"""From a decoded PyAV frame to the RGB picture a viewer sees: colours and orientation."""

from __future__ import annotations

import math
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

    def __call__(self, frame: Any, width: int, height: int) -> np.ndarray:
        """Returns uint8 [height, width, 3]."""
        made = self._scaler.reformat(frame, width, height, "rgb24", interpolation=self._flags, threads=1)
        return as_array(made.planes[0], np.uint8)[:, : 3 * width].reshape(height, width, 3)

    def planes(self, frame: Any, width: int, height: int) -> list[np.ndarray]:
        """Returns the red, green and blue planes, uint8 [height, width] each.

        Scaling to them takes FFmpeg less than a third of the time scaling to interleaved pixels does. One value in
        hundreds differs, by one level.
        """
        made = self._scaler.reformat(frame, width, height, "gbrp", interpolation=self._flags, threads=1)
        green, blue, red = (as_array(plane, np.uint8)[:, :width] for plane in made.planes)
        return [red, green, blue]


def as_array(plane: Any, dtype: type) -> np.ndarray:
    """Returns the memory of a PyAV plane, [H, samples of a padded row]; writing to it writes to the frame."""
    return np.frombuffer(plane, dtype).reshape(-1, plane.line_size // np.dtype(dtype).itemsize)


class BoxConverter:
    """Makes RGB of one box of each decoded frame, scaled to one size.

    The box is cut from the planes of the frame, so that no pixel outside is scaled or converted.

    Args:
        box: In the coded picture.
        size: (width, height) of the result.
    """

    def __init__(self, box: CropBox, size: tuple[int, int]):
        self._box, self._size = box, size
        self._convert, self._cut = Converter(), None

    @staticmethod
    def takes(frame: Any) -> bool:
        """Whether a frame has the planes to cut from: one for each component, chroma of full or half size."""
        form = frame.format
        if form.has_palette or form.is_bit_stream:
            return False
        planar = [component.plane for component in form.components] == list(range(len(form.components)))
        halved = form.chroma_width(64) >= 32 and form.chroma_height(64) >= 32
        return planar and halved and not (form.is_rgb or form.is_big_endian or frame.interlaced_frame)

    def __call__(self, frame: Any) -> np.ndarray:
        """Returns uint8 [height, width, 3]."""
        import cv2

        x, y, width, height = self._box
        if (x, y, width, height) != (0, 0, frame.width, frame.height):
            if self._cut is None:
                self._cut = empty_like(frame, width, height)
            dtype = np.uint8 if frame.format.components[0].bits <= 8 else np.uint16
            down, across = frame.format.chroma_height(2) == 1, frame.format.chroma_width(2) == 1
            for component, source, target in zip(frame.format.components, frame.planes, self._cut.planes, strict=True):
                halved = (across, down) if component.is_chroma else (False, False)
                cut = cut_plane(as_array(source, dtype)[: source.height, : source.width], self._box, *halved)
                as_array(target, dtype)[: len(cut), : cut.shape[1]] = cut
            frame = self._cut
        return cv2.merge(self._convert.planes(frame, *self._size))


def cut_plane(samples: np.ndarray, box: CropBox, across: bool, down: bool) -> np.ndarray:
    """Cuts the samples that belong to a box of the picture from a plane.

    Args:
        samples: uint8 or uint16 [H, W].
        box: In pixels of the picture.
        across: The plane has a column for every two of the picture, and so has the result, rounded up.
        down: The same of rows.

    Returns:
        A view, or, where an offset or a size is odd and so falls between the samples, interpolated samples. A size
        too: FFmpeg takes a plane of n columns for 2 n columns of the picture, also where they are 2 n - 1.
    """
    import cv2

    x, width, step_x = _samples(box.x, box.width, across)
    y, height, step_y = _samples(box.y, box.height, down)
    if step_x == step_y == 1 and x == int(x) and y == int(y):
        return samples[int(y) : int(y) + height, int(x) : int(x) + width]
    # The centre of the first sample of the result lies half a step behind the edge of the box.
    place = np.array([[step_x, 0, x + step_x / 2 - 0.5], [0, step_y, y + step_y / 2 - 0.5]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return cv2.warpAffine(samples, place, (width, height), flags=flags, borderMode=cv2.BORDER_REPLICATE)


def _samples(first: int, count: int, halved: bool) -> tuple[float, int, float]:
    """Returns where pixels begin in the samples of a plane, how many samples they get, and the step between those."""
    if not halved:
        return first, count, 1
    return first / 2, (count + 1) // 2, count / 2 / ((count + 1) // 2)


def empty_like(frame: Any, width: int, height: int) -> Any:
    """Returns a frame of another size with the pixel format and the tags of this one, chroma siting included."""
    from av.video.reformatter import Interpolation, VideoReformatter

    return VideoReformatter().reformat(frame, width, height, interpolation=Interpolation.POINT, threads=1)


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
