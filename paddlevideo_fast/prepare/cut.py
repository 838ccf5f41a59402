"""Cuts one long video into chunks; runs in a child process."""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from paddlevideo_fast.data.chunks import CHUNK, ChunkIndex, read_index, write_index
from paddlevideo_fast.data.readers import ChunkSet, VideoError, VideoInfo, build_reader
from paddlevideo_fast.data.readers.packets import scan_packets
from paddlevideo_fast.data.readers.pyav import PyavVideo
from paddlevideo_fast.data.video import Limits
from paddlevideo_fast.prepare.encode import (
    MIN_TIMESCALE,
    FrameFitter,
    Settings,
    add_encoder,
    encoded_size,
    frame_rate,
    frame_times,
    verify,
)

UNFINISHED = ".unfinished"
SOURCE = "source.json"  # in a folder of chunks: what they were cut from, and how
ROUNDING = 0.001  # seconds; what containers round times to
LOCK_SECONDS = 60
SAMPLED_FRAMES = 3  # of each chunk, compared with what was given to the encoder


@dataclass(frozen=True)
class Cut:
    """How videos are cut.

    Attributes:
        seconds: Length of a chunk.
        settings: How the pictures are stored.

    Raises:
        ValueError: A chunk would have no length.
    """

    seconds: int = 15
    settings: Settings = Settings(short_side=288)

    def __post_init__(self) -> None:
        if self.seconds < 1:
            raise ValueError(f"a chunk must last at least 1 second, got {self.seconds}")


@dataclass(frozen=True)
class Job:
    """One video: its absolute path, the folder for its chunks, its bytes, and when it was changed."""

    source: str
    folder: str
    size: int
    mtime_ns: int

    @property
    def suffix(self) -> str:
        """Of the chunks: that of the source as it is written, if it is an mp4 file."""
        suffix = os.path.splitext(self.source)[1]
        return suffix if suffix.lower() == ".mp4" else ".mp4"

    def facts(self, cut: Cut) -> dict[str, Any]:
        """Returns what ``source.json`` says."""
        settings = asdict(cut.settings)
        return {"bytes": self.size, "mtime_ns": self.mtime_ns, "seconds": cut.seconds, "settings": settings}


@dataclass(frozen=True)
class Layout:
    """Which frames of a video go into which chunk.

    Attributes:
        firsts: int64 [chunks + 1], the first frame of each, and the number of all.
        ticks: int64 [frames], when each is shown.
        scale: Ticks a second.
        info: The facts about the whole, as it is stored.
    """

    firsts: np.ndarray
    ticks: np.ndarray
    scale: int
    info: VideoInfo

    @classmethod
    def of(cls, video: PyavVideo, cut: Cut) -> Layout:
        """A frame goes into the chunk in whose time it begins to be shown."""
        ticks, scale = _even_times(*frame_times(video), frame_rate(video))
        rate = video.info.fps or float(frame_rate(video))
        duration = video.info.duration or len(ticks) / rate
        numbers = ticks // (cut.seconds * scale)
        firsts = np.searchsorted(numbers, np.arange(int(numbers[-1]) + 2))
        size = encoded_size(video.info.width, video.info.height, cut.settings.short_side)
        return cls(firsts, ticks, scale, VideoInfo(len(ticks), rate, *size, duration))

    def frames(self, number: int) -> slice:
        """Returns the frames of a chunk."""
        return slice(int(self.firsts[number]), int(self.firsts[number + 1]))


