"""Cuts long videos into chunks of one length: a clip of two hours of video then costs what one of 15 seconds does."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from paddlevideo_fast.data.chunks import CHUNK, ChunkIndex, read_index, write_index
from paddlevideo_fast.data.readers import ChunkSet, VideoError, VideoInfo, build_reader
from paddlevideo_fast.data.readers.chunked import examine_chunks
from paddlevideo_fast.data.readers.isolated import ChildLostError, map_in_children
from paddlevideo_fast.data.readers.packets import scan_packets
from paddlevideo_fast.data.readers.pyav import PyavVideo
from paddlevideo_fast.data.records import VIDEO_SUFFIXES
from paddlevideo_fast.data.video import Limits
from paddlevideo_fast.prepare.encode import (
    MIN_TIMESCALE,
    FrameFitter,
    Settings,
    _add_encoder,
    encoded_size,
    frame_rate,
    frame_times,
    verify,
)
from paddlevideo_fast.prepare.videos import FATAL

UNFINISHED = ".unfinished"
SOURCE = "source.json"  # in a folder of chunks: what they were cut from, and how
ROUNDING = 0.001  # seconds; what containers round times to
SAMPLED_FRAMES = 3  # of each chunk, compared with what was given to the encoder
SECONDS_BETWEEN_LINES = 10


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


def make_chunks(inputs: str, output: str, cut: Cut, workers: int = 1, timeout: float = 6 * 3600.0) -> int:
    """Cuts one video, or all in a folder, and reports on stderr.

    A video ``P01/a.MP4`` becomes the folder ``P01/a.MP4`` of the output with ``0.MP4``, ``15.MP4``, ... and
    ``chunks.json``. The folder bears its name when all is there; what an earlier run finished is kept, chunk by chunk.

    Args:
        inputs: A video, or a folder searched for videos.
        output: Folder to write to, outside of ``inputs``.
        cut: How.
        workers: Child processes; where there are fewer videos, each decodes with several threads.
        timeout: Seconds one video may take.

    Returns:
        The number of bad videos, which have no folder.

    Raises:
        FileNotFoundError: ``inputs`` does not exist.
        ValueError: It names no videos, or a source would be overwritten.
        OSError: The output folder cannot be written, or its disk is full.
    """
    jobs = find_jobs(inputs, output)
    threads = max(1, workers // len(jobs))
    progress = _Progress(jobs, workers)
    arguments = [(job, cut, threads) for job in jobs]
    bad = _run(cut_video, arguments, [job.source for job in jobs], workers, timeout, progress)
    print(f"{len(jobs) - bad} videos in {output}; {bad} bad", file=sys.stderr)
    return bad


def find_jobs(inputs: str, output: str) -> list[Job]:
    """Lists the videos to cut; see ``make_chunks``."""
    root, target = Path(os.path.abspath(inputs)), os.path.realpath(output)
    if not root.exists():
        raise FileNotFoundError(f"{root} does not exist; give a video, or a folder of videos")
    if root.is_dir() and (target + os.sep).startswith(os.path.realpath(root) + os.sep):
        raise ValueError(f"{output} is inside {inputs}, which is searched for videos; give a folder outside of it")
    found = [root]
    if root.is_dir():
        found = sorted(path for path in root.rglob("*") if path.suffix.lower() in VIDEO_SUFFIXES)
    jobs = []
    for path in found:
        if path.is_file():
            folder = os.path.join(target, path.name if path == root else path.relative_to(root))
            jobs.append(Job(str(path), folder, path.stat().st_size, path.stat().st_mtime_ns))
    if not jobs:
        raise ValueError(f"{inputs} holds no videos ({', '.join(sorted(VIDEO_SUFFIXES))})")
    for job in jobs:
        if os.path.isfile(job.folder):
            raise ValueError(f"{job.folder} is a file; the folder of chunks cannot have its name: give another output")
    return jobs


def _run(
    function: Callable[..., Any],
    arguments: Sequence[tuple],
    names: Sequence[str],
    workers: int,
    timeout: float,
    progress: _Progress,
) -> int:
    """Calls a function in children, prints what is bad, and returns how many are."""
    if workers < 1 or not timeout > 0:
        raise ValueError(f"workers must be at least 1 and timeout above 0 s, got {workers} and {timeout}")
    bad = 0
    results = map_in_children(function, arguments, workers, timeout)
    with progress, contextlib.closing(results):
        for number, result in results:
            if isinstance(result, OSError) and result.errno in FATAL:
                text = f"{os.strerror(result.errno)}; what is finished is kept, the same command goes on from there"
                raise OSError(result.errno, text, result.filename) from result
            if isinstance(result, Exception):
                known = isinstance(result, (VideoError, ChildLostError))
                reason = getattr(result, "reason", str(result)) if known else f"{type(result).__name__}: {result}"
                print(f"BAD {names[number]}: {reason}", file=sys.stderr)
                bad += 1
            progress.finish(number)
    return bad


# ---------------------------------------------------------------------------------------------------------------
# one video, in a child process


@dataclass(frozen=True)
class Layout:
    """Which frames of a video go into which chunk.

    Attributes:
        firsts: int64 [chunks + 1], the first frame of each, and the number of all.
        ticks: int64 [frames + 1], when each is shown, and when the last one ends.
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
        end = max(round(duration * scale), int(ticks[-1]) + 1)
        size = encoded_size(video.info.width, video.info.height, cut.settings.short_side)
        return cls(firsts, np.append(ticks, end), scale, VideoInfo(len(ticks), rate, *size, duration))

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
    if os.path.isdir(job.folder):
        if not _is_of(job.folder, job, cut):
            reason = f"{job.folder} was cut from another file, or otherwise; remove it or give another output"
            raise VideoError(job.source, reason)
        if _is_complete(job.folder):
            return
        os.replace(job.folder, work)
    try:
        _cut(job, cut, threads, work)
    except VideoError:
        shutil.rmtree(work, ignore_errors=True)
        raise
    except av.FFmpegError as error:
        raise OSError(error.errno, error.strerror, work) from error
    os.replace(work, job.folder)


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
        shutil.rmtree(work, ignore_errors=True)
    with build_reader("pyav").open(job.source) as video:
        if video.damage:
            raise VideoError(job.source, f"{video.damage} ({video.info.num_frames} frames decode)")
        layout, rate = Layout.of(video, cut), frame_rate(video)
        fit = FrameFitter(video, layout.info[2:4])
    index = ChunkIndex(cut.seconds, job.suffix, layout.firsts, layout.info, "h264", "mov,mp4,m4a,3gp,3g2,mj2")
    filled = np.flatnonzero(np.diff(layout.firsts)).tolist()
    os.makedirs(work, exist_ok=True)
    facts = {**job.facts(cut), "chunks": len(filled)}
    Path(work, SOURCE).write_text(json.dumps(facts) + "\n", encoding="utf-8")
    todo = [number for number in filled if not _is_whole(os.path.join(work, index.name(number)), layout, number)]
    wanted = [np.arange(layout.frames(number).start, layout.frames(number).stop) for number in todo]
    if todo:
        with build_reader("fused", threads=threads).open(job.source) as video:
            frames = video.decode(np.concatenate(wanted).tolist())
            for number in todo:
                path = os.path.join(work, index.name(number))
                _write_chunk(job.source, path, frames, layout, number, (cut.settings, rate, fit))
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
    how: tuple[Settings, Fraction, FrameFitter],
) -> None:
    """Encodes the next frames as one file, reads it back, and gives it its name."""
    import av

    settings, rate, fit = how
    place, size = layout.frames(number), layout.info[2:4]
    count, ticks = place.stop - place.start, layout.ticks[place] - layout.ticks[place.start]
    sampled = {int(position) for position in np.linspace(0, count - 1, SAMPLED_FRAMES)}
    samples: dict[int, np.ndarray] = {}
    unfinished, encoder = path + UNFINISHED, None
    with av.open(unfinished, "w", format="mp4", options={"movflags": "faststart"}) as output:
        for position, (_, frame) in enumerate(islice(frames, count)):
            encoder = encoder or _add_encoder(output, settings, size, rate, layout.scale, frame)
            fitted = fit(frame)
            if position in sampled:
                samples[position] = fitted.to_ndarray()
            fitted.pts, fitted.time_base = int(ticks[position]), Fraction(1, layout.scale)
            output.mux(encoder.encode(fitted))
        output.mux(encoder.encode(None))
    duration = float((layout.ticks[place.stop] - layout.ticks[place.start]) / layout.scale)
    verify(source, unfinished, size, ticks, layout.scale, duration, samples)
    os.replace(unfinished, path)


