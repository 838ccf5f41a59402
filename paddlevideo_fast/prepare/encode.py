"""Encodes one video so that clips of it are cheap to read, and proves that the file shows the same frames."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from paddlevideo_fast.data.readers import VideoError, build_reader
from paddlevideo_fast.data.readers.packets import NO_TIME, WITH_TIMES, PacketIndex, scan_packets
from paddlevideo_fast.data.readers.pictures import as_array, turn
from paddlevideo_fast.data.readers.pyav import PyavVideo
from paddlevideo_fast.data.video import Limits

# What x264 is asked for beside quality; docs/preparing.md has what each costs. Groups of 64 pictures are closed, and no
# picture refers to a B picture, so that a reader can leave out 7 (15) of 8 (16) pictures. "fastdecode" is x264's tune:
# plain entropy coding, no deblocking, no weighted prediction.
_B7 = {"g": "64", "x264-params": "bframes=7:b-adapt=0:b-pyramid=none:open-gop=0"}
_B15 = {"g": "64", "x264-params": "bframes=15:b-adapt=0:b-pyramid=none:open-gop=0"}
_FAST = {"tune": "fastdecode"}
ENCODES: dict[str, dict[str, str]] = {
    "default": {},
    "g30": {"g": "30"},
    "b7": _B7,
    "b7-fastdecode": {**_B7, **_FAST},
    "b15-fastdecode": {**_B15, **_FAST},
    "intra": {"g": "1", **_FAST},
}
SAMPLED_FRAMES = 12  # compared with the source
MIN_TIMESCALE, MAX_TIMESCALE = 10_000, 1_000_000  # ticks a second; frame times are whole ticks
RGB = 0  # as the matrix of a picture: FFmpeg's AVCOL_SPC_RGB
SOME_RATE = 25  # frames a second of a file that has no times at all


@dataclass(frozen=True)
class Settings:
    """How videos are stored.

    Attributes:
        encode: A name in ``ENCODES``.
        short_side: Pixels of the shorter side; smaller videos keep their size. None keeps every size.
        crf: x264's constant rate factor, 0 to 51; less is better and larger.

    Raises:
        ValueError: A value is out of range.
    """

    encode: str = "b7-fastdecode"
    short_side: int | None = 256
    crf: float = 23.0

    def __post_init__(self) -> None:
        if self.encode not in ENCODES:
            raise ValueError(f"encode {self.encode!r} is not one of {', '.join(ENCODES)}")
        if self.short_side is not None and self.short_side < 16:
            raise ValueError(f"short_side must be at least 16 pixels, got {self.short_side}")
        if not 0 <= self.crf <= 51:
            raise ValueError(f"crf must be from 0 to 51, got {self.crf}")

    def __str__(self) -> str:
        return f"--encode {self.encode} --short-side {self.short_side or 0} --crf {self.crf:g}"


@dataclass(frozen=True)
class Encoded:
    """What became of a video.

    Attributes:
        num_frames: Frames, as many as the source has.
        num_bytes: Of the file written.
        psnr: dB over all samples of luma and chroma of some frames, against those given to the encoder.
    """

    num_frames: int
    num_bytes: int
    psnr: float


def encoded_size(width: int, height: int, short_side: int | None) -> tuple[int, int]:
    """Returns the (width, height) a picture is scaled to: even numbers, never larger than it is unless it has 1 pixel.

    Args:
        width: Pixels.
        height: Pixels.
        short_side: See ``Settings``.
    """
    scale = min(1.0, short_side / min(width, height)) if short_side else 1.0
    return tuple(max(2, min(2 * round(side * scale / 2), side // 2 * 2)) for side in (width, height))


def frame_times(video: PyavVideo) -> tuple[np.ndarray, int]:
    """Returns when each frame is shown: rising ticks, int64 [num_frames], 0 for the first; and ticks a second.

    Where the file does not carry a time for each frame, they follow each other at the rate a reader gives.
    """
    index, count = video.index, video.info.num_frames
    if index.container in WITH_TIMES and video.order is not None and video.order.min() >= 0 and index.time_base:
        times = index.pts[video.order]
        if (times != NO_TIME).all():
            unit = index.time_base
            scale = unit.denominator * math.ceil(MIN_TIMESCALE / unit.denominator)
            scale = min(scale, MAX_TIMESCALE)
            ratio = unit * scale
            ticks = (times - times[0]) * ratio.numerator // ratio.denominator
            places = np.arange(count)
            return np.maximum.accumulate(ticks - places) + places, scale  # those that repeat are one tick apart
    rate = frame_rate(video)
    factor = math.ceil(MIN_TIMESCALE / rate.numerator)
    return np.arange(count) * rate.denominator * factor, rate.numerator * factor


def frame_rate(video: PyavVideo) -> Fraction:
    return Fraction(video.info.fps or SOME_RATE).limit_denominator(1001)


def encode_video(source: str, target: str, settings: Settings) -> Encoded:
    """Writes an mp4 file with all frames of a video, upright, at the times they have there; no sound.

    Args:
        source: A video file.
        target: File to write.
        settings: How.

    Raises:
        VideoError: The source does not decode from beginning to end, or what was written is not what it should be.
        av.FFmpegError: The encoder or the disk refuses.
    """
    import av

    with build_reader("pyav").open(source) as video:
        if video.damage:
            raise VideoError(source, f"{video.damage} ({video.info.num_frames} frames decode)")
        info, (ticks, scale) = video.info, frame_times(video)
        size = encoded_size(info.width, info.height, settings.short_side)
        # Drawn, not evenly spaced: that would meet more key frames, or fewer, than there are.
        count = min(SAMPLED_FRAMES, info.num_frames)
        sampled = set(np.random.default_rng(0).choice(info.num_frames, count, replace=False).tolist())
        samples: dict[int, np.ndarray] = {}
        fit, encoder = FrameFitter(video, size), None
        with av.open(target, "w", format="mp4", options={"movflags": "faststart"}) as output:
            for index, frame in video.frames_at(range(info.num_frames)):
                encoder = encoder or add_encoder(output, settings, size, frame_rate(video), scale, frame)
                fitted = fit(frame)
                if index in sampled:
                    samples[index] = fitted.to_ndarray()
                fitted.pts, fitted.time_base = int(ticks[index]), Fraction(1, scale)
                output.mux(encoder.encode(fitted))
            output.mux(encoder.encode(None))
        duration = info.duration or float(ticks[-1] / scale)
    psnr = verify(source, target, size, ticks, scale, duration, samples)
    return Encoded(info.num_frames, os.path.getsize(target), psnr)


def add_encoder(output: Any, settings: Settings, size: tuple[int, int], rate: Fraction, scale: int, frame: Any) -> Any:
    """Adds the video stream, with the colours of the source's first frame."""
    options = {"preset": "medium", "crf": f"{settings.crf:g}", "a53cc": "0", **ENCODES[settings.encode]}
    stream = output.add_stream("libx264", rate=rate, options=options)
    stream.width, stream.height = size
    stream.pix_fmt = "yuv420p"
    context = stream.codec_context
    context.thread_count = 1  # the files are what runs in parallel
    stream.time_base = context.time_base = Fraction(1, scale)
    if _has_yuv_tags(frame):
        context.colorspace, context.color_range = frame.colorspace, frame.color_range
    context.color_primaries, context.color_trc = frame.color_primaries, frame.color_trc
    return stream


