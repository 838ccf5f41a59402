"""Videos stored as a folder with one JPEG or PNG file a frame."""

from __future__ import annotations

import io
import logging
import os
import re
import stat
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from paddlevideo_fast.data.readers.pictures import image_size
from paddlevideo_fast.data.readers.reader import Reader, Video, has_package
from paddlevideo_fast.data.records import VideoRecord
from paddlevideo_fast.data.video import (
    MAX_FRAMES,
    MAX_PIXELS,
    DamagedVideoError,
    FrameFolder,
    Limits,
    Source,
    VideoError,
    VideoInfo,
)

IMAGE = re.compile(r"(.*?)(\d+)(\.(?:jpe?g|png))$", re.IGNORECASE)
NO_IMAGE = "is truncated or not a JPEG or PNG image"
FIELD = re.compile(r"\{[^{}]*\}")

logger = logging.getLogger("paddlevideo_fast")


class FramesReader(Reader):
    """Reads folders of numbered images; EXIF orientation is ignored, as extracted frames have none.

    Args:
        fps: Frames per second of the stored frames; 0 if it is not known.
        max_pixels: Largest picture, width times height; a larger one is refused before it is decoded.
        max_frames: Most images of a folder.

    Attributes:
        short_folders: Times a folder held fewer frames than promised, in this process; the first is logged.
    """

    name = "frames"

    def __init__(self, fps: float = 0.0, max_pixels: int = MAX_PIXELS, max_frames: int = MAX_FRAMES):
        self.fps, self.limits = fps, Limits(max_pixels, max_frames)
        self.short_folders = 0

    def open(self, source: Source) -> FramesVideo:
        video = FramesVideo(source, self.fps, self.limits)
        promised = source.num_frames if isinstance(source, FrameFolder) else None
        if promised is not None and promised > video.info.num_frames:
            self.short_folders += 1
            if self.short_folders == 1:
                logger.warning(
                    "%s: the list promises %d frames, the folder has %d; using %d, here and in all such folders",
                    source.path, promised, video.info.num_frames, video.info.num_frames,
                )  # fmt: skip
        return video

    def open_first(self, source: Source, num_frames: int) -> FramesVideo:
        """Opens the images before the first that is missing or damaged; see ``Reader.open_first``."""
        folder = source if isinstance(source, FrameFolder) else FrameFolder(str(source))
        video = FramesVideo(replace(folder, num_frames=num_frames), self.fps, self.limits)
        video.source = source
        return video