# ---------------------------------------------------------------------------------------------------------------
# an index for chunks that were cut otherwise


def index_folders(inputs: str, seconds: int | None = None, workers: int = 1, timeout: float = 3600.0) -> int:
    """Writes ``chunks.json`` into every folder of chunks, and reports on stderr.

    Args:
        inputs: A folder of chunks, or one with such folders somewhere in it.
        seconds: Length of a chunk; None takes it from the names.
        workers: Child processes.
        timeout: Seconds one folder may take.

    Returns:
        The number of folders with a chunk that is missing, damaged or of another kind; these get no index.

    Raises:
        FileNotFoundError: ``inputs`` does not exist.
        ValueError: There are no chunks in it.
    """
    if not os.path.isdir(inputs):
        raise FileNotFoundError(f"{os.path.abspath(inputs)} is no folder; give one of chunks, or of folders of chunks")
    folders = sorted(folder for folder, _, names in os.walk(inputs) if any(map(CHUNK.fullmatch, names)))
    if not folders:
        raise ValueError(f"{inputs} holds no chunks: files named by the second they begin at, 0.mp4, 15.mp4, ...")
    jobs = [Job("", folder, 1, 0) for folder in folders]
    arguments = [(folder, seconds) for folder in folders]
    bad = _run(index_folder, arguments, folders, workers, timeout, _Progress(jobs, workers))
    print(f"{len(folders) - bad} folders of chunks have an index; {bad} bad", file=sys.stderr)
    return bad


