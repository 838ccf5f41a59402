"""Small videos made for the tests: every picture carries its own number, and enough texture to tell any error."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path

import av  # before decord is loaded by any test: its FFmpeg keeps PyAV's VP8 and VP9 encoders from opening
import numpy as np
import pytest

WIDTH, HEIGHT, NUM_FRAMES, RATE = 96, 64, 40, 25
CODE_BITS, CODE_SIZE = 6, 12


def draw_picture(index: int, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """uint8 [height, width, 3]: moving coloured waves, and along the top the number in black and white squares."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    waves = [np.sin(x / 7 + index / 3), np.sin(y / 5 - index / 4), np.sin((x + y) / 11 + index / 5)]
    noise = np.random.default_rng(0).normal(0, 6, (height, width, 1))
    picture = np.clip(np.stack(waves, -1) * 50 + 120 + noise, 0, 255).astype(np.uint8)
    for bit in range(CODE_BITS):
        columns = slice(bit * CODE_SIZE + 4, (bit + 1) * CODE_SIZE + 4)
        picture[4 : 4 + CODE_SIZE, columns] = 235 if index >> bit & 1 else 20
    return picture


def read_number(picture: np.ndarray) -> int:
    """The number ``draw_picture`` wrote into a picture, from a decoded one in upright orientation."""
    centres = [picture[8:12, bit * CODE_SIZE + 8 : bit * CODE_SIZE + 12].mean() for bit in range(CODE_BITS)]
    return sum((centre > 128) << bit for bit, centre in enumerate(centres))


def encode(
    path: str | Path | io.BytesIO,
    codec: str = "libx264",
    pix_fmt: str = "yuv420p",
    options: dict[str, str] | None = None,
    container: str | None = None,
    container_options: dict[str, str] | None = None,
    count: int = NUM_FRAMES,
    size: tuple[int, int] = (WIDTH, HEIGHT),
    times: list[int] | None = None,
    interlaced: bool = False,
    rotation: float | None = None,
    hflip: bool = False,
    colours: tuple[int, int] | None = None,
    streams: int = 1,
    cover: bool = False,
    draw: Callable[[int, int, int], np.ndarray] = draw_picture,
) -> None:
    """Writes a video with PyAV; ``times`` in units of 1/25 s, ``colours`` is (matrix, range) in FFmpeg's numbers."""
    with av.open(path, "w", format=container, container_options=container_options or {}) as output:
        made = [output.add_stream(codec, rate=RATE, options=options or {}) for _ in range(streams)]
        for number, stream in enumerate(made):
            stream.width, stream.height = size if number == 0 else (48, 32)
            stream.pix_fmt = pix_fmt
            stream.codec_context.time_base = Fraction(1, RATE)
            if colours:
                stream.codec_context.colorspace, stream.codec_context.color_range = colours
            if rotation is not None:
                stream.set_display_rotation(rotation, hflip=hflip)
        if cover:
            image = io.BytesIO()
            encode(image, "mjpeg", "yuvj420p", container="mjpeg", count=1, size=(32, 32))
            output.add_attachment("cover.jpg", "image/jpeg", image.getvalue())
        for index in range(count):
            for stream in made:
                frame = av.VideoFrame.from_ndarray(draw(index, stream.width, stream.height))
                if colours:
                    frame = frame.reformat(format=pix_fmt, dst_colorspace=colours[0], dst_color_range=colours[1])
                frame.pts, frame.time_base = times[index] if times else index, Fraction(1, RATE)
                output.mux(stream.encode(frame))
        for stream in made:
            output.mux(stream.encode(None))


def remux(source: Path, target: Path, start: int = 0, shift: int = 0, repeat: bool = False) -> None:
    """Copies the packets of a video from number ``start`` on.

    Their times move by ``shift`` frames; with ``repeat`` every second packet has the time of the one before.
    """
    with av.open(str(source)) as read, av.open(str(target), "w") as output:
        stream = output.add_stream_from_template(read.streams.video[0])
        step = round(1 / (RATE * read.streams.video[0].time_base))
        for number, packet in enumerate(read.demux(video=0)):
            if packet.size == 0 or number < start:
                continue
            packet.stream = stream
            move = shift * step - (step if repeat and number % 2 else 0)
            packet.pts, packet.dts = packet.pts + move, packet.dts + move
            output.mux(packet)


def hide_one(source: Path, target: Path) -> None:
    """Copies a VP8 video and slips in one more picture whose header (RFC 6386, 9.1) says it is not to be shown."""
    with av.open(str(source)) as read, av.open(str(target), "w") as output:
        stream = output.add_stream_from_template(read.streams.video[0])
        for number, packet in enumerate(read.demux(video=0)):
            if packet.size == 0:
                continue
            packets = [packet]
            if number == 20:
                data = bytearray(bytes(packet))
                data[0] &= ~0x10
                hidden = av.Packet(bytes(data))
                hidden.pts = hidden.dts = packet.pts - 10
                hidden.time_base = packet.time_base
                packets.insert(0, hidden)
            for each in packets:
                each.stream = stream
                output.mux(each)


