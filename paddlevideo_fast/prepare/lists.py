"""Lists for training from a folder of class folders or from the annotations a data set is published with."""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paddlevideo_fast.data.annotations import load_annotations, recognise_format
from paddlevideo_fast.data.dataset_lists import CLASS_NAMES
from paddlevideo_fast.data.records import IMAGE_SUFFIXES, AnnotationError, Listing, VideoRecord
from paddlevideo_fast.data.video import FrameFolder

SPLITS = ("train", "valid", "test")

logger = logging.getLogger("paddlevideo_fast")

# The published validation list beside a published training list.
_COMPANIONS = {
    "ucf101": lambda name: [name.replace("trainlist", "testlist")],
    "kinetics_csv": lambda name: [name.replace("train", word) for word in ("valid", "validate", "validation", "val")],
    "ssv2_json": lambda name: [name.replace("train", word) for word in ("validation", "valid")],
}


def build_lists(
    source: str | os.PathLike,
    output_dir: str | os.PathLike,
    format: str = "auto",
    root: str | os.PathLike | None = None,
    valid: float | None = None,
    test: float = 0.0,
    seed: int = 0,
) -> dict[str, list[VideoRecord]]:
    """Writes ``train.txt``, ``valid.txt``, ``test.txt`` if it has any rows, and ``classes.txt``.

    Args:
        source: Folder of class folders, or a published annotation: UCF101's ``trainlist01.txt``, Kinetics' CSV,
            Something-Something's JSON.
        output_dir: Folder to write to, created if need be.
        format: "auto", "folder", "ucf101", "kinetics_csv" or "ssv2_json".
        root: Folder of the videos; None is the folder of the annotation.
        valid: Part of the videos of each class for validation, in [0, 1). None takes the published validation list
            beside ``source`` if there is one, and 0.2 otherwise.
        test: Part of the videos of each class for test, in [0, 1).
        seed: The same seed gives the same splits.

    Returns:
        Records by split. Rows whose video is not on disk are left out.

    Raises:
        AnnotationError: The annotation cannot be read, no video is on disk, or the parts leave nothing for training.
    """
    source = Path(os.path.abspath(os.path.expanduser(source)))
    format = _name_format(source, format)
    names = CLASS_NAMES[format](source)
    label_map = {name: index for index, name in enumerate(names)}
    records = _on_disk(load_annotations(source, format, root, len(names), label_map), source)
    if format == "folder":
        records, names = _without_empty_classes(records, names, source)
    published = _find_companion(source, format) if valid is None else None
    if published is not None:
        held_out = _on_disk(load_annotations(published, format, root, len(names), label_map), published)
        splits = split_records(records, {"test": test}, seed) | {"valid": held_out}
    else:
        splits = split_records(records, {"valid": 0.2 if valid is None else valid, "test": test}, seed)
    _check_disjoint(splits)
    if format == "folder" and re.search(r"_g[0-9]+_c[0-9]+", os.path.basename(_path(records[0]))):
        print(
            "clips named _g.._c.. come from shared recordings, and a random split mixes these: use the published lists"
        )
    _write(Path(output_dir), splits, names)
    return {split: splits[split] for split in SPLITS if splits.get(split)}


def _name_format(source: Path, format: str) -> str:
    """Returns the format of a source that brings its class names along."""
    if format == "auto":
        if not source.exists():
            raise FileNotFoundError(f"there is no folder or annotation {source}")
        format = recognise_format(Listing(source, str(source.parent)))
    if format not in CLASS_NAMES:
        raise AnnotationError(
            f"{source}: format {format!r} has no class names; expected one of {', '.join(CLASS_NAMES)}"
        )
    return format


def _find_companion(source: Path, format: str) -> Path | None:
    for name in _COMPANIONS.get(format, lambda name: [])(source.name):
        if name != source.name and (source.parent / name).is_file():
            return source.parent / name
    return None


def _path(record: VideoRecord) -> str:
    return record.source.path if isinstance(record.source, FrameFolder) else record.source


def _on_disk(records: list[VideoRecord], source: Path) -> list[VideoRecord]:
    """Returns the records whose video exists, and prints how many do not."""
    found = [record for record in records if os.path.exists(_path(record))]
    if not found:
        raise AnnotationError(f"{source}: no video is on disk; the first would be {_path(records[0])} (set the root)")
    if len(found) < len(records):
        gone = next(record for record in records if not os.path.exists(_path(record)))
        print(f"{source.name}: left out {len(records) - len(found)} videos not on disk, the first {_path(gone)}")
    return found


def _without_empty_classes(
    records: list[VideoRecord], names: list[str], folder: Path
) -> tuple[list[VideoRecord], list[str]]:
    """Returns records and class names without folders that hold nothing: a class nobody shows would take an id."""
    used = sorted({record.label for record in records})
    empty = [name for number, name in enumerate(names) if number not in used]
    if not empty:
        return records, names
    more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
    logger.warning(
        "%s: class folders without a video get no class id: %s%s; remove them, or put videos in them",
        folder, ", ".join(empty[:5]), more,
    )  # fmt: skip
    ids = {label: number for number, label in enumerate(used)}
    return [record._replace(label=ids[record.label]) for record in records], [names[label] for label in used]


