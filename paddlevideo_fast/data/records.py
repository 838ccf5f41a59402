"""What an annotation says about one video, and what every annotation format shares: text, paths, complaints."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from paddlevideo_fast.data.video import ChunkSet, FrameFolder

Label = int | tuple[int, ...] | tuple[tuple[int, ...], ...] | dict[str, int] | None

VIDEO_SUFFIXES = frozenset(
    {".mp4", ".avi", ".mkv", ".webm", ".mov", ".m4v", ".mpg", ".mpeg", ".wmv", ".flv", ".ts", ".mts", ".m2ts", ".3gp"}
    | {".ogv", ".h264", ".h265", ".hevc", ".y4m"}
)
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff"})
MAX_REPORTED = 5
MAX_DIGITS = 18  # of a number in a list: what an int64 holds


class VideoRecord(NamedTuple):
    """One row of an annotation: a video, or a part of one, and what is to be learnt from it.

    Attributes:
        source: Absolute path of a video file, a folder of frames, or a folder of chunks.
        label: Class id; a tuple of ids for several labels; a tuple of tuples, one a frame, for a per-frame table; a
            dict of ids by task name (verb, noun); None without a label.
        start: Beginning of the part in seconds; None is the beginning of the video.
        end: End of the part in seconds; None is the end of the video.
        num_frames: Frames the annotation promises; None if it does not say.
        text: Captions.
        origin: Where the row comes from, for messages: ``train.txt:12``.
    """

    source: str | FrameFolder | ChunkSet
    label: Label
    start: float | None = None
    end: float | None = None
    num_frames: int | None = None
    text: tuple[str, ...] = ()
    origin: str = ""


class AnnotationError(ValueError):
    """An annotation cannot be used. The message names the file, the lines and what would be right."""


def class_key(name: str) -> str:
    """Returns a class name as data sets write it in paths: no double quotes, underscores for spaces."""
    return name.strip().replace('"', "").replace(" ", "_")


def _name_encoding(data: bytes) -> str:
    """Guesses what text that is not UTF-8 was written in, "" if it is no text; only ever used to word an error."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or (b"\x00" in data[:200:2]) != (b"\x00" in data[1:200:2]):
        return "UTF-16"
    if b"\x00" in data:
        return ""
    runs = re.findall(rb"[\x80-\xff]+", data)
    try:
        data.decode("gbk")
    except UnicodeDecodeError:
        return "CP1252"
    return "GBK" if 2 * sum(len(run) % 2 == 0 for run in runs) > len(runs) else "CP1252"


def read_text(path: Path) -> str:
    """Returns the text of a UTF-8 file, without its byte order mark.

    Raises:
        FileNotFoundError: There is no such file; the message has the absolute path.
        AnnotationError: The file is not UTF-8; the message names the line and the command that converts it.
    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no annotation file {path.absolute()}")
    data = path.read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        encoding, line = _name_encoding(data), data.count(b"\n", 0, error.start) + 1
    else:
        if "\x00" not in text:
            return text
        encoding, line = _name_encoding(data), 1
    if not encoding:
        raise AnnotationError(f"{path} is not a text file (it starts with {data[:12]!r})")
    raise AnnotationError(
        f"{path}: line {line} is not UTF-8; the file looks like {encoding}. Convert it: "
        f"iconv -f {encoding} -t UTF-8 {path.name} > {path.stem}-utf8{path.suffix}"
    )


@dataclass
class Listing:
    """One annotation file (or folder) while it is being read.

    Attributes:
        path: Absolute path of the file.
        root: Absolute folder that relative sources are joined to.
        label_map: Ids by ``class_key`` of the name, or None.
        num_classes: Number of classes the model knows, or None.
        require_labels: Whether a row without a label is an error.
        problems: The first few complaints.
        num_problems: How many there are in all.
        hint: What may explain them together.
    """

    path: Path
    root: str
    label_map: Mapping[str, int] | None = None
    num_classes: int | None = None
    require_labels: bool = True
    problems: list[str] = field(default_factory=list)
    num_problems: int = 0
    hint: str = ""

    def origin(self, row: int) -> str:
        """Returns the short name of a row, counted from 1."""
        return f"{self.path.name}:{row}"

    def lines(self) -> Iterator[tuple[int, str]]:
        """Yields (line number, text without outer blanks) of the lines that are not blank."""
        for number, line in enumerate(io.StringIO(read_text(self.path), newline=None), start=1):
            # Not every white space: an ideographic space belongs to a name. Joined files bring byte order marks along.
            line = line.strip(" \t\n\ufeff")
            if line:
                yield number, line

    def complain(self, message: str) -> None:
        """Notes what is wrong with a row; reading goes on, so that one error shows several rows."""
        self.num_problems += 1
        if len(self.problems) < MAX_REPORTED:
            self.problems.append(message)

    def raise_problems(self) -> None:
        """Raises AnnotationError if anything was noted."""
        if self.num_problems:
            more = self.num_problems - len(self.problems)
            lines = [f"{self.path}: {self.num_problems} bad row{'s' if self.num_problems > 1 else ''}", *self.problems]
            lines += [f"and {more} more"] * bool(more) + [self.hint] * bool(self.hint)
            raise AnnotationError("\n  ".join(lines))

    def locate(self, text: str, row: int) -> str | None:
        """Returns the absolute path for a path as written; None, with a complaint, if it cannot be one."""
        if len(text) > 1 and text[0] == text[-1] == '"':
            text = text[1:-1].replace('""', '"')
        text = text.replace("\\", "/")
        if not text:
            self.complain(f"{self.origin(row)}: the path is missing")
        elif os.name != "nt" and re.match(r"[A-Za-z]:/", text):
            self.complain(f"{self.origin(row)}: {text!r} has a Windows drive letter; write paths relative to a root")
        elif re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
            self.complain(f"{self.origin(row)}: {text!r} is not a local path; download the videos first")
        else:
            return os.path.join(self.root, text)
        return None

    def class_id(self, name: str, origin: str) -> int | None:
        """Returns the id of a class name; None, with a complaint, if it is not known."""
        label = (self.label_map or {}).get(class_key(name))
        if label is None:
            known = f"is not one of the {len(self.label_map)} class names" if self.label_map else "is not a class id"
            self.complain(f"{origin}: label {name!r} {known}")
        return label

    def map_names(self, names: list[str], what: str) -> Mapping[str, int]:
        """Returns ids by ``class_key``: the label map, or else the order of ``names`` found in the annotation itself.

        Raises:
            AnnotationError: Without a label map, the number of names differs from ``num_classes``.
        """
        if self.label_map is not None:
            return self.label_map
        if self.num_classes is not None and len(names) != self.num_classes:
            raise AnnotationError(
                f"{self.path}: {len(names)} {what}, num_classes={self.num_classes}; class ids would not be certain, "
                "so give a list of class names (label_map)"
            )
        ids = {class_key(name): index for index, name in enumerate(names)}
        if len(ids) < len(names):
            raise AnnotationError(f"{self.path}: class names that differ in blanks and quotes only: {sorted(names)}")
        return ids
