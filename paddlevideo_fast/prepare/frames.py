"""Turns videos into folders of JPEG frames, in parallel and resumable."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from paddlevideo_fast.data.annotations import load_annotations
from paddlevideo_fast.data.records import VIDEO_SUFFIXES

UNFINISHED = ".unfinished"


@dataclass(frozen=True)
class Options:
    """How frames are stored.

    Attributes:
        template: File name with one field for the number, which starts at 1.
        quality: JPEG quality, 1 to 100.
        short_side: Pixels of the shorter side, the other in proportion; None keeps the size.
        fps: Frames per second kept, at most those of the video; None keeps every frame.

    Raises:
        ValueError: A value is out of range, or the template has not one field.
    """

    template: str = "img_{:05d}.jpg"
    quality: int = 95
    short_side: int | None = None
    fps: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100:
            raise ValueError(f"quality must be from 1 to 100, got {self.quality}")
        if self.short_side is not None and self.short_side < 1:
            raise ValueError(f"short_side must be at least 1 pixel, got {self.short_side}")
        if self.fps is not None and not 0 < self.fps < math.inf:
            raise ValueError(f"fps must be a finite number above 0, got {self.fps}")
        if not _has_one_field(self.template):
            raise ValueError(f"template {self.template!r} must hold one field, such as img_{{:05d}}.jpg")


def _has_one_field(template: str) -> bool:
    try:
        return template.format(1) != template.format(2)
    except (IndexError, KeyError, ValueError):
        return False


@dataclass(frozen=True)
class Job:
    """One video: where it is, where its frames go and the rest of its row in the list (its label)."""

    source: str
    folder: str
    name: str
    label: str | None


@dataclass(frozen=True)
class Outcome:
    """What became of a job; ``error`` says why there are no frames."""

    job: Job
    num_frames: int = 0
    error: str | None = None


def find_jobs(inputs: str, output: str) -> list[Job]:
    """Lists the videos of a folder, or of a list with rows ``path label`` (or ``path``), as ``annotations`` reads it.

    A relative path in a list is looked for beside the list. Each video gets a folder of frames at the same relative
    place, named as the file without its suffix (with it, where two videos would share a folder or nest).

    Raises:
        FileNotFoundError: ``inputs`` does not exist.
        ValueError: It names no videos, a row is wrong, or a path of the list leads out of the output folder.
    """
    place = Path(inputs)
    if place.is_dir():
        found = sorted(path for path in place.rglob("*") if path.suffix.lower() in VIDEO_SUFFIXES and path.is_file())
        rows = [(str(path.relative_to(place)), None) for path in found]
        root = place
    elif place.is_file():
        records = load_annotations(place, "video", require_labels=False)
        root = place.parent.absolute()
        rows = [(record.source.removeprefix(f"{root}{os.sep}"), record.label) for record in records]
        rows = [(path, None if label is None else str(label)) for path, label in rows]
    else:
        raise FileNotFoundError(f"{place.resolve()} does not exist; give a folder of videos or a list of them")
    if not rows:
        raise ValueError(f"{inputs} names no videos ({', '.join(sorted(VIDEO_SUFFIXES))})")
    names = {path: _folder_name(path) for path, _ in rows}
    taken = Counter(names.values())
    taken.update(str(parent) for name in set(taken) for parent in Path(name).parents)
    jobs = []
    for path, label in rows:
        name = names[path]
        if taken[name] > 1:
            name += Path(path).suffix
        jobs.append(Job(str(root / path), os.path.join(output, name), name, label))
    return jobs


def _folder_name(path: str) -> str:
    relative = path.lstrip("/") if os.path.isabs(path) else path
    name = os.path.normpath(os.path.splitext(relative)[0])
    if name.startswith(".."):
        raise ValueError(f"{path}: the frames would leave the output folder; name it without '..'")
    return name


def extract(job: Job, options: Options) -> Outcome:
    """Writes the frames of one video; they appear under their final name only when all are there."""
    from paddlevideo_fast.data.video import VideoError

    if os.path.isdir(job.folder):
        return Outcome(job, len(os.listdir(job.folder)))
    unfinished = job.folder + UNFINISHED
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        os.makedirs(unfinished)
        count = _write_frames(job.source, unfinished, options)
        os.replace(unfinished, job.folder)
    except (VideoError, OSError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        return Outcome(job, error=getattr(error, "reason", str(error)))
    return Outcome(job, count)


def _write_frames(source: str, folder: str, options: Options) -> int:
    from paddlevideo_fast.data.readers import build_reader
    from paddlevideo_fast.data.transforms import crop_resize_flip
    from paddlevideo_fast.data.video import VideoError

    with build_reader("pyav").open(source) as video:
        info = video.info
        size = scaled_size(info.height, info.width, options.short_side)
        wanted = kept_indices(info.num_frames, info.fps, options.fps)
        count = 0
        for _, picture in video.pictures(wanted):
            count += 1
            scaled = crop_resize_flip(picture[None], None, size)[0]
            _write_jpeg(os.path.join(folder, options.template.format(count)), scaled, options.quality)
        if video.damage:
            raise VideoError(source, f"{video.damage} ({count} frames decode)")
    return count


def kept_indices(num_frames: int, fps: float, wanted_fps: float | None) -> np.ndarray:
    """Returns the frames, int [N], nearest before the times 0, 1 / wanted_fps, 2 / wanted_fps, ..."""
    if not wanted_fps or not fps or wanted_fps >= fps:
        return np.arange(num_frames)
    count = max(1, int(np.ceil(num_frames * wanted_fps / fps - 1e-6)))
    return np.minimum((np.arange(count) * fps / wanted_fps + 1e-6).astype(int), num_frames - 1)


def scaled_size(height: int, width: int, short_side: int | None) -> tuple[int, int] | None:
    """Returns (height, width) with the shorter side as asked and the longer rounded to the nearest pixel."""
    if short_side is None:
        return None
    scale = short_side / min(height, width)
    return max(1, round(height * scale)), max(1, round(width * scale))


def _write_jpeg(path: str, picture: np.ndarray, quality: int) -> None:
    from PIL import Image

    # Chroma at full resolution where quality is high: colours are training data too.
    Image.fromarray(picture).save(path, "JPEG", quality=quality, subsampling=0 if quality >= 90 else 2)


def extract_all(jobs: list[Job], options: Options, workers: int, timeout: float) -> Iterator[Outcome]:
    """Yields the outcome of every job, as they finish; a video that hangs or crashes its decoder is a bad one."""
    from paddlevideo_fast.data.readers.isolated import ChildLostError, map_in_children

    for index, result in map_in_children(extract, [(job, options) for job in jobs], workers, timeout):
        if isinstance(result, ChildLostError):
            shutil.rmtree(jobs[index].folder + UNFINISHED, ignore_errors=True)
            result = Outcome(jobs[index], error=str(result))
        elif isinstance(result, Exception):
            raise result
        yield result


def extract_frames(inputs: str, output: str, options: Options, workers: int = 1, timeout: float = 600.0) -> int:
    """Extracts the frames of all videos, reports on stderr and writes ``frames.txt`` if the input was a list.

    Args:
        inputs: Folder of videos or list of them; see ``find_jobs``.
        output: Folder to write to, created if need be.
        options: How frames are stored.
        workers: Child processes.
        timeout: Seconds one video may take.

    Returns:
        The number of videos without frames.

    Raises:
        FileNotFoundError: ``inputs`` does not exist.
        ValueError: No videos, no worker or no time, or the output folder holds frames stored with other options.
        OSError: The output folder cannot be made or written.
    """
    if workers < 1 or not timeout > 0:
        raise ValueError(f"workers must be at least 1 and timeout above 0 s, got {workers} and {timeout}")
    jobs = find_jobs(inputs, output)
    unique = list({job.folder: job for job in jobs}.values())
    os.makedirs(output, exist_ok=True)
    _remember_options(os.path.join(output, "options.json"), options)
    done: dict[str, Outcome] = {}
    start = shown = time.monotonic()
    for outcome in extract_all(unique, options, workers, timeout):
        done[outcome.job.folder] = outcome
        now = time.monotonic()
        if outcome.error:
            print(f"BAD {outcome.job.source}: {outcome.error}", file=sys.stderr)
        if now - shown > 5 or len(done) == len(unique):
            left = (now - start) / len(done) * (len(unique) - len(done))
            print(f"{len(done)}/{len(unique)} videos, {left:.0f} s left", file=sys.stderr)
            shown = now
    bad = sum(outcome.error is not None for outcome in done.values())
    frames = sum(outcome.num_frames for outcome in done.values())
    print(f"{len(done) - bad} videos, {frames} frames in {output}; {bad} bad", file=sys.stderr)
    if Path(inputs).is_file():
        write_list(os.path.join(output, "frames.txt"), jobs, done)
    return bad


def _remember_options(path: str, options: Options) -> None:
    """Keeps a run that goes on with another's output from mixing sizes, rates or names."""
    wanted = asdict(options)
    if os.path.exists(path):
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        if found != wanted:
            raise ValueError(f"{path} says the frames here were stored with {found}, not {wanted}; use another folder")
        return
    Path(path).write_text(json.dumps(wanted) + "\n", encoding="utf-8")


def write_list(path: str, jobs: list[Job], done: dict[str, Outcome]) -> None:
    """Writes rows of folder, number of frames and label in the order of the input, leaving out bad videos.

    Columns are separated by tabs: names may hold blanks, and end in numbers.
    """
    rows = []
    for job in jobs:
        outcome = done[job.folder]
        if outcome.error is None:
            rows.append("\t".join(filter(None, [job.name, str(outcome.num_frames), job.label])) + "\n")
    unfinished = path + UNFINISHED
    Path(unfinished).write_text("".join(rows), encoding="utf-8")
    os.replace(unfinished, path)
