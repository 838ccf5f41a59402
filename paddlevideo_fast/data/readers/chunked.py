"""Reading a long video from its chunks: each is opened when a frame of it is wanted, by the reader that was chosen."""

from __future__ import annotations

import logging
import os
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from paddlevideo_fast.data.chunks import (
    INDEX,
    MAKE_INDEX,
    ChunkIndex,
    chunk_length,
    index_chunks,
    is_packed,
    list_chunks,
    read_index,
    unpack_chunks,
)
from paddlevideo_fast.data.readers.reader import Reader, Video
from paddlevideo_fast.data.shards import read_member
from paddlevideo_fast.data.video import (
    ChunkSet,
    DamagedVideoError,
    InexactReaderError,
    ShardMember,
    Source,
    VideoError,
    VideoInfo,
    View,
    check_views,
    describe_source,
)

MAX_KNOWN = 20_000  # chunk sets remembered, at about 1 KB for half an hour each

logger = logging.getLogger("paddlevideo_fast")


class FileReader(Reader):
    """Opens video files, alone or as the chunks of a long video."""

    def open(self, source: Source) -> Video:
        if isinstance(source, ChunkSet) or is_packed(source):
            return ChunkedVideo(source, self)
        try:
            return self.open_file(source)
        except OSError as error:  # it went away, or its disk did, after it was found
            raise VideoError(source, f"can no longer be read: {error.strerror or error}") from error

    @abstractmethod
    def open_file(self, source: Source) -> Video:
        """Opens one file; see ``Reader.open``."""