def split_records(records: Sequence[VideoRecord], parts: dict[str, float], seed: int) -> dict[str, list[VideoRecord]]:
    """Splits records at random, class by class.

    Args:
        records: Records with one class id each.
        parts: Part of every split but "train", each in [0, 1), together below 1.
        seed: The same seed and records give the same splits, whatever the order of the records.

    Returns:
        Records by split, "train" among them, each in the order of ``records``. The size of a split differs from its
        part by about one video at most, in every class and over all of them, but a class always keeps a video for
        training.
    """
    if not all(0 <= part < 1 for part in parts.values()) or sum(parts.values()) >= 1:
        raise AnnotationError(f"parts must be in [0, 1) and leave some for training, got {parts}")
    rng = np.random.default_rng(seed)
    by_class: dict[int, list[VideoRecord]] = {}
    for record in sorted(records, key=_path):
        by_class.setdefault(record.label, []).append(record)
    chosen: dict[str, str] = {}
    owed = dict.fromkeys(parts, 0.0)  # what rounding has kept from each split so far
    for label in sorted(by_class):
        group = [by_class[label][index] for index in rng.permutation(len(by_class[label]))]
        size, spare = len(group), len(group) - 1
        for split, part in parts.items():
            owed[split] += part * size
            count = min(spare, int(owed[split] + 1e-9))
            spare -= count
            owed[split] = min(owed[split] - count, 1.0)  # later classes do not pay for classes of a single video
            chosen.update((_path(group.pop()), split) for _ in range(count))
    splits: dict[str, list[VideoRecord]] = {split: [] for split in ("train", *parts)}
    for record in records:
        splits[chosen.get(_path(record), "train")].append(record)
    return splits


def _check_disjoint(splits: dict[str, list[VideoRecord]]) -> None:
    seen: dict[str, str] = {}
    for split, records in splits.items():
        for record in records:
            other = seen.setdefault(os.path.realpath(_path(record)), split)
            if other != split:
                raise AnnotationError(f"{_path(record)} is in {other} and in {split}")


def _row(record: VideoRecord, output_dir: Path) -> str:
    """Returns a row; the path is relative to the list if the video lies below it, so that both may move together."""
    path = os.path.abspath(_path(record))
    if path.startswith(str(output_dir) + os.sep):
        path = path[len(str(output_dir)) + 1 :]
    if re.search(r"[\n\r\t\\]|^ | $", path):
        raise AnnotationError(f"rename {path!r}: a list cannot hold tabs, line breaks, backslashes or outer blanks")
    if not isinstance(record.source, FrameFolder):
        return f"{path}\t{record.label}\n"
    count = sum(os.path.splitext(name)[1].lower() in IMAGE_SUFFIXES for name in os.listdir(_path(record)))
    return f"{path}\t{count}\t{record.label}\n"


def _write(output_dir: Path, splits: dict[str, list[VideoRecord]], names: Sequence[str]) -> None:
    output_dir = Path(os.path.abspath(output_dir.expanduser()))
    folders = {isinstance(record.source, FrameFolder) for records in splits.values() for record in records}
    if len(folders) > 1:
        raise AnnotationError("some sources are video files and some are folders of frames; a list holds one kind")
    texts = {split: "".join(_row(record, output_dir) for record in splits.get(split, ())) for split in SPLITS}
    for split, text in texts.items():
        if not text and (output_dir / f"{split}.txt").exists():
            raise AnnotationError(f"{output_dir} has a {split}.txt of other splits: remove it or choose another folder")
    output_dir.mkdir(parents=True, exist_ok=True)
    for split, text in texts.items():
        if text:
            (output_dir / f"{split}.txt").write_text(text, encoding="utf-8", newline="\n")
    classes = output_dir / "classes.txt"
    digits = [name[:1].isdigit() for name in names]
    numbered = any(digits) and all(digits[1:])  # such names would be taken for numbered lines: number them all
    lines = (f"{index}\t{name}\n" if numbered else f"{name}\n" for index, name in enumerate(names))
    classes.write_text("".join(lines), encoding="utf-8", newline="\n")


def count_table(splits: dict[str, list[VideoRecord]], names: Sequence[str]) -> str:
    """Returns videos by class and split as text, classes of a large set only in total."""
    counts = {split: Counter(record.label for record in records) for split, records in splits.items()}
    rows = [("class", *counts), *((name, *(count[i] for count in counts.values())) for i, name in enumerate(names))]
    if len(names) > 50:
        smallest = (min(count[i] for i in range(len(names))) for count in counts.values())
        rows = [rows[0], ("fewest in a class", *smallest)]
    rows.append((f"all {len(names)} classes", *(sum(count.values()) for count in counts.values())))
    width = max(len(str(row[0])) for row in rows)
    return "\n".join(f"{row[0]:<{width}}" + "".join(f"{cell:>8}" for cell in row[1:]) for row in rows)
