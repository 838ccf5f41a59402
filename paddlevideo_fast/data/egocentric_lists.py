"""Lists of parts of long videos: EPIC-Kitchens-100, the narrations of Ego4D, and clips of one's own with a label.

A video is a file below the root, or a folder of chunks of the same name: what is there decides.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from paddlevideo_fast.data.dataset_lists import choose_layout
from paddlevideo_fast.data.records import MAX_DIGITS, AnnotationError, Label, Listing, VideoRecord, read_text
from paddlevideo_fast.data.video import ChunkSet

EPIC_CLASSES = {"verb": 97, "noun": 300}
EPIC_LISTS = ("EPIC_100_train.csv", "EPIC_100_validation.csv")  # the actions of the two together are the classes
EPIC_REQUIRED = ("participant_id", "video_id", "start_timestamp", "stop_timestamp")
CLIP_COLUMNS = ("path", "start", "end", "label")
EGO4D_COLUMNS = ("video_uid", "start_second", "end_second", "narration")
MOMENT = 0.001  # seconds; a narration without a length is one of a single frame

_EPIC_FILES = (
    "{participant_id}/{video_id}.MP4",
    "{participant_id}/{video_id}.mp4",
    "{participant_id}/videos/{video_id}.MP4",
    "{video_id}.MP4",
    "{video_id}.mp4",
)
_EGO4D_FILES = ("{video_uid}.mp4", "{video_uid}.MP4", "{video_uid}")

Cells = dict[str, str]


def _read_csv(path: Path, required: Sequence[str]) -> list[tuple[int, Cells]]:
    """Returns (line, cells by column) of the rows of a CSV with a header.

    Raises:
        AnnotationError: It is not CSV, lacks a column, or a row has more or fewer cells than the header.
    """
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    rows = []
    try:
        missing = [name for name in required if name not in (reader.fieldnames or ())]
        if missing:
            raise AnnotationError(f"{path}:1: the header lacks {', '.join(missing)}; it is {reader.fieldnames}")
        for cells in reader:
            if None in cells or None in cells.values():
                count = len(reader.fieldnames) + len(cells.get(None, ())) - sum(v is None for v in cells.values())
                expected = f"{len(reader.fieldnames)} as in the header"
                raise AnnotationError(f"{path}:{reader.line_num}: {count} columns instead of {expected}")
            rows.append((reader.line_num, cells))
    except csv.Error as error:
        raise AnnotationError(f"{path}:{reader.line_num}: not CSV: {error}; a quote may be left open") from error
    if not rows:
        raise AnnotationError(f"{path}: the list is empty but for its header")
    return rows


def _find_sources(
    listing: Listing, layouts: Sequence[str], rows: Sequence[tuple[int, Cells]], column: str
) -> dict[str, str | ChunkSet | None]:
    """Returns the source of each video: a folder of chunks where there is a folder, or where others are folders."""
    videos: dict[str, tuple[int, Cells]] = {}
    for row, cells in rows:
        if cells[column]:
            videos.setdefault(cells[column], (row, cells))
        else:
            listing.complain(f"{listing.origin(row)}: the {column} is missing")
    examples = [cells for _, cells in videos.values()]
    layout = choose_layout(listing.root, layouts, examples[:: max(1, len(examples) // 20)])
    paths = {video: listing.locate(layout.format_map(cells), row) for video, (row, cells) in videos.items()}
    folders = {path for path in paths.values() if path and os.path.isdir(path)}
    files = {path for path in paths.values() if path and path not in folders and os.path.exists(path)}
    chunked = len(folders) > len(files)

    def source(path: str | None) -> str | ChunkSet | None:
        return ChunkSet(path) if path in folders or (path and path not in files and chunked) else path

    return {"": None} | {video: source(path) for video, path in paths.items()}


def _timestamp(text: str) -> float | None:
    """Returns the seconds of ``HH:MM:SS.ss``; None if it is something else."""
    found = re.fullmatch(r"([0-9]{1,4}):([0-5][0-9]):([0-5][0-9](?:\.[0-9]{1,9})?)", text.strip())
    return int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3]) if found else None


def _time(text: str) -> float | None:
    """Returns the seconds of ``HH:MM:SS.ss`` or of a plain number; None if it is something else."""
    return _timestamp(text) if ":" in text else _number(text)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _span(
    listing: Listing, row: int, cells: Cells, columns: tuple[str, str], parse: Callable[[str], float | None]
) -> tuple[float, float] | None:
    """Returns start and end of a row in seconds; None after a complaint."""
    start, end = (parse(cells[column]) for column in columns)
    if start is None or end is None or end < start or end < 0:
        given = " and ".join(f"{column} {cells[column]!r}" for column in columns)
        form = {_timestamp: "HH:MM:SS.ss", _time: "seconds or HH:MM:SS.ss"}.get(parse, "seconds")
        listing.complain(f"{listing.origin(row)}: {given} are no {form} in rising order")
        return None
    start = max(start, 0.0)
    return start, max(end, start + MOMENT)


def epic_action_names(path: Path) -> list[str] | None:
    """Returns the action classes of EPIC-Kitchens-100, ``verb:noun`` as text in sorted order: the index is the id.

    They are those of the lists for training and validation together, which are looked for beside ``path`` and one
    folder above; None if they are not both there.

    Source: AVION, ``main_lavila_finetune_cls.py``, for the order.
    """
    for folder in (path.parent, path.parent.parent):
        if all((folder / name).is_file() for name in EPIC_LISTS):
            rows = [cells for name in EPIC_LISTS for _, cells in _read_csv(folder / name, ("verb_class", "noun_class"))]
            return sorted({f"{cells['verb_class']}:{cells['noun_class']}" for cells in rows})
    return None


def read_epic(listing: Listing, key: str | None = None) -> Iterator[VideoRecord]:
    """The CSV of EPIC-Kitchens-100; the narration becomes the record's text.

    Args:
        listing: The list.
        key: "verb", "noun" or "action" makes that id the label; None makes it a dict of verb and noun, and action
            where the lists it is counted from are there.

    Source: EPIC-Kitchens-100, arXiv 2006.13256; the columns of the lists published with it.
    """
    rows = _read_csv(listing.path, EPIC_REQUIRED)
    if listing.require_labels and "verb_class" not in rows[0][1]:
        raise AnnotationError(
            f"{listing.path}:1: the header lacks verb_class and noun_class; a test list has no labels"
        )
    actions = _epic_actions(listing, key)
    sources = _find_sources(listing, _EPIC_FILES, rows, "video_id")
    for row, cells in rows:
        span = _span(listing, row, cells, ("start_timestamp", "stop_timestamp"), _timestamp)
        label = _epic_label(listing, row, cells, actions, key) if "verb_class" in cells else None
        source = sources[cells["video_id"]]
        if source and span:
            text = (cells["narration"],) if cells.get("narration") else ()
            yield VideoRecord(source, label, *span, text=text, origin=listing.origin(row))


def _epic_actions(listing: Listing, key: str | None) -> Mapping[str, int]:
    if key not in (None, "action"):
        return {}
    if listing.label_map is not None:
        return listing.label_map
    names = epic_action_names(listing.path)
    if names is None and key == "action":
        raise AnnotationError(f"{listing.path}: ids of actions come from {' and '.join(EPIC_LISTS)} beside it")
    if names is not None and key == "action":
        return listing.map_names(names, "actions")
    return {name: number for number, name in enumerate(names or ())}


def _epic_label(listing: Listing, row: int, cells: Cells, actions: Mapping[str, int], key: str | None) -> Label:
    ids = {}
    for name, count in EPIC_CLASSES.items():
        text = cells.get(f"{name}_class", "")
        if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) >= count:
            listing.complain(f"{listing.origin(row)}: {name}_class {text!r} is not one of 0..{count - 1}")
            return None
        ids[name] = int(text)
    if actions:
        action = f"{ids['verb']}:{ids['noun']}"
        if action not in actions:
            listing.complain(f"{listing.origin(row)}: action {action} (verb:noun) is not one of {len(actions)} known")
            return None
        ids["action"] = actions[action]
    return ids if key is None else ids[key]


def read_ego4d(listing: Listing) -> Iterator[VideoRecord]:
    """Narrations of Ego4D as CSV: ``video_uid,start_second,end_second,narration``; no labels.

    A cell with several narrations holds them as a JSON list. ``build_list`` makes this of the pickled lists in use.

    Source: Ego4D, arXiv 2110.07058; LaViLa, arXiv 2212.04501, for the lists.
    """
    rows = _read_csv(listing.path, EGO4D_COLUMNS)
    sources = _find_sources(listing, _EGO4D_FILES, rows, "video_uid")
    for row, cells in rows:
        span = _span(listing, row, cells, ("start_second", "end_second"), _number)
        text = _narrations(listing, row, cells["narration"])
        source = sources[cells["video_uid"]]
        if source and span and text is not None:
            yield VideoRecord(source, None, *span, text=text, origin=listing.origin(row))


def _narrations(listing: Listing, row: int, cell: str) -> tuple[str, ...] | None:
    if not cell.startswith("["):
        return (cell,) if cell else ()
    try:
        texts = json.loads(cell)
    except (ValueError, RecursionError):
        texts = None
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        listing.complain(f"{listing.origin(row)}: narration {cell[:60]!r} is not a JSON list of texts")
        return None
    return tuple(texts)


def read_clips(listing: Listing) -> Iterator[VideoRecord]:
    """A CSV with the header ``path,start,end,label``: times in seconds or HH:MM:SS.ss, labels as ids or names."""
    rows = _read_csv(listing.path, CLIP_COLUMNS if listing.require_labels else CLIP_COLUMNS[:3])
    sources = _find_sources(listing, ("{path}",), rows, "path")
    for row, cells in rows:
        span = _span(listing, row, cells, ("start", "end"), _time)
        text = cells.get("label", "").strip()
        label = None
        if text or listing.require_labels:
            label = int(text) if _is_id(text) else listing.class_id(text, listing.origin(row))
            if label is None:
                continue
        source = sources[cells["path"]]
        if source and span:
            yield VideoRecord(source, label, *span, origin=listing.origin(row))


def _is_id(text: str) -> bool:
    return re.fullmatch(rf"-?[0-9]{{1,{MAX_DIGITS}}}", text) is not None


EGOCENTRIC_FORMATS: dict[str, Callable[[Listing], Iterator[VideoRecord]]] = {
    "epic": read_epic,
    "epic_verb": partial(read_epic, key="verb"),
    "epic_noun": partial(read_epic, key="noun"),
    "epic_action": partial(read_epic, key="action"),
    "ego4d": read_ego4d,
    "clips": read_clips,
}


def recognise_egocentric(path: Path, header: str) -> str | None:
    """Returns the format of a list from its first line; None if it is of another kind.

    Raises:
        AnnotationError: It is of EPIC-Kitchens, which has several.
    """
    if header.startswith(",".join(EGO4D_COLUMNS[:3])):
        return "ego4d"
    if set(CLIP_COLUMNS[:3]) <= {name.strip() for name in header.split(",")}:
        return "clips"
    if "start_timestamp" in header and "video_id" in header:
        raise AnnotationError(
            f"{path} is a list of EPIC-Kitchens; write format: epic_verb, epic_noun or epic_action (one class id), or "
            "epic (all of them, by name)"
        )
    return None