def index_folder(folder: str, seconds: int | None = None) -> None:
    """Writes the index of one folder; see ``examine_chunks``."""
    write_index(folder, examine_chunks(ChunkSet(folder, seconds), build_reader("fused"), complete=True))


class _Progress:
    """Lines on stderr with what is done and how long the rest will take, going by bytes.

    Args:
        jobs: In the order in which they are taken.
        workers: How many of them are worked on at a time.
    """

    def __init__(self, jobs: Sequence[Job], workers: int):
        self._jobs, self._workers = jobs, workers
        self._open = dict.fromkeys(range(len(jobs)))
        self._total = sum(max(job.size, 1) for job in jobs)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> None:
        self._start, self._before = time.monotonic(), self._share()
        self._thread.start()

    def __exit__(self, *exception: Any) -> None:
        self._ended.set()
        self._thread.join()

    def finish(self, number: int) -> None:
        """Counts a video."""
        del self._open[number]

    def _share(self) -> float:
        """Returns the part of all bytes that is done."""
        left = list(self._open)
        share = sum(max(self._jobs[number].size, 1) for number in left)
        for number in left[: self._workers]:
            job = self._jobs[number]
            share -= job.size * _done_of(job.folder + UNFINISHED)
        return 1 - share / self._total

    def _tell(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_LINES):
            share, spent = self._share(), time.monotonic() - self._start
            done = share - self._before
            left = f", {spent * (1 - share) / done:.0f} s left" if done > 0 else ""
            ready = len(self._jobs) - len(self._open)
            print(f"{ready}/{len(self._jobs)} videos, {share:.1%} of the bytes{left}", file=sys.stderr, flush=True)


def _done_of(folder: str) -> float:
    """Returns the part of a video's chunks that are written."""
    total = _facts_in(folder).get("chunks")
    try:
        return sum(CHUNK.fullmatch(name) is not None for name in os.listdir(folder)) / total if total else 0.0
    except FileNotFoundError:  # it has just got its name
        return 1.0