class ChunkedVideo(Video):
    """The chunks of a long video as one video; the last one that was read stays open.

    A chunk that is missing, damaged or not what it should be is an error when frames of it are wanted.

    Args:
        source: The folder, or the chunks in a shard.
        reader: Opens the chunks.
    """

    def __init__(self, source: Source, reader: Reader):
        self.source, self._reader, self._packed = source, reader, None
        if isinstance(source, ChunkSet):
            self._index = find_index(source, reader)
        else:
            self._index, self._packed = unpack_chunks(
                read_member(source) if isinstance(source, ShardMember) else source
            )
        self.info, self.codec, self.container = self._index.info, self._index.codec, self._index.container
        self._opened: tuple[int, Video] | None = None
        self._uses_damaged = False

    def keep(self, num_frames: int) -> None:
        super().keep(num_frames)
        self._uses_damaged = True

    def read(self, views: Sequence[View], size: tuple[int, int] | None = None) -> list[np.ndarray]:
        check_views(self.source, self.info, views, size)
        clips, wanted = [], []
        for view in views:
            _, _, width, height = view.crop or (0, 0, self.info.width, self.info.height)
            clips.append(np.empty((len(view.indices), *(size or (height, width)), 3), np.uint8))
            wanted.append((np.asarray(view.indices), self._index.numbers(view.indices)))
        for number in np.unique(np.concatenate([numbers for _, numbers in wanted])).tolist():
            parts, places = [], []
            for view, clip, (indices, numbers) in zip(views, clips, wanted):
                chosen = np.flatnonzero(numbers == number)
                if len(chosen):
                    parts.append(View(indices[chosen] - self._index.firsts[number], view.crop, view.flip))
                    places.append((clip, chosen))
            with self._naming(number):
                video = self._open(number, max(int(part.indices.max()) for part in parts))
                for (clip, chosen), pictures in zip(places, video.read(parts, size)):
                    clip[chosen] = pictures
        return clips

    def pictures(self, indices: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        wanted, numbers = np.asarray(indices), self._index.numbers(indices)
        for number in np.unique(numbers).tolist():
            first = int(self._index.firsts[number])
            inside = (wanted[numbers == number] - first).tolist()
            with self._naming(number):
                for index, picture in self._open(number, inside[-1]).pictures(inside):
                    yield first + index, picture

    def _place(self, number: int) -> Source:
        """Returns a chunk as it is opened: its path, or its bytes."""
        if self._packed is not None:
            return self._packed[number]
        return os.path.join(os.path.abspath(self.source.path), self._index.name(number))

    @contextmanager
    def _naming(self, number: int) -> Iterator[None]:
        """Makes an error about a chunk one about the whole video, with the chunk's path."""
        try:
            yield
        except InexactReaderError:
            raise
        except VideoError as error:
            decodable = int(self._index.firsts[number]) + getattr(error, "decodable", 0)
            place = describe_source(self._place(number))
            raise DamagedVideoError(self.source, f"{place}: {error.reason}", decodable) from error

    def _open(self, number: int, last: int) -> Video:
        """Returns an opened chunk that is what the index says and has its frame ``last``."""
        if self._opened is None or self._opened[0] != number:
            self.close()
            self._opened = number, self._reader.open(self._place(number))
        video = self._opened[1]
        found, belong = video.info.num_frames, int(self._index.firsts[number + 1] - self._index.firsts[number])
        size, other = video.info[2:4], self.info[2:4]
        if size != other:
            reason = f"its pictures are {size[0]}x{size[1]}, those of the other chunks {other[0]}x{other[1]}"
            raise VideoError(video.source, reason)
        if video.damage and not self._uses_damaged:
            raise DamagedVideoError(video.source, video.damage, found)
        if found > belong or (found < belong and self._index.stored and not video.damage):
            where = f"{INDEX} says {belong}" if self._index.stored else f"had {belong} when it was first opened"
            raise VideoError(video.source, f"has {found} frames, {where}; make the index again: {MAKE_INDEX}")
        if last >= found:
            raise DamagedVideoError(video.source, f"has {found} frames where about {belong} belong", found)
        return video

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened[1].close()


_known: OrderedDict[tuple, ChunkIndex] = OrderedDict()
_lock = threading.Lock()
_told = threading.Event()


def find_index(source: ChunkSet, reader: Reader) -> ChunkIndex:
    """Returns the index of a chunk set: what was found last time if nothing has changed, ``chunks.json``, or a new one.

    Raises:
        VideoError: It is not a chunk set, its index is wrong, or none of the files opens.
    """
    folder = os.path.abspath(source.path)
    key = (folder, source.seconds, _changed(folder), _changed(os.path.join(folder, INDEX)))
    with _lock:
        if key in _known:
            _known.move_to_end(key)
            return _known[key]
    index = read_index(source) or examine_chunks(source, reader)
    with _lock:
        _known[key] = index
        while len(_known) > MAX_KNOWN:
            _known.popitem(last=False)
    return index


def _changed(path: str) -> int | None:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return None


def examine_chunks(source: ChunkSet, reader: Reader, complete: bool = False) -> ChunkIndex:
    """Opens every file of a chunk set once.

    Args:
        source: The folder.
        reader: Opens the files.
        complete: Whether a file that is missing, unreadable or damaged is an error.

    Raises:
        VideoError: See ``find_index``, ``index_chunks``, and above.
    """
    seconds, suffix, present = list_chunks(source)
    if not complete and not _told.is_set():
        _told.set()
        logger.warning(
            "%s has no %s: its %d files are opened to count frames, as in all such folders; %s spares that",
            source.path, INDEX, len(present), MAKE_INDEX,
        )  # fmt: skip
    infos: dict[int, VideoInfo] = {}
    damaged: set[int] = set()
    kinds, problem = ("", ""), None
    for number in range(present[-1] + 1) if complete else present:
        path = os.path.join(os.path.abspath(source.path), f"{number * seconds}{suffix}")
        try:
            with reader.open(path) as video:
                infos[number], kinds = video.info, (video.codec, video.container)
                if video.damage:
                    damaged.add(number)
                    raise VideoError(path, video.damage)
        except InexactReaderError:
            raise
        except VideoError as error:
            problem = problem or VideoError(source, f"{path}: {error.reason}")
    if problem is not None and (complete or not infos):
        raise problem
    length = source.seconds or chunk_length(seconds, infos)
    step = seconds // length
    infos = {number * step: info for number, info in infos.items()}
    damaged = {number * step for number in damaged}
    index = index_chunks(source, length, suffix, infos, damaged, present[-1] * step + 1)
    gone = [number for number in range(len(index.firsts) - 1) if number not in infos]
    if complete and gone:
        raise VideoError(source, f"{index.name(gone[0])} is missing: the others last {length} s")
    return replace(index, codec=kinds[0], container=kinds[1])
