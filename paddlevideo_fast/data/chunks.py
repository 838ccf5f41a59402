"""Long videos as chunks of one length: which file holds which frames.

A chunk set is a folder with a file for each ``seconds`` of the video, named by the second it begins at: ``0.mp4``,
``15.mp4``, ``30.mp4``. Frame i of the set is frame i of the video it was cut from. ``chunks.json`` in the folder says
how many frames each file has; without it every file has to be looked at once. A shard holds such files as one tar file.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import tarfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paddlevideo_fast.data.records import VIDEO_SUFFIXES
from paddlevideo_fast.data.video import ChunkSet, NamedBytes, ShardMember, Source, VideoError, VideoInfo

INDEX = "chunks.json"
MAKE_INDEX = "python tools/data/make_chunks.py --index-only"
PACKED = ".chunks.tar"  # what the name of a member of a shard that holds chunks ends in
CHUNK = re.compile(r"(0|[1-9][0-9]{0,8})(\.[A-Za-z0-9]+)")
FULL = 0.9  # of its length: a shorter chunk with others after it has lost its end


@dataclass(frozen=True)
class ChunkIndex:
    """What is known of a chunk set without opening its files.

    Attributes:
        seconds: Length of a chunk.
        suffix: Of the file names, with its dot.
        firsts: int64 [chunks + 1], the index of the first frame of each chunk, and the number of all frames.
        info: The facts about the whole video.
        codec: FFmpeg's name of the codec.
        container: FFmpeg's name of the container.
        stored: It comes from ``chunks.json``.
    """

    seconds: int
    suffix: str
    firsts: np.ndarray
    info: VideoInfo
    codec: str = ""
    container: str = ""
    stored: bool = False

    def name(self, number: int) -> str:
        """Returns the file name of a chunk, counted from 0."""
        return f"{number * self.seconds}{self.suffix}"

    def numbers(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns the number of the chunk that holds each frame, int64 [T]."""
        return np.searchsorted(self.firsts, np.asarray(indices), side="right") - 1


