"""Re-encodes the videos of a data set once, so that every clip read in training costs less."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from paddlevideo_fast.data.annotations import load_class_names
from paddlevideo_fast.data.readers import VideoError
from paddlevideo_fast.data.readers.isolated import ChildLostError, map_in_children
from paddlevideo_fast.data.records import VideoRecord
from paddlevideo_fast.prepare.encode import Encoded, Settings, encode_video
from paddlevideo_fast.prepare.jobs import (
    Entry,
    Job,
    check_places,
    check_taken,
    find_jobs,
    is_finished,
    load_manifest,
    read_inputs,
    replace_text,
)
from paddlevideo_fast.prepare.relist import UNFINISHED, write_list
from paddlevideo_fast.prepare.speed import compare_reading

logger = logging.getLogger("paddlevideo_fast")

MANIFEST = "manifest.jsonl"
REPORT = "report.json"
MEASURED_FILES = 4  # whose reading is timed before and after
# What ends the run instead of making one video bad: the next one would fail as well.
FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.EMFILE)


def prepare_videos(
    inputs: str,
    output: str,
    settings: Settings,
    root: str | None = None,
    format: str = "auto",
    classes: str | None = None,
    workers: int = 1,
    timeout: float = 3600.0,
    redo: bool = False,
) -> int:
    """Encodes all videos of a list or folder anew, and writes a list, a manifest and a report beside them.

    Files that an earlier run finished are kept, if source and settings are still the same.

    Args:
        inputs: List of videos in any format, or a folder searched for videos.
        output: Folder for the new files, at the same relative paths.
        settings: How they are stored.
        root: Folder that relative paths of the list are joined to; None is that of the list.
        format: A name in ``FORMATS``, or "auto".
        classes: File of class names, for lists that name labels.
        workers: Child processes.
        timeout: Seconds one video may take.
        redo: Make files anew that were stored with other settings or of another source.

    Returns:
        The number of rows whose videos are bad, and therefore not in the new list.

    Raises:
        FileNotFoundError: ``inputs`` does not exist.
        ValueError: The list is wrong, names no video files, a source would be overwritten, or the output folder holds
            files of other settings or origin.
        OSError: The output folder cannot be made or written, or its disk is full.
    """
    if workers < 1 or not timeout > 0:
        raise ValueError(f"workers must be at least 1 and timeout above 0 s, got {workers} and {timeout}")
    root = os.path.abspath(root or (inputs if os.path.isdir(inputs) else os.path.dirname(os.path.abspath(inputs))))
    names = load_class_names(classes) if classes else None
    label_map = {name: number for number, name in enumerate(names)} if names else None
    records, format = read_inputs(inputs, root, format, label_map)
    jobs = find_jobs(records, root)
    folder = Path(os.path.abspath(output))
    check_places(inputs, root, folder, jobs)
    folder.mkdir(parents=True, exist_ok=True)
    manifest = load_manifest(folder / MANIFEST)
    todo = [job for job in jobs if not is_finished(job, manifest.get(job.name), settings, folder)]
    if not redo:
        check_taken(todo, manifest, settings, folder)
    errors = _encode_all(todo, len(jobs), manifest, settings, folder, workers, timeout)
    made = {job.source: job.name for job in jobs if job.source not in errors}
    bad = [record for record in records if record.source in errors]
    new_list = None
    if not (os.path.isdir(inputs) and all(record.label is None for record in records)):
        new_list = write_list(inputs, format, root, folder, records, made, label_map)
    summary = summarise(records, [manifest[name] for name in made.values()], len(todo) - len(errors), errors, settings)
    summary |= {"input": os.path.abspath(inputs), "list": str(new_list) if new_list else None}
    pairs = [(source, str(folder / name)) for source, name in made.items()]
    summary["reading"] = compare_reading(pairs[:: math.ceil(len(pairs) / MEASURED_FILES)]) if pairs else {}
    replace_text(folder / REPORT, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")
    print(describe(summary))
    return len(bad)


# ---------------------------------------------------------------------------------------------------------------
# doing it


def _encode_all(
    todo: Sequence[Job],
    total: int,
    manifest: dict[str, Entry],
    settings: Settings,
    folder: Path,
    workers: int,
    timeout: float,
) -> dict[str, str]:
    """Encodes the videos, enters them in the manifest, and returns why others failed, by source."""
    errors: dict[str, str] = {}
    progress = _Progress(sum(max(job.size, 1) for job in todo), total, total - len(todo))
    results = map_in_children(_encode_one, [(job, str(folder), settings) for job in todo], workers, timeout)
    try:
        with contextlib.closing(results), open(folder / MANIFEST, "a", encoding="utf-8") as lines:
            for index, result in results:
                job = todo[index]
                if isinstance(result, Encoded):
                    entry = Entry(job.source, job.name, job.size, job.mtime_ns, settings, result)
                    # Entered before it bears its name: a file of this name without an entry is not ours.
                    print(json.dumps(asdict(entry)), file=lines, flush=True)
                    os.replace(folder / (job.name + UNFINISHED), folder / job.name)
                    manifest[job.name] = entry
                else:
                    errors[job.source] = _reason(result, folder)
                    progress.say(f"BAD {job.source}: {errors[job.source]}")
                progress.show(max(job.size, 1), len(errors))
    finally:
        for job in todo:
            (folder / (job.name + UNFINISHED)).unlink(missing_ok=True)
    return errors


def _reason(result: Exception, folder: Path) -> str:
    """Returns why a video is bad.

    Raises:
        OSError: It is not the video which is, but the output folder.
    """
    if isinstance(result, OSError) and result.errno in FATAL:
        raise OSError(
            result.errno,
            f"{os.strerror(result.errno)}; what is finished is kept, and the same command goes on from there",
            str(folder),
        ) from result
    if isinstance(result, VideoError):
        return result.reason
    if isinstance(result, ChildLostError):
        return str(result)
    return f"it cannot be encoded: {type(result).__name__}: {result}"


def _encode_one(job: Job, folder: str, settings: Settings) -> Encoded:
    """Runs in a child process; leaves nothing behind where it fails."""
    import av

    logger.setLevel(logging.ERROR)
    unfinished = os.path.join(folder, job.name + UNFINISHED)
    try:
        os.makedirs(os.path.dirname(unfinished), exist_ok=True)
        return encode_video(job.source, unfinished, settings)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)
        if isinstance(error, av.FFmpegError):
            raise OSError(error.errno, error.strerror) from error
        raise


class _Progress:
    """Lines on stderr with what is done and how long the rest will take, going by bytes."""

    def __init__(self, num_bytes: int, total: int, done: int):
        self._bytes, self._total, self._done, self._left = num_bytes, total, done, num_bytes
        self._start = self._shown = time.monotonic()
        if done:
            self.say(f"{done} of {total} videos are there already")

    def say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    def show(self, num_bytes: int, bad: int) -> None:
        """Counts a video of so many bytes."""
        self._left, self._done, now = self._left - num_bytes, self._done + 1, time.monotonic()
        if now - self._shown > 5 or self._done == self._total:
            seconds = round((now - self._start) / (self._bytes - self._left) * self._left)
            left = f"{seconds // 3600} h {seconds // 60 % 60} min" if seconds >= 3600 else f"{seconds} s"
            self.say(f"{self._done}/{self._total} videos, {bad} bad, {left} left")
            self._shown = now


# ---------------------------------------------------------------------------------------------------------------
# what came of it


def summarise(
    records: Sequence[VideoRecord],
    entries: Sequence[Entry],
    num_new: int,
    errors: Mapping[str, str],
    settings: Settings,
) -> dict[str, Any]:
    """Returns counts, sizes, PSNR and the bad rows as they stand in ``report.json``."""
    before, after = sum(entry.size for entry in entries), sum(entry.encoded.num_bytes for entry in entries)
    psnr = [entry.encoded.psnr for entry in entries if math.isfinite(entry.encoded.psnr)]
    bad = [{"row": r.origin, "path": r.source, "reason": errors[r.source]} for r in records if r.source in errors]
    return {
        "settings": asdict(settings),
        "rows": len(records),
        "videos": len(entries),
        "new": num_new,
        "frames": sum(entry.encoded.num_frames for entry in entries),
        "bytes": {"before": before, "after": after, "ratio": round(after / before, 4) if before else None},
        "psnr": {"mean": round(float(np.mean(psnr)), 2), "min": round(min(psnr), 2)} if psnr else None,
        "bad": bad,
    }


def describe(summary: Mapping[str, Any]) -> str:
    """Returns the summary as the text of the console."""
    lines = [f"BAD  {row['row']}  {row['path']}: {row['reason']}" for row in summary["bad"]]
    size = summary["bytes"]
    if summary["videos"]:
        lines.append(f"{'':<34}{'before':>10}{'after':>10}")
        before, after = size["before"] / 2**20, size["after"] / 2**20
        lines.append(f"{'size, MB':<34}{before:>10.1f}{after:>10.1f}{size['ratio']:>9.2f} of it")
        for name, row in summary["reading"].items():
            what = f"{name}, CPU ms a clip"
            lines.append(f"{what:<34}{row['before']:>10.1f}{row['after']:>10.1f}{row['ratio']:>9.1f} times as fast")
    if summary["psnr"]:
        mean, least = summary["psnr"]["mean"], summary["psnr"]["min"]
        lines.append(f"PSNR against the scaled source: mean {mean:.1f} dB, least {least:.1f} dB")
    lines.append(
        f"{summary['videos']} videos ({summary['new']} of them new), {summary['frames']} frames; "
        f"{len(summary['bad'])} bad rows of {summary['rows']}"
    )
    if summary["list"]:
        lines.append(f"list: {summary['list']}")
    elif os.path.isfile(summary["input"]):
        lines.append("no list is written: take the old one, with the output folder as its root")
    return "\n".join(lines)
