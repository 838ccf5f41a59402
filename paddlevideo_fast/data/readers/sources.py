"""From what a caller names to what a decoder opens: local files and memory only, with errors in words."""

from __future__ import annotations

import io
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from paddlevideo_fast.data.shards import read_member
from paddlevideo_fast.data.video import FrameFolder, Limits, ShardMember, Source, VideoError

URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
PLAYLISTS = (b"#EXTM3U", b"ffconcat", b"[playlist]", b"<?xml", b"<MPD", b"v=0\r\n", b"v=0\n")
MP4_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide")
MP4_PARENTS = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"moof", b"traf")
MAX_BOXES = 4096  # looked at before a file is opened; a longer one has more fragments, not larger ones


def resolve(source: Source) -> str | BinaryIO:
    """Returns the absolute path of an existing, non-empty file, or a seekable file object at its start.

    Raises:
        VideoError: It does not exist, is a folder, is empty, or is not a local file.
    """
    if isinstance(source, FrameFolder):
        raise VideoError(source, "is a folder of images; the 'frames' reader takes those")
    if isinstance(source, (str, Path)):
        return _resolve_path(source)
    if isinstance(source, ShardMember):
        source = read_member(source)
    stream = io.BytesIO(source) if isinstance(source, (bytes, bytearray, memoryview)) else source
    if not hasattr(stream, "read"):
        kind = type(source).__name__
        raise VideoError(source, f"a source is a path, bytes, a binary file object or a FrameFolder, not {kind}")
    if not (hasattr(stream, "seekable") and stream.seekable()):
        stream = io.BytesIO(stream.read())
    if stream.seek(0, io.SEEK_END) == 0:
        raise VideoError(source, "the file is empty (0 bytes)")
    stream.seek(0)
    return stream


def _resolve_path(source: str | Path) -> str:
    path = os.path.abspath(source)
    if os.path.isdir(path):
        raise VideoError(source, "is a folder, not a video file; the 'frames' reader takes folders of images")
    if not os.path.exists(path):
        if URL.match(str(source)):
            raise VideoError(source, "only local files are read; download it first")
        raise VideoError(source, f"does not exist (looked for {path})")
    if not os.path.isfile(path):  # a pipe would be waited for, a device never ends
        raise VideoError(source, "is not a regular file")
    if not os.access(path, os.R_OK):
        raise VideoError(source, "may not be read: permission denied")
    if os.path.getsize(path) == 0:
        raise VideoError(source, "the file is empty (0 bytes)")
    return path


def explain_unreadable(source: Source, place: str | BinaryIO) -> VideoError:
    """Returns the error for a source that no demuxer accepts, from a look at its bytes."""
    if isinstance(place, str):
        try:
            with open(place, "rb") as file:
                return VideoError(source, _describe_bytes(file))
        except OSError as error:
            return VideoError(source, f"can no longer be read: {error.strerror}")
    place.seek(0)
    return VideoError(source, _describe_bytes(place))


def _describe_bytes(file: BinaryIO) -> str:
    head = file.read(12)
    if head.startswith(PLAYLISTS):
        return "is a playlist; only files that hold the pictures themselves are read"
    if head[4:8] in MP4_BOXES:
        file.seek(0)
        if b"moov" not in _mp4_boxes(file):
            return "truncated: the index of the mp4 file (moov box) is missing"
        return "damaged: the index of the mp4 file (moov box) cannot be read"
    if head.startswith(b"\x1aE\xdf\xa3"):
        return "truncated or damaged Matroska/WebM file"
    return f"not a video file (it starts with {head!r})"


def _mp4_boxes(file: BinaryIO) -> set[bytes]:
    """Returns the names of the complete top-level boxes."""
    end = file.seek(0, io.SEEK_END)
    return {name for name, _, stop in _boxes(file, 0, end) if stop <= end}


def _boxes(file: BinaryIO, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yields (name, start of the contents, end) of the boxes in a part of an mp4 file; the last may be cut off."""
    while start + 8 <= end:
        file.seek(start)
        size, name = struct.unpack(">I4s", file.read(8).ljust(8, b"\0"))
        contents = start + 8
        if size == 1:
            size, contents = struct.unpack(">Q", file.read(8).ljust(8, b"\0"))[0], start + 16
        size = size or end - start
        if size < contents - start:
            return
        yield name, contents, start + size
        start += size


def check_promises(source: Source, place: str | BinaryIO, limits: Limits) -> bool:
    """Looks into an mp4 file before FFmpeg opens it; returns whether its pictures are known to be coded upright.

    FFmpeg makes an index of all a file claims to hold, however few bytes it has, as soon as it opens it.

    Raises:
        VideoError: The file lists more pictures than allowed.
    """
    if not isinstance(place, str):
        return _check_promises(source, place, limits)
    with open(place, "rb") as file:
        return _check_promises(source, file, limits)


def _check_promises(source: Source, file: BinaryIO, limits: Limits) -> bool:
    file.seek(4)
    if file.read(4) not in MP4_BOXES:
        return False
    ranges, seen, upright = [(0, file.seek(0, io.SEEK_END))], 0, True
    while ranges and seen < MAX_BOXES:
        start, end = ranges.pop()
        inner = []
        for name, contents, stop in _boxes(file, start, end):
            seen += 1
            if name == b"hdlr" and _read_at(file, contents + 8, 4) == b"soun":
                inner = []  # sound may have a sample every 20 microseconds
                break
            if name in (b"stsz", b"stz2", b"trun"):
                place = contents + (4 if name == b"trun" else 8)
                limits.check_count(source, int.from_bytes(_read_at(file, place, 4), "big"))
            if name in (b"mvhd", b"tkhd"):
                upright &= _has_unit_matrix(file, name, contents)
            if name in MP4_PARENTS:
                inner.append((contents, min(stop, end)))
            if seen >= MAX_BOXES:
                break
        ranges += inner
    return upright and seen < MAX_BOXES


def _has_unit_matrix(file: BinaryIO, name: bytes, contents: int) -> bool:
    """Returns whether a movie or track header neither turns nor mirrors; ISO/IEC 14496-12, 8.2.2 and 8.3.2."""
    version = _read_at(file, contents, 1)
    place = (36 if name == b"mvhd" else 40) + (12 if version == b"\1" else 0)
    a, b, _, c, d = struct.unpack(">5i", _read_at(file, contents + place, 20).ljust(20, b"\0"))
    return (a, b, c, d) == (1 << 16, 0, 0, 1 << 16)


def _read_at(file: BinaryIO, position: int, size: int) -> bytes:
    file.seek(position)
    return file.read(size)
