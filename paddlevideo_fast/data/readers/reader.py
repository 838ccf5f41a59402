"""What all readers have in common: opening, the reading of views, and errors about missing packages."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from paddlevideo_fast.data.transforms import crop_resize_flip
from paddlevideo_fast.data.video import CropBox, DamagedVideoError, Source, VideoInfo, View, check_views

PACKAGES = {"av": "av", "decord": "decord", "cv2": "opencv-python-headless"}


class Video(ABC):
    """One opened video, for one thread at a time; a reader may be shared by threads.

    Attributes:
        source: What was opened.
        info: Frame count, rate, size and duration, as a viewer would see them.
        damage: What is wrong with the file although frames can be read; None if nothing is known to be.
        codec: Name of the codec, e.g. ``h264``.
        container: FFmpeg's name of the container, e.g. ``matroska,webm``, or ``folder``.
    """

    source: Source
    info: VideoInfo
    damage: str | None = None
    codec: str = ""
    container: str = ""

    @abstractmethod
    def pictures(self, indices: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        """Yields (index, uint8 [H, W, 3] RGB) of the wanted frames, one at a time.

        Args:
            indices: Frame indices in rising order, without repeats, inside the video.

        Raises:
            DamagedVideoError: A wanted frame cannot be decoded.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees the decoder and the file handle; closing twice does no harm."""

    def keep(self, num_frames: int) -> None:
        """Shortens the video to its first frames, for a plan that uses what decodes of a damaged file.

        Args:
            num_frames: Frames to keep, at least 1; ``DamagedVideoError.decodable`` says how many can be had.
        """
        if num_frames < 1:
            raise ValueError(f"num_frames must be at least 1, got {num_frames}")
        kept = min(num_frames, self.info.num_frames)
        duration = self.info.duration * kept / self.info.num_frames
        self.info = self.info._replace(num_frames=kept, duration=duration)

    def read(self, views: Sequence[View], size: tuple[int, int] | None = None) -> list[np.ndarray]:
        """Reads clips, decoding each wanted frame once for all of them.

        Args:
            views: The clips wanted.
            size: (height, width) of every clip; None keeps the size of each view's crop (or of the picture).

        Returns:
            One uint8 [T, H, W, 3] RGB array a view.

        Raises:
            VideoError: A frame or region does not exist.
            DamagedVideoError: A wanted frame does not decode; says how many from the start do.
        """
        check_views(self.source, self.info, views, size)
        clips, places = [], {}
        for view in views:
            _, _, width, height = view.crop or (0, 0, self.info.width, self.info.height)
            clips.append(np.empty((len(view.indices), *(size or (height, width)), 3), np.uint8))
            for position, index in enumerate(view.indices):
                places.setdefault(int(index), []).append((len(clips) - 1, position))
        for index, picture in self.decode(sorted(places)):
            done = {}
            for number, position in places.pop(index):
                clip = clips[number]
                if number in done:
                    clip[position] = clip[done[number]]
                else:
                    self.render(index, picture, views[number], clip[position])
                    done[number] = position
        if places:
            where = f"frame {min(places)} of {self.info.num_frames}"
            raise DamagedVideoError(self.source, f"{where} was not decoded", min(places))
        return clips

    def decode(self, indices: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yields (index, picture as ``render`` takes it); here uint8 RGB from ``pictures``."""
        return self.pictures(indices)

    def render(self, index: int, picture: Any, view: View, out: np.ndarray) -> None:
        """Writes what a view shows of a picture that was decoded into ``out``, uint8 [height, width, 3]."""
        self._check_size(index, picture)
        out[:] = crop_resize_flip(picture[None], view.crop, out.shape[:2], view.flip)[0]

    def frames(self) -> Iterator[np.ndarray]:
        """Yields every picture in order, uint8 [H, W, 3] RGB, without holding the whole video."""
        for index, picture in self.pictures(range(self.info.num_frames)):
            self._check_size(index, picture)
            yield picture

    def _check_size(self, index: int, picture: np.ndarray) -> None:
        height, width = picture.shape[:2]
        if (width, height) != (self.info.width, self.info.height):
            shown = f"{self.info.width}x{self.info.height}"
            raise DamagedVideoError(self.source, f"frame {index} is {width}x{height}, the video is {shown}", index)

    def __enter__(self) -> Video:
        return self

    def __exit__(self, *exception) -> None:
        self.close()


class Reader(ABC):
    """Opens videos; holds no handle and no thread itself, so it can be pickled and survives a fork.

    Attributes:
        name: Its name in the table of readers.
        package: The module it needs; None if it works without optional packages.
        may_refuse: It raises InexactReaderError for some sources.
    """

    name: str
    package: str | None = None
    may_refuse: bool = False

    @abstractmethod
    def open(self, source: Source) -> Video:
        """Opens a video; use it in a ``with`` statement.

        Args:
            source: A path, the bytes of a file, a seekable binary file object (read from its start, left open)
                or a folder of images; not every reader takes all of them.

        Raises:
            VideoError: The source does not exist or is not a readable video.
            InexactReaderError: This reader cannot promise the right frames of this source.
        """

    def open_first(self, source: Source, num_frames: int) -> Video:
        """Opens the first frames of a damaged video, as if it had no more.

        Args:
            source: As for ``open``.
            num_frames: At least 1; ``DamagedVideoError.decodable`` says how many can be had.
        """
        video = self.open(source)
        video.keep(num_frames)
        return video

    def probe(self, source: Source) -> VideoInfo:
        """Returns the facts about a video without reading clips from it."""
        with self.open(source) as video:
            return video.info

    def read(
        self,
        source: Source,
        indices: Sequence[int] | np.ndarray,
        crop: CropBox | None = None,
        size: tuple[int, int] | None = None,
        flip: bool = False,
    ) -> np.ndarray:
        """Opens a video and reads one view, uint8 [T, H, W, 3] RGB; see ``Video.read``."""
        with self.open(source) as video:
            return video.read([View(indices, crop, flip)], size)[0]


def has_package(module: str) -> bool:
    """Returns whether a module could be imported, without importing it."""
    if module in sys.modules:
        return sys.modules[module] is not None
    return importlib.util.find_spec(module) is not None


def load_package(module: str, reader: str) -> ModuleType:
    """Imports the package of a reader.

    Raises:
        ImportError: The package is missing or its native library does not load; says what to install and which
            readers can be used instead.
    """
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:  # decord raises the last, over several lines
        reason = " ".join(str(error).split())
        cause = f"cannot be loaded ({reason})" if has_package(module) else "is not installed"
        raise ImportError(missing_package(module, reader, cause)) from error


def missing_package(module: str, reader: str, cause: str = "is not installed") -> str:
    """Returns the message for a reader whose package is not there."""
    from paddlevideo_fast.data.readers import available_readers

    others = ", ".join(available_readers()) or "none"
    return (
        f"reader {reader!r} needs the package {module!r}, which {cause}: pip install {PACKAGES[module]}; "
        f"readers available here: {others}"
    )
