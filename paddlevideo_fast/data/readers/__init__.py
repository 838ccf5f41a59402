"""Readers: one class a back end, the same frames from each.

reader = build_reader("pyav")
with reader.open("clip.mp4") as video:
    clips = video.read([View([0, 8, 16])], size=(224, 224))
"""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from ..video import (
    CropBox,
    FrameFolder,
    InexactReaderError,
    Source,
    VideoError,
    VideoInfo,
    View,
)
from .decord import DecordReader
from .fallback import FallbackReader
from .frames import FramesReader
from .opencv import OpencvReader
from .pyav import PyavReader
from .reader import Reader, Video, has_package, missing_package

__all__ = [
    "READERS",
    "CropBox",
    "FrameFolder",
    "InexactReaderError",
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
        ValueError: No such reader, or no such argument.
        ImportError: The reader's package is not installed.
    """
    reader = _construct(name, kwargs)
    if fallback is None or fallback == name or not reader.may_refuse:
        return reader
    known = inspect.signature(_find(fallback)).parameters
    return FallbackReader(reader, _construct(fallback, {key: kwargs[key] for key in kwargs if key in known}))


def _find(name: str) -> type[Reader]:
    if name not in READERS:
        raise ValueError(f"no reader {name!r}{_nearest(name, READERS)}; readers: {', '.join(READERS)}")
    return READERS[name]


def _construct(name: str, kwargs: dict[str, Any]) -> Reader:
    kind = _find(name)
    known = inspect.signature(kind).parameters
    for key in kwargs:
        if key not in known:
            names = ", ".join(known) or "none"
            raise ValueError(f"reader {name!r} has no argument {key!r}{_nearest(key, known)}; arguments: {names}")
    if kind.package is not None and not has_package(kind.package):
        raise ImportError(missing_package(kind.package, name))
    return kind(**kwargs)


def _nearest(name: str, names: Any) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f", did you mean {close[0]!r}?" if close else ""
