"""Readers: one class a back end, the same frames from each.

reader = build_reader("pyav")
with reader.open("clip.mp4") as video:
    clips = video.read([View([0, 8, 16])], size=(224, 224))
"""

from __future__ import annotations

import importlib
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
from paddlevideo_fast.data.readers.reader import Reader, Video, load_package
from paddlevideo_fast.data.readers.shards import ShardReader
from paddlevideo_fast.data.video import (
    ChunkSet,
    CropBox,
    DamagedVideoError,
    FrameFolder,
    InexactReaderError,
    ShardMember,
    Source,
    VideoError,
    VideoInfo,
    View,
)

__all__ = [
    "READERS",
    "ChunkSet",
    "CropBox",
    "DamagedVideoError",
    "FrameFolder",
    "InexactReaderError",
    "IsolatedReader",
    "Reader",
    "ShardMember",
    "ShardReader",
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
    """Returns the names of the readers whose packages load, which it finds out by loading them."""
    return [name for name, kind in READERS.items() if all(map(_loads, _packages(kind)))]


def _packages(kind: type[Reader]) -> list[str]:
    """Returns the modules of a reader; PyAV lists the packets for each of them.

    It comes first: once the FFmpeg inside decord is loaded, PyAV's libvpx does not open.
    """
    return list(dict.fromkeys(["av", kind.package])) if kind.package is not None else []


def _loads(module: str) -> bool:
    try:
        importlib.import_module(module)
    except (ImportError, OSError, RuntimeError):  # the last is what decord raises where its library is not found
        return False
    return True


def build_reader(name: str, fallback: str | None = "pyav", **kwargs: Any) -> Reader:
    """Makes a reader by name and loads its packages.

    Args:
        name: A key of ``READERS``.
        fallback: The reader that takes the files this one refuses because it cannot promise their frames; None
            lets it raise InexactReaderError.
        **kwargs: Arguments of the reader's constructor; those the fallback knows reach it too.

    Raises:
        ArgumentError: No such reader, no such argument, or a value of the wrong type.
        ImportError: The reader's package is not installed, or its native library does not load.
    """
    reader = _construct(name, kwargs)
    if fallback is None or fallback == name or not reader.may_refuse:
        return reader
    known = inspect.signature(lookup(READERS, fallback, "reader")).parameters
    return FallbackReader(reader, _construct(fallback, {key: kwargs[key] for key in kwargs if key in known}))


def _construct(name: str, kwargs: dict[str, Any]) -> Reader:
    kind = lookup(READERS, name, "reader")
    arguments = check_arguments(kind, kwargs, f"reader {name}")
    for package in _packages(kind):
        load_package(package, name)
    return kind(**arguments)
