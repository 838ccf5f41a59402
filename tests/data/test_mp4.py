"""The sample tables of mp4 files: the same facts as FFmpeg's demuxer gives, or none."""

from __future__ import annotations

import io
import struct
from fractions import Fraction

import av
import numpy as np
import pytest
from conftest import MAKERS

from paddlevideo_fast.data.readers import build_reader
from paddlevideo_fast.data.readers.feeds import DemuxedFeed, Mp4Feed
from paddlevideo_fast.data.readers.mp4 import progressive_size, read_samples
from paddlevideo_fast.data.readers.packets import scan_packets
from paddlevideo_fast.data.video import Limits

# Not H.264, or something that only the demuxer knows how to take.
LEFT = ["late_start.mp4", "interlaced.mp4", "fragmented.mp4", "edit_list.mp4", "mid_gop.mp4"]
LEFT += ["mpeg4_b.mp4", "hevc.mp4", "hevc_open.mp4", "hevc_layers.mp4", "av1.mp4"]
TURNED = ["rotated_90.mp4", "rotated_180.mp4", "rotated_270.mp4", "mirrored.mp4"]


@pytest.mark.parametrize("name", [name for name in MAKERS if name.endswith(".mp4")])
def test_tables_tell_what_the_demuxer_tells(name, video_file):
    path = video_file(name)
    with open(path, "rb") as file:
        samples = read_samples(file)
    if name in LEFT:
        assert samples is None
        return
    index = scan_packets(path, str(path), Limits())
    np.testing.assert_array_equal(samples.index.pts, index.pts - index.pts.min())
    np.testing.assert_array_equal(samples.index.key, index.key)
    np.testing.assert_array_equal(samples.index.start, index.start)
    np.testing.assert_array_equal(samples.index.order, index.order)
    assert samples.index.coded_size == index.coded_size and not index.discard.any()
    assert samples.index.doubt() is None and index.doubt() is None
    if name not in TURNED:
        assert samples.index.info() == index.info()
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
    data = path.read_bytes()
    for packet, offset, size in zip(packets, samples.offsets.tolist(), samples.sizes.tolist(), strict=True):
        assert packet.pos == offset and bytes(packet) == data[offset : offset + size]


@pytest.mark.parametrize("name", [name for name in MAKERS if name.endswith(".mp4")])
def test_tables_are_used_where_they_suffice(name, video_file):
    with build_reader("fused").open(video_file(name)) as video:
        if name not in ("mid_gop.mp4",):
            kind = DemuxedFeed if name in (*LEFT, *TURNED) else Mp4Feed
            assert type(video._feed) is kind


@pytest.mark.parametrize("size", [(96, 64), (130, 98), (16, 16), (340, 256)])
@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv444p", "yuv422p10le"])
@pytest.mark.parametrize("profile", ["baseline", None])
def test_sizes_come_from_the_parameter_set(size, pix_fmt, profile):
    if profile and pix_fmt != "yuv420p":
        pytest.skip("baseline is 4:2:0")
    for interlaced in (False, True):
        context = av.CodecContext.create("libx264", "w")
        context.width, context.height = size
        context.pix_fmt, context.time_base, context.framerate = pix_fmt, Fraction(1, 25), 25
        context.options = {"x264-params": "tff=1" if interlaced else "", **({"profile": profile} if profile else {})}
        context.flags |= 1 << 22  # global header
        try:
            context.open()
        except av.FFmpegError:
            assert interlaced  # fields need heights that are multiples of 4
            continue
        units = [unit for unit in context.extradata.split(b"\0\0\1") if unit[:1] and unit[0] & 31 == 7]
        unit = units[0].rstrip(b"\0")
        record = bytes([1, *unit[1:4], 0xFF, 0xE1]) + struct.pack(">H", len(unit)) + unit + b"\1\0\0"
        assert progressive_size(record) == (None if interlaced else size)


@pytest.mark.parametrize(
    "old, new",
    [
        (b"url \0\0\0\1", b"url \0\0\0\0"),  # the samples lie in another file
        (b"avc1", b"encv"),
        (b"stss", b"stps"),
        (b"mdhd", b"junk"),
    ],
)
def test_anything_unusual_is_left_to_the_demuxer(old, new, video_file, tmp_path):
    path = tmp_path / "odd.mp4"
    data = video_file("plain.mp4").read_bytes()
    path.write_bytes(data[:-2000] + data[-2000:].replace(old, new, 1))
    assert path.read_bytes() != data
    with open(path, "rb") as file:
        assert read_samples(file) is None


def test_damaged_tables_are_left_to_the_demuxer(video_file):
    """Every byte of the tables in turn: nothing but an answer, or none."""
    data = video_file("plain.mp4").read_bytes()
    start, answers = data.index(b"moov") - 4, 0
    for place in range(start, len(data), 3):
        for value in (0, 255, data[place] ^ 1):
            changed = data[:place] + bytes([value]) + data[place + 1 :]
            samples = read_samples(io.BytesIO(changed))
            if samples is not None:
                answers += 1
                assert (samples.offsets >= 0).all() and (samples.offsets + samples.sizes <= len(data)).all()
    assert answers
