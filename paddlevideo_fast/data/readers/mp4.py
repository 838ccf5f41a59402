"""Where the pictures of a plain mp4 file lie, from its sample tables alone: no demuxing, no decoding.

Only what is certain is taken: one H.264 track whose pictures are progressive, all shown and in the file itself. For
anything else - fragments, cutting edit lists, encryption, other codecs, boxes not known here - the answer is None, and
FFmpeg's demuxer tells.

Source: ISO/IEC 14496-12 (boxes), ISO/IEC 14496-15 (AVC in them), ITU-T H.264 7.3.2.1 (sequence parameter set).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import BinaryIO

import numpy as np

from paddlevideo_fast.data.readers.bitstream import has_idr, length_width, unit_places
from paddlevideo_fast.data.readers.packets import PacketIndex, sane_rate

MP4 = "mov,mp4,m4a,3gp,3g2,mj2"  # FFmpeg's name of the container
MOST_BYTES = 64 * 2**20  # of the box with the tables
KEY_BYTES = 4096  # of a key frame looked at for its slice
ENTRY_BOXES = {b"avcC", b"colr", b"pasp", b"btrt"}
TABLES = {b"stsd", b"stts", b"ctts", b"stsc", b"stsz", b"stco", b"co64", b"stss", b"sdtp", b"cslg"}
TRACK_BOXES = {b"tkhd", b"edts", b"mdia", b"udta", b"meta"}
HIGH_PROFILES = (100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135)


@dataclass(frozen=True)
class Mp4Samples:
    """The samples of a track; each is one picture.

    Attributes:
        index: The same facts a demuxer gives, ``droppable`` left open.
        offsets: int64 [N], where each sample starts in the file.
        sizes: int64 [N], bytes.
        extradata: The decoder's configuration record.
        colours: FFmpeg's numbers of (matrix, range) the container gives; 0 for a range it does not give.
    """

    index: PacketIndex
    offsets: np.ndarray
    sizes: np.ndarray
    extradata: bytes
    colours: tuple[int, int] | None


def read_samples(file: BinaryIO) -> Mp4Samples | None:
    """Reads the tables of a file whose picture is known to be upright; None if they leave anything open."""
    try:
        return _read_samples(file)
    except (struct.error, IndexError, KeyError, ValueError, StopIteration):
        return None


def _read_samples(file: BinaryIO) -> Mp4Samples | None:
    end, movie = file.seek(0, 2), None
    place = 0
    while place + 8 <= end:
        file.seek(place)
        size, name = struct.unpack(">I4s", file.read(8))
        head = 8
        if size == 1:
            size, head = struct.unpack(">Q", file.read(8))[0], 16
        size = size or end - place
        if size < head or name in (b"moof", b"sidx", b"styp") or (name == b"moov" and (movie or size > MOST_BYTES)):
            return None
        if name == b"moov":
            file.seek(place + head)
            movie = file.read(size - head)
        place += size
    if movie is None:
        return None
    top = _children(movie, 0, len(movie))
    if b"mvex" in top or b"mvhd" not in top:
        return None
    tracks = [_children(movie, *span) for span in top[b"trak"]]
    track = next(track for track in tracks if _handler(movie, track) == b"vide")
    if not track.keys() <= TRACK_BOXES:
        return None
    return _read_track(file, end, movie, top, track)


def _read_track(file: BinaryIO, end: int, movie: bytes, top: dict, track: dict) -> Mp4Samples | None:
    media = _children(movie, *track[b"mdia"][0])
    information = _children(movie, *media[b"minf"][0])
    tables = _children(movie, *information[b"stbl"][0])
    if not tables.keys() <= TABLES or not _is_self_contained(movie, information):
        return None
    description = _read_description(movie, *tables[b"stsd"][0])
    if description is None:
        return None
    extradata, colours = description
    size = progressive_size(extradata)
    sizes, offsets = _read_places(movie, tables)
    if size is None or len(sizes) == 0 or sizes.min() < 8 or (offsets + sizes).max() > end:
        return None
    scale, duration = _read_clock(movie, *media[b"mdhd"][0])
    deltas = _runs(movie, tables[b"stts"][0], ">u4")
    shifts = _runs(movie, tables[b"ctts"][0], ">i4") if b"ctts" in tables else np.zeros(len(sizes), np.int64)
    if not len(deltas) == len(shifts) == len(sizes) or deltas[:-1].min(initial=1) < 1:
        return None
    decoded = np.concatenate([[0], np.cumsum(deltas[:-1])])
    pts = decoded + shifts
    if len(np.unique(pts)) < len(pts) or pts.min() < pts[0]:
        return None
    total = int(deltas.sum())
    if b"edts" in track:
        edit = _read_edit(movie, track[b"edts"][0], scale, _read_clock(movie, *top[b"mvhd"][0])[0])
        if edit is None or edit[0] > pts.min() or edit[1] < pts.max() + max(1, int(deltas[-1]) // 2):
            return None
    key = np.ones(len(sizes), bool)
    if b"stss" in tables:
        key[:] = False
        key[_table(movie, tables[b"stss"][0], ">u4", 1)[:, 0] - 1] = True
    width = length_width("h264", extradata)
    start = np.zeros(len(sizes), bool)
    for number in np.flatnonzero(key).tolist():
        file.seek(int(offsets[number]))
        head = file.read(min(KEY_BYTES, int(sizes[number])))
        start[number] = has_idr(head, width)
        if any(head[first] & 31 in (7, 8) for first, last in unit_places(head, width) if last > first):
            return None  # it brings parameters of its own
    if not start[0]:
        return None
    last = int(np.argmax(pts))
    durations = np.append(deltas[:-1], (min(duration, total) if duration else total) - decoded[-1])
    if durations[last] < 0:
        return None
    index = PacketIndex(
        container=MP4,
        codec="h264",
        pts=pts - pts.min(),
        key=key,
        discard=np.zeros(len(sizes), bool),
        start=start,
        droppable=np.zeros(len(sizes), bool),
        time_base=Fraction(1, scale),
        last_duration=int(durations[last]),
        span=float(Fraction(int(decoded[-1]), scale)),
        duration=float(Fraction(total, scale)),
        rate=sane_rate(Fraction(scale * len(sizes), total)) if total else 0.0,
        coded_size=size,
        turns=0,
        mirrored=False,
        num_streams=1,
        irregular=None,
        resizes=False,
        damage=None,
    )
    return Mp4Samples(index, offsets, sizes, extradata, colours)


def _children(data: bytes, start: int, end: int) -> dict[bytes, list[tuple[int, int]]]:
    """Returns name -> [(start of the contents, end)] of the boxes in a part of the movie box."""
    found: dict[bytes, list[tuple[int, int]]] = {}
    while start + 8 <= end:
        size, name = struct.unpack_from(">I4s", data, start)
        if size < 8 or start + size > end:
            raise ValueError("a box is larger than what holds it")
        found.setdefault(name, []).append((start + 8, start + size))
        start += size
    return found


def _handler(movie: bytes, track: dict) -> bytes:
    start, _ = _children(movie, *track[b"mdia"][0])[b"hdlr"][0]
    return movie[start + 8 : start + 12]


def _is_self_contained(movie: bytes, information: dict) -> bool:
    """Whether the samples lie in this file: one data reference, with the flag that says so."""
    start, _ = _children(movie, *information[b"dinf"][0])[b"dref"][0]
    count, _, _, flags = struct.unpack_from(">II4sI", movie, start + 4)
    return count == 1 and bool(flags & 1)


def _read_description(movie: bytes, start: int, end: int) -> tuple[bytes, tuple[int, int] | None] | None:
    """Returns (configuration record, colours) of an ``avc1`` sample entry."""
    count, size, name = struct.unpack_from(">II4s", movie, start + 4)
    if count != 1 or name != b"avc1" or start + 8 + size > end:
        return None
    boxes = _children(movie, start + 8 + 8 + 78, start + 8 + size)
    if not boxes.keys() <= ENTRY_BOXES or len(boxes[b"avcC"]) != 1:
        return None
    colours = None
    for first, _ in boxes.get(b"colr", []):
        kind, _, _, matrix = struct.unpack_from(">4s3H", movie, first)
        if kind == b"nclx":
            colours = matrix, 2 if movie[first + 10] & 0x80 else 1
        elif kind == b"nclc":
            colours = matrix, 0
    return movie[slice(*boxes[b"avcC"][0])], colours


def _read_places(movie: bytes, tables: dict) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sizes and offsets of the samples, int64 [N] each."""
    start, _ = tables[b"stsz"][0]
    common, count = struct.unpack_from(">II", movie, start + 4)
    sizes = np.full(count, common) if common else np.frombuffer(movie, ">u4", count, start + 12)
    sizes = sizes.astype(np.int64)
    large = b"co64" in tables
    chunks = _table(movie, tables[b"co64" if large else b"stco"][0], ">u8" if large else ">u4", 1)[:, 0]
    runs = _table(movie, tables[b"stsc"][0], ">u4", 3)
    if (runs[:, 2] != 1).any():
        raise ValueError("more than one sample description")
    lengths = np.diff(np.append(runs[:, 0], len(chunks) + 1))
    in_chunk = np.repeat(runs[:, 1], lengths)
    if len(in_chunk) != len(chunks) or in_chunk.sum() != count:
        raise ValueError("the chunks do not hold the samples")
    before = np.cumsum(sizes) - sizes
    first = np.repeat(np.cumsum(in_chunk) - in_chunk, in_chunk)
    return sizes, np.repeat(chunks, in_chunk) + before - before[first]


