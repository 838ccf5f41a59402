"""What goes into shards: video files, members of other shards, and runs of chunks whose borders no clip crosses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paddlevideo_fast.data.chunks import INDEX, MAKE_INDEX, PACKED, ChunkIndex, pack_chunks, part_of, read_index
from paddlevideo_fast.data.plan import frame_span
from paddlevideo_fast.data.records import AnnotationError, VideoRecord
from paddlevideo_fast.data.shards import FIELDS, Entry, read_member
from paddlevideo_fast.data.video import ChunkSet, ShardMember, VideoError, describe_source

Spans = Mapping[int, tuple[int, int]]  # place of a record in its list -> its first and last chunk


@dataclass(frozen=True)
class ChunkRun:
    """Neighbouring chunks of a long video.

    Attributes:
        path: The folder of the chunk set.
        files: Paths of the chunks.
        index: Of these chunks alone.
    """

    path: str
    files: tuple[str, ...]
    index: ChunkIndex = field(compare=False)

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.path} ({os.path.basename(self.files[0])} to {os.path.basename(self.files[-1])})"

    def read(self) -> bytes:
        """Returns the chunks and their index as a shard holds them."""
        chunks = []
        for path in self.files:
            with open(path, "rb") as file:
                chunks.append(file.read())
        return pack_chunks(self.index, chunks)


@dataclass(frozen=True)
class Item:
    """One video and the records that stand on it.

    Attributes:
        source: A file, chunks of a long video, or a member of a shard that is packed anew.
        size: Its bytes.
        changed: Time of its last change, in nanoseconds.
        records: In the order of the list.
    """

    source: str | ShardMember | ChunkRun
    size: int
    changed: int
    records: tuple[VideoRecord, ...]

    @property
    def rows(self) -> list[Entry]:
        """What the records say, as JSON holds it."""
        rows = [{name: getattr(record, name) for name in FIELDS} for record in self.records]
        rows = [{name: value for name, value in row.items() if value not in (None, ())} for row in rows]
        return json.loads(json.dumps(rows))

    @property
    def identity(self) -> list[Any]:
        """What tells whether it is the same video as in an earlier run."""
        return [describe_source(self.source), self.size, self.changed]

    @property
    def files(self) -> Sequence[str | ShardMember]:
        """What there is to look at."""
        return self.source.files if isinstance(self.source, ChunkRun) else [self.source]

    @property
    def file_name(self) -> str:
        """What the key and the suffix of its sample are made of."""
        if isinstance(self.source, ChunkRun):
            return self.source.path + PACKED
        return self.source.name if isinstance(self.source, ShardMember) else self.source

    def read(self) -> bytes:
        """Returns what a shard holds of it.

        Raises:
            OSError: It cannot be read.
            VideoError: It is not what it was, or a shard it is in is damaged.
        """
        if isinstance(self.source, ShardMember):
            return read_member(self.source)
        data = self.source.read() if isinstance(self.source, ChunkRun) else Path(self.source).read_bytes()
        found = _measure(self.source)
        if found != (self.size, self.changed):
            reason = f"it changed while it was packed, from {self.size} to {found[0]} bytes"
            raise VideoError(self.source, reason)
        return data


def find_items(records: Sequence[VideoRecord]) -> tuple[list[Item], dict[Any, str]]:
    """Returns the videos of records in the order of the list, and why others are not there, by their source.

    Raises:
        AnnotationError: A record is a folder of frames.
    """
    by_source: dict[Any, list[VideoRecord]] = {}
    for record in records:
        if not isinstance(record.source, (str, ShardMember, ChunkRun)):
            raise AnnotationError(
                f"{record.origin}: {record.source.path} is a folder of frames; a shard is read whole and a clip uses "
                "few of them: give the list of the videos they were taken from, as prepare_videos makes it"
            )
        by_source.setdefault(record.source, []).append(record)
    items, faults = [], {}
    for source, group in by_source.items():
        try:
            size, changed = _measure(source)
        except OSError as error:
            faults[source] = f"{error.filename}: {error.strerror}" if isinstance(source, ChunkRun) else error.strerror
            continue
        items.append(Item(source, size, changed, tuple(group)))
    return items, faults


def _measure(source: str | ShardMember | ChunkRun) -> tuple[int, int]:
    """Returns the bytes of a source and the time of its last change in nanoseconds."""
    if isinstance(source, ShardMember):
        return source.size, os.stat(source.path).st_mtime_ns
    found = [os.stat(path) for path in (source.files if isinstance(source, ChunkRun) else [source])]
    return sum(status.st_size for status in found), max(status.st_mtime_ns for status in found)


def cut_into_runs(records: Sequence[VideoRecord]) -> tuple[list[VideoRecord], list[tuple[VideoRecord, str]]]:
    """Gives records of chunk sets the run of chunks they need as their source, and the seconds they begin and end at
    in it: they keep their frames. Chunks that no record needs are in no run.

    Returns:
        The records, those with other sources as they are; and those left out, with the reason: their chunk set is not
        there or has a wrong index, or their seconds lie outside of it.

    Raises:
        AnnotationError: A chunk set has no index.
    """
    places: dict[ChunkSet, list[int]] = {}
    for place, record in enumerate(records):
        if isinstance(record.source, ChunkSet):
            places.setdefault(record.source, []).append(place)
    made: dict[int, VideoRecord] = {}
    bad: dict[int, str] = {}
    for source, mine in places.items():
        try:
            index = _index_of(source)
        except VideoError as error:
            bad |= dict.fromkeys(mine, error.reason)
            continue
        spans = {}
        for place in mine:
            try:
                first, count = frame_span(records[place], index.info)
                spans[place] = tuple(index.numbers([first, first + count - 1]).tolist())
            except VideoError as error:
                bad[place] = error.reason
        for members, first, last in _join(spans):
            files = (os.path.join(os.path.abspath(source.path), index.name(n)) for n in range(first, last + 1))
            run, shift = ChunkRun(source.path, tuple(files), part_of(index, first, last)), index.firsts[first]
            made |= {place: _moved(records[place], run, float(shift / index.info.fps)) for place in members}
    kept = [made.get(place, record) for place, record in enumerate(records) if place not in bad]
    return kept, [(records[place], reason) for place, reason in sorted(bad.items())]


def _index_of(source: ChunkSet) -> ChunkIndex:
    index = read_index(source)
    if index is None and not os.path.isdir(source.path):
        raise VideoError(source, "does not exist")
    if index is None:
        raise AnnotationError(f"{source.path} has no {INDEX}; make it first: {MAKE_INDEX} {source.path}")
    return index


def _join(spans: Spans) -> Iterator[tuple[list[int], int, int]]:
    """Yields records whose spans meet in a chunk, and the first and the last chunk of these spans."""
    members: list[int] = []
    first = last = -1
    for place, (begin, end) in sorted(spans.items(), key=lambda item: item[1]):
        if members and begin > last:
            yield members, first, last
            members = []
        first, last = (first, max(last, end)) if members else (begin, end)
        members.append(place)
    if members:
        yield members, first, last


def _moved(record: VideoRecord, run: ChunkRun, seconds: float) -> VideoRecord:
    start, end = (None if time is None else time - seconds for time in (record.start, record.end))
    return record._replace(source=run, start=start, end=end)
