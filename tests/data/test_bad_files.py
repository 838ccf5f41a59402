"""Every kind of bad file has a documented end: what decodes is right, the rest is an error in words, within bounds."""

from __future__ import annotations

import io
import logging
import struct
import sys
import tracemalloc
from fractions import Fraction

import av
import numpy as np
import pytest
from conftest import draw_picture, encode, read_number
from PIL import Image

from paddlevideo_fast.data.readers import READERS, DamagedVideoError, FrameFolder, VideoError, View, build_reader
from paddlevideo_fast.data.readers.frames import check_frame_folders
from paddlevideo_fast.data.records import VideoRecord
from paddlevideo_fast.data.video import MAX_PIXELS

FILE_READERS = [name for name in READERS if name != "frames"]


def write(path, data):
    path.write_bytes(data)
    return path


def packets_of(path):
    with av.open(str(path)) as container:
        return [packet for packet in container.demux(video=0) if packet.size]


def patched(source, target, tag, offset, form, *values, occurrence=0):
    """Copies a file and overwrites numbers at an offset from a four-letter tag."""
    data, place = bytearray(source.read_bytes()), -1
    for _ in range(occurrence + 1):
        place = data.index(tag, place + 1)
    struct.pack_into(form, data, place + offset, *values)
    return write(target, bytes(data))


# -- files without pictures --


def no_frames(path):
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        output.start_encoding()
    return path


def sound_only(path):
    with av.open(str(path), "w") as output:
        stream = output.add_stream("aac", rate=8000, layout="mono")
        for number in range(4):
            sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
            sound.sample_rate, sound.pts = 8000, number * 1024
            output.mux(stream.encode(sound))
        output.mux(stream.encode(None))
    return path


@pytest.mark.parametrize("reader", FILE_READERS)
def test_files_without_pictures(reader, video_file, tmp_path):
    whole = video_file("plain.mp4").read_bytes()
    cases = [
        (write(tmp_path / "zero.mp4", b""), "zero.mp4: the file is empty"),
        (write(tmp_path / "text.mp4", b"<html>404 not found</html>" * 9), "text.mp4: not a video file"),
        (write(tmp_path / "zeros.mp4", bytes(5000)), "zeros.mp4: not a video file"),
        (write(tmp_path / "picture.mp4", jpeg_of(0)), "picture.mp4: not a video file"),
        (sound_only(tmp_path / "sound.mp4"), r"sound.mp4: no video stream \(the file holds audio\)"),
        (no_frames(tmp_path / "none.mp4"), "none.mp4: no video stream|0 frames"),
        (
            patched(video_file("plain.mp4"), tmp_path / "empty.mp4", b"stsz", 12, ">I", 0),
            "0 frames: its video stream holds no pictures",
        ),
        (write(tmp_path / "moov.mp4", whole[:4000]), "moov.mp4: truncated: the index .* is missing"),
        (write(tmp_path / "head.mkv", video_file("plain.mkv").read_bytes()[:300]), "head.mkv: .*"),
    ]
    for source, message in cases:
        with pytest.raises(VideoError, match=message) as error:
            build_reader(reader).probe(source)
        assert len(str(error.value)) < 400 and "\n" not in str(error.value)


def jpeg_of(number, size=(96, 64)):
    out = io.BytesIO()
    Image.fromarray(draw_picture(number, *size)).save(out, "JPEG", quality=95)
    return out.getvalue()


# -- files that end early or are damaged --