def list_chunks(source: ChunkSet) -> tuple[int, str, list[int]]:
    """Returns the length of a chunk in seconds, the suffix of the files, and the numbers of those that are there.

    Raises:
        VideoError: There is no such folder, it holds no chunks, or their names do not fit together.
    """
    folder = os.path.abspath(source.path)
    if not os.path.isdir(folder):
        missing = f"does not exist (looked for {folder})"
        raise VideoError(source, "is a file, not a folder of chunks" if os.path.exists(folder) else missing)
    found = [match for match in map(CHUNK.fullmatch, os.listdir(folder)) if match]
    found = [match for match in found if match[2].lower() in VIDEO_SUFFIXES]
    if not found:
        raise VideoError(source, "holds no chunks: files named by the second they begin at, 0.mp4, 15.mp4, ...")
    suffixes = sorted({match[2] for match in found})
    if len(suffixes) > 1:
        raise VideoError(source, f"holds chunks of several kinds: {', '.join(suffixes)}")
    starts = sorted(int(match[1]) for match in found)
    seconds = source.seconds or min((b - a for a, b in zip([0, *starts], starts) if b > a), default=1)
    odd = [start for start in starts if start % seconds]
    if odd:
        reason = f"{odd[0]}{suffixes[0]} does not begin at a multiple of {seconds} s, the length of a chunk"
        raise VideoError(source, reason)
    return seconds, suffixes[0], [start // seconds for start in starts]


def chunk_length(seconds: int, infos: Mapping[int, VideoInfo]) -> int:
    """Returns the length of a chunk where names ``seconds`` apart may be all that is left of more.

    Of 0.mp4, 15.mp4 and 30.mp4 without 15.mp4 the names say 30 s; what the files last tells.
    """
    longest = max(1, round(max(info.duration for info in infos.values())))
    return longest if len(infos) > 1 and longest < seconds and seconds % longest == 0 else seconds


def index_chunks(
    source: ChunkSet,
    seconds: int,
    suffix: str,
    infos: Mapping[int, VideoInfo],
    damaged: Collection[int] = (),
    count: int | None = None,
) -> ChunkIndex:
    """Puts together what each file says.

    A chunk that is missing or lost its end takes as much room as a whole one, so that those after it keep their
    places.

    Args:
        source: For messages.
        seconds: Length of a chunk.
        suffix: Of the file names.
        infos: Of the files that open, by number; at least one.
        damaged: Numbers of those whose frames are not all there.
        count: Chunks in all; None is up to the last in ``infos``.

    Raises:
        VideoError: Sizes differ, a chunk has no frame rate, or chunks last longer than their names say.
    """
    last = (max(infos) + 1 if count is None else count) - 1
    _check_alike(source, seconds, suffix, infos)
    whole = {
        number: info
        for number, info in infos.items()
        if number not in damaged and (number == last or info.duration > FULL * seconds)
    }
    rated = list((whole or infos).values())
    rate = sum(info.num_frames for info in rated) / sum(info.duration for info in rated)
    counts, durations = [], []
    for number in range(last + 1):
        found = infos[number].num_frames if number in infos else 0
        known = number in whole or (number == last and found)
        expected = _before(number + 1, seconds, rate) - _before(number, seconds, rate)
        counts.append(found if known else max(found, expected))
        durations.append(infos[number].duration if known else float(seconds))
    firsts = np.cumsum([0, *counts])
    fps, duration = _rate(firsts, durations, seconds, [info.fps for info in rated], rate)
    first = next(iter(infos.values()))
    info = VideoInfo(int(firsts[-1]), fps, first.width, first.height, duration)
    return ChunkIndex(seconds, suffix, firsts, info)


def _before(number: int, seconds: int, rate: float) -> int:
    """Returns how many frames of a video of constant rate are shown before a chunk begins."""
    return math.ceil(number * seconds * rate - 1e-6)


def _check_alike(source: ChunkSet, seconds: int, suffix: str, infos: Mapping[int, VideoInfo]) -> None:
    example = next(iter(infos.values()))
    for number, info in infos.items():
        name = f"{number * seconds}{suffix}"
        if (info.width, info.height) != (example.width, example.height):
            sizes = f"{info.width}x{info.height}, others {example.width}x{example.height}"
            raise VideoError(source, f"chunks of one video have one size, but {name} is {sizes}")
        if not info.fps:
            raise VideoError(source, f"{name} has no frame rate")
        if len(infos) > 1 and info.duration > 1.5 * seconds:
            reason = f"{name} lasts {info.duration:.1f} s, but the names follow each other by {seconds} s"
            raise VideoError(source, reason)


def _rate(
    firsts: np.ndarray, durations: list[float], seconds: int, rates: list[float], rate: float
) -> tuple[float, float]:
    """Returns the mean frames per second of the whole, and its seconds.

    Cut at frame boundaries, the chunks last together as long as their names say, to within a frame, and the rate is
    that of the video. Where a frame was lost or doubled at each cut, the names keep the time.
    """
    total, named = sum(durations), (len(durations) - 1) * seconds + durations[-1]
    if abs(total - named) > 2 / rate:
        return float(firsts[-1] / named), named
    fps = rates[0] if max(rates) - min(rates) < 1e-6 * rate else float(firsts[-1] / total)
    return fps, float(firsts[-1] / fps)


def read_index(source: ChunkSet) -> ChunkIndex | None:
    """Reads ``chunks.json``; None if there is none.

    Raises:
        VideoError: It does not say what it should, or another length of the chunks than ``source``.
    """
    path = os.path.join(os.path.abspath(source.path), INDEX)
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError, OSError) as error:
        raise VideoError(source, f"{path} cannot be read ({error}); make it again: {MAKE_INDEX}") from error
    index = _parse(data)
    if index is None:
        raise VideoError(source, f"{path} is not an index of chunks; make it again: {MAKE_INDEX}")
    if source.seconds not in (None, index.seconds):
        raise VideoError(source, f"{path} has chunks of {index.seconds} s, not of {source.seconds} s")
    return index


