"""The packets of a video stream, listed without decoding, and what may be concluded from them."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, BinaryIO

import numpy as np

from paddlevideo_fast.data.readers.bitstream import (
    LAYERED_CODECS,
    PACKET_CODECS,
    has_idr,
    length_width,
    packet_irregularity,
    picture_layer,
    size_header,
    stream_irregularity,
)
from paddlevideo_fast.data.readers.pictures import orientation
from paddlevideo_fast.data.readers.sources import check_promises, explain_unreadable
from paddlevideo_fast.data.video import Limits, Source, VideoError, VideoInfo

NO_TIME = np.iinfo(np.int64).min
MIN_RATE, MAX_RATE = 0.001, 1000.0  # frames a second; a file that gives less or more is wrong

# Containers that hold pictures themselves. Playlists and device demuxers, which open other files, are left out.
DEMUXERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,m4v,h264,hevc,vvc,obu,ivf,flv,live_flv,asf,ogg,"
    "wtv,mxf,rm,nut,dv,mjpeg,vc1,swf,amv,gif,yuv4mpegpipe,av1,h261,h263,cavsvideo,dirac,bink,roq,smk,vivo,dhav"
)
# Containers that carry the time each picture is shown at; the decoder hands it on with the picture.
TIMED = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
WITH_TIMES = (*TIMED, "mpegts", "mpeg", "flv")  # others, AVI among them, have times that FFmpeg makes up


@dataclass(frozen=True)
class PacketIndex:
    """What demuxing alone tells about a stream; arrays are [N], in the order of the file.

    Attributes:
        container: Name of the demuxer, e.g. ``mov,mp4,m4a,3gp,3g2,mj2``.
        codec: FFmpeg's name of the codec, e.g. ``h264``.
        pts: int64, units of ``time_base``; NO_TIME where missing.
        key: bool, flagged as a key frame.
        discard: bool, decoded but not shown (outside the edit list).
        start: bool, decoding may start here: what is decoded and shown later needs nothing from before.
        droppable: bool, no other picture refers to this one.
        time_base: Seconds a unit of ``pts``.
        last_duration: Units of ``time_base`` the last shown picture lasts; 0 if the file does not say.
        span: Seconds from the first to the last decoding time, empty packets included; 0 where there are no times.
        duration: Seconds the header gives; 0 if it gives none.
        rate: Mean frames per second the header gives; 0 if it gives none.
        coded_size: (width, height) of the first picture, before it is turned upright.
        turns: Quarter turns clockwise that show the picture upright.
        mirrored: The picture is to be mirrored upside down before it is turned.
        num_streams: Video streams in the file, cover pictures included.
        irregular: Why a packet may not be exactly one shown picture; None if each is.
        resizes: The pictures may change their size.
        damage: What is visibly wrong with the file; None if nothing is.
        shown_pts: int64 [shown pictures], their times, rising.
        order: int64 [shown pictures], the numbers of their packets in the order they are shown in; None if only
            decoding tells it.
    """

    container: str
    codec: str
    pts: np.ndarray
    key: np.ndarray
    discard: np.ndarray
    start: np.ndarray
    droppable: np.ndarray
    time_base: Fraction
    last_duration: int
    span: float
    duration: float
    rate: float
    coded_size: tuple[int, int]
    turns: int
    mirrored: bool
    num_streams: int
    irregular: str | None
    resizes: bool
    damage: str | None
    shown_pts: np.ndarray = field(init=False, repr=False)
    order: np.ndarray | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        shown = np.flatnonzero(~self.discard)
        by_time = shown[np.argsort(self.pts[shown], kind="stable")]
        object.__setattr__(self, "shown_pts", self.pts[by_time])
        order = None
        if self.container in WITH_TIMES:
            order = by_time
        elif self.codec in ("mjpeg", "vp8"):
            order = shown
        elif self.codec == "mpeg4":  # any other picture waits for the B pictures that follow it
            moved = np.cumsum(~self.droppable[shown]) + ~self.droppable[shown]
            order = shown[np.argsort(moved, kind="stable")]
        object.__setattr__(self, "order", order)

    @property
    def starts_with_key(self) -> bool:
        return bool(len(self.key) and self.key[0])

    @property
    def unsafe_keys(self) -> bool:
        """Some key packets are no points where decoding may start."""
        return bool((self.key & ~self.start).any())

    @property
    def distinct_times(self) -> bool:
        """Every shown packet has a time of its own."""
        return bool(np.all(self.pts != NO_TIME) and np.all(np.diff(self.shown_pts) > 0))

    def doubt(self) -> str | None:
        """Returns why the number of shown packets may differ from the number of frames; None if it cannot."""
        if self.damage:
            return self.damage
        if self.irregular:
            return self.irregular
        if not self.starts_with_key:
            return "it does not start with a key frame"
        if not self.distinct_times:
            return "time stamps are missing or repeat"
        if self.pts.min() < self.pts[0]:
            return "pictures precede the first key frame"
        return None

    def seek_doubt(self) -> str | None:
        """Returns why a decoder that seeks by itself may give other frames; None if it will not."""
        if self.discard.any():
            return "an edit list hides pictures"
        order = np.argsort(np.argsort(self.pts))
        if np.any(order[self.key] != np.flatnonzero(self.key)):
            return "open groups of pictures"
        if self.unsafe_keys:
            return "key frames that are not safe to start from"
        return None

    def info(self, order: np.ndarray | None = None) -> VideoInfo:
        """Returns the facts about the video.

        Args:
            order: int64 [num_frames], the number of the packet of each frame; None if all packets that may be shown
                are.
        """
        count = len(self.shown_pts) if order is None else len(order)
        times = self.shown_pts if order is None else self.pts[order[order >= 0]]
        times = times[times != NO_TIME]
        first, end = (int(times.min()), int(times.max())) if len(times) else (0, 0)
        width, height = self.coded_size[:: -1 if self.turns % 2 else 1]
        if self.container == "avi" and self.duration:  # its packets carry no presentation times
            duration = min(self.duration, self.span + 1 / self.rate) if self.span and self.rate else self.duration
        elif first == end:
            duration = count / self.rate if self.rate else self.duration
        else:
            tail = self.last_duration or (end - first) / max(count - 1, 1)
            duration = float((end - first + tail) * self.time_base)
        fps = count / duration if duration > 0 else self.rate
        # The header's rate is exact where times are rounded, e.g. to the milliseconds of Matroska.
        fps = self.rate if abs(self.rate - fps) < 0.01 * fps else fps
        if not MIN_RATE <= fps <= MAX_RATE:
            return VideoInfo(count, 0.0, width, height, 0.0)
        return VideoInfo(count, fps, width, height, duration if duration > 0 else count / fps)


@contextmanager
def open_stream(source: Source, place: str | BinaryIO, limits: Limits, threads: int = 1) -> Iterator[tuple[Any, Any]]:
    """Opens a container and its first video stream that is not a cover picture; closes it in any case.

    Args:
        source: What the caller named, for messages.
        place: What ``sources.resolve`` made of it.
        limits: The decoder makes no picture much larger than these allow.
        threads: Decoder threads; 0 lets the decoder choose.

    Yields:
        PyAV's (container, stream).

    Raises:
        VideoError: Not a video, no video stream, or its header says that the pictures are too large.
    """
    import av

    if not isinstance(place, str):
        place.seek(0)
    bounds = {"max_pixels": limits.for_decoder}
    try:
        # The prefix keeps names such as "a:b.mp4" from being taken for a protocol.
        container = av.open(
            f"file:{place}" if isinstance(place, str) else place,
            metadata_errors="ignore",
            options=bounds,
            container_options={"protocol_whitelist": "file", "format_whitelist": DEMUXERS},
        )
    except (av.FFmpegError, ValueError) as error:
        raise explain_unreadable(source, place) from error
    with container:
        streams = [s for s in container.streams.video if not s.disposition & s.disposition.attached_pic]
        if not streams:
            kinds = ", ".join(s.type for s in container.streams if s.type != "video") or "nothing"
            raise VideoError(source, f"no video stream (the file holds {kinds})")
        stream = streams[0]
        if stream.codec_context is None:
            raise VideoError(source, "the codec of its video stream is not known to FFmpeg")
        limits.check_size(source, stream.codec_context.width, stream.codec_context.height)
        stream.codec_context.thread_count = threads
        stream.codec_context.options = bounds
        yield container, stream


def scan_packets(source: Source, place: str | BinaryIO, limits: Limits) -> PacketIndex:
    """Lists the packets of a video; only the first picture is decoded, for its size and orientation.

    Raises:
        VideoError: Not a video, no video stream, a stream without packets, none whose first picture decodes, or one
            beyond the limits.
    """
    check_promises(source, place, limits)
    with open_stream(source, place, limits) as (container, stream):
        return list_packets(source, place, container, stream, limits)


class HeldPackets:
    """Packets kept in memory, so that those of a small file need not be read twice.

    Args:
        max_bytes: Room; with more than fits in nothing is kept.
    """

    def __init__(self, max_bytes: int):
        self.packets: list[Any] = []
        self._room = max_bytes

    def append(self, packet: Any) -> None:
        self._room -= packet.size
        if self._room < 0:
            self.packets.clear()
        else:
            self.packets.append(packet)

    @property
    def complete(self) -> bool:
        """Whether every packet is there."""
        return self._room >= 0


def list_packets(
    source: Source,
    place: str | BinaryIO,
    container: Any,
    stream: Any,
    limits: Limits,
    held: HeldPackets | None = None,
    trust_header: bool = False,
) -> PacketIndex:
    """Lists the packets of a stream that was just opened; see ``scan_packets``.

    Args:
        source: What the caller named, for messages.
        place: What ``sources.resolve`` made of it.
        container: PyAV's, from ``open_stream``.
        stream: PyAV's, from ``open_stream``.
        limits: Of what the file may ask for.
        held: Gets the packets.
        trust_header: Take the size of the pictures from the header and show them as they are coded; decode nothing.
    """
    import av

    codec = stream.codec_context.codec.canonical_name
    extradata = stream.codec_context.extradata or b""
    width = length_width(codec, extradata)
    irregular, layered = stream_irregularity(codec, stream), codec in LAYERED_CODECS
    pts, last, damage, sizes = array("q"), (NO_TIME, 0), None, set()
    key, discard, start, layers = bytearray(), bytearray(), bytearray(), array("b")
    first_dts, last_dts = math.inf, -math.inf
    shown = (stream.codec_context.width, stream.codec_context.height, 0, False)
    if not trust_header or min(shown[:2]) < 1:
        shown = None
    try:
        for packet in container.demux(stream):
            dts = packet.dts
            if dts is not None:
                first_dts, last_dts = min(first_dts, dts), max(last_dts, dts)
            if packet.size == 0:
                continue
            pts.append(NO_TIME if packet.pts is None else packet.pts)
            key.append(packet.is_keyframe)
            discard.append(packet.is_discard)
            layers.append(picture_layer(codec, memoryview(packet), width) if layered else ~0)
            if len(pts) > limits.max_frames:
                limits.check_count(source, len(pts))
            if packet.is_keyframe:
                data = bytes(packet)
                start.append(has_idr(data, width) if codec == "h264" else codec in PACKET_CODECS)
                sizes.add(size_header(codec, data, width))
                if packet.has_sidedata("new_extradata"):
                    sizes.add(bytes(packet.get_sidedata("new_extradata")))
            else:
                start.append(False)
            if pts[-1] >= last[0] and not discard[-1]:
                last = (pts[-1], packet.duration or 0)
            if packet.is_corrupt:
                damage = damage or f"packet {len(pts) - 1} is incomplete"
            irregular = irregular or packet_irregularity(codec, packet)
            if shown is None:
                shown, problem = _try_decode(stream, packet)
                damage = damage or problem
            if held is not None:
                held.append(packet)
    except av.FFmpegError as error:
        damage = f"reading stopped after {len(pts)} packets ({error.strerror})"
    if not pts:
        raise VideoError(source, "0 frames: its video stream holds no pictures")
    if stream.frames > len(pts) and container.format.name.startswith("mov"):
        damage = f"the file ends early: {len(pts)} of {stream.frames} pictures are there"
    if shown is None:
        shown, problem = _try_decode(stream, None)
    if shown is None:
        reason = explain_size(source, place, limits)
        reason = reason or f"no frame decodes ({damage or problem or 'the decoder shows no picture'})"
        raise VideoError(source, reason)
    limits.check_size(source, *shown[:2])
    layers = np.array(layers)
    return PacketIndex(
        container=container.format.name,
        codec=codec,
        pts=np.array(pts, np.int64),
        key=np.array(key, bool),
        discard=np.array(discard, bool),
        start=np.array(start, bool),
        droppable=(layers == np.maximum(layers, ~layers).max()),
        time_base=Fraction(stream.time_base or 0),
        last_duration=last[1],
        span=float((last_dts - first_dts) * stream.time_base) if last_dts > first_dts else 0.0,
        duration=float((stream.duration or 0) * (stream.time_base or 0)),
        rate=sane_rate(stream.average_rate) or sane_rate(stream.guessed_rate),
        coded_size=shown[:2],
        turns=shown[2],
        mirrored=shown[3],
        num_streams=len(container.streams.video),
        irregular=irregular,
        resizes=len(sizes - {None}) > 1,
        damage=damage,
    )


def sane_rate(rate: Fraction | None) -> float:
    return float(rate) if rate and MIN_RATE <= rate <= MAX_RATE else 0.0


def _try_decode(stream: Any, packet: Any) -> tuple[tuple[int, int, int, bool] | None, str | None]:
    """Returns (width, height, turns, mirrored) of the first frame that comes out or None, what went wrong or None."""
    import av

    try:
        frames = stream.codec_context.decode(packet)
    except av.FFmpegError as error:
        return None, f"its first pictures do not decode: {error.strerror}"
    return ((frames[0].width, frames[0].height, *orientation(frames[0])) if frames else None), None


def explain_size(source: Source, place: str | BinaryIO, limits: Limits) -> str | None:
    """Decodes a file once more, listening to FFmpeg, and returns the reason if a picture was too large for it."""
    import av

    level, skips = av.logging.get_level(), av.logging.get_skip_repeated()
    av.logging.set_level(av.logging.ERROR)
    av.logging.set_skip_repeated(False)
    try:
        with av.logging.Capture() as lines, open_stream(source, place, limits) as (container, stream):
            for packet in container.demux(stream):
                try:
                    packet.decode()
                except av.FFmpegError:
                    break
    except av.FFmpegError:
        return None
    finally:
        av.logging.set_level(level)
        av.logging.set_skip_repeated(skips)
    found = [re.match(r"Picture size (\d+)x(\d+)", line) for _, _, line in lines]
    sizes = [(int(size[1]), int(size[2])) for size in found if size]
    return limits.too_large(*sizes[0], "a picture is") if sizes else None
