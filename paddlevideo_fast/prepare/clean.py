"""A list without some of its rows; what is kept stays as it was written, byte for byte."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path

from paddlevideo_fast.data.records import VideoRecord

BOM = b"\xef\xbb\xbf"


def check_can_clean(path: str, output: str) -> None:
    """Raises ValueError if a cleaned list cannot be written."""
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder, which has no rows to clean: write a list with tools/data/build_list.py")
    if os.path.basename(path) == "shards.json":
        raise ValueError(f"{path} lists shards, which have no rows to clean: tools/data/make_shards.py packs anew")
    if os.path.exists(output) and os.path.samefile(path, output):
        raise ValueError(f"{output} is the list itself: write the cleaned one elsewhere")


def write_clean(path: str, output: str, bad: Iterable[VideoRecord]) -> int:
    """Writes a list without the rows of some records.

    Args:
        path: The list, in any format that is a file.
        output: File to write; its folder is made.
        bad: Records of the list, told by their ``origin``.

    Returns:
        The number of rows kept, header and blank lines not counted.
    """
    rows = {int(record.origin.rpartition(":")[2]) for record in bad}
    data = Path(path).read_bytes()
    if path.endswith(".json"):
        items = [item for row, item in enumerate(json.loads(data.decode("utf-8-sig")), 1) if row not in rows]
        kept, text = len(items), json.dumps(items, indent=1, ensure_ascii=False).encode() + b"\n"
    else:
        lines = data.splitlines(keepends=True)
        dropped = _lines_of(lines, rows)
        left = [line for number, line in enumerate(lines, 1) if number not in dropped]
        header = _has_header(lines)
        kept, text = sum(bool(line.strip(b" \t\r\n" + BOM)) for line in left) - header, b"".join(left)
        if data.startswith(BOM) and not text.startswith(BOM):
            text = BOM + text
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(f"{output}.unfinished")
    unfinished.write_bytes(text)
    os.replace(unfinished, output)
    return kept


def _has_header(lines: list[bytes]) -> bool:
    first = lines[0].removeprefix(BOM) if lines else b""
    columns = ((b"youtube_id", b"time_start"), (b"video_id", b"start_timestamp"), (b"video_uid", b"start_second"))
    return first.startswith(b"original_vido_id") or any(a in first and b in first for a, b in columns)


def _lines_of(lines: list[bytes], rows: set[int]) -> set[int]:
    """Returns the numbers of all lines of the given rows: some formats give a video several."""
    first = lines[0].removeprefix(BOM) if lines else b""
    if first.startswith(b"original_vido_id"):  # a line a frame, the row is the video's first
        videos = {lines[row - 1].split()[0] for row in rows}
        return {number for number, line in enumerate(lines, 1) if line.split()[:1] and line.split()[0] in videos}
    if _has_header(lines):  # CSV: a quoted cell may hold line ends, the row is its last line
        reader = csv.reader(io.StringIO(b"".join(lines).decode("utf-8-sig"), newline=""))
        dropped, before = set(), 0
        for _ in reader:
            if reader.line_num in rows:
                dropped.update(range(before + 1, reader.line_num + 1))
            before = reader.line_num
        return dropped
    return rows