def _table(movie: bytes, span: tuple[int, int], dtype: str, columns: int) -> np.ndarray:
    """Returns a counted table, int64 [rows, columns]."""
    (count,) = struct.unpack_from(">I", movie, span[0] + 4)
    return np.frombuffer(movie, dtype, count * columns, span[0] + 8).reshape(-1, columns).astype(np.int64)


def _runs(movie: bytes, span: tuple[int, int], dtype: str) -> np.ndarray:
    """Returns the values of a table of (count, value), int64 [N]."""
    table = _table(movie, span, dtype, 2)
    return np.repeat(table[:, 1], table[:, 0])


def _read_clock(movie: bytes, start: int, end: int) -> tuple[int, int]:
    """Returns (units a second, duration) of a movie or media header."""
    if movie[start] == 1:
        return struct.unpack_from(">IQ", movie, start + 20)
    return struct.unpack_from(">II", movie, start + 12)


def _read_edit(movie: bytes, span: tuple[int, int], scale: int, movie_scale: int) -> tuple[int, int] | None:
    """Returns (first, end) of what is shown, in units of the media, if it is one piece at its own speed."""
    start, _ = _children(movie, *span)[b"elst"][0]
    (count,) = struct.unpack_from(">I", movie, start + 4)
    if count != 1:
        return None
    layout = ">Qqi" if movie[start] == 1 else ">Iii"
    length, first, speed = struct.unpack_from(layout, movie, start + 8)
    if first < 0 or speed != 1 << 16:
        return None
    return first, first + length * scale // movie_scale if length else 1 << 62


