"""The annotations data sets are published with, and folders of class folders.

The published lists name clips by id and do not say how the files are kept on disk. The usual layouts are tried on
the first rows, and the one most of them exist in is taken for all.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from paddlevideo_fast.data.class_names import load_class_names
from paddlevideo_fast.data.records import (
    IMAGE_SUFFIXES,
    MAX_DIGITS,
    VIDEO_SUFFIXES,
    AnnotationError,
    Listing,
    VideoRecord,
    class_key,
    read_text,
)
from paddlevideo_fast.data.video import FrameFolder

logger = logging.getLogger("paddlevideo_fast")

_KINETICS_FOLDERS = ("", "{label}/", "{key}/", "{split}/", "{split}/{label}/", "{split}/{key}/")
_SSV2_FILES = ("{id}.webm", "{id}.mp4", "{id}")
_SPLIT_NAMES = {"train", "valid", "val", "validation", "test"}


def choose_layout(root: str, layouts: Sequence[str], examples: Sequence[Mapping[str, str]]) -> str:
    """Returns the layout under which most examples exist; the first one if there are none."""
    found = [
        sum(os.path.exists(os.path.join(root, layout.format_map(example))) for example in examples[:20])
        for layout in layouts
    ]
    return layouts[found.index(max(found))]


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def folder_class_names(path: Path) -> list[str]:
    """Returns the names of the class folders in ``path``, sorted: the index is the class id."""
    with os.scandir(path) as entries:
        names = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    if not names:
        raise AnnotationError(f"{path} has no class folders; expected {path}/CLASS/VIDEO")
    if set(names) <= _SPLIT_NAMES:
        raise AnnotationError(f"{path} holds splits ({', '.join(names)}); give one of them, such as {path}/{names[0]}")
    return names


def _has_images(folder: str) -> bool:
    with os.scandir(folder) as entries:
        return any(_suffix(entry.name) in IMAGE_SUFFIXES for entry in entries)


def read_folder(listing: Listing) -> Iterator[VideoRecord]:
    """A folder of class folders of videos, or of folders of frames; the class ids follow the sorted names."""
    names = folder_class_names(listing.path)
    listing.label_map = listing.map_names(names, "class folders")
    ignored: list[str] = []
    for name in names:
        label = listing.class_id(name, f"{listing.path.name}/{name}")
        with os.scandir(listing.path / name) as entries:
            found = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
        for entry in found:
            if entry.is_file() and _suffix(entry.name) in VIDEO_SUFFIXES:
                source = entry.path
            elif entry.is_dir() and _has_images(entry.path):
                source = FrameFolder(entry.path)
            else:
                ignored.append(entry.path)
                continue
            yield VideoRecord(source, label, origin=f"{name}/{entry.name}")
    if ignored:
        logger.warning("%s: %d entries are no videos, the first %s", listing.path, len(ignored), ignored[0])


def _kinetics_rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
    try:
        missing = {"youtube_id", "time_start", "time_end"} - set(reader.fieldnames or ())
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise AnnotationError(f"{path}:{reader.line_num}: not CSV: {error}; a quote may be left open") from error
    if missing:
        raise AnnotationError(
            f'{path}:1: the header lacks {", ".join(sorted(missing))}; a list of `path label` rows is format "video"'
        )
    return rows


def kinetics_class_names(path: Path) -> list[str]:
    """Returns the class names of a Kinetics CSV in the order of their ids: sorted as they are written in paths."""
    return _kinetics_names(_kinetics_rows(path))


def _kinetics_names(rows: list[tuple[int, dict[str, str]]]) -> list[str]:
    names = {row["label"].replace('"', "").strip() for _, row in rows if row.get("label")}
    return sorted(names, key=class_key)


def read_kinetics_csv(listing: Listing) -> Iterator[VideoRecord]:
    """The CSV Kinetics is published with; clips are files ``<youtube_id>_<start>_<end>.mp4``, six digits a time.

    Source: Kinetics, arXiv 1705.06950; mmaction2, ``parse_kinetics_splits``, for the names of files and classes.
    """
    rows = _kinetics_rows(listing.path)
    names = _kinetics_names(rows)
    if names:
        listing.label_map = listing.map_names(names, "classes")
    clips = []
    for row, cells in rows:
        try:
            start, end = (int(float(cells[key])) for key in ("time_start", "time_end"))
        except (TypeError, ValueError, OverflowError):
            listing.complain(f"{listing.origin(row)}: time_start and time_end must be seconds, got {cells!r}")
            continue
        if not cells["youtube_id"] or None in cells:
            listing.complain(f"{listing.origin(row)}: {len(cells)} columns, or no youtube_id: {cells!r}")
            continue
        label = (cells.get("label") or "").strip()
        clip = {"name": f"{cells['youtube_id']}_{start:06d}_{end:06d}.mp4", "split": cells.get("split") or ""}
        clips.append((row, {**clip, "label": label, "key": class_key(label)}))
    files = [folder + "{name}" for folder in _KINETICS_FOLDERS]
    layout = choose_layout(listing.root, files, [clip for _, clip in clips])
    for row, clip in clips:
        label = listing.class_id(clip["label"], listing.origin(row)) if clip["label"] else None
        if label is None and not clip["label"] and listing.require_labels:
            listing.complain(f"{listing.origin(row)}: no label")
        source = listing.locate(layout.format_map(clip), row)
        if source:
            yield VideoRecord(source, label, origin=listing.origin(row))


def read_ucf101(listing: Listing) -> Iterator[VideoRecord]:
    """UCF101's ``trainlist`` (``Class/video.avi id``, ids from 1) and ``testlist`` (no id), with ``classInd.txt``.

    Source: UCF101, arXiv 1212.0402; the action recognition splits published with it.
    """
    index = listing.path.parent / "classInd.txt"
    if listing.label_map is None and not index.is_file():
        raise AnnotationError(f"{listing.path}: class names come from {index}, which does not exist")
    names = load_class_names(index) if listing.label_map is None else []
    listing.label_map = listing.map_names(names, "classes in classInd.txt")
    for row, line in listing.lines():
        found = re.fullmatch(rf"(.+?)(?:[ \t]+([0-9]{{1,{MAX_DIGITS}}}))?", line)
        name = found[1].replace("\\", "/").split("/")[-2] if re.search(r"[/\\]", found[1]) else ""
        label = listing.class_id(name, listing.origin(row))
        if label is not None and found[2] and int(found[2]) != label + 1:
            listing.complain(f"{listing.origin(row)}: id {found[2]}, but {name} is number {label + 1} in classInd.txt")
        source = listing.locate(found[1], row)
        if source:
            yield VideoRecord(source, label, origin=listing.origin(row))


def ssv2_class_names(path: Path) -> list[str]:
    """Returns the class names from the labels file beside a Something-Something JSON."""
    for name in ("something-something-v2-labels.json", "labels.json"):
        if (path.parent / name).is_file():
            return load_class_names(path.parent / name)
    raise AnnotationError(f"{path}: class names come from labels.json beside it, which does not exist")


def read_ssv2_json(listing: Listing) -> Iterator[VideoRecord]:
    """Something-Something's JSON, a list of id and template; the caption becomes the record's text.

    Videos are ``<id>.webm``, ``<id>.mp4`` or folders of frames ``<id>``.

    Source: Something-Something, arXiv 1706.04261; a class is the template without square brackets.
    """
    try:
        items = json.loads(read_text(listing.path))
    except json.JSONDecodeError as error:
        raise AnnotationError(f"{listing.path}:{error.lineno}: not JSON: {error.msg}") from error
    except RecursionError:
        raise AnnotationError(f"{listing.path}: JSON nested too deeply") from None
    if not isinstance(items, list):
        raise AnnotationError(f"{listing.path}: not a Something-Something list of objects with id and template")
    for row, item in enumerate(items, start=1):
        texts = [item.get(name, "") for name in ("id", "template", "label")] if isinstance(item, dict) else []
        if not texts or not item.get("id") or not all(isinstance(text, (str, int)) for text in texts):
            raise AnnotationError(
                f"{listing.origin(row)}: not a Something-Something object with id and template: {str(item)[:80]}"
            )
    if listing.label_map is None and any("template" in item for item in items):
        listing.label_map = listing.map_names(ssv2_class_names(listing.path), "classes")
    layout = choose_layout(listing.root, _SSV2_FILES, items)
    for row, item in enumerate(items, start=1):
        template = str(item.get("template", "")).replace("[", "").replace("]", "")
        label = listing.class_id(template, listing.origin(row)) if template else None
        if not template and listing.require_labels:
            listing.complain(f"{listing.origin(row)}: no template, which would be the label")
        source = listing.locate(layout.format_map(item), row)
        text = (str(item["label"]),) if item.get("label") else ()
        if source:
            video = source if "." in layout else FrameFolder(source)
            yield VideoRecord(video, label, text=text, origin=listing.origin(row))


def read_charades_frames(listing: Listing) -> Iterator[VideoRecord]:
    """A list of single frames, ``original_vido_id video_id frame_id path "labels"``, as PySlowFast's Charades.

    The frames of a video become one folder of frames with a per-frame table of class ids. File numbers must follow
    each other. Without any label in the whole list (Something-Something in this form) the label is None.
    """
    videos: dict[str, list[tuple[int, str, str]]] = {}
    for row, line in listing.lines():
        if row == 1 and line.startswith("original_vido_id"):
            continue
        columns = line.split(None, 3)
        path, _, labels = columns[3].rpartition(" ") if len(columns) == 4 else ("", "", "")
        if not path or not re.fullmatch(r'"?(?:[0-9]{1,18}(?:,[0-9]{1,18})*)?"?', labels):
            listing.complain(f'{listing.origin(row)}: not `original_vido_id video_id frame_id path "labels"`: {line!r}')
            continue
        videos.setdefault(columns[0], []).append((row, path.strip(), labels.strip('"')))
    tables: dict[str, tuple[int, ...]] = {"": ()}  # frames share their tuples: there are millions of frames
    labelled = any(labels for frames in videos.values() for _, _, labels in frames)
    for frames in videos.values():
        row = frames[0][0]
        if not labelled and listing.require_labels:
            listing.complain(f"{listing.origin(row)}: no frame of the list has a label")
        folder = _frame_folder(listing, frames)
        if folder is None:
            continue
        for _, _, labels in frames:
            if labels not in tables:
                tables[labels] = tuple(map(int, labels.split(",")))
        table = tuple(tables[labels] for _, _, labels in frames) if labelled else None
        yield VideoRecord(folder, table, num_frames=len(frames), origin=listing.origin(row))


def _frame_folder(listing: Listing, frames: list[tuple[int, str, str]]) -> FrameFolder | None:
    """Returns the folder that holds the listed files as numbers start, start + 1, ...; None after a complaint."""
    first_row, first, _ = frames[0]
    found = re.fullmatch(r"(?:(.*)/)?([^/]*?)([0-9]{1,18})(\.[A-Za-z0-9]+)", first)
    if not found:
        listing.complain(f"{listing.origin(first_row)}: {first!r} does not end in a number and a suffix")
        return None
    folder, prefix, digits, suffix = found.groups()
    template = prefix.replace("{", "{{").replace("}", "}}") + f"{{:0{len(digits)}d}}" + suffix
    lead = folder + "/" if folder else ""
    for number, (row, path, _) in enumerate(frames, start=int(digits)):
        expected = lead + template.format(number)
        if path != expected:
            listing.complain(f"{listing.origin(row)}: {path!r} where frame {expected!r} should follow")
            return None
    source = listing.locate(folder or ".", first_row)
    return FrameFolder(source, template, int(digits), len(frames)) if source else None


# Where the names of the classes come from, for the formats that have them.
CLASS_NAMES = {
    "folder": folder_class_names,
    "kinetics_csv": kinetics_class_names,
    "ucf101": lambda path: load_class_names(path.parent / "classInd.txt"),
    "ssv2_json": ssv2_class_names,
}
