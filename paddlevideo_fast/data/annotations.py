"""Every supported annotation as a list of ``VideoRecord``.

Annotations are read and checked whole before training starts; videos are not opened. Rows of a text list are split
from the right, so that a path may hold blanks, commas, quotes and any script.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from paddlevideo_fast.data.class_names import load_class_names
from paddlevideo_fast.data.dataset_lists import (
    read_charades_frames,
    read_folder,
    read_kinetics_csv,
    read_ssv2_json,
    read_ucf101,
)
from paddlevideo_fast.data.egocentric_lists import EGOCENTRIC_FORMATS, recognise_egocentric
from paddlevideo_fast.data.records import (
    MAX_DIGITS,
    VIDEO_SUFFIXES,
    AnnotationError,
    Label,
    Listing,
    VideoRecord,
    class_key,
)
from paddlevideo_fast.data.shards import is_shards, read_shards
from paddlevideo_fast.data.video import FrameFolder

__all__ = ["FORMATS", "AnnotationError", "VideoRecord", "load_annotations", "load_class_names"]

SEPARATORS = {" ": "blanks", "\t": "tabs", ",": "commas"}

logger = logging.getLogger("paddlevideo_fast")


def _is_video(path: str) -> bool:
    return os.path.splitext(path.rstrip('"'))[1].lower() in VIDEO_SUFFIXES


def _split_last(line: str, separator: str) -> tuple[str, int] | None:
    """Splits a row before its last column if that is a whole number: ``a 7.mp4 3`` -> ``a 7.mp4``, 3."""
    cut = max(line.rfind(" "), line.rfind("\t")) if separator == " " else line.rfind(separator)
    number = line[cut + 1 :].strip(" \t")
    digits = number[1:] if number[:1] == "-" else number
    if cut < 1 or not (digits.isascii() and digits.isdigit()) or len(digits) > MAX_DIGITS:
        return None
    return line[:cut].rstrip(" \t"), int(number)


def _split_numbers(line: str, separator: str) -> tuple[str, list[int]]:
    """Takes all whole numbers off the end of a row: ``dir 8 3`` -> ``dir``, [8, 3]."""
    numbers: list[int] = []
    while (split := _split_last(line, separator)) is not None:
        line = split[0]
        numbers.insert(0, split[1])
    return line, numbers


def _find_separator(rows: list[tuple[int, str]], label_map: Mapping[str, int] | None) -> str:
    """Returns what separates the columns of a list: a tab if every row has one, a comma, or blanks."""
    lines = [line for _, line in rows]
    if all("\t" in line for line in lines):
        return "\t"
    commas = [_split_last(line, ",") is not None for line in lines]
    if sum(commas) > sum(not comma and _split_last(line, " ") is not None for line, comma in zip(lines, commas)):
        return ","
    if label_map and all("," in line and class_key(line.rpartition(",")[2]) in label_map for line in lines):
        return ","
    return " "


def _rows(listing: Listing, limit: int | None = None) -> tuple[list[tuple[int, str]], str]:
    rows = list(itertools.islice(listing.lines(), limit))
    if not rows:
        raise AnnotationError(f"{listing.path}: the list is empty; each row names a video, `path label`")
    return rows, _find_separator(rows, listing.label_map)


def _widths(rows: list[tuple[int, str]], separator: str) -> tuple[list[int], int]:
    """Returns the count of trailing numbers of every row, and the most common one of those that have any."""
    widths = [len(_split_numbers(line, separator)[1]) for _, line in rows]
    return widths, Counter(filter(None, widths)).most_common(1)[0][0] if any(widths) else 0


def _complain_of_width(listing: Listing, row: int, line: str, width: int, common: int) -> None:
    columns = f"{width + 1} column{'s' if width else ''} where other rows have {common + 1}"
    listing.complain(f"{listing.origin(row)}: {columns}: {line!r}{_header_hint(row, width, line)}")


def _header_hint(row: int, width: int, line: str) -> str:
    return "; if this is a header, remove it" if row == 1 and not width and not _is_video(line) else ""


def _keep_common_width(listing: Listing, rows: list[tuple[int, str]], separator: str) -> tuple[list, int]:
    """Returns the rows with the most common count of trailing numbers, and that count; complains about the others."""
    widths, common = _widths(rows, separator)
    for (row, line), width in zip(rows, widths):
        if width != common:
            _complain_of_width(listing, row, line, width, common)
    return [row for row, width in zip(rows, widths) if width == common], common


def _missing_label(listing: Listing, row: int, line: str, separator: str = "") -> None:
    hint = _header_hint(row, 0, line)
    for other, name in SEPARATORS.items():
        if separator and other != separator and _split_last(line, other) is not None:
            hint = f"; other rows separate the columns by {SEPARATORS[separator]}, this one by {name}"
    listing.complain(f"{listing.origin(row)}: {line!r} has no label that is a whole number{hint}")


def _split_label(listing: Listing, row: int, line: str, separator: str) -> tuple[str, int | None] | None:
    """Splits ``path label``; the label may be a name if there is a label map. None after a complaint."""
    split = _split_last(line, separator)
    if split is not None:
        return split
    head, _, name = line.rpartition(separator)
    if listing.label_map and head and not _is_video(name):
        label = listing.class_id(name, listing.origin(row))
        return None if label is None else (head.rstrip(), label)
    if not listing.require_labels and (_is_video(line) or not head):
        return line, None
    _missing_label(listing, row, line, separator)
    return None


def read_video_list(listing: Listing) -> Iterator[VideoRecord]:
    """Rows ``path label``, separated by blanks, tabs or a comma; a name for a label needs a label map."""
    rows, separator = _rows(listing)
    widths, common = _widths(rows, separator)
    for (row, line), width in zip(rows, widths):
        # The path itself may end in a number, "clip 7", but not if it is a file name or the other rows end otherwise.
        if width > 1 and (common == 1 or _is_video(_split_numbers(line, separator)[0])):
            _complain_of_width(listing, row, line, width, 1)
            listing.hint = 'several labels a row need format="multi_label"; frame folders format="frames"'
            continue
        parts = _split_label(listing, row, line, separator)
        source = listing.locate(parts[0], row) if parts else None
        if source:
            yield VideoRecord(source, parts[1], origin=listing.origin(row))


def read_multi_label_list(listing: Listing) -> Iterator[VideoRecord]:
    """Rows ``path label label ...``, labels separated by blanks, tabs or commas."""
    rows, _ = _rows(listing)
    for row, line in rows:
        found = re.search(rf"(?:[ \t,]+-?[0-9]{{1,{MAX_DIGITS}}})+$", line)
        if not found and (listing.require_labels or not _is_video(line)):
            _missing_label(listing, row, line)
            continue
        source = listing.locate(line[: found.start()] if found else line, row)
        labels = tuple(dict.fromkeys(map(int, re.findall(r"-?[0-9]+", found[0])))) if found else None
        if source:
            yield VideoRecord(source, labels, origin=listing.origin(row))


def read_frame_list(listing: Listing) -> Iterator[VideoRecord]:
    """Rows ``folder frames label``, or ``folder offset frames label``: numbered from offset + 1 (mmaction2)."""
    rows, separator = _rows(listing)
    rows, width = _keep_common_width(listing, rows, separator)
    if width not in ((2, 3) if listing.require_labels else (1, 2, 3)):
        raise AnnotationError(
            f"{listing.origin(rows[0][0])}: {rows[0][1]!r} is not `folder frames label` or `folder offset frames label`"
        )
    for row, line in rows:
        path, numbers = _split_numbers(line, separator)
        label = numbers[-1] if width > 1 else None
        num_frames = numbers[-2] if width > 1 else numbers[0]
        start = numbers[0] + 1 if width == 3 else None
        if num_frames < 1 or (start is not None and start < 1):
            listing.complain(f"{listing.origin(row)}: {line!r} needs at least 1 frame and an offset of at least 0")
            continue
        source = listing.locate(path, row)
        if source:
            folder = FrameFolder(source, start=start, num_frames=num_frames)
            yield VideoRecord(folder, label, num_frames=num_frames, origin=listing.origin(row))


def read_avion_list(listing: Listing) -> Iterator[VideoRecord]:
    """Rows ``path frames label`` of video files, as AVION writes them."""
    rows, separator = _rows(listing)
    rows, width = _keep_common_width(listing, rows, separator)
    if width != 2:
        raise AnnotationError(f"{listing.origin(rows[0][0])}: {rows[0][1]!r} is not `path frames label`")
    for row, line in rows:
        path, (num_frames, label) = _split_numbers(line, separator)
        source = listing.locate(path, row)
        if source:
            yield VideoRecord(source, label, num_frames=num_frames, origin=listing.origin(row))


FORMATS: dict[str, Callable[[Listing], Iterator[VideoRecord]]] = {
    "video": read_video_list,
    "frames": read_frame_list,
    "multi_label": read_multi_label_list,
    "avion": read_avion_list,
    "folder": read_folder,
    "kinetics_csv": read_kinetics_csv,
    "ucf101": read_ucf101,
    "ssv2_json": read_ssv2_json,
    "charades_frames": read_charades_frames,
    **EGOCENTRIC_FORMATS,
    "shards": read_shards,
}


def recognise_format(listing: Listing) -> str:
    """Returns the format of an annotation where it is certain.

    Raises:
        AnnotationError: It could be several; the message names them.
    """
    path = listing.path
    if is_shards(path):
        return "shards"
    if path.is_dir():
        return "folder"
    if path.suffix == ".json":
        return "ssv2_json"
    if re.fullmatch(r"(train|test)list[0-9]*\.txt", path.name) and (path.parent / "classInd.txt").is_file():
        return "ucf101"
    rows, separator = _rows(listing, limit=1000)
    header = rows[0][1]
    if header.startswith("original_vido_id"):
        return "charades_frames"
    if "youtube_id" in header and "time_start" in header:
        return "kinetics_csv"
    egocentric = recognise_egocentric(path, header)
    if egocentric is not None:
        return egocentric
    _, width = _widths(rows, separator)  # rows without a number are for the format to name
    if width <= 1:
        return "video"
    files = [(row, line) for row, line in rows if _is_video(_split_numbers(line, separator)[0])]
    if width <= 3 and not files:
        return "frames"
    row, line = (files or rows)[0]
    raise AnnotationError(
        f"{listing.origin(row)}: {line!r} can be read in several ways; write format: multi_label (path and labels), "
        "avion (path, frames, label) or frames (folder, frames, label)"
    )


def load_annotations(
    path: str | os.PathLike,
    format: str = "auto",
    root: str | os.PathLike | None = None,
    num_classes: int | None = None,
    label_map: Mapping[str, int] | None = None,
    require_labels: bool = True,
) -> list[VideoRecord]:
    """Reads and checks an annotation.

    Args:
        path: The list, or the folder of class folders or of shards.
        format: A name in ``FORMATS``, or "auto" to recognise it.
        root: Folder that relative sources are joined to; None is the folder of the list.
        num_classes: If given, every class id must be in 0..num_classes-1.
        label_map: Class ids by name, for annotations that write names.
        require_labels: Whether rows without a label are an error; otherwise their label is None.

    Returns:
        The records in the order of the rows.

    Raises:
        FileNotFoundError: There is no such file.
        AnnotationError: Rows are wrong, the list is empty, or its format is not certain.
    """
    if format != "auto" and format not in FORMATS:
        raise AnnotationError(f"format {format!r} is not one of auto, {', '.join(FORMATS)}")
    path = Path(os.path.abspath(os.path.expanduser(path)))
    if not path.exists():
        raise FileNotFoundError(f"there is no annotation {path}")
    if path.is_dir() and format not in ("auto", "folder", "shards"):
        raise AnnotationError(f"{path} is a folder; format {format!r} reads a file")
    folder = path if path.is_dir() else path.parent
    ids = None if label_map is None else {class_key(name): index for name, index in label_map.items()}
    listing = Listing(
        path=path,
        root=os.path.abspath(os.path.expanduser(root)) if root is not None else str(folder),
        label_map=ids,
        num_classes=num_classes,
        require_labels=require_labels,
    )
    if format == "auto":
        format = recognise_format(listing)
    records = list(FORMATS[format](listing))
    _check_labels(records, listing)
    listing.raise_problems()
    if not records:
        raise AnnotationError(f"{path}: no videos found")
    _warn_of_duplicates(records, path)
    return records


def _class_ids(label: Label) -> set[int]:
    if label is None:
        return set()
    if isinstance(label, int):
        return {label}
    parts = label.values() if isinstance(label, dict) else set(label)  # frames of a table share a few tuples
    return set().union(*({part} if isinstance(part, int) else part for part in parts))


def _check_labels(records: list[VideoRecord], listing: Listing) -> None:
    """Complains about every row with a class id outside 0..num_classes-1, and about the few that lack a label."""
    num_classes = listing.num_classes
    bounds = f", num_classes={num_classes}; ids must be 0..{num_classes - 1}" if num_classes else "; ids count from 0"
    present: set[int] = set()
    for record in records:
        ids = _class_ids(record.label)
        present |= ids
        for label in sorted(ids):
            if label < 0 or (num_classes and label >= num_classes):
                listing.complain(f"label {label} at {record.origin}{bounds}")
    if num_classes and present and min(present) == 1 and max(present) == num_classes:
        listing.hint = "the ids seem to count from 1: subtract 1 from each"
    labelled = sum(record.label is not None for record in records)
    if listing.require_labels or not 0 < labelled < len(records):
        return
    for record in records:
        if record.label is None:
            listing.complain(f"{record.origin}: no label, though {labelled} rows have one")


def _warn_of_duplicates(records: list[VideoRecord], path: Path) -> None:
    first: dict[tuple, VideoRecord] = {}
    repeated, contradicting = [], []
    for record in records:
        other = first.setdefault((record.source, record.start, record.end), record)
        if other is not record:
            (repeated if other.label == record.label else contradicting).append(record.origin)
    if repeated:
        logger.warning("%s: %d duplicate rows, the first at %s", path, len(repeated), repeated[0])
    if contradicting:
        logger.warning(
            "%s: %d rows give a video another label, the first at %s", path, len(contradicting), contradicting[0]
        )
