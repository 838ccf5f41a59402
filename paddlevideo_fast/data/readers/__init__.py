"""Readers: one class a back end, the same frames from each.

reader = build_reader("pyav")
with reader.open("clip.mp4") as video:
    clips = video.read([View([0, 8, 16])], size=(224, 224))
"""

from __future__ import annotations

import inspect
from typing import Any

from paddlevideo_fast.arguments import check_arguments, lookup
from paddlevideo_fast.data.readers.decord import DecordReader
from paddlevideo_fast.data.readers.fallback import FallbackReader
from paddlevideo_fast.data.readers.frames import FramesReader
from paddlevideo_fast.data.readers.fused import FusedReader
from paddlevideo_fast.data.readers.isolated import IsolatedReader
from paddlevideo_fast.data.readers.opencv import OpencvReader
from paddlevideo_fast.data.readers.pyav import PyavReader
from paddlevideo_fast.data.readers.reader import Reader, Video, has_package, missing_package
from paddlevideo_fast.data.video import (
    CropBox,
    DamagedVideoError,
    FrameFolder,
    InexactReaderError,
    Source,
    VideoError,
    VideoInfo,
    View,
)

__all__ = [
    "READERS",
    "CropBox",
    "DamagedVideoError",
    "FrameFolder",
    "InexactReaderError",
    "IsolatedReader",
    "Reader",
    "Source",
    "Video",
    "VideoError",
    "VideoInfo",
    "View",
    "available_readers",
    "build_reader",
]

READERS: dict[str, type[Reader]] = {
    "fused": FusedReader,
    "pyav": PyavReader,
    "decord": DecordReader,
    "opencv": OpencvReader,
    "frames": FramesReader,
}


def available_readers() -> list[str]:
    """Returns the names of the readers whose packages are installed."""
    return [name for name, kind in READERS.items() if kind.package is None or has_package(kind.package)]


def build_reader(name: str, fallback: str | None = "pyav", **kwargs: Any) -> Reader:
    """Makes a reader by name.

    Args:
        name: A key of ``READERS``.
        fallback: The reader that takes the files this one refuses because it cannot promise their frames; None
            lets it raise InexactReaderError.
        **kwargs: Arguments of the reader's constructor; those the fallback knows reach it too.

    Raises:
        ArgumentError: No such reader, or no such argument.
        ImportError: The reader's package is not installed.
    """
    reader = _construct(name, kwargs)
    if fallback is None or fallback == name or not reader.may_refuse:
        return reader
    known = inspect.signature(lookup(READERS, fallback, "reader")).parameters
    return FallbackReader(reader, _construct(fallback, {key: kwargs[key] for key in kwargs if key in known}))


def _construct(name: str, kwargs: dict[str, Any]) -> Reader:
    kind = lookup(READERS, name, "reader")
    check_arguments(kind, kwargs, f"reader {name}")
    if kind.package is not None and not has_package(kind.package):
        raise ImportError(missing_package(kind.package, name))
    return kind(**kwargs)