def progressive_size(extradata: bytes) -> tuple[int, int] | None:
    """Returns (width, height) of the pictures from a configuration record with one set of parameters; None if they
    may be interlaced."""
    if extradata[0] != 1 or extradata[5] & 31 != 1:
        return None
    length = int.from_bytes(extradata[6:8], "big")
    bits = _bits(extradata[8 : 8 + length].replace(b"\0\0\3", b"\0\0"))
    return _parse_parameters(bits)


def _bits(unit: bytes) -> Iterator[int]:
    return (byte >> place & 1 for byte in unit for place in range(7, -1, -1))


def _take(bits: Iterator[int], count: int) -> int:
    value = 0
    for _ in range(count):
        value = value << 1 | next(bits)
    return value


def _golomb(bits: Iterator[int]) -> int:
    zeros = 0
    while not next(bits):
        zeros += 1
    return (1 << zeros) - 1 + _take(bits, zeros)


def _parse_parameters(bits: Iterator[int]) -> tuple[int, int] | None:
    _take(bits, 8)
    profile = _take(bits, 8)
    _take(bits, 16)
    _golomb(bits)
    chroma = 1
    if profile in HIGH_PROFILES:
        chroma = _golomb(bits)
        if chroma == 3 and next(bits):  # colour planes coded apart
            return None
        _golomb(bits), _golomb(bits), next(bits)
        if next(bits):  # scaling matrices
            return None
    _golomb(bits)
    order = _golomb(bits)
    if order == 0:
        _golomb(bits)
    elif order == 1:
        return None
    _golomb(bits), next(bits)
    width, height = 16 * (_golomb(bits) + 1), 16 * (_golomb(bits) + 1)
    if not next(bits):  # frame_mbs_only_flag
        return None
    next(bits)
    if next(bits):
        left, right, top, bottom = (_golomb(bits) for _ in range(4))
        if left:  # FFmpeg may keep a part of it, for the sake of aligned memory
            return None
        width -= right * (2 if chroma in (1, 2) else 1)
        height -= (top + bottom) * (2 if chroma == 1 else 1)
    return width, height