class FramesVideo(Video):
    """A folder of images; one of another size than the first is an error, as it belongs to another video."""

    container = "folder"

    def __init__(self, source: Source, fps: float, limits: Limits):
        self.source, self._limits = source, limits
        self._folder, self._names = _find_images(source)
        count = len(self._names)
        limits.check_count(source, count)
        self.codec = "png" if self._names[0].lower().endswith("png") else "jpeg"
        _, (width, height) = self._read_file(0)
        self.info = VideoInfo(count, fps, width, height, count / fps if fps else 0.0)

    def pictures(self, indices: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        for index in indices:
            picture = decode_image(self._read_file(index)[0])
            if picture is None:
                raise self._damaged(index, NO_IMAGE)
            yield index, picture

    def _read_file(self, index: int) -> tuple[bytes, tuple[int, int]]:
        data, size = read_image(self.source, self._path(index), index)
        if size[0] * size[1] > self._limits.max_pixels:
            raise self._damaged(index, self._limits.too_large(*size, "is"))
        return data, size

    def _path(self, index: int) -> str:
        return os.path.join(self._folder, self._names[index])

    def _damaged(self, index: int, reason: str) -> DamagedVideoError:
        return DamagedVideoError(self.source, f"{self._path(index)} {reason}", index)

    def close(self) -> None:
        pass


def read_image(source: Source, path: str, index: int) -> tuple[bytes, tuple[int, int]]:
    """Reads an image file without decoding it.

    Args:
        source: The folder, for messages.
        path: The file.
        index: The frame it is.

    Returns:
        Its bytes, and the width and height its header says.

    Raises:
        DamagedVideoError: It is not there, empty, cut off, or not an image.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
            raise DamagedVideoError(source, f"{path} is not a regular file", index)
        data = Path(path).read_bytes()
    except OSError as error:
        raise DamagedVideoError(source, f"{path} cannot be read ({error.strerror})", index) from error
    if not data:
        raise DamagedVideoError(source, f"{path} is empty (0 bytes)", index)
    size = image_size(data)
    if size is None or _is_cut(data):
        raise DamagedVideoError(source, f"{path} {NO_IMAGE} ({len(data)} bytes)", index)
    return data, size


def list_frames(source: Source) -> list[str]:
    """Returns the image files of a folder, in order.

    Raises:
        VideoError: Not a folder, or no images.
        DamagedVideoError: A number is missing between two others.
    """
    folder, names = _find_images(source)
    return [os.path.join(folder, name) for name in names]


def _find_images(source: Source) -> tuple[str, list[str]]:
    """Returns the absolute path of a folder and the names of its images in order; raises as ``list_frames``."""
    if isinstance(source, (str, Path)):
        source = FrameFolder(str(source))
    if not isinstance(source, FrameFolder):
        raise VideoError(source, "the 'frames' reader takes a folder of images")
    folder = os.path.abspath(source.path)
    if not os.path.isdir(folder):
        missing = f"does not exist (looked for {folder})"
        raise VideoError(source, "is a file, not a folder of images" if os.path.exists(folder) else missing)
    names = sorted(os.listdir(folder))
    numbered = _match_template(source, names) if source.template else _match_any(source, names)
    if source.start is not None:
        numbered = {number: name for number, name in numbered.items() if number >= source.start}
    return folder, _in_order(source, numbered)


def _match_template(source: FrameFolder, names: list[str]) -> dict[int, str]:
    parts = FIELD.split(source.template)
    if len(parts) != 2:
        raise VideoError(source, f"template {source.template!r} must hold one field, such as img_{{:05d}}.jpg")
    pattern = re.compile(re.escape(parts[0]) + r"(\d+)" + re.escape(parts[1]) + "$")
    numbers = {int(match[1]) for match in map(pattern.match, names) if match}
    present = set(names)
    found = {number: source.template.format(number) for number in sorted(numbers)}
    return {number: name for number, name in found.items() if name in present}


def _match_any(source: FrameFolder, names: list[str]) -> dict[int, str]:
    found: dict[tuple[str, str], dict[int, str]] = {}
    for match in filter(None, map(IMAGE.match, names)):
        found.setdefault((match[1], match[3]), {})[int(match[2])] = match[0]
    if len(found) > 1:
        kinds = ", ".join(f"{prefix}*{suffix}" for prefix, suffix in sorted(found))
        raise VideoError(source, f"holds several kinds of images ({kinds}); name one by template")
    return next(iter(found.values()), {})


def _in_order(source: FrameFolder, numbered: dict[int, str]) -> list[str]:
    if not numbered:
        wanted = f" like {source.template}" if source.template else ""
        from_start = f" from number {source.start} on" if source.start is not None else ""
        raise VideoError(source, f"0 frames: no JPEG or PNG files{wanted}{from_start}")
    low, high = source.start if source.start is not None else min(numbered), max(numbered)
    promised = source.num_frames
    if promised is not None:
        high = min(high, low + promised - 1)
    for number in range(low, high + 1):
        if number not in numbered:
            reason = f"{_name(source, numbered, number)} is missing (numbers {low} to {high} expected)"
            raise DamagedVideoError(source, reason, number - low)
    return [numbered[number] for number in range(low, high + 1)]


def _name(source: FrameFolder, numbered: dict[int, str], number: int) -> str:
    """Returns the file name a missing number would have."""
    if source.template:
        return source.template.format(number)
    prefix, digits, suffix = IMAGE.match(next(iter(numbered.values()))).groups()
    return f"{prefix}{number:0{len(digits)}d}{suffix}"


def decode_image(data: bytes) -> np.ndarray | None:
    """Decodes a JPEG or PNG to uint8 [H, W, 3] RGB; None if it is damaged or cut off.

    OpenCV is used for JPEG where it is installed (half the time of Pillow). Its PNG decoder is no faster, writes to the
    console, and decodes nothing once decord is loaded.
    """
    if _is_cut(data):
        return None
    if data.startswith(b"\xff\xd8") and has_package("cv2"):
        import cv2

        try:
            picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION)
        except cv2.error:  # its own limit of the size
            return None
        return None if picture is None else cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # the size has been checked
            with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
                if image.mode.startswith("I"):  # 16 bit grey, which Pillow would clip
                    return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[..., None], 3, axis=2)
                return np.array(image.convert("RGB"))
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


def _is_cut(data: bytes) -> bool:
    """Decoders fill a cut JPEG with grey instead of failing; its end marker tells."""
    if data.startswith(b"\xff\xd8"):
        return b"\xff\xd9" not in data[-4096:]
    if data.startswith(b"\x89PNG"):
        return b"IEND" not in data[-4096:]
    return True


def check_frame_folders(records: Sequence[VideoRecord], limit: int = 200) -> list[str]:
    """Compares the frames an annotation promises with those in the folders, and warns once of all that have fewer.

    Listing a folder of 300 takes about 1 ms from a warm disk and many times that from a cold or remote one. So only
    some folders, spread evenly over the records, are listed; ``FramesReader`` goes by what is there in any case.

    Args:
        records: Records of an annotation; those that are no folders with a promise are passed over.
        limit: Most folders to list.

    Returns:
        One sentence for each folder with fewer frames, beginning with the row.
    """
    promising = [r for r in records if isinstance(r.source, FrameFolder) and r.source.num_frames is not None]
    chosen = promising[:: max(1, -(-len(promising) // limit))]
    short = []
    for record in chosen:
        found = count_frames(record.source)
        if found < record.source.num_frames:
            promise = f"the list promises {record.source.num_frames} frames, the folder has {found}"
            short.append(f"{record.origin}: {record.source.path}: {promise}")
    if short:
        logger.warning(
            "%d of %d frame folders looked at (of %d) have fewer frames than the list promises; what is there is used. "
            "The first: %s",
            len(short), len(chosen), len(promising), short[0],
        )  # fmt: skip
    return short


def count_frames(source: FrameFolder) -> int:
    """Returns the images of a folder up to the first missing number, whatever an annotation promises; 0 without any."""
    try:
        return len(list_frames(replace(source, num_frames=None)))
    except DamagedVideoError as error:
        return error.decodable
    except VideoError:
        return 0
