"""Which videos are to be encoded anew, and which are finished: jobs, and the manifest of the output folder."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paddlevideo_fast.data.annotations import AnnotationError, load_annotations
from paddlevideo_fast.data.records import VIDEO_SUFFIXES, VideoRecord
from paddlevideo_fast.data.video import describe_source
from paddlevideo_fast.prepare.encode import Encoded, Settings
from paddlevideo_fast.prepare.relist import UNFINISHED, name_format

logger = logging.getLogger("paddlevideo_fast")


@dataclass(frozen=True)
class Job:
    """One video: where it is, the path of its new file below the output folder, and what tells it from a later version.

    Attributes:
        source: Absolute path.
        name: Relative path, ends in ``.mp4``.
        size: Bytes of the source; -1 if it is not there.
        mtime_ns: When it was changed.
    """

    source: str
    name: str
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Entry:
    """A finished file, as a line of the manifest has it."""

    source: str
    name: str
    size: int
    mtime_ns: int
    settings: Settings
    encoded: Encoded

    @classmethod
    def parse(cls, line: str) -> Entry:
        fields = json.loads(line)
        return cls(**{**fields, "settings": Settings(**fields["settings"]), "encoded": Encoded(**fields["encoded"])})

    def is_for(self, job: Job) -> bool:
        """Whether it was made of this very file, which may have moved since."""
        return (self.size, self.mtime_ns) == (job.size, job.mtime_ns)


def read_inputs(
    inputs: str, root: str, format: str, label_map: Mapping[str, int] | None
) -> tuple[list[VideoRecord], str]:
    """Returns the records of a list or folder, and its format. Videos outside of class folders have no label.

    Raises:
        FileNotFoundError: It does not exist.
        ValueError: The list is wrong, or names no video files.
    """
    if not os.path.exists(inputs):
        raise FileNotFoundError(f"{os.path.abspath(inputs)} does not exist; give a list of videos or a folder of them")
    if os.path.isdir(inputs):
        return _videos_only(_search_folder(inputs, label_map), inputs), "folder"
    format = name_format(inputs, format, root)
    records = load_annotations(inputs, format, root, label_map=label_map, require_labels=False)
    return _videos_only(records, inputs), format


def _search_folder(folder: str, label_map: Mapping[str, int] | None) -> list[VideoRecord]:
    """Returns all videos in a folder, at any depth; with labels if every one is in a class folder."""
    root = Path(os.path.abspath(folder))
    found = sorted(path for path in root.rglob("*") if path.suffix.lower() in VIDEO_SUFFIXES and path.is_file())
    try:
        records = load_annotations(root, "folder", label_map=label_map)
    except AnnotationError:
        if label_map is not None:
            raise
        records = []
    outside = {str(path) for path in found} - {record.source for record in records}
    if not outside:
        return records
    if records:
        logger.warning("%s: no list is written, as not every video is in a class folder: %s", folder, min(outside))
    return [VideoRecord(str(path), None, origin=str(path.relative_to(root))) for path in found]


def _videos_only(records: list[VideoRecord], inputs: str) -> list[VideoRecord]:
    if not records:
        raise ValueError(f"{inputs} names no videos ({', '.join(sorted(VIDEO_SUFFIXES))})")
    other = next((record for record in records if not isinstance(record.source, str)), None)
    if other is not None:
        raise ValueError(
            f"{inputs}: {other.origin} is no video file but a {type(other.source).__name__} "
            f"({describe_source(other.source)}); only video files are encoded anew: give the list of the videos it was "
            "made of. Chunks by make_chunks are encoded for training already"
        )
    return records


def find_jobs(records: Sequence[VideoRecord], root: str) -> list[Job]:
    """Returns a job for each video, in the order of the records.

    The new file has the relative path of the old one and the suffix ``.mp4``, after the old suffix where two videos
    would share a name. A path outside the root keeps all its folders.

    Raises:
        ValueError: A path leads out of the root by "..", or two new files would have one name all the same.
    """
    sources = list(dict.fromkeys(record.source for record in records))
    names = {source: _relative(source, root) for source in sources}
    stems = {source: _without_suffix(name) for source, name in names.items()}
    shared = Counter(stems.values())
    jobs = []
    for source in sources:
        name = names[source] if shared[stems[source]] > 1 else stems[source]
        try:
            status = os.stat(source)
            size, mtime_ns = status.st_size, status.st_mtime_ns
        except OSError:  # the reader says what is wrong with it
            size, mtime_ns = -1, -1
        jobs.append(Job(source, f"{name}.mp4", size, mtime_ns))
    twice = [name for name, count in Counter(job.name for job in jobs).items() if count > 1]
    if twice:
        sharing = ", ".join(job.source for job in jobs if job.name == twice[0])
        raise ValueError(f"{sharing}: the new files would all be {twice[0]}; rename one")
    return jobs


def _relative(source: str, root: str) -> str:
    if source.startswith(root.rstrip("/") + "/"):
        name = os.path.normpath(source[len(root.rstrip("/")) + 1 :])
    else:
        name = os.path.normpath(source).lstrip("/")
    if name.split("/")[0] == "..":
        raise ValueError(f"{source} is outside of {root}, its new file would be outside of the output; give --root")
    return name


def _without_suffix(name: str) -> str:
    stem, suffix = os.path.splitext(name)
    return stem if suffix.lower() in VIDEO_SUFFIXES else name


def check_places(inputs: str, root: str, folder: Path, jobs: Sequence[Job]) -> None:
    """Raises ValueError if writing to the output folder would touch what is read."""
    place = os.path.realpath(folder)
    if place == os.path.realpath(root):
        raise ValueError(f"{folder} is the folder of the videos themselves; give another output folder")
    if os.path.isdir(inputs) and place.startswith(os.path.realpath(inputs) + os.sep):
        raise ValueError(f"{folder} is inside {inputs}, which is searched for videos; give a folder outside of it")
    targets = [folder / job.name for job in jobs] + [folder / os.path.basename(inputs)]
    there = [target for target in targets if target.exists()]
    read = {_identity(job.source) for job in jobs if job.size >= 0} | {_identity(inputs)} if there else set()
    for target in there:
        if _identity(target) in read:
            raise ValueError(f"{target} is one of the inputs and would be overwritten; give another output folder")


def _identity(path: str | Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def load_manifest(path: Path) -> dict[str, Entry]:
    """Returns the finished files by name. A last line that was cut off by a crash is removed.

    Raises:
        ValueError: Another line is not an entry.
    """
    if not path.exists():
        return {}
    text = path.read_text(encoding="utf-8")
    whole, _, rest = text.rpartition("\n")
    if rest:
        replace_text(path, f"{whole}\n" if whole else "")
    entries = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            entry = Entry.parse(line)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}:{number} is not an entry of this tool ({error}); use another folder") from error
        entries[entry.name] = entry
    return entries


def is_finished(job: Job, entry: Entry | None, settings: Settings, folder: Path) -> bool:
    if entry is None or not entry.is_for(job) or entry.settings != settings:
        return False
    target = folder / job.name
    return target.is_file() and target.stat().st_size == entry.encoded.num_bytes


def check_taken(todo: Sequence[Job], manifest: Mapping[str, Entry], settings: Settings, folder: Path) -> None:
    """Raises ValueError if the folder holds files of other settings or of another origin."""
    other = next((entry for entry in manifest.values() if entry.settings != settings), None)
    if other is not None:
        raise ValueError(
            f"{folder / other.name} was stored with {other.settings}, not {settings}; use another folder, or --redo to "
            "store it anew"
        )
    for job in todo:
        entry = manifest.get(job.name)
        if entry is None and (folder / job.name).exists():
            raise ValueError(
                f"{folder / job.name} was not made by this tool; use another folder, or --redo to replace it"
            )
        if entry is not None and entry.source != job.source and not entry.is_for(job):
            raise ValueError(
                f"{folder / job.name} was made of {entry.source}, not {job.source}; use another folder, or --redo to "
                "replace it"
            )


def replace_text(path: Path, text: str) -> None:
    """Writes a file that is never seen half written."""
    unfinished = path.with_name(path.name + UNFINISHED)
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