def write_packed_avi(path: Path) -> None:
    """Writes MPEG-4 the way DivX 5 did: a B picture rides in the packet before, an empty one takes its place."""
    plain = io.BytesIO()
    encode(
        plain, "mpeg4", options={"bf": "1", "g": "12", "b_strategy": "0", "sc_threshold": "1000000000"}, container="avi"
    )
    plain.seek(0)
    with av.open(plain) as read, av.open(str(path), "w") as output:
        stream = output.add_stream("mpeg4", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        chunks = [bytes(packet) for packet in read.demux(video=0) if packet.size]
        chunks[0] = b"\0\0\1\xb2DivX503b1393p\0" + chunks[0]
        packed, position = [], 0
        while position < len(chunks):
            following = chunks[position + 1 : position + 2]
            if following and _vop_type(following[0]) == 2:
                packed += [chunks[position] + following[0], b"\0\0\1\xb6\x50\x00\x07"]
                position += 2
            else:
                packed.append(chunks[position])
                position += 1
        for number, chunk in enumerate(packed):
            packet = av.Packet(chunk)
            packet.stream, packet.time_base = stream, Fraction(1, RATE)
            packet.pts = packet.dts = number
            packet.is_keyframe = _vop_type(chunk) == 0
            output.mux(packet)


def _vop_type(data: bytes) -> int:
    return data[data.index(b"\0\0\1\xb6") + 4] >> 6


GOP = {"g": "12"}
QUIET_X265 = "log-level=none:keyint=12:pools=none:frame-threads=1:"
VFR = [index + index // 3 + 2 * (index // 7) for index in range(NUM_FRAMES)]

MAKERS: dict[str, Callable[[Path], None]] = {
    "plain.mp4": lambda p: encode(p, options=GOP),
    "plain.mkv": lambda p: encode(p, options=GOP),
    "long_gop.mp4": lambda p: encode(p, options={"g": "250"}),
    "no_b.mp4": lambda p: encode(p, options={**GOP, "bf": "0"}),
    "mpeg4.avi": lambda p: encode(p, "mpeg4", options=GOP),
    # Three threads, which this encoder takes on two cores: with fewer it skips a picture, which is another case.
    "mpeg4_b.avi": lambda p: encode(p, "mpeg4", options={**GOP, "bf": "2", "threads": "3"}),
    "mpeg4_b.mp4": lambda p: encode(p, "mpeg4", options={**GOP, "bf": "2", "threads": "3"}),
    "packed.avi": write_packed_avi,
    "h264_b.avi": lambda p: encode(p, options=GOP),
    "mjpeg.avi": lambda p: encode(p, "mjpeg", "yuvj420p"),
    "h264.flv": lambda p: encode(p, options=GOP),
    "h264.ts": lambda p: encode(p, options=GOP),
    "vp8.webm": lambda p: encode(p, "libvpx", options={**GOP, "cpu-used": "8", "deadline": "realtime"}),
    "vp8_hidden.webm": lambda p: hide_one(made(p, "vp8.webm"), p),
    "vp9.webm": lambda p: encode(p, "libvpx-vp9", options={**GOP, "cpu-used": "8", "deadline": "realtime"}),
    "vp9_super.webm": lambda p: encode(
        p, "libvpx-vp9", options={"auto-alt-ref": "1", "lag-in-frames": "16", "cpu-used": "5", "g": "20"}
    ),
    "hevc.mp4": lambda p: encode(p, "libx265", options={"x265-params": QUIET_X265 + "open-gop=0"}),
    "hevc_open.mp4": lambda p: encode(p, "libx265", options={"x265-params": QUIET_X265 + "open-gop=1"}),
    "late_start.ts": lambda p: remux(made(p, "h264.ts"), p, shift=500),
    "av1.mp4": lambda p: encode(p, "libsvtav1", options={"preset": "12", "g": "12"}),
    "wmv2.wmv": lambda p: encode(p, "wmv2", options=GOP),
    "mpeg2.mpg": lambda p: encode(p, "mpeg2video", options={**GOP, "bf": "2"}),
    "vfr.mp4": lambda p: encode(p, options=GOP, times=VFR),
    "vfr.webm": lambda p: encode(p, "libvpx-vp9", options={**GOP, "cpu-used": "8"}, times=VFR),
    "repeated_times.mkv": lambda p: remux(made(p, "mjpeg.avi"), p, repeat=True),
    "late_start.mp4": lambda p: encode(p, options=GOP, times=[index + 50 for index in range(NUM_FRAMES)]),
    "odd_444.mp4": lambda p: encode(p, pix_fmt="yuv444p", options=GOP, size=(127, 95)),
    "odd_420.avi": lambda p: encode(p, "mpeg4", options=GOP, size=(127, 95)),
    "ten_bit.mp4": lambda p: encode(p, pix_fmt="yuv420p10le", options=GOP),
    "bt709.mp4": lambda p: encode(p, options=GOP, colours=(1, 1)),
    "bt709_full.mp4": lambda p: encode(p, options=GOP, colours=(1, 2)),
    "full.mp4": lambda p: encode(p, options=GOP, colours=(5, 2)),
    "rotated_90.mp4": lambda p: encode(p, options=GOP, rotation=90),
    "rotated_180.mp4": lambda p: encode(p, options=GOP, rotation=180),
    "rotated_270.mp4": lambda p: encode(p, options=GOP, rotation=-90),
    "mirrored.mp4": lambda p: encode(p, options=GOP, rotation=90, hflip=True),
    "one.mp4": lambda p: encode(p, count=1),
    "three.mp4": lambda p: encode(p, count=3),
    "two_streams.mkv": lambda p: encode(p, options=GOP, streams=2),
    "cover.mkv": lambda p: encode(p, options=GOP, cover=True),
    "veryfast.mp4": lambda p: encode(p, options={**GOP, "preset": "veryfast"}),
    "pyramid_strict.mkv": lambda p: encode(p, options={**GOP, "x264-params": "b-pyramid=strict:bframes=5:b-adapt=0"}),
    "pyramid_none.mp4": lambda p: encode(p, options={**GOP, "x264-params": "b-pyramid=none:bframes=7:b-adapt=0"}),
    "baseline.mp4": lambda p: encode(p, options={**GOP, "profile": "baseline"}),
    "sliced.mp4": lambda p: encode(p, options={**GOP, "x264-params": "slices=3"}),
    "hevc_layers.mp4": lambda p: encode(
        p, "libx265", options={"x265-params": QUIET_X265 + "temporal-layers=3:bframes=3:b-adapt=0:b-pyramid=1"}
    ),
    "open_gop.mp4": lambda p: encode(p, options={**GOP, "x264-params": "open-gop=1:bframes=3:b-adapt=0"}),
    "intra_refresh.mp4": lambda p: encode(p, options={**GOP, "x264-params": "intra-refresh=1"}),
    "intra_refresh_no_b.mp4": lambda p: encode(p, options={**GOP, "x264-params": "intra-refresh=1:bframes=0"}),
    "interlaced.mp4": lambda p: encode(p, options={**GOP, "x264-params": "tff=1"}),
    "fragmented.mp4": lambda p: encode(
        p, options=GOP, container_options={"movflags": "frag_keyframe+empty_moov+default_base_moof"}
    ),
    "raw.h264": lambda p: encode(p, options=GOP),
    "raw.hevc": lambda p: encode(p, "libx265", options={"x265-params": QUIET_X265 + "open-gop=0"}),
    "edit_list.mp4": lambda p: remux(made(p, "plain.mp4"), p, shift=-5),
    "mid_gop.ts": lambda p: remux(made(p, "h264.ts"), p, start=5),
    "mid_gop.mp4": lambda p: remux(made(p, "plain.mp4"), p, start=5),
}


def made(beside: Path, name: str) -> Path:
    """The named video in the folder of another file, written if it is not there."""
    path = beside.with_name(name)
    if not path.exists():
        MAKERS[name](path)
    return path


@pytest.fixture(autouse=True)
def logger_as_it_was() -> Iterator[None]:
    """A command that runs inside a test leaves its handlers on the project's logger, and their streams are closed."""
    logger = logging.getLogger("paddlevideo_fast")
    handlers, propagate, level = logger.handlers[:], logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture(scope="session")
def video_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A function from a name of ``MAKERS`` to the file, written once a session."""
    folder = tmp_path_factory.mktemp("videos")
    return lambda name: made(folder / name, name)


def decode_all(path: str | Path) -> list[av.VideoFrame]:
    """Every frame of the first video stream: a plain sequential decode, errors before the first frame ignored."""
    frames = []
    with av.open(str(path), metadata_errors="ignore") as container:
        for packet in container.demux(container.streams.video[0]):
            try:
                frames += packet.decode()
            except av.InvalidDataError:
                assert not frames
    return frames


def to_rgb(frames: list[av.VideoFrame]) -> np.ndarray:
    """uint8 [N, H, W, 3]: the frames through FFmpeg's scaler with its exact flags, not turned upright."""
    flags = av.video.reformatter.Interpolation
    exact = flags.BILINEAR | flags.ACCURATE_RND | flags.FULL_CHR_H_INT
    return np.stack([f.reformat(format="rgb24", interpolation=exact, threads=1).to_ndarray() for f in frames])


@pytest.fixture(scope="session")
def motion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a very small motion data set: 16, 8 and 8 clips of half a second, 48 to 64 pixels a side."""
    from paddlevideo_fast.prepare.motion import make_motion_dataset

    folder = tmp_path_factory.mktemp("motion")
    return make_motion_dataset(folder, train=16, valid=8, test=8, size=(48, 64), duration=(0.5, 0.6))
