"""The packets of a video stream, listed without decoding, and what may be concluded from them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, BinaryIO

import numpy as np

from paddlevideo_fast.data.readers.pictures import orientation
from paddlevideo_fast.data.readers.sources import explain_unreadable
from paddlevideo_fast.data.video import Source, VideoError, VideoInfo

NO_TIME = np.iinfo(np.int64).min

# Containers that hold pictures themselves. Playlists and device demuxers, which open other files, are left out.
DEMUXERS = (
    "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,mpegvideo,m4v,h264,hevc,vvc,obu,ivf,flv,live_flv,asf,ogg,"
    "wtv,mxf,rm,nut,dv,mjpeg,vc1,swf,amv,gif,yuv4mpegpipe,av1,h261,h263,cavsvideo,dirac,bink,roq,smk,vivo,dhav"
)
# Containers that carry the time each picture is shown at; the decoder hands it on with the picture.
TIMED = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
# Codecs in which one packet is one picture, or in which an exception can be seen from the packet's first bytes.
PACKET_CODECS = ("h264", "hevc", "av1", "vp8", "vp9", "mpeg4", "mjpeg")


@dataclass(frozen=True)
class PacketIndex:
    """What demuxing alone tells about a stream; arrays are [N], in the order of the file.

    Attributes:
        container: Name of the demuxer, e.g. ``mov,mp4,m4a,3gp,3g2,mj2``.
        codec: FFmpeg's name of the codec, e.g. ``h264``.
        pts: int64, units of ``time_base``; NO_TIME where missing.
        key: bool, flagged as a key frame.
        discard: bool, decoded but not shown (outside the edit list).
        time_base: Seconds a unit of ``pts``.
        last_duration: Units of ``time_base`` the last shown picture lasts; 0 if the file does not say.
        duration: Seconds the header gives; 0 if it gives none.
        rate: Mean frames per second the header gives; 0 if it gives none.
        coded_size: (width, height) of the first picture, before it is turned upright.
        turns: Quarter turns clockwise that show the picture upright.
        mirrored: The picture is to be mirrored upside down before it is turned.
        unsafe_keys: Key packets from which decoding may not start (no IDR picture).
        num_streams: Video streams in the file, cover pictures included.
        irregular: Why a packet may not be exactly one shown picture; None if each is.
        damage: What is visibly wrong with the file; None if nothing is.
    """

    container: str
    codec: str
    pts: np.ndarray
    key: np.ndarray
    discard: np.ndarray
    time_base: Fraction
    last_duration: int
    duration: float
    rate: float
    coded_size: tuple[int, int]
    turns: int
    mirrored: bool
    unsafe_keys: bool
    num_streams: int
    irregular: str | None
    damage: str | None
    shown_pts: np.ndarray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shown_pts", np.sort(self.pts[~self.discard]))

    @property
    def starts_with_key(self) -> bool:
        return bool(len(self.key) and self.key[0])

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

    def info(self, count: int, times: tuple[int, int] | None = None) -> VideoInfo:
        """Returns the facts about the video.

        Args:
            count: Frames shown.
            times: Times of the first and the last picture shown, in units of ``time_base``; None if not known.
        """
        width, height = self.coded_size[:: -1 if self.turns % 2 else 1]
        if self.container == "avi" and self.duration:  # its packets carry no presentation times
            duration = self.duration
        elif times is None or times[0] == times[1]:
            duration = count / self.rate if self.rate else self.duration
        else:
            tail = self.last_duration or (times[1] - times[0]) / max(count - 1, 1)
            duration = float((times[1] - times[0] + tail) * self.time_base)
        fps = count / duration if duration else self.rate
        # The header's rate is exact where times are rounded, e.g. to the milliseconds of Matroska.
        return VideoInfo(count, self.rate if abs(self.rate - fps) < 0.01 * fps else fps, width, height, duration)


@contextmanager
def open_stream(source: Source, place: str | BinaryIO, threads: int = 1) -> Iterator[tuple[Any, Any]]:
    """Opens a container and its first video stream that is not a cover picture; closes it in any case.

    Args:
        source: What the caller named, for messages.
        place: What ``sources.resolve`` made of it.
        threads: Decoder threads; 0 lets the decoder choose.

    Yields:
        PyAV's (container, stream).

    Raises:
        VideoError: Not a video, or no video stream.
    """
    import av

    if not isinstance(place, str):
        place.seek(0)
    try:
        # The prefix keeps names such as "a:b.mp4" from being taken for a protocol.
        container = av.open(
            f"file:{place}" if isinstance(place, str) else place,
            metadata_errors="ignore",
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
        stream.codec_context.thread_count = threads
        yield container, stream


def scan_packets(source: Source, place: str | BinaryIO) -> PacketIndex:
    """Lists the packets of a video; only the first picture is decoded, for its size and orientation.

    Raises:
        VideoError: Not a video, no video stream, a stream without packets, or none whose first picture decodes.
    """
    import av

    pts, key, discard, last = [], [], [], (NO_TIME, 0)
    first, unsafe_keys, damage = None, False, None
    with open_stream(source, place) as (container, stream):
        codec = stream.codec_context.codec.canonical_name
        irregular = _stream_irregularity(codec, stream)
        extradata = stream.codec_context.extradata or b""
        try:
            for packet in container.demux(stream):
                if packet.size == 0:
                    continue
                pts.append(NO_TIME if packet.pts is None else packet.pts)
                key.append(packet.is_keyframe)
                discard.append(packet.is_discard)
                if packet.is_keyframe and codec == "h264":
                    unsafe_keys |= not has_idr(bytes(packet), extradata)
                if not packet.is_discard and pts[-1] >= last[0]:
                    last = (pts[-1], packet.duration or 0)
                if packet.is_corrupt:
                    damage = damage or f"packet {len(pts) - 1} is incomplete"
                irregular = irregular or _packet_irregularity(codec, packet)
                if first is None:
                    first, problem = _try_decode(stream, packet)
                    damage = damage or problem
        except av.FFmpegError as error:
            damage = f"reading stopped after {len(pts)} packets ({error.strerror})"
        if not pts:
            raise VideoError(source, "0 frames: its video stream holds no pictures")
        if stream.frames > len(pts) and container.format.name.startswith("mov"):
            damage = f"the file ends early: {len(pts)} of {stream.frames} pictures are there"
        if first is None:
            first, problem = _try_decode(stream, None)
        if first is None:
            raise VideoError(source, f"no frame decodes ({damage or problem or 'the decoder shows no picture'})")
        turns, mirrored = orientation(first)
        return PacketIndex(
            container=container.format.name,
            codec=codec,
            pts=np.array(pts, np.int64),
            key=np.array(key, bool),
            discard=np.array(discard, bool),
            time_base=Fraction(stream.time_base or 0),
            last_duration=last[1],
            duration=float((stream.duration or 0) * (stream.time_base or 0)),
            rate=float(stream.average_rate or stream.guessed_rate or 0),
            coded_size=(first.width, first.height),
            turns=turns,
            mirrored=mirrored,
            unsafe_keys=unsafe_keys,
            num_streams=len(container.streams.video),
            irregular=irregular,
            damage=damage,
        )


def _try_decode(stream: Any, packet: Any) -> tuple[Any, str | None]:
    """Returns (the first frame that comes out or None, what went wrong or None)."""
    import av

    try:
        frames = stream.codec_context.decode(packet)
    except av.FFmpegError as error:
        return None, f"its first pictures do not decode: {error.strerror}"
    return (frames[0] if frames else None), None


def has_idr(data: bytes, extradata: bytes) -> bool:
    """Returns whether an H.264 packet holds a slice of an IDR picture (NAL unit type 5).

    Source: ISO/IEC 14496-15, 5.3.3 (length prefixes, as in mp4) and ITU-T H.264 annex B (start codes).
    """
    if not extradata.startswith(b"\1"):
        return any(unit[:1] and unit[0] & 31 == 5 for unit in data.split(b"\0\0\1")[1:])
    width, position = (extradata[4] & 3) + 1, 0
    while position + width < len(data):
        if data[position + width] & 31 == 5:
            return True
        position += width + int.from_bytes(data[position : position + width], "big")
    return False


def _stream_irregularity(codec: str, stream: Any) -> str | None:
    if codec not in PACKET_CODECS:
        return f"packets of {codec} need not be one picture each"
    if codec in ("h264", "hevc") and int(stream.codec_context.field_order) > 1:  # 0 unknown, 1 progressive
        return "interlaced: a packet may hold one field only"
    return None


def _packet_irregularity(codec: str, packet: Any) -> str | None:
    if codec == "vp8":
        return None if bytes(packet)[0] & 0x10 else "it holds hidden pictures"
    if codec == "vp9":
        return "it holds hidden pictures" if is_hidden_vp9(bytes(packet)) else None
    if codec == "mpeg4" and (packet.size < 20 or bytes(packet).count(b"\0\0\1\xb6") != 1):
        return "packed or skipped MPEG-4 pictures"
    return None


def is_hidden_vp9(data: bytes) -> bool:
    """Returns whether a packet with a single VP9 frame has ``show_frame`` unset.

    Source: VP9 bitstream specification, section 6.2 (uncompressed header) and annex B (superframes).
    """
    if data[-1] & 0xE0 == 0xC0:  # a superframe: by its definition it ends with the one picture that is shown
        return False
    bits = f"{data[0]:08b}{data[1]:08b}" if len(data) > 1 else f"{data[0]:08b}00000000"
    position = 4 + (bits[2:4] == "11")
    if bits[position] == "1":  # show_existing_frame
        return False
    return bits[position + 2] == "0"