@pytest.mark.parametrize("name", ["plain.mkv", "h264.ts", "mpeg4_b.avi", "raw.h264", "vp9.webm", "fragmented.mp4"])
@pytest.mark.parametrize("reader", FILE_READERS)
def test_a_cut_file_has_the_frames_before_the_cut(reader, name, video_file, tmp_path):
    whole = video_file(name).read_bytes()
    place = packets_of(video_file(name))[25].pos
    cut = write(tmp_path / name, whole[: place + 30 if place else len(whole) * 6 // 10])
    every = build_reader("pyav").read(video_file(name), range(40))
    with build_reader(reader).open(cut) as video:
        count = video.info.num_frames
        assert 10 < count < 36
        # The last picture may have lost some bytes: the decoder shows what is there.
        np.testing.assert_allclose(
            video.read([View(range(count - 1))])[0], every[: count - 1], atol=45 * (reader != "pyav")
        )
        assert [read_number(picture) for picture in video.frames()][:-1] == list(range(count - 1))
        with pytest.raises(VideoError, match=f"frame {count} is outside"):
            video.read([View([count])])


@pytest.mark.parametrize("reader", FILE_READERS)
def test_how_many_frames_decode_is_told(reader, video_file, tmp_path):
    source = video_file("plain.mp4")
    data, packet = bytearray(source.read_bytes()), packets_of(source)[20]
    data[packet.pos : packet.pos + packet.size] = b"\xff" * packet.size
    rotten = write(tmp_path / "rotten.mp4", bytes(data))
    good = []  # by a plain decode
    with av.open(str(rotten)) as container, pytest.raises(av.InvalidDataError):
        for frame in container.decode(video=0):
            good.append(frame)
    maker = build_reader(reader)
    with pytest.raises(DamagedVideoError, match=f"decoding stopped at frame {len(good)} of 40: Invalid data") as error:
        maker.read(rotten, range(len(good) - 3, len(good) + 3))
    assert error.value.decodable == len(good) > 10
    with maker.open_first(rotten, error.value.decodable) as video:
        assert video.info.num_frames == len(good) and video.info.duration == pytest.approx(len(good) / 25)
        assert [read_number(picture) for picture in video.frames()] == list(range(len(good)))
        with pytest.raises(VideoError, match="outside"):
            video.read([View([len(good)])])


@pytest.mark.parametrize("reader", FILE_READERS)
def test_a_header_that_promises_too_much(reader, video_file, tmp_path):
    """AVI: frames in avih and strh; the count is that of the pictures in the file."""
    source = video_file("mpeg4.avi")
    for tag, offset in ((b"avih", 24), (b"strh", 40)):
        lying = patched(source, tmp_path / "lying.avi", tag, offset, "<I", 2_000_000_000)
        with build_reader(reader).open(lying) as video:
            assert video.info.num_frames == 40 and 20 < video.info.fps < 30
            assert read_number(video.read([View([39])])[0][0]) == 39


@pytest.mark.parametrize("reader", FILE_READERS)
def test_one_key_frame_in_ten_minutes(reader, tmp_path, monkeypatch):
    """A batch decodes each picture once at most and holds the wanted ones only."""
    path, count = tmp_path / "long.mp4", 1200
    encode(
        path,
        options={"g": "9999", "sc_threshold": "0", "preset": "ultrafast"},
        count=count,
        times=[i * 12 for i in range(count)],
    )
    with av.open(str(path)) as container:
        assert sum(packet.is_keyframe for packet in container.demux(video=0)) == 1
    decoded = 0
    advance = READERS["pyav"].open_file.__globals__["decode_stream"]

    def counted(*arguments):
        nonlocal decoded
        for frame in advance(*arguments):
            decoded += 1
            yield frame

    monkeypatch.setitem(READERS["pyav"].open_file.__globals__, "decode_stream", counted)
    views = [View(np.linspace(0, count - 1, 8).astype(int)), View([700, 3, 1199, 3])]
    with build_reader(reader).open(path) as video:
        assert video.info.duration == pytest.approx(576, abs=1)
        tracemalloc.start()
        clips = video.read(views)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    for clip, view in zip(clips, views, strict=True):
        assert [read_number(picture) for picture in clip] == [int(index) % 64 for index in view.indices]
    held = 36 if reader == "decord" else 16  # its batches have up to 32 frames
    coded = 2 * path.stat().st_size if reader == "fused" else 0  # small files are held as they are, and cut to packets
    assert peak < held * 96 * 64 * 3 + 400_000 + coded
    assert decoded == (count if reader == "pyav" else 0)


# -- rates --


def assert_sane(info, count=40):
    assert count is None or info.num_frames == count
    assert 0 <= info.fps <= 1000 and np.isfinite(info.duration)
    assert info.duration == pytest.approx(info.num_frames / info.fps if info.fps else 0, rel=0.1)


@pytest.mark.parametrize("reader", FILE_READERS)
@pytest.mark.parametrize(
    "scale, rate, fps",
    [(0, 0, 25), (2000, 1, 0), (100, 1, 0.01), (1, 0, 25), (0, 25, 25), (1, 10**9, 0), (10**6, 1, 0)],
)
def test_avi_rates(reader, scale, rate, fps, video_file, tmp_path):
    """The times of an AVI come from scale and rate in strh; where these mean nothing FFmpeg takes 25."""
    bad = patched(video_file("mpeg4.avi"), tmp_path / "bad.avi", b"strh", 28, "<II", scale, rate)
    info = build_reader(reader).probe(bad)
    assert_sane(info)
    assert info.fps == pytest.approx(fps, rel=0.01)


@pytest.mark.parametrize("reader", FILE_READERS)
@pytest.mark.parametrize("timescale", [0, 1, 12800, 2**31 - 1, 2**32 - 1])
def test_mp4_time_scales(reader, timescale, video_file, tmp_path):
    """The unit of all times of a track is in mdhd; with 1 the 40 frames last 512 s each."""
    info = build_reader(reader).probe(
        patched(video_file("no_b.mp4"), tmp_path / "bad.mp4", b"mdhd", 16, ">I", timescale)
    )
    # Where the track's times are nonsense its edit list, in units of mvhd, hides all pictures but the first.
    assert_sane(info, 40 if timescale in (12800, 2**31 - 1) else None)
    if timescale in (1, 12800):
        assert info.fps == pytest.approx(timescale / 512)


# -- bombs --


def mux(path, template, chunks):
    """Writes packets, (bytes, key), one a frame, with the stream description of another file."""
    with av.open(str(template)) as read, av.open(str(path), "w") as output:
        stream = output.add_stream_from_template(read.streams.video[0])
        for number, (data, key) in enumerate(chunks):
            packet = av.Packet(data)
            packet.stream, packet.time_base, packet.is_keyframe = stream, Fraction(1, 25), key
            packet.pts = packet.dts = number
            output.mux(packet)
    return path


RESIZED = {
    "mjpeg.avi": ("mjpeg", "yuvj420p", {}),
    "vp8.webm": ("libvpx", "yuv420p", {"deadline": "realtime", "cpu-used": "8"}),
    "vp9.webm": ("libvpx-vp9", "yuv420p", {"deadline": "realtime", "cpu-used": "8"}),
    "h264.ts": ("libx264", "yuv420p", {"bf": "0"}),
    "h264.mkv": ("libx264", "yuv420p", {"bf": "0"}),
    "hevc.mkv": ("libx265", "yuv420p", {"x265-params": "log-level=none:bframes=0:pools=none:frame-threads=1"}),
    "mpeg4.avi": ("mpeg4", "yuv420p", {}),
}


@pytest.fixture(scope="module")
def resized(tmp_path_factory):
    """A function from a key of RESIZED to a file of 10 pictures of 96x64 and 10 of 192x128."""
    folder = tmp_path_factory.mktemp("resized")

    def get(name):
        if not (folder / name).exists():
            codec, pix_fmt, options = RESIZED[name]
            form = {"libx264": "h264", "libx265": "hevc", "mpeg4": "avi"}.get(codec, name.split(".")[1])
            parts = [folder / f"{size}-{name}.{form}" for size in (1, 2)]
            for size, part in enumerate(parts, 1):
                encode(part, codec, pix_fmt, options=options, count=10, size=(96 * size, 64 * size))
            chunks = [(bytes(packet), packet.is_keyframe) for part in parts for packet in packets_of(part)]
            mux(folder / name, parts[0], chunks)
        return folder / name

    return get


@pytest.mark.parametrize("name", RESIZED)
@pytest.mark.parametrize("reader", FILE_READERS)
def test_a_change_of_size(reader, name, resized):
    """Later pictures are scaled to the size of the first; beyond the limit they are the end of what decodes."""
    with build_reader(reader).open(resized(name)) as video:
        assert video.info[:1] + video.info[2:4] == (20, 96, 64)
        clip = video.read([View([15, 3])])[0]
    small = np.asarray(Image.fromarray(draw_picture(5, 192, 128)).resize((96, 64), Image.Resampling.BILINEAR))
    assert np.abs(clip[0].astype(int) - small).mean() < 9 and read_number(clip[1]) == 3
    assert build_reader(reader, max_pixels=192 * 128).read(resized(name), [15]).shape == (1, 64, 96, 3)
    limited = build_reader(reader, max_pixels=192 * 128 - 1)
    with pytest.raises(DamagedVideoError, match="192x128 = 24576 pixels, more than max_pixels=24575 allows") as error:
        limited.read(resized(name), [3, 15])
    assert error.value.decodable == 10
    with pytest.raises(VideoError, match="its pictures are 96x64 = 6144 pixels, more than max_pixels=6143 allows"):
        build_reader(reader, max_pixels=6143).probe(resized(name))


def swell(jpeg, width=30000, height=30000):
    """The JPEG with another size in its frame header: a small file that claims a large picture."""
    place = jpeg.index(b"\xff\xc0")
    return jpeg[: place + 5] + struct.pack(">HH", height, width) + jpeg[place + 9 :]


@pytest.mark.parametrize("reader", FILE_READERS)
def test_a_small_file_that_claims_huge_pictures(reader, video_file, tmp_path):
    source = video_file("mjpeg.avi")
    chunks = [bytes(packet) for packet in packets_of(source)]
    too_large = rf"30000x30000 = 900000000 pixels, more than max_pixels={MAX_PIXELS} allows"
    at_once = mux(tmp_path / "first.avi", source, [(swell(chunks[0]), True)] * 3)
    with pytest.raises(VideoError, match=too_large):
        build_reader(reader).probe(at_once)
    later = mux(tmp_path / "later.avi", source, [(c, True) for c in [*chunks[:5], swell(chunks[5]), *chunks[6:9]]])
    with pytest.raises(DamagedVideoError, match=f"stopped at frame 5 of 9: .*{too_large}") as error:
        build_reader(reader).read(later, [7])
    assert error.value.decodable == 5
    vp8 = packets_of(video_file("vp8.webm"))
    data = bytearray(bytes(vp8[0]))
    data[6:10] = struct.pack("<HH", 12000, 12000)  # RFC 6386, 9.1
    large = mux(tmp_path / "large.webm", video_file("vp8.webm"), [(bytes(data), True)])
    with pytest.raises(VideoError, match="12000x12000 = 144000000 pixels, more than max_pixels"):
        build_reader(reader).probe(large)


@pytest.mark.parametrize("reader", FILE_READERS)
def test_too_many_frames(reader, video_file, tmp_path):
    for name in ("plain.mp4", "mpeg4_b.avi", "raw.h264"):
        assert build_reader(reader, max_frames=40).probe(video_file(name)).num_frames == 40
        with pytest.raises(VideoError, match="at least 40 frames, more than max_frames=39 allows"):
            build_reader(reader, max_frames=39).probe(video_file(name))
    claims = patched(video_file("plain.mp4"), tmp_path / "claims.mp4", b"stsz", 8, ">II", 1, 60_000_000)
    with pytest.raises(VideoError, match="at least 60000000 frames, more than max_frames=5000000 allows"):
        build_reader(reader).probe(claims)
    claims = patched(video_file("fragmented.mp4"), tmp_path / "claims2.mp4", b"trun", 8, ">I", 60_000_000)
    with pytest.raises(VideoError, match="at least 60000000 frames, more than max_frames"):
        build_reader(reader).probe(claims)


@pytest.mark.parametrize("without_cv2", [False, True])
def test_bombs_in_folders(without_cv2, tmp_path, monkeypatch):
    if without_cv2:
        monkeypatch.setitem(sys.modules, "cv2", None)
    for number in range(4):
        write(tmp_path / f"{number}.jpg", jpeg_of(number))
    write(tmp_path / "2.jpg", swell(jpeg_of(2)))
    with pytest.raises(DamagedVideoError, match="2.jpg is 30000x30000 = 900000000 pixels, more than max_pix") as error:
        build_reader("frames").read(tmp_path, [0, 2])
    assert error.value.decodable == 2
    pngs = tmp_path / "png"
    pngs.mkdir()
    Image.fromarray(np.zeros((9000, 9000), np.uint8)).save(pngs / "0.png")
    assert (pngs / "0.png").stat().st_size < 100_000
    with pytest.raises(VideoError, match="0.png is 9000x9000 = 81000000 pixels, more than max_pixels=35389440 allows"):
        build_reader("frames").probe(pngs)
    assert build_reader("frames", max_pixels=6144, max_frames=4).probe(FrameFolder(str(tmp_path))).num_frames == 4
    with pytest.raises(VideoError, match="at least 4 frames, more than max_frames=3"):
        build_reader("frames", max_frames=3).probe(tmp_path)


# -- folders of images --


def test_what_decodes_of_a_folder(tmp_path):
    for number in (1, 2, 3, 4, 6, 7):
        write(tmp_path / f"{number}.jpg", jpeg_of(number))
    reader = build_reader("frames")
    with pytest.raises(DamagedVideoError, match="5.jpg is missing") as error:
        reader.open(tmp_path)
    assert error.value.decodable == 4
    write(tmp_path / "3.jpg", b"")
    with reader.open_first(tmp_path, error.value.decodable) as video:
        assert video.info.num_frames == 4
        with pytest.raises(DamagedVideoError, match="3.jpg is empty") as error:
            video.read([View([0, 3, 2])])
    with reader.open_first(FrameFolder(str(tmp_path), num_frames=7), error.value.decodable) as video:
        assert [read_number(picture) for picture in video.frames()] == [1, 2]
    write(tmp_path / "1.jpg", b"x")
    write(tmp_path / "5.jpg", b"x")
    with pytest.raises(DamagedVideoError, match="1.jpg is truncated or not") as error:
        reader.open(tmp_path)
    assert error.value.decodable == 0


def test_folders_with_fewer_frames_than_promised(tmp_path, caplog):
    records = []
    for row, (there, promised) in enumerate([(5, 5), (3, 8), (6, 4), (0, 2), (5, 6)], 1):
        folder = tmp_path / f"clip{row}"
        folder.mkdir()
        for number in range(there):
            write(folder / f"{number}.jpg", b"")
        records.append(VideoRecord(FrameFolder(str(folder), num_frames=promised), 0, origin=f"train.txt:{row}"))
    (tmp_path / "clip5" / "1.jpg").unlink()
    records += [VideoRecord("a.mp4", 0, origin="train.txt:6"), VideoRecord(FrameFolder("gone"), 0)]
    with caplog.at_level(logging.WARNING, "paddlevideo_fast"):
        short = check_frame_folders(records)
    assert [line.split(": ")[0] for line in short] == ["train.txt:2", "train.txt:4", "train.txt:5"]
    assert "the list promises 8 frames, the folder has 3" in short[0] and "has 1" in short[2]
    assert len(caplog.records) == 1 and "3 of 5 frame folders looked at (of 5) have fewer" in caplog.text
    caplog.clear()
    assert len(check_frame_folders(records * 100, limit=10)) <= 10
    caplog.clear()
    assert check_frame_folders(records[:1]) == [] and not caplog.records
