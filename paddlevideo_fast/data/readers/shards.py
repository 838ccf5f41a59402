"""Reading videos out of shards that are kept in memory, each read once from its start to its end."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import Any

import numpy as np

from paddlevideo_fast.data.readers.reader import Reader, Video
from paddlevideo_fast.data.shards import checked_member
from paddlevideo_fast.data.video import ShardMember, Source, VideoError

READ_BYTES = 16 * 2**20  # at once: enough for a mount whose every request takes long
RETRY_SECONDS = 60  # after which a shard that could not be read is tried again: a mount may have been away


class ShardReader(Reader):
    """Hands the bytes of videos in shards to another reader; other sources go to it as they are.

    Random places of a remote file are slow to read and large pieces are not, so a shard is read whole when the first
    of its videos is wanted, and is kept until others are in its place.

    Args:
        reader: Reads the videos.
        num_shards: Shards kept in memory, at least 1; they are shared by all threads.

    Attributes:
        loads: Shards read so far, in this process.
    """

    def __init__(self, reader: Reader, num_shards: int):
        if num_shards < 1:
            raise ValueError(f"num_shards must be at least 1, got {num_shards}")
        self.reader, self.num_shards = reader, num_shards
        self.name, self.package, self.may_refuse = reader.name, reader.package, reader.may_refuse
        self.loads = 0
        self._shards: OrderedDict[str, _Shard] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return ShardReader, (self.reader, self.num_shards)

    def open(self, source: Source) -> Video:
        return self.reader.open(self._take(source))

    def open_first(self, source: Source, num_frames: int) -> Video:
        return self.reader.open_first(self._take(source), num_frames)

    def _take(self, source: Source) -> Source:
        if not isinstance(source, ShardMember):
            return source
        with self._lock:
            shard = self._shards.setdefault(source.path, _Shard(source.path))
            self._shards.move_to_end(source.path)
            while len(self._shards) > self.num_shards:
                self._shards.popitem(last=False)
        with shard.lock:  # whoever comes while it is being read waits; other shards are read beside it
            if shard.data is None or (shard.problem and time.monotonic() - shard.read_at > RETRY_SECONDS):
                shard.load()
                self.loads += 1
        data = shard.data[source.offset : source.offset + source.size]
        if shard.problem and len(data) < source.size:
            raise VideoError(source, f"the shard cannot be read{shard.problem}")
        return checked_member(source, data, len(shard.data))


class _Shard:
    """The bytes of a shard, as far as they can be read, and why there are not more."""

    def __init__(self, path: str):
        self.path, self.lock = path, threading.Lock()
        self.data: memoryview | None = None
        self.problem, self.read_at = "", 0.0

    def load(self) -> None:
        self.problem, self.read_at = "", time.monotonic()
        data, end = memoryview(b""), 0
        try:
            with open(self.path, "rb", buffering=0) as file:
                data = memoryview(np.empty(file.seek(0, 2), np.uint8))
                file.seek(0)
                while end < len(data) and (count := file.readinto(data[end : end + READ_BYTES])):
                    end += count
        except OSError as error:
            self.problem = f" past byte {end}: {error.strerror}" if end else f": {error.strerror}"
        self.data = data[:end]
