"""Cuts long videos into chunks of one length: a clip of two hours of video then costs what one of 15 seconds does."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paddlevideo_fast.data.chunks import CHUNK, write_index
from paddlevideo_fast.data.readers import ChunkSet, VideoError, build_reader
from paddlevideo_fast.data.readers.chunked import examine_chunks
from paddlevideo_fast.data.readers.isolated import ChildLostError, map_in_children
from paddlevideo_fast.data.records import VIDEO_SUFFIXES
from paddlevideo_fast.data.video import describe_source
from paddlevideo_fast.prepare.cut import UNFINISHED, Cut, Job, cut_video, done_part
from paddlevideo_fast.prepare.videos import FATAL

SECONDS_BETWEEN_LINES = 10


def make_chunks(inputs: str, output: str, cut: Cut, workers: int = 1, timeout: float = 6 * 3600.0) -> int:
    """Cuts one video, or all in a folder, and reports on stderr.

    A video ``P01/a.MP4`` becomes the folder ``P01/a.MP4`` of the output with ``0.MP4``, ``15.MP4``, ... and
    ``chunks.json``. The folder bears its name when all is there; what an earlier run finished is kept, chunk by chunk.

    Args:
        inputs: A video, or a folder searched for videos.
        output: Folder to write to, outside of ``inputs``.
        cut: How.
        workers: Child processes; where there are fewer videos, each has several threads.
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
                print(f"BAD {names[number]}: {_reason(result, names[number])}", file=sys.stderr)
                bad += 1
            progress.finish(number)
    return bad


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


def _reason(error: Exception, name: str) -> str:
    if isinstance(error, VideoError):
        return error.reason if describe_source(error.source) == name else str(error)
    return str(error) if isinstance(error, ChildLostError) else f"{type(error).__name__}: {error}"


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
            share -= job.size * done_part(job.folder + UNFINISHED)
        return 1 - share / self._total

    def _tell(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_LINES):
            share, spent = self._share(), time.monotonic() - self._start
            done = share - self._before
            left = f", {spent * (1 - share) / done:.0f} s left" if done > 0 else ""
            ready = len(self._jobs) - len(self._open)
            print(f"{ready}/{len(self._jobs)} videos, {share:.1%} of the bytes{left}", file=sys.stderr, flush=True)
