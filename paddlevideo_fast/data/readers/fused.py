"""The fast reader: feeds the decoder only the packets the wanted frames need, and converts only the wanted boxes.

1. The packets of a file are listed by demuxing it: which are key frames, which no other picture refers to.
2. For the wanted frames, decoding starts at the last safe key frame before them, leaves out every picture that nobody
   asked for and nobody refers to, and stops at the last wanted one.
3. The wanted box is cut from the planes of a decoded frame, scaled, converted to RGB and written, mirrored if need be,
   straight into the clip.

What comes out is bit for bit what a sequential decode gives. Files for which that cannot be promised from their
packets are decoded from the start, as is the rest of a file of which a wanted frame does not come out.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from paddlevideo_fast.data.readers.chunked import FileReader
from paddlevideo_fast.data.readers.feeds import DemuxedFeed, Mp4Feed
from paddlevideo_fast.data.readers.mp4 import Mp4Samples, read_samples
from paddlevideo_fast.data.readers.packets import PacketIndex
from paddlevideo_fast.data.readers.pictures import BoxConverter, Converter, orientation, turn, turn_back
from paddlevideo_fast.data.readers.pyav import PyavVideo
from paddlevideo_fast.data.readers.reader import Video, load_package
from paddlevideo_fast.data.readers.sources import check_promises, resolve
from paddlevideo_fast.data.video import (
    MAX_FRAMES,
    MAX_PIXELS,
    CropBox,
    DamagedVideoError,
    Limits,
    Source,
    VideoError,
    VideoInfo,
    View,
)

logger = logging.getLogger("paddlevideo_fast")

Feed = DemuxedFeed | Mp4Feed
MOST_BOXES = 32  # of an open video whose scalers are kept


class FusedReader(FileReader):
    """Reads every file FFmpeg can decode, each as fast as its coding allows.

    Args:
        threads: Decoder threads; 0 lets FFmpeg choose.
        max_pixels: Largest picture, width times height.
        max_frames: Most frames of a file.
        cache_bytes: Room for the packet lists of files read before, about 30 bytes a frame.

    Attributes:
        fallbacks: How often each reason led to decoding a file from its start, in this process.
    """

    name = "fused"
    package = "cv2"

    def __init__(
        self,
        threads: int = 1,
        max_pixels: int = MAX_PIXELS,
        max_frames: int = MAX_FRAMES,
        cache_bytes: int = 64 * 2**20,
    ):
        self.threads, self.limits = threads, Limits(max_pixels, max_frames)
        self.known = FactsCache(cache_bytes)
        self.fallbacks: Counter[str] = Counter()

    def __reduce__(self):
        return FusedReader, (self.threads, *self.limits, self.known.max_bytes)

    def open_file(self, source: Source) -> FusedVideo:
        load_package("av", self.name)
        load_package("cv2", self.name)
        return FusedVideo(source, self)

    def note_fallback(self, source: Source, reason: str) -> None:
        """Counts a file that is decoded from its start, and logs the first of each reason."""
        self.fallbacks[reason] += 1
        if self.fallbacks[reason] == 1:
            logger.warning("%s: %s; it and others of its kind are decoded from the start", source, reason)


@dataclass(frozen=True)
class Facts:
    """What is known of a file.

    Attributes:
        index: Its packets.
        order: int64 [num_frames], the number of the packet each frame comes from.
        info: What a plan is drawn from.
        damage: What is wrong with it; None if nothing is known to be.
        selective: Frames may be decoded without all that come before.
        samples: Where its packets lie, if it says so itself.
    """

    index: PacketIndex
    order: np.ndarray
    info: VideoInfo
    damage: str | None
    selective: bool
    samples: Mp4Samples | None = None

    @property
    def num_bytes(self) -> int:
        values = [self.order, *vars(self.index).values(), *(vars(self.samples).values() if self.samples else ())]
        return 1000 + sum(value.nbytes for value in values if isinstance(value, np.ndarray))


class FactsCache:
    """The facts of the files read last, by path, size and time of change.

    Args:
        max_bytes: Room.
    """

    def __init__(self, max_bytes: int):
        self.max_bytes = max_bytes
        self._facts: OrderedDict[tuple, Facts] = OrderedDict()
        self._used, self._lock = 0, threading.Lock()

    def get(self, key: tuple | None) -> Facts | None:
        with self._lock:
            if key in self._facts:
                self._facts.move_to_end(key)
            return self._facts.get(key)

    def put(self, key: tuple | None, facts: Facts) -> None:
        if key is None:
            return
        with self._lock:
            replaced = self._facts.pop(key, None)
            self._facts[key] = facts
            self._used += facts.num_bytes - (replaced.num_bytes if replaced else 0)
            while self._used > self.max_bytes:
                self._used -= self._facts.popitem(last=False)[1].num_bytes


class FusedVideo(Video):
    """A video of which only what is wanted is decoded, converted and moved."""

    def __init__(self, source: Source, reader: FusedReader):
        self.source, self._reader = source, reader
        self._place = resolve(source)
        self._key = _identity(self._place)
        self._feed: Feed | None = None
        self._plain: PyavVideo | None = None
        self._boxes: dict[tuple, BoxConverter] = {}
        self._convert = Converter()
        try:
            facts = reader.known.get(self._key)
            if facts is None:
                facts = self._learn()
                reader.known.put(self._key, facts)
            else:
                self._open(facts)
        except BaseException:
            self.close()
            raise
        self._facts, self.info, self.damage = facts, facts.info, facts.damage
        self.codec, self.container = facts.index.codec, facts.index.container

    @property
    def selective(self) -> bool:
        """Whether frames are decoded without all that come before."""
        return self._plain is None

    @property
    def order(self) -> np.ndarray:
        """int64 [num_frames], the number of the packet each frame comes from."""
        return self._facts.order

    def _open(self, facts: Facts) -> None:
        limits, threads = self._reader.limits, self._reader.threads
        if not facts.selective:
            self._plain = PyavVideo(self.source, threads, limits, facts.index, facts.order, self._place)
        elif facts.samples is not None:
            self._feed = Mp4Feed(self._place, limits, threads, facts.samples)
        else:
            self._feed = DemuxedFeed(self.source, self._place, limits, threads, facts.index)

    def _learn(self) -> Facts:
        """Lists the packets and judges from them; where that leaves a doubt, decodes the file once."""
        limits, threads = self._reader.limits, self._reader.threads
        upright, samples = self._look()
        if samples is not None:
            limits.check_size(self.source, *samples.index.coded_size)
            self._feed = Mp4Feed(self._place, limits, threads, samples)
            index = samples.index
            return Facts(index, index.order, index.info(index.order), None, True, samples)
        self._feed = DemuxedFeed(self.source, self._place, limits, threads, upright=upright)
        index = self._feed.index
        if index.doubt() is None and index.order is not None and _seekable(index):
            return Facts(index, index.order, index.info(index.order), None, True)
        plain = PyavVideo(self.source, threads, limits, place=self._place)
        order = plain.decode_order() if plain.order is None else plain.order
        one_to_one = order.min() >= 0 and len(np.unique(order)) == len(index.pts)
        if one_to_one and plain.damage is None and _seekable(index):
            return Facts(plain.index, order, plain.info, None, True)
        self._feed.close()
        self._plain = plain
        return Facts(plain.index, order, plain.info, plain.damage, False)

    def _look(self) -> tuple[bool, Mp4Samples | None]:
        """Returns whether the pictures are known to be coded upright, and where an mp4 file says they lie."""
        with ExitStack() as stack:
            file = self._place
            if isinstance(file, str):
                file = stack.enter_context(open(file, "rb"))
            upright = check_promises(self.source, file, self._reader.limits)
            return upright, read_samples(file) if upright else None

    def decode(self, indices: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yields (index, PyAV frame) of the wanted frames, in rising order."""
        import av

        if self._feed is None and self._plain is None:
            raise VideoError(self.source, "is closed; open it again")
        done = 0
        if self._plain is None:
            reason = "a wanted frame did not come out of the decoder"
            try:
                for index, frame in self._selected(indices):
                    if index != indices[done] or not self._fits(frame):
                        break
                    yield index, frame
                    done += 1
            except (av.FFmpegError, ValueError) as error:
                reason = f"decoding a part of it failed ({getattr(error, 'strerror', error)})"
            if done == len(indices):
                return
            self._fall_back(reason)
        yield from self._plain.frames_at(indices[done:])

    def _fits(self, frame: Any) -> bool:
        index = self._facts.index
        upright = (index.turns, index.mirrored)
        return (frame.width, frame.height) == index.coded_size and orientation(frame) == upright

    def _fall_back(self, reason: str) -> None:
        self._reader.note_fallback(self.source, reason)
        plain = PyavVideo(self.source, self._reader.threads, self._reader.limits, place=self._place)
        self._feed.close()
        self._plain, shown, promised = plain, plain.info, self._facts.info
        self._facts = Facts(plain.index, plain.order, shown, plain.damage, False)
        self._reader.known.put(self._key, self._facts)
        if plain.damage and shown.num_frames < promised.num_frames:
            raise DamagedVideoError(self.source, plain.damage, shown.num_frames)
        if shown[:1] + shown[2:4] != promised[:1] + promised[2:4]:
            raise VideoError(self.source, f"its header promises {promised}, its pictures are {shown}")

    def _selected(self, indices: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yields (index, PyAV frame) of the wanted frames that come out when only what they need is decoded."""
        numbers, context = self.order[np.asarray(indices)], self._feed.context
        wanted = dict(zip(numbers.tolist(), indices, strict=True))
        for start, stop in self._ranges(numbers):
            context.flush_buffers()
            for packet in self._feed.packets(self._feed.needed(start, stop, numbers)):
                for frame in context.decode(packet):
                    if frame.pts in wanted:
                        yield wanted[frame.pts], frame
            for frame in context.decode(None):
                if frame.pts in wanted:
                    yield wanted[frame.pts], frame

    def packets_to_decode(self, indices: Sequence[int]) -> list[np.ndarray]:
        """Returns what is decoded for the wanted frames: numbers of packets, an array for each start at a key frame.

        Args:
            indices: Frame indices in rising order, inside the video.
        """
        numbers = self.order[np.asarray(indices)]
        return [self._feed.needed(start, stop, numbers) for start, stop in self._ranges(numbers)]

    def _ranges(self, numbers: np.ndarray) -> list[tuple[int, int]]:
        """Returns the (first, last) packets of each start at a key frame, in the order of the pictures wanted."""
        index, times = self._facts.index, self._facts.index.pts
        if not index.distinct_times:
            times = np.empty_like(self.order)
            times[self.order] = np.arange(len(self.order))
        starts = np.flatnonzero(index.start)
        ranges: list[tuple[int, int]] = []
        for number in numbers.tolist():
            safe = starts[: np.searchsorted(starts, number, side="right")]
            safe = safe[times[safe] <= times[number]]
            start = int(safe[-1]) if len(safe) else 0
            if ranges and start <= ranges[-1][1]:  # decoding gets there anyway
                ranges[-1] = (ranges[-1][0], max(ranges[-1][1], number))
            else:
                ranges.append((start, number))
        return ranges

    def render(self, index: int, picture: Any, view: View, out: np.ndarray) -> None:
        """Writes what a view shows of a PyAV frame into ``out``, uint8 [height, width, 3]."""
        import cv2

        coded, turns, mirrored = self._facts.index.coded_size, self._facts.index.turns, self._facts.index.mirrored
        box = view.crop or CropBox(0, 0, self.info.width, self.info.height)
        scaled = out.shape[:2] != (box.height, box.width)
        if scaled and not ((picture.width, picture.height) == coded and BoxConverter.takes(picture)):
            super().render(index, self._whole(picture), view, out)
            return
        place = turn_back(box, *coded, turns, mirrored)
        if scaled:
            size = out.shape[1::-1] if turns % 2 == 0 else out.shape[:2]
            if (place, size) not in self._boxes:
                if len(self._boxes) == MOST_BOXES:
                    self._boxes.pop(next(iter(self._boxes)))
                self._boxes[place, size] = BoxConverter(place, size)
            part = self._boxes[place, size](picture)
        else:
            rows, columns = slice(place.y, place.y + place.height), slice(place.x, place.x + place.width)
            part = self._convert(picture, *coded)[rows, columns]
        if turns or mirrored:
            part = turn(part, turns, mirrored)
        if view.flip:
            cv2.flip(np.ascontiguousarray(part), 1, out)
        else:
            out[:] = part

    def _whole(self, frame: Any) -> np.ndarray:
        index = self._facts.index
        return np.ascontiguousarray(turn(self._convert(frame, *index.coded_size), index.turns, index.mirrored))

    def pictures(self, indices: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        for index, frame in self.decode(indices):
            yield index, self._whole(frame)

    def close(self) -> None:
        for part in (self._feed, self._plain):
            if part is not None:
                part.close()
        self._feed = self._plain = None


def _seekable(index: PacketIndex) -> bool:
    """Whether frames may be decoded without all that come before."""
    packed = index.codec == "mpeg4" and index.irregular  # a picture may ride in the packet before its own
    return bool(index.start[0]) and not index.resizes and not packed


def _identity(place: Any) -> tuple | None:
    """Returns what tells a file from an earlier one of the same name; None for memory and file objects."""
    if not isinstance(place, str):
        return None
    status = os.stat(place)
    return place, status.st_size, status.st_mtime_ns
