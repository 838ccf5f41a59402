"""A list of videos as a list of the files made of them: the same rows, other paths."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from paddlevideo_fast.data.annotations import load_annotations, recognise_format
from paddlevideo_fast.data.records import AnnotationError, Listing, VideoRecord
from paddlevideo_fast.prepare.clean import BOM, write_clean

PATH_FIRST = ("video", "multi_label", "avion", "ucf101")  # rows that begin with the path of a video
BESIDE = ("classInd.txt", "something-something-v2-labels.json", "labels.json")  # what some lists name their classes by
UNFINISHED = ".unfinished"


def name_format(path: str, format: str, root: str) -> str:
    """Returns the format of a list, recognised where it is "auto"."""
    return recognise_format(Listing(path=Path(os.path.abspath(path)), root=root)) if format == "auto" else format


def write_list(
    path: str,
    format: str,
    root: str,
    output: Path,
    records: Sequence[VideoRecord],
    names: Mapping[str, str],
    label_map: Mapping[str, int] | None = None,
) -> Path | None:
    """Writes a list that stands in the folder of the new files, without the rows of videos that have none.

    Args:
        path: The list, or the folder, the records are from.
        format: That of the list, not "auto".
        root: Folder its relative paths are joined to.
        output: Folder of the new files.
        records: All of the list, in its order.
        names: Path below ``output`` of the file made of each source; sources without one are left out.
        label_map: Class ids by name, for lists that name labels.

    Returns:
        The file written. Where a Kinetics list would give other class ids without the rows left out, it holds rows of
        path and class id instead. None if a list that names videos by id does not read back as the same; the old one
        then goes with the new folder as its root.

    Raises:
        AnnotationError: A list that names the files does not read back as the same.
    """
    kept = [record for record in records if record.source in names]
    wanted = [record._replace(source=str(output / names[record.source]), origin="") for record in kept]
    if os.path.isdir(path):
        return _write_rows(output / "videos.txt", wanted, output)
    target = output / os.path.basename(path)
    for name in BESIDE:
        beside = Path(path).parent / name
        if format in ("ucf101", "ssv2_json") and beside.is_file():
            shutil.copyfile(beside, output / name)
    if format in PATH_FIRST:
        _replace(target, _with_other_paths(path, root, kept, names))
    else:
        write_clean(path, str(target), [record for record in records if record.source not in names])
    if not kept:
        return target
    try:
        found = load_annotations(target, format, label_map=label_map, require_labels=False)
    except AnnotationError as error:
        found, problem = [], f": {error}"
    else:
        problem = ""
    if [record._replace(origin="") for record in found] == wanted:
        return target
    if format not in PATH_FIRST:
        target.unlink()
        return _write_rows(target.with_suffix(".txt"), wanted, output) if format == "kinetics_csv" else None
    raise AnnotationError(f"{target} does not say the same of the new files as {path} of the old ones{problem}")


def _write_rows(target: Path, records: Sequence[VideoRecord], output: Path) -> Path:
    rows = (
        "\t".join([os.path.relpath(record.source, output), *([] if record.label is None else [str(record.label)])])
        for record in records
    )
    _replace(target, "".join(f"{row}\n" for row in rows).encode())
    return target


def _replace(target: Path, data: bytes) -> None:
    unfinished = target.with_name(target.name + UNFINISHED)
    unfinished.write_bytes(data)
    os.replace(unfinished, target)


def _with_other_paths(path: str, root: str, kept: Sequence[VideoRecord], names: Mapping[str, str]) -> bytes:
    """Returns the rows of the records with their paths replaced and everything else as it was written."""
    data = Path(path).read_bytes()
    lines, listing = data.splitlines(keepends=True), Listing(path=Path(path), root=root)
    rows = [BOM] if data.startswith(BOM) else []
    for record in kept:
        line = lines[int(record.origin.rpartition(":")[2]) - 1].decode("utf-8-sig")
        rows.append(_with_path(listing, line, record.source, names[record.source]).encode())
    return b"".join(row if row.endswith((b"\n", b"\r")) or row == BOM else row + b"\n" for row in rows)


def _with_path(listing: Listing, line: str, source: str, name: str) -> str:
    line = line.lstrip(" \t\ufeff")
    ends = [place for place, character in enumerate(line) if character in " \t,\r\n"]
    for end in [*ends, len(line)]:
        written = line[:end]
        if written and listing.locate(written, 0) == source:
            quote = '"' if written.startswith('"') else ""
            return f"{quote}{name.replace(quote, 2 * quote) if quote else name}{quote}{line[end:]}"
    raise AnnotationError(f"{listing.path}: {line!r} does not begin with the path {source}")