def _even_times(ticks: np.ndarray, scale: int, rate: Fraction) -> tuple[np.ndarray, int]:
    """Returns times of a constant rate where the file only rounds them, as Matroska does to milliseconds."""
    even_scale = rate.numerator * math.ceil(MIN_TIMESCALE / rate.numerator)
    even = np.arange(len(ticks)) * (even_scale // rate.numerator * rate.denominator)
    off = np.abs(even / even_scale - ticks / scale).max()
    return (even, even_scale) if off < ROUNDING + 1 / scale else (ticks, scale)


def cut_video(job: Job, cut: Cut, threads: int) -> None:
    """Writes the chunks of a video and their index; they get their folder when all are there.

    Raises:
        VideoError: The source does not decode from beginning to end, what was written is not what it should be, or
            there are chunks of another source or cut.
        OSError: The disk.
    """
    import av

    logging.getLogger("paddlevideo_fast").setLevel(logging.ERROR)
    work = job.folder + UNFINISHED
    if _is_complete(job.folder) and _is_of(job.folder, job, cut):
        return
    with _only_one(job, work):
        if os.path.isdir(job.folder):
            shutil.rmtree(work)
            if not _is_of(job.folder, job, cut):
                reason = f"{job.folder} was cut from another file, or otherwise; remove it or give another output"
                raise VideoError(job.source, reason)
            os.replace(job.folder, work)
        try:
            _cut(job, cut, threads, work)
        except VideoError as error:
            if error.source == job.source:
                shutil.rmtree(work, ignore_errors=True)
            raise
        except av.FFmpegError as error:
            raise OSError(error.errno, error.strerror, work) from error
        os.replace(work, job.folder)


@contextmanager
def _only_one(job: Job, work: str) -> Iterator[None]:
    """Makes the folder, and keeps others from it: what a killed run left behind goes on for some seconds.

    Raises:
        VideoError: Another process has been at it for longer than a minute.
    """
    for _ in range(LOCK_SECONDS):
        os.makedirs(work, exist_ok=True)
        descriptor = os.open(work, os.O_RDONLY)
        try:
            if _lock(descriptor, work):
                yield
                return
        finally:
            os.close(descriptor)
        time.sleep(1)
    raise VideoError(job.source, f"another process writes to {work}")


def _lock(descriptor: int, folder: str) -> bool:
    """Returns whether an opened folder could be locked, and still has its name."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), os.stat(folder))
    except (BlockingIOError, FileNotFoundError):
        return False


def _facts_in(folder: str) -> dict[str, Any]:
    try:
        facts = json.loads(Path(folder, SOURCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _is_of(folder: str, job: Job, cut: Cut) -> bool:
    """Returns whether a folder, finished or not, holds chunks of this very file, cut in this way."""
    facts = _facts_in(folder)
    return all(name in facts and facts[name] == value for name, value in job.facts(cut).items())


def _is_complete(folder: str) -> bool:
    try:
        index = read_index(ChunkSet(folder))
    except VideoError:
        return False
    if index is None:
        return False
    sizes = {entry.name: entry.stat().st_size for entry in os.scandir(folder)}
    return all(sizes.get(index.name(number)) for number in np.flatnonzero(np.diff(index.firsts)).tolist())


def _cut(job: Job, cut: Cut, threads: int, work: str) -> None:
    if not _is_of(work, job, cut):
        for entry in os.scandir(work):
            os.remove(entry)
    with build_reader("pyav").open(job.source) as video:
        if video.damage:
            raise VideoError(job.source, f"{video.damage} ({video.info.num_frames} frames decode)")
        layout, rate = Layout.of(video, cut), frame_rate(video)
        fit = FrameFitter(video, layout.info[2:4])
    index = ChunkIndex(cut.seconds, job.suffix, layout.firsts, layout.info, "h264", "mov,mp4,m4a,3gp,3g2,mj2")
    filled = np.flatnonzero(np.diff(layout.firsts)).tolist()
    facts = {**job.facts(cut), "chunks": len(filled)}
    Path(work, SOURCE).write_text(json.dumps(facts) + "\n", encoding="utf-8")
    todo = [number for number in filled if not _is_whole(os.path.join(work, index.name(number)), layout, number)]
    wanted = [np.arange(layout.frames(number).start, layout.frames(number).stop) for number in todo]
    parent = os.getppid()
    if todo:
        with build_reader("fused", threads=threads).open(job.source) as video:
            frames = video.decode(np.concatenate(wanted).tolist())
            for number in todo:
                if os.getppid() != parent:
                    raise InterruptedError(errno.EINTR, "the command that wanted the chunks is gone")
                path = os.path.join(work, index.name(number))
                _write_chunk(job.source, path, frames, layout, number, (cut.settings, rate, fit, threads))
    write_index(work, index)


def _is_whole(path: str, layout: Layout, number: int) -> bool:
    """Returns whether an earlier run wrote a chunk, with the right pictures and times as far as its packets tell."""
    try:
        found = scan_packets(path, path, Limits())
    except (VideoError, OSError):
        return False
    ticks = layout.ticks[layout.frames(number)]
    if found.doubt() or len(found.shown_pts) != len(ticks) or found.coded_size != layout.info[2:4]:
        return False
    times = (found.shown_pts - found.shown_pts[0]) * float(found.time_base * layout.scale)
    return bool(np.allclose(times, ticks - ticks[0], rtol=0, atol=1e-3))


def _write_chunk(
    source: str,
    path: str,
    frames: Iterator[tuple[int, Any]],
    layout: Layout,
    number: int,
    how: tuple[Settings, Fraction, FrameFitter, int],
) -> None:
    """Encodes the next frames as one file, reads it back, and gives it its name."""
    import av

    settings, rate, fit, threads = how
    place, size = layout.frames(number), layout.info[2:4]
    count, ticks = place.stop - place.start, layout.ticks[place] - layout.ticks[place.start]
    sampled = {int(position) for position in np.linspace(0, count - 1, SAMPLED_FRAMES)}
    samples: dict[int, np.ndarray] = {}
    unfinished, encoder = path + UNFINISHED, None
    with av.open(unfinished, "w", format="mp4", options={"movflags": "faststart"}) as output:
        for position, (_, frame) in enumerate(islice(frames, count)):
            if encoder is None:
                encoder = add_encoder(output, settings, size, rate, layout.scale, frame)
                encoder.codec_context.thread_count = threads
            fitted = fit(frame)
            if position in sampled:
                samples[position] = fitted.to_ndarray()
            fitted.pts, fitted.time_base = int(ticks[position]), Fraction(1, layout.scale)
            output.mux(encoder.encode(fitted))
        output.mux(encoder.encode(None))
    duration = float(ticks[-1] / layout.scale + 1 / rate)  # how long the last one stays is for the index to say
    verify(source, unfinished, size, ticks, layout.scale, duration, samples)
    os.replace(unfinished, path)


def done_part(folder: str) -> float:
    """Returns the part of a video's chunks that are written."""
    total = _facts_in(folder).get("chunks")
    try:
        return sum(CHUNK.fullmatch(name) is not None for name in os.listdir(folder)) / total if total else 0.0
    except FileNotFoundError:  # it has just got its name
        return 1.0
