"""Where the fused reader gets packets from: FFmpeg's demuxer, or the places a plain mp4 file lists them at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, BinaryIO

import numpy as np

from paddlevideo_fast.data.readers.bitstream import length_width, picture_layer
from paddlevideo_fast.data.readers.mp4 import Mp4Samples
from paddlevideo_fast.data.readers.packets import NO_TIME, TIMED, HeldPackets, PacketIndex, list_packets, open_stream
from paddlevideo_fast.data.video import Limits, Source

HELD_BYTES = 16 * 2**20  # of packets kept while a file is open; those of a larger file are read when they are needed
HEAD_BYTES = 64  # of a packet, enough to tell a picture nobody refers to
FAR = 100  # packets; passing over more than these costs more than a seek


class DemuxedFeed:
    """Packets from FFmpeg's demuxer, in any container.

    Args:
        source: What the caller named, for messages.
        place: What ``sources.resolve`` made of it.
        limits: Of the file.
        threads: Decoder threads; 0 lets FFmpeg choose.
        index: The packets, if they are known; None lists them.
        upright: The pictures are known to be coded as they are shown.

    Attributes:
        index: The packets.
        context: PyAV's decoder.
    """

    def __init__(
        self,
        source: Source,
        place: str | BinaryIO,
        limits: Limits,
        threads: int,
        index: PacketIndex | None = None,
        upright: bool = False,
    ):
        self._arguments = source, place, limits, threads
        self._opened = ExitStack()
        self._held = HeldPackets(HELD_BYTES)
        self._open()
        try:
            if index is None:
                index = list_packets(source, place, self._container, self._stream, limits, self._held, upright)
                self._position = len(index.pts)
        except BaseException:
            self.close()
            raise
        self.index = index

    def _open(self) -> None:
        self._opened.close()
        self._container, self._stream = self._opened.enter_context(open_stream(*self._arguments))
        self._position = 0

    @property
    def context(self) -> Any:
        return self._stream.codec_context

    def needed(self, start: int, stop: int, wanted: np.ndarray) -> np.ndarray:
        """Returns the numbers of the packets from ``start`` to ``stop`` that are wanted or that others refer to."""
        needed = ~self.index.droppable[start : stop + 1]
        needed[wanted[(start <= wanted) & (wanted <= stop)] - start] = True
        return start + np.flatnonzero(needed)

    def packets(self, numbers: np.ndarray) -> Iterator[Any]:
        """Yields the packets of rising numbers, each with its number as its time.

        A decoder hands on with a picture whatever time it was given, in files without times too. Ends early where the
        demuxer gives other packets than those listed.
        """
        if self._held.packets:
            for number in numbers.tolist():
                packet = self._held.packets[number]
                packet.pts = number
                yield packet
            return
        wanted = set(numbers.tolist())
        for number, packet in self._demuxed(int(numbers[0]), int(numbers[-1])):
            if number in wanted:
                packet.pts = number
                yield packet

    def _demuxed(self, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        index = self.index
        if not self._position <= start <= self._position + FAR:
            if index.container in TIMED and index.distinct_times:  # other containers count anew after a seek
                # By presentation time: by decoding time FFmpeg lands one key frame early in mp4.
                self._container.seek(int(index.pts[start]), stream=self._stream)
                self._position = -1  # to be found by the time of the first packet
            elif start < self._position:
                self._open()
        for packet in self._container.demux(self._stream):
            if packet.size == 0:
                continue
            time = NO_TIME if packet.pts is None else packet.pts
            if self._position < 0:
                found = np.flatnonzero(index.pts[: start + 1] == time)
                self._position = int(found[0]) if len(found) else len(index.pts)
            number = self._position
            if number >= len(index.pts) or index.pts[number] != time:
                return
            self._position += 1
            if number >= start:
                yield number, packet
            if number >= stop:
                return

    def close(self) -> None:
        self._opened.close()
        self._held = HeldPackets(0)


class Mp4Feed:
    """Packets cut from an mp4 file at the places its tables list: without opening it by FFmpeg, and only those needed.

    Args:
        place: Path, or a seekable file object, which is left open.
        limits: Of the file.
        threads: Decoder threads; 0 lets FFmpeg choose.
        samples: The tables.

    Attributes:
        index: The packets.
        context: PyAV's decoder.
    """

    def __init__(self, place: str | BinaryIO, limits: Limits, threads: int, samples: Mp4Samples):
        from av import CodecContext

        self.index, self._samples = samples.index, samples
        self._opened, self._file = ExitStack(), place
        if isinstance(place, str):
            self._file = self._opened.enter_context(open(place, "rb", buffering=0))  # noqa: SIM115  until close()
        self._width = length_width("h264", samples.extradata)
        self._base, self._bytes = 0, b""
        self.context = CodecContext.create("h264", "r")
        self.context.extradata, self.context.thread_count = samples.extradata, threads
        # Strict: without a promise of the stream, wait as long as pictures may be out of order.
        self.context.options = {"max_pixels": limits.for_decoder, "strict": "1"}
        if samples.colours is not None:
            self.context.colorspace, self.context.color_range = samples.colours

    def needed(self, start: int, stop: int, wanted: np.ndarray) -> np.ndarray:
        """See ``DemuxedFeed.needed``. Raises: ValueError if the file has become shorter."""
        self._read(start, stop)
        numbers = np.arange(start, stop + 1)
        if self._bytes:
            heads = np.frombuffer(self._bytes, np.uint8)[self._samples.offsets[numbers] - self._base + self._width]
        else:
            heads = np.array([self._cut(number, HEAD_BYTES)[self._width] for number in numbers.tolist()], np.uint8)
        one_slice = (1 <= heads & 31) & (heads & 31 <= 5)  # nal_ref_idc is the same in all slices of a picture
        needed = ~one_slice | (heads & 0x60 > 0)
        for place in np.flatnonzero(~one_slice).tolist():
            needed[place] = picture_layer("h264", self._cut(start + place), self._width) < 0
        needed[wanted[(start <= wanted) & (wanted <= stop)] - start] = True
        return numbers[needed]

    def packets(self, numbers: np.ndarray) -> Iterator[Any]:
        """See ``DemuxedFeed.packets``."""
        from av import Packet

        for number in numbers.tolist():
            packet = Packet(self._cut(number))
            packet.pts = number
            yield packet

    def _read(self, start: int, stop: int) -> None:
        """Reads what lies between two packets at once, unless it is too much."""
        offsets, sizes = self._samples.offsets[start : stop + 1], self._samples.sizes[start : stop + 1]
        self._base, end = int(offsets.min()), int((offsets + sizes).max())
        self._bytes = b""
        if end - self._base <= HELD_BYTES:
            self._bytes = self._read_at(self._base, end - self._base)

    def _cut(self, number: int, most: int | None = None) -> bytes:
        offset, size = int(self._samples.offsets[number]), int(self._samples.sizes[number])
        size = min(size, most or size)
        if self._bytes:
            return self._bytes[offset - self._base : offset - self._base + size]
        return self._read_at(offset, size)

    def _read_at(self, place: int, count: int) -> bytes:
        self._file.seek(place)
        data = self._file.read(count)
        if len(data) < count:
            raise ValueError(f"the file ends before byte {place + count}")
        return data

    def close(self) -> None:
        self._opened.close()
        self._bytes = b""
