"""The plain reference: PyAV decodes from the first picture to the last wanted one."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np

from paddlevideo_fast.data.readers.chunked import FileReader
from paddlevideo_fast.data.readers.packets import TIMED, PacketIndex, explain_size, open_stream, scan_packets
from paddlevideo_fast.data.readers.pictures import Converter, turn
from paddlevideo_fast.data.readers.reader import Video, load_package
from paddlevideo_fast.data.readers.sources import resolve
from paddlevideo_fast.data.video import MAX_FRAMES, MAX_PIXELS, DamagedVideoError, Limits, Source, VideoError

# Streams without an index may begin anywhere, as a recording of a broadcast does.
STREAMING = ("mpegts", "mpeg", "mpegvideo", "m4v", "h264", "hevc")


class PyavReader(FileReader):
    """Reads every file FFmpeg can decode, frame after frame from the start.

    Args:
        threads: Decoder threads; 0 lets FFmpeg choose.
        max_pixels: Largest picture, width times height; a file with a larger one is refused before it is decoded.
        max_frames: Most frames of a file.
    """

    name = "pyav"
    package = "av"

    def __init__(self, threads: int = 1, max_pixels: int = MAX_PIXELS, max_frames: int = MAX_FRAMES):
        self.threads, self.limits = threads, Limits(max_pixels, max_frames)

    def open_file(self, source: Source) -> PyavVideo:
        load_package("av", self.name)
        return PyavVideo(source, self.threads, self.limits)


class PyavVideo(Video):
    """A video decoded in order; reading on from where the last read ended does not start over.

    The frame count comes from the packets where each is one picture, and from decoding the file once where that is
    in doubt. A damaged file has the frames that come before the damage, or raises when one after it is wanted.
    Pictures that change their size within the file are scaled to the size of the first one, as players do.

    Args:
        source: See ``Reader.open``.
        threads: Decoder threads; 0 lets FFmpeg choose.
        limits: Of the file.
        index: Its packets; None lists them.
        place: What ``sources.resolve`` made of the source, if it did.
        order: See below; None finds it out where the number of frames depends on it.

    Attributes:
        index: The packets of the file.
        order: int64 [num_frames], the number of the packet each frame comes from; None if only decoding tells.
    """

    def __init__(
        self,
        source: Source,
        threads: int,
        limits: Limits,
        index: PacketIndex | None = None,
        order: np.ndarray | None = None,
        place: str | BinaryIO | None = None,
    ):
        self.source, self._limits = source, limits
        self._place, self._threads = place or resolve(source), threads
        self._decoder: Iterator[Any] = iter(())
        self._next, self._held = 0, (-1, None)
        self.index = index or scan_packets(source, self._place, limits)
        self.damage = self.index.damage
        self.codec, self.container = self.index.codec, self.index.container
        doubtful = self.index.doubt() is not None
        self.order = self.index.order if order is None else order
        if doubtful and order is None:
            self.order = self.decode_order()
        # The packet a picture must come from, where that is known before.
        self._expected = self.order if self.index.container in TIMED and not doubtful else None
        self.info = self.index.info(self.order)
        self._convert = Converter()

    def decode_order(self) -> np.ndarray:
        """Decodes the file once; returns the number of the packet each frame shown came from."""
        index, order = self.index, array("q")
        try:
            for frame in self._decode():
                order.append(-1 if frame.pts is None else frame.pts)
                self._limits.check_count(self.source, len(order))
        except UndecodableError as error:
            self.damage = self.damage or self._explain(error.reason)
        if not order:
            raise VideoError(self.source, f"its first frame does not decode ({self.damage or index.doubt()})")
        promised = len(index.shown_pts)
        if index.irregular is None and len(order) < promised:
            self.damage = self.damage or f"{promised - len(order)} of {promised} pictures are lost"
        return np.array(order, np.int64)

    def _decode(self) -> Iterator[Any]:
        tolerant = not self.index.starts_with_key and self.index.container in STREAMING
        return decode_stream(self.source, self._place, self._limits, self._threads, tolerant)

    def _explain(self, reason: str) -> str:
        """Returns why decoding stopped: FFmpeg's word for it, or that a picture is too large."""
        telling = reason == "Invalid data found when processing input" and not self.index.resizes
        return reason if telling else explain_size(self.source, self._place, self._limits) or reason

    def _advance(self, index: int) -> Any:
        """Returns the frame at ``index``, decoding forward from the current position."""
        frame = None
        while self._next <= index:
            try:
                frame, reason = next(self._decoder, None), "no more pictures"
            except UndecodableError as error:
                frame, reason = None, self._explain(error.reason)
            if frame is not None and self._expected is not None and frame.pts != self._expected[self._next]:
                # Damaged data the decoder passes over in silence: all that follows would be counted wrong.
                frame, reason = None, "another picture came in its place"
            if frame is None:
                stop = self._next
                self.close()
                where = f"frame {stop} of {self.info.num_frames}"
                raise DamagedVideoError(self.source, f"decoding stopped at {where}: {reason}", stop)
            self._next += 1
        return frame

    def frames_at(self, indices: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Yields (index, PyAV frame) of the wanted frames, as ``pictures`` does."""
        for index in indices:
            if self._next == 0 or index < self._held[0]:
                self.close()
                self._decoder = self._decode()
            if index != self._held[0]:
                self._held = (index, self._advance(index))
            yield index, self._held[1]

    def pictures(self, indices: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        for index, frame in self.frames_at(indices):
            picture = self._convert(frame, *self.index.coded_size)
            yield index, np.ascontiguousarray(turn(picture, self.index.turns, self.index.mirrored))

    def close(self) -> None:
        if hasattr(self._decoder, "close"):
            self._decoder.close()
        self._decoder, self._next, self._held = iter(()), 0, (-1, None)


class UndecodableError(VideoError):
    """A packet does not decode."""


def decode_stream(source: Source, place: str | BinaryIO, limits: Limits, threads: int, tolerant: bool) -> Iterator[Any]:
    """Yields the shown frames of a stream in presentation order, as PyAV frames.

    The ``pts`` of a frame is the number of its packet: a decoder hands on with a picture whatever time it was given.

    Args:
        source: What the caller named, for messages.
        place: What ``sources.resolve`` made of it.
        limits: Of the size of a picture.
        threads: Decoder threads; 0 lets FFmpeg choose.
        tolerant: Pass over packets that do not decode before the first picture.

    Raises:
        UndecodableError: A packet does not decode, or its picture is too large. Frames the decoder still holds then
            are not given out: a picture missing among them would shift the rest.
    """
    import av

    with open_stream(source, place, limits, threads) as (container, stream):
        shown, number = 0, -1
        try:
            for packet in container.demux(stream):
                if packet.size == 0:  # an empty chunk would be taken for the end of the stream
                    continue
                number += 1
                packet.pts = number
                try:
                    decoded = packet.decode()
                except av.FFmpegError:
                    if shown or not tolerant:
                        raise
                    continue
                for frame in decoded:
                    if frame.width * frame.height > limits.max_pixels:
                        raise UndecodableError(source, limits.too_large(frame.width, frame.height, "a picture is"))
                    shown += 1
                    yield frame
            yield from stream.codec_context.decode(None)
        except av.FFmpegError as error:
            raise UndecodableError(source, str(error.strerror)) from error
