"""What a reader is asked and what it answers: the vocabulary every reader shares.

Frame indices count from 0 in presentation order: index 7 is the eighth picture a viewer sees, whatever the
container, the codec's reordering or the time stamps say. Sizes are those of the picture as shown, rotation applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

MAX_PIXELS = 8192 * 4320
MAX_FRAMES = 5_000_000


class VideoInfo(NamedTuple):
    """The facts about one video a plan is drawn from.

    Attributes:
        num_frames: Frames a viewer would see, at least 1.
        fps: Mean frames per second, 0.001 to 1000; 0.0 where the source has no time (a folder of images) or none that
            makes sense.
        width: Pixels, after rotation.
        height: Pixels, after rotation.
        duration: Seconds; 0.0 where ``fps`` is.
    """

    num_frames: int
    fps: float
    width: int
    height: int
    duration: float


class CropBox(NamedTuple):
    """A rectangle of the shown picture, in pixels; ``x`` and ``y`` are its left top corner."""

    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True)
class View:
    """One clip wanted from a video.

    Attributes:
        indices: Frame indices, int [T], in any order, repeats allowed.
        crop: The part of the picture to take; None takes all of it.
        flip: Mirror left and right, after the crop.
    """

    indices: Sequence[int] | np.ndarray
    crop: CropBox | None = None
    flip: bool = False


@dataclass(frozen=True)
class FrameFolder:
    """A video stored as one image file a frame.

    Attributes:
        path: The folder.
        template: File name with one format field, e.g. ``img_{:05d}.jpg``; None finds the images in the folder.
        start: Number of the first file; None takes the lowest found.
        num_frames: Frames an annotation promises; None counts the files.
    """

    path: str
    template: str | None = None
    start: int | None = None
    num_frames: int | None = None


@dataclass(frozen=True)
class ShardMember:
    """A video stored inside a tar file.

    Attributes:
        path: The tar file.
        name: Name of the member in it.
        offset: Where the bytes of the video begin in the tar file.
        size: How many there are.
        crc32: Their check sum; None if it is not known.
    """

    path: str
    name: str
    offset: int
    size: int
    crc32: int | None = None


class NamedBytes(bytes):
    """The bytes of a video that were read from somewhere, which errors about it name.

    Attributes:
        name: What ``describe_source`` says of where they come from.
    """

    name: str = "memory"


@dataclass(frozen=True)
class ChunkSet:
    """A long video stored as a folder of short files, each named by the second it begins at: ``0.mp4``, ``15.mp4``.

    Attributes:
        path: The folder.
        seconds: Length of a chunk, the last one may be shorter; None takes it from the index file of the folder, or
            from the names.
    """

    path: str
    seconds: int | None = None


Source = str | Path | bytes | BinaryIO | FrameFolder | ShardMember | ChunkSet


def describe_source(source: Source) -> str:
    """Returns a short name of a source for messages: its path, or what kind of object it is."""
    if isinstance(source, (FrameFolder, ChunkSet)):
        return source.path
    if isinstance(source, ShardMember):
        return f"{source.path}:{source.name}"
    if isinstance(source, bytes) and not isinstance(source, NamedBytes):
        return f"<{len(source)} bytes in memory>"
    if isinstance(source, (str, Path)):
        return str(source)
    return str(getattr(source, "name", f"<{type(source).__name__}>"))


class VideoError(RuntimeError):
    """A video cannot be read. The message names the source and says why in words."""

    def __init__(self, source: Source, reason: str):
        super().__init__(f"{describe_source(source)}: {reason}")
        self.source, self.reason = source, reason

    def __reduce__(self):  # workers send errors to the parent process
        portable = isinstance(self.source, (str, Path, FrameFolder, ShardMember, ChunkSet))
        name = self.source if portable else describe_source(self.source)
        return type(self), (name, self.reason)


class DamagedVideoError(VideoError):
    """A video decodes up to some frame and no further.

    Attributes:
        decodable: Frames from the start that decode, as far as is known: a plan over fewer frames may meet earlier
            damage, and then gets this error with a smaller number. 0 if there is nothing to use.
    """

    def __init__(self, source: Source, reason: str, decodable: int):
        super().__init__(source, reason)
        self.decodable = decodable

    def __reduce__(self):
        kind, arguments = super().__reduce__()
        return kind, (*arguments, self.decodable)


class InexactReaderError(VideoError):
    """This reader cannot promise the right frames of this file; another reader should take it."""


class Limits(NamedTuple):
    """What a file may ask of a reader, so that a small file cannot fill the memory.

    Attributes:
        max_pixels: Width times height of a picture.
        max_frames: Frames of one video.
    """

    max_pixels: int = MAX_PIXELS
    max_frames: int = MAX_FRAMES

    def check_size(self, source: Source, width: int, height: int, what: str = "its pictures are") -> None:
        """Raises VideoError if a picture is too large."""
        if width * height > self.max_pixels:
            raise VideoError(source, self.too_large(width, height, what))

    @property
    def for_decoder(self) -> str:
        """FFmpeg's ``max_pixels``: a little more, as a decoder counts the margins it adds itself."""
        return str(min(self.max_pixels + self.max_pixels // 8 + 2**17, 2**31 - 1))

    def too_large(self, width: int, height: int, what: str = "its pictures are") -> str:
        size = f"{width}x{height} = {width * height} pixels"
        return f"{what} {size}, more than max_pixels={self.max_pixels} allows"

    def check_count(self, source: Source, count: int) -> None:
        """Raises VideoError if there are too many frames."""
        if count > self.max_frames:
            raise VideoError(source, f"at least {count} frames, more than max_frames={self.max_frames} allows")


def check_views(source: Source, info: VideoInfo, views: Sequence[View], size: tuple[int, int] | None) -> None:
    """Raises VideoError if a view asks for a frame or a region that the video does not have."""
    for view in views:
        indices = np.asarray(view.indices)
        if indices.ndim != 1 or indices.size == 0 or not np.issubdtype(indices.dtype, np.integer):
            raise VideoError(source, f"indices must be a non-empty list of integers, got {view.indices!r}")
        low, high = int(indices.min()), int(indices.max())
        if low < 0 or high >= info.num_frames:
            bad = low if low < 0 else high
            raise VideoError(source, f"frame {bad} is outside 0..{info.num_frames - 1}")
        if view.crop is not None:
            if not isinstance(view.crop, CropBox) or not all(isinstance(side, (int, np.integer)) for side in view.crop):
                raise VideoError(source, f"crop must be a CropBox of whole pixels, got {view.crop!r}")
            x, y, width, height = view.crop
            if x < 0 or y < 0 or width < 1 or height < 1 or x + width > info.width or y + height > info.height:
                raise VideoError(source, f"{view.crop} is outside the {info.width}x{info.height} picture")
    whole = isinstance(size, (tuple, list)) and all(isinstance(side, (int, np.integer)) for side in size)
    if size is not None and not (whole and len(size) == 2 and min(size) >= 1):
        raise VideoError(source, f"size must be (height, width) of at least 1 pixel, got {size}")