def _has_yuv_tags(frame: Any) -> bool:
    return not frame.format.is_rgb and frame.colorspace != RGB


class FrameFitter:
    """Makes of decoded frames what is encoded: 8 bits 4:2:0, upright, of one size, with colours as they are tagged.

    Args:
        video: Where the frames come from.
        size: (width, height).
    """

    def __init__(self, video: PyavVideo, size: tuple[int, int]):
        from av.video.reformatter import Interpolation, VideoReformatter

        self._turns, self._mirrored, self._size = video.index.turns, video.index.mirrored, size
        self._scaler = VideoReformatter()
        self._flags = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT

    def __call__(self, frame: Any) -> Any:
        """Returns a new PyAV frame that carries pixels only: no time, no picture type, no side data."""
        import av

        coded = self._size[:: -1 if self._turns % 2 else 1]
        # Without YUV tags to keep: what untagged YUV counts as.
        plain = {} if _has_yuv_tags(frame) else {"dst_colorspace": "itu601", "dst_color_range": "MPEG"}
        scaled = self._scaler.reformat(frame, *coded, "yuv420p", interpolation=self._flags, threads=1, **plain)
        fitted = av.VideoFrame(*self._size, "yuv420p")
        for plane, made in zip(scaled.planes, fitted.planes, strict=True):
            samples = as_array(plane, np.uint8)[: plane.height, : plane.width]
            as_array(made, np.uint8)[: made.height, : made.width] = turn(samples, self._turns, self._mirrored)
        return fitted


def verify(
    source: str,
    target: str,
    size: tuple[int, int],
    ticks: np.ndarray,
    scale: int,
    duration: float,
    samples: dict[int, np.ndarray],
) -> float:
    """Reads a written file back with the project's readers.

    Args:
        source: For messages.
        target: The file written.
        size: (width, height) it should have.
        ticks: Times its frames should have.
        scale: Ticks a second.
        duration: Seconds the source lasts.
        samples: Some frames as they were given to the encoder, by index; uint8 [3 * height / 2, width], planes in turn.

    Returns:
        PSNR of the samples in dB; infinite if they are the same.

    Raises:
        VideoError: Frame count, times, size or duration are others, or a frame does not decode.
    """
    fault = _find_fault(scan_packets(target, target, Limits()), size, ticks, scale, duration)
    if fault is not None:
        raise VideoError(source, f"the file written of it is wrong: {fault}")
    wanted, error = sorted(samples), 0.0
    with build_reader("fused").open(target) as video:
        for number, frame in video.decode(wanted):
            error += float(np.mean((frame.to_ndarray().astype(np.float32) - samples[number]) ** 2))
    return 10 * math.log10(255**2 * len(wanted) / error) if error else math.inf


def _find_fault(
    index: PacketIndex, size: tuple[int, int], ticks: np.ndarray, scale: int, duration: float
) -> str | None:
    """Returns how a file differs from what it should be; None if it does not. For the arguments see ``verify``."""
    info, doubt = index.info(), index.doubt()
    if doubt is not None:
        return doubt
    if info.num_frames != len(ticks):
        return f"{info.num_frames} frames instead of {len(ticks)}"
    if index.coded_size != size:
        return f"pictures of {index.coded_size} instead of {size}"
    if not np.array_equal((index.shown_pts - index.shown_pts[0]) * float(index.time_base * scale), ticks):
        return "frames at other times"
    longest = int(np.diff(ticks).max(initial=scale / SOME_RATE)) / scale
    if abs(info.duration - duration) > 1.5 * longest:
        return f"{info.duration:.3f} s instead of {duration:.3f} s"
    return None
