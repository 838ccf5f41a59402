"""Opens or decodes every video of a list, and says which rows are bad and what the rest is like."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from paddlevideo_fast.data.annotations import load_annotations, load_class_names
from paddlevideo_fast.data.readers import FrameFolder, Reader, Source, VideoError, VideoInfo, build_reader
from paddlevideo_fast.data.readers.frames import count_frames
from paddlevideo_fast.data.readers.isolated import ChildLostError, load_reader, map_in_children
from paddlevideo_fast.data.records import VideoRecord
from paddlevideo_fast.prepare.clean import check_can_clean, write_clean

SAMPLED_FRAMES = 8
MOST_COMMON = 8  # sizes, codecs and so on in the printed summary
HARMLESS = 3  # rows named of each kind of warning; the report has them all


@dataclass(frozen=True)
class Facts:
    """What is known of one video after it was looked at.

    Attributes:
        reason: Why it is bad; None if it is good.
        info: None if it does not open.
        found: Frames there are, for a source whose annotation promises some.
        complaint: First thing the decoder complained of although it went on: pictures may be spoilt in places.
    """

    reason: str | None = None
    info: VideoInfo | None = None
    codec: str = ""
    container: str = ""
    found: int | None = None
    complaint: str | None = None


def inspect(reader: bytes, source: Source, decode: str) -> Facts:
    """Looks at one video; runs in a child process.

    Args:
        reader: A pickled reader.
        source: What to open.
        decode: "first" decodes one frame, "sample" eight over the whole length, "all" every one.
    """
    logging.getLogger("paddlevideo_fast").setLevel(logging.ERROR)
    info, codec, container = None, "", ""
    try:
        with _decoder_complaints() as lines, load_reader(reader).open(source) as video:
            info, codec, container = video.info, video.codec, video.container
            count = info.num_frames
            if decode == "all":
                for _ in video.frames():
                    pass
            elif decode == "sample":
                for _ in video.pictures(sorted({int(i) for i in np.linspace(0, count - 1, SAMPLED_FRAMES)})):
                    pass
            reason = f"{video.damage} ({count} frames decode)" if video.damage else None
    except VideoError as error:
        return Facts(error.reason, info, codec, container)
    found = count_frames(source) if isinstance(source, FrameFolder) and source.num_frames is not None else count
    complaint = lines[0] if lines and reason is None else None
    return Facts(reason, info, codec, container, found, complaint)


@contextmanager
def _decoder_complaints() -> Iterator[list[str]]:
    """Yields a list that holds, in the end, the errors FFmpeg logged through PyAV."""
    lines: list[str] = []
    try:
        import av
    except ImportError:  # folders of images need no PyAV
        yield lines
        return
    av.logging.set_level(av.logging.ERROR)
    av.logging.set_skip_repeated(False)
    with av.logging.Capture() as heard:
        yield lines
    av.logging.set_level(None)
    lines += [f"{name}: {line.strip()}" for _, name, line in heard]


def inspect_all(
    sources: Sequence[Source], choose_reader: Callable[[Source], Reader], decode: str, workers: int, timeout: float
) -> Iterator[tuple[Source, Facts]]:
    """Yields (source, facts) as they come, from as many child processes as there are workers.

    A source that takes longer than ``timeout`` seconds, or takes its child down, is bad, and the others go on.
    """
    arguments = [(pickle.dumps(choose_reader(source)), source, decode) for source in sources]
    for index, result in map_in_children(inspect, arguments, workers, timeout):
        if isinstance(result, ChildLostError):
            result = Facts(str(result))
        elif isinstance(result, Exception):  # whatever a file makes a reader do, it is that file which is bad
            result = Facts(f"the reader fails: {type(result).__name__}: {result}")
        yield sources[index], result


def check_dataset(
    path: str,
    root: str | None = None,
    format: str = "auto",
    reader: str = "pyav",
    classes: str | None = None,
    workers: int = 1,
    decode: str = "all",
    timeout: float = 60.0,
    clean: str | None = None,
    report: str | None = None,
) -> int:
    """Checks every row of a list, prints what is wrong and what the rest is like, and writes files if asked to.

    Args:
        path: The list, or a folder of class folders.
        root: Folder that relative paths are joined to; None is that of the list.
        format: A name in ``FORMATS``, or "auto".
        reader: Reads the video files; folders of images are read by "frames".
        classes: File of class names, for lists that name labels; the ids are then checked as well.
        workers: Child processes.
        decode: "first", "sample" or "all"; see ``inspect``.
        timeout: Seconds a video may take.
        clean: File for the good rows, as they were written.
        report: Folder for ``report.json`` and ``report.png``.

    Returns:
        The number of bad rows.

    Raises:
        AnnotationError: The list itself is wrong.
        ValueError: There is no such reader, or this kind of list cannot be cleaned.
    """
    if clean is not None:
        check_can_clean(path, clean)
    names = load_class_names(classes) if classes else None
    label_map = {name: index for index, name in enumerate(names)} if names else None
    records = load_annotations(path, format, root, len(names) if names else None, label_map, require_labels=False)
    files, folders = build_reader(reader), build_reader("frames")
    sources = list(dict.fromkeys(record.source for record in records))
    facts: dict[Source, Facts] = {}
    progress = _Progress(len(sources))
    for source, fact in inspect_all(
        sources, lambda source: folders if isinstance(source, FrameFolder) else files, decode, workers, timeout
    ):
        facts[source] = fact
        progress.show(len(facts), sum(fact.reason is not None for fact in facts.values()) if progress.due else 0)
    summary = {"list": os.path.abspath(path), "reader": reader, "decode": decode, **summarise(records, facts)}
    print(describe(summary))
    if report is not None:
        _write_report(Path(report), summary, [fact for fact in facts.values() if fact.reason is None])
    if clean is not None:
        kept = write_clean(path, clean, [record for record in records if facts[record.source].reason is not None])
        print(f"{clean}: {kept} good rows; relative paths in it are still those of {records_root(path, root)}")
    return len(summary["bad"])


def records_root(path: str, root: str | None) -> str:
    """Returns the folder that relative paths of a list are joined to."""
    return os.path.abspath(root if root is not None else os.path.dirname(os.path.abspath(path)))


class _Progress:
    """A line on stderr with what is done and how long the rest will take."""

    def __init__(self, total: int):
        self.total, self.start = total, time.monotonic()
        self.shown, self.live = self.start, sys.stderr.isatty()
        self.done = 0

    @property
    def due(self) -> bool:
        last = self.done + 1 >= self.total
        return last or time.monotonic() - self.shown > (0.5 if self.live else 10)

    def show(self, done: int, bad: int) -> None:
        due, self.done = self.due, done
        if not due:
            return
        self.shown = time.monotonic()
        left = (self.shown - self.start) / done * (self.total - done)
        line = f"{done}/{self.total} videos, {bad} bad, {left:.0f} s left"
        print(f"\r{line:<60}" if self.live else line, end="\n" if done == self.total or not self.live else "",
              file=sys.stderr, flush=True)  # fmt: skip


def kind_of(reason: str) -> str:
    """Returns a reason without what is particular to one file, to count by: numbers, names and remarks in brackets."""
    reason = re.sub(r"\s*\([^()]*\)", "", reason)
    reason = re.sub(r"\S*/\S+", "...", reason)
    return re.sub(r"\b\d+(\.\d+)?\b", "N", reason.split("; ")[0])


def summarise(records: Sequence[VideoRecord], facts: dict[Source, Facts]) -> dict[str, Any]:
    """Returns counts, bad rows, warnings and statistics as they stand in ``report.json``."""
    bad, differing, suspect = [], [], []
    for record in records:
        fact = facts[record.source]
        row = {"row": record.origin, "path": getattr(record.source, "path", record.source)}
        if fact.reason is not None:
            bad.append({**row, "reason": fact.reason})
        elif record.num_frames is not None and fact.found != record.num_frames:
            differing.append({**row, "promised": record.num_frames, "found": fact.found})
        if fact.complaint is not None:
            suspect.append({**row, "complaint": fact.complaint})
    seen = Counter((record.source, record.start, record.end) for record in records)
    good = [fact for fact in facts.values() if fact.reason is None]
    return {
        "rows": len(records),
        "videos": len(facts),
        "duplicate_rows": len(records) - len(seen),
        "bad": bad,
        "bad_by_reason": dict(Counter(kind_of(row["reason"]) for row in bad).most_common()),
        "other_frame_counts": differing,
        "decoder_complaints": suspect,
        "codecs": dict(Counter(fact.codec for fact in good).most_common()),
        "containers": dict(Counter(fact.container for fact in good).most_common()),
        "sizes": dict(Counter(f"{fact.info.width}x{fact.info.height}" for fact in good).most_common()),
        "frames": _spread([fact.info.num_frames for fact in good]),
        "seconds": _spread([fact.info.duration for fact in good if fact.info.fps]),
        "fps": _spread([fact.info.fps for fact in good if fact.info.fps]),
    }


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    return {name: round(float(of(values)), 3) for name, of in (("min", min), ("median", median), ("max", max))}


def describe(summary: dict[str, Any]) -> str:
    """Returns the summary as text: a table of the bad rows, counts by reason, warnings, and what the good ones are."""
    lines = []
    if summary["bad"]:
        width = max(len(row["row"]) for row in summary["bad"])
        lines += [f"BAD  {row['row']:<{width}}  {row['path']}: {row['reason']}" for row in summary["bad"]]
        lines += ["", *(f"{count:>7}  {reason}" for reason, count in summary["bad_by_reason"].items()), ""]
    for row in summary["other_frame_counts"][:HARMLESS]:
        lines.append(
            f"WARNING  {row['row']}  promises {row['promised']} frames, there are {row['found']}: {row['path']}"
        )
    for row in summary["decoder_complaints"][:HARMLESS]:
        lines.append(f"WARNING  {row['row']}  decodes, with a complaint ({row['complaint']}): {row['path']}")
    for name in ("codecs", "containers", "sizes"):
        lines.append(f"{name:<11}{_shares(summary[name])}")
    for name in ("frames", "seconds", "fps"):
        spread = summary[name]
        if spread:
            lines.append(f"{name:<11}{spread['min']:g} to {spread['max']:g}, median {spread['median']:g}")
    lines.append(
        f"{summary['rows']} rows, {summary['videos']} videos: {summary['rows'] - len(summary['bad'])} good rows, "
        f"{len(summary['bad'])} bad; {summary['duplicate_rows']} duplicates, {len(summary['other_frame_counts'])} "
        f"with other frame counts than promised, {len(summary['decoder_complaints'])} with complaints of the decoder"
    )
    return "\n".join(lines)


def _shares(counts: dict[str, int]) -> str:
    first, rest = list(counts.items())[:MOST_COMMON], list(counts.values())[MOST_COMMON:]
    shown = [f"{name} {count}" for name, count in first]
    return ", ".join(shown + [f"{len(rest)} others {sum(rest)}"] * bool(rest)) or "none"


def _write_report(folder: Path, summary: dict[str, Any], good: list[Facts]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if good:
        from paddlevideo_fast.plots import plot_dataset  # not above: the children need no matplotlib

        plot_dataset([fact.info for fact in good], [fact.codec for fact in good], folder / "report.png")