def _parse(data: Any) -> ChunkIndex | None:
    try:
        counts = data["num_frames"]
        numbers = [*counts, data["seconds"], data["width"], data["height"]]
        texts = [data["suffix"], data["codec"], data["container"]]
        fps, duration = float(data["fps"]), float(data["duration"])
    except (KeyError, TypeError, ValueError):
        return None
    if not all(type(number) is int and 0 <= number < 2**31 for number in numbers) or not sum(counts):
        return None
    if not all(isinstance(text, str) for text in texts) or not CHUNK.fullmatch(f"0{texts[0]}"):
        return None
    if not (data["seconds"] and data["width"] and data["height"] and 0 < fps < math.inf and 0 < duration < math.inf):
        return None
    firsts = np.cumsum([0, *counts], dtype=np.int64)
    info = VideoInfo(int(firsts[-1]), fps, data["width"], data["height"], duration)
    return ChunkIndex(data["seconds"], texts[0], firsts, info, texts[1], texts[2], stored=True)


def write_index(folder: str, index: ChunkIndex) -> None:
    """Writes ``chunks.json``, whole or not at all."""
    path = os.path.join(folder, INDEX)
    with open(f"{path}.unfinished", "w", encoding="utf-8") as file:
        file.write(_to_json(index) + "\n")
    os.replace(f"{path}.unfinished", path)


def _to_json(index: ChunkIndex) -> str:
    data = {
        "seconds": index.seconds,
        "suffix": index.suffix,
        "fps": index.info.fps,
        "duration": index.info.duration,
        "width": index.info.width,
        "height": index.info.height,
        "codec": index.codec,
        "container": index.container,
        "num_frames": np.diff(index.firsts).tolist(),
    }
    return json.dumps(data)


def part_of(index: ChunkIndex, first: int, last: int) -> ChunkIndex:
    """Returns the index of some neighbouring chunks as if they were a whole video; they are numbered from 0 anew."""
    firsts = index.firsts[first : last + 2] - index.firsts[first]
    count = int(firsts[-1])
    info = index.info._replace(num_frames=count, duration=count / index.info.fps)
    return replace(index, firsts=firsts, info=info, stored=True)


def pack_chunks(index: ChunkIndex, chunks: Sequence[bytes]) -> bytes:
    """Returns a tar file of ``chunks.json`` and the chunks: unpacked into a folder it is a chunk set."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        named = [(index.name(number), chunk) for number, chunk in enumerate(chunks)]
        for name, data in [(INDEX, _to_json(index).encode()), *named]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def is_packed(source: Source) -> bool:
    """Returns whether a source is a tar file of chunks inside a shard."""
    return isinstance(source, (ShardMember, NamedBytes)) and source.name.endswith(PACKED)


def unpack_chunks(source: NamedBytes) -> tuple[ChunkIndex, list[NamedBytes]]:
    """Returns what ``pack_chunks`` was given.

    Raises:
        VideoError: They are other bytes.
    """
    try:
        with tarfile.open(fileobj=io.BytesIO(source)) as archive:
            files = {info.name: archive.extractfile(info).read() for info in archive if info.isreg()}
        index = _parse(json.loads(files[INDEX]))
        named = [index.name(number) for number in range(len(index.firsts) - 1)]
        chunks = [NamedBytes(files[name]) for name in named]
    except (tarfile.TarError, KeyError, ValueError, AttributeError) as error:
        raise VideoError(source, f"is no tar file of chunks and {INDEX} ({type(error).__name__}: {error})") from error
    for name, chunk in zip(named, chunks):
        chunk.name = f"{source.name}:{name}"
    return index, chunks
