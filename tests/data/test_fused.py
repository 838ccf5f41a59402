"""The fused reader: what it decodes, what it cuts, and what it does when a frame does not come."""

from __future__ import annotations

import io
import logging
import os
import pickle
import shutil
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from conftest import MAKERS, NUM_FRAMES, decode_all, draw_picture, encode, to_rgb
from PIL import Image

from paddlevideo_fast.data.readers import READERS, CropBox, VideoError, View, build_reader, feeds
from paddlevideo_fast.data.readers.bitstream import picture_layer
from paddlevideo_fast.data.readers.feeds import DemuxedFeed, Mp4Feed
from paddlevideo_fast.data.readers.pictures import turn, turn_back

# The files whose packets leave a doubt that decoding them once does not settle: read from the start.
SEQUENTIAL = ["packed.avi", "vp8_hidden.webm", "wmv2.wmv", "mpeg2.mpg", "mid_gop.ts", "mid_gop.mp4"]


def fed_packets(monkeypatch):
    """A list that gets the numbers of the packets the decoder is given."""
    numbers: list[int] = []
    for feed in (DemuxedFeed, Mp4Feed):

        def record(self, wanted, original=feed.packets):
            for packet in original(self, wanted):
                numbers.append(packet.pts)
                yield packet

        monkeypatch.setattr(feed, "packets", record)
    return numbers


@pytest.mark.parametrize("name", MAKERS)
def test_only_doubtful_files_are_read_from_the_start(name, video_file):
    reader = build_reader("fused")
    with reader.open(video_file(name)) as video:
        video.read([View([video.info.num_frames - 1, 0])])
        assert (video._plain is not None) == (name in SEQUENTIAL) and not reader.fallbacks


@pytest.mark.parametrize("name", MAKERS)
def test_every_frame_alone(name, video_file):
    """Each frame is decoded by itself, and each with the last one, and is bit for bit that of a sequential decode."""
    with build_reader("pyav").open(video_file(name)) as video:
        every = list(video.frames())
    reader = build_reader("fused")
    with reader.open(video_file(name)) as video:
        for index, picture in enumerate(every):
            np.testing.assert_array_equal(video.read([View([index])])[0][0], picture)
            np.testing.assert_array_equal(video.read([View([len(every) - 1, index])])[0][1], picture)
    assert not reader.fallbacks


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("far", [0, 100])
def test_packets_of_large_files_are_read_when_needed(name, far, video_file, monkeypatch):
    """Nothing is held and every jump is a seek; the second opening knows the packets from the first."""
    monkeypatch.setattr(feeds, "HELD_BYTES", 0)
    monkeypatch.setattr(feeds, "FAR", far)
    every = build_reader("pyav").read(video_file(name), np.arange(build_reader("pyav").probe(video_file(name))[0]))
    random, reader = np.random.default_rng(1), build_reader("fused")
    for _ in range(2):
        with reader.open(video_file(name)) as video:
            for _ in range(4):
                indices = random.integers(0, len(every), random.integers(1, 6))
                np.testing.assert_array_equal(video.read([View(indices)])[0], every[indices])
    assert not reader.fallbacks


@pytest.mark.parametrize(
    "name, wanted, fed",
    [
        # GOP 12 of I and P pictures: from the key frame to the wanted one.
        ("no_b.mp4", [13], [12, 13]),
        ("no_b.mp4", [0, 38], [0, 36, 37, 38]),
        # Every picture is a key frame.
        ("mjpeg.avi", [5, 30, 31], [5, 30, 31]),
    ],
)
def test_decoding_starts_at_a_key_frame_and_stops_at_the_last(name, wanted, fed, video_file, monkeypatch):
    numbers = fed_packets(monkeypatch)
    build_reader("fused").read(video_file(name), wanted)
    assert numbers == fed


@pytest.mark.parametrize("name", ["plain.mp4", "pyramid_none.mp4", "hevc.mp4", "mpeg4_b.mp4", "h264_b.avi"])
def test_unneeded_pictures_are_left_out(name, video_file, monkeypatch):
    """Only B pictures are left out, by FFmpeg's own account of the pictures, and some are."""
    numbers = fed_packets(monkeypatch)
    with build_reader("fused").open(video_file(name)) as video:
        video.read([View([35])])
        order = video._facts.order.tolist()
    with av.open(str(video_file(name))) as container:
        kinds = [av.video.frame.PictureType(frame.pict_type).name for frame in container.decode(video=0)]
    kinds = dict(zip(order, kinds, strict=True))
    left_out = set(range(numbers[0], numbers[-1])) - set(numbers)
    assert numbers[-1] == order[35] and numbers[0] > 12
    assert kinds[numbers[0]] == "I" and left_out and all(kinds[number] == "B" for number in left_out)


def test_layers():
    """By hand: H.264 with length prefixes and start codes, HEVC with temporal layers, MPEG-4."""
    sei, reference, other = b"\0\0\0\2\x06\x05", b"\0\0\0\2\x41\x9a", b"\0\0\0\2\x01\x9a"
    assert picture_layer("h264", sei + other, 4) == 0
    assert picture_layer("h264", sei + reference, 4) == ~0
    assert picture_layer("h264", other + reference, 4) == ~0  # a second field others refer to
    assert picture_layer("h264", sei, 4) == ~0  # no picture: nothing is known
    assert picture_layer("h264", b"\0\0\0\1\x09\x30\0\0\1\x01\x9a", 0) == 0
    assert picture_layer("h264", b"\0\0\0\1\x09\x30\0\0\1\x65\x88", 0) == ~0
    assert picture_layer("hevc", bytes([0, 0, 0, 3, 0 << 1, 1, 0x80]), 4) == 0  # TRAIL_N, temporal id 0
    assert picture_layer("hevc", bytes([0, 0, 0, 3, 1 << 1, 1, 0x80]), 4) == ~0  # TRAIL_R
    assert picture_layer("hevc", bytes([0, 0, 0, 3, 2 << 1, 3, 0x80]), 4) == 2  # TSA_N, temporal id 2
    assert picture_layer("hevc", bytes([0, 0, 0, 3, 19 << 1, 1, 0x80]), 4) == ~0  # IDR
    assert picture_layer("mpeg4", b"\0\0\1\xb6\x90", 0) == 0 and picture_layer("mpeg4", b"\0\0\1\xb6\x50", 0) == ~0
    assert picture_layer("vp9", b"\x82", 0) == ~0


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("mirrored", [False, True])
def test_boxes_turn_back(turns, mirrored):
    coded = np.arange(7 * 10).reshape(7, 10)
    shown = turn(coded, turns, mirrored)
    x, y, width, height = 1, 2, 4, 3
    place = turn_back(CropBox(x, y, width, height), 10, 7, turns, mirrored)
    part = coded[place.y : place.y + place.height, place.x : place.x + place.width]
    np.testing.assert_array_equal(turn(part, turns, mirrored), shown[y : y + height, x : x + width])


def draw_scene(width, height, index):
    """uint8 [height, width, 3] like a natural picture: amplitude falls with frequency, colours follow brightness."""
    random = np.random.default_rng(index)
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    fall = 1 / np.maximum(np.hypot(rows, columns), 1 / max(width, height)) ** 1.2
    spectrum = fall[..., None] * np.exp(2j * np.pi * random.random((height, width // 2 + 1, 3)))
    scene = np.fft.irfft2(spectrum, s=(height, width), axes=(0, 1))
    scene = scene[..., :1] + scene / 2
    return np.clip(scene / scene.std() * 45 + 120, 0, 255).astype(np.uint8)


@pytest.fixture(scope="session")
def scenes(tmp_path_factory):
    """A function from (pixel format, size, rotation, colours) to a video of three natural scenes."""
    folder = tmp_path_factory.mktemp("scenes")

    def make(pix_fmt="yuv420p", size=(320, 240), rotation=None, colours=None):
        path = folder / f"{pix_fmt}_{size}_{rotation}_{colours}.mp4"
        if not path.exists():
            encode(
                path,
                pix_fmt=pix_fmt,
                size=size,
                count=3,
                rotation=rotation,
                colours=colours,
                options={"crf": "18"},
                draw=lambda index, width, height: draw_scene(width, height, index),
            )
        return path

    return make


KINDS = [
    {},
    {"pix_fmt": "yuv444p"},
    {"pix_fmt": "yuv422p"},
    {"pix_fmt": "yuv420p10le"},
    {"size": (321, 239), "pix_fmt": "yuv444p"},
    {"rotation": 90},
    {"rotation": 180},
    {"rotation": -90},
    {"colours": (1, 1)},
    {"colours": (1, 2)},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_boxes_match_the_reference_transform(kind, scenes):
    """38 dB and less than half a level of bias against Pillow's scaling of the RGB picture, for every kind of box."""
    path, random = scenes(**kind), np.random.default_rng(0)
    with build_reader("fused").open(path) as fast, build_reader("pyav").open(path) as plain:
        width, height = plain.info.width, plain.info.height
        for number in range(12):
            side = int(random.integers(60, min(width, height) + 1))
            across = min(side + number % 3, width)
            x, y = (int(random.integers(0, room + 1)) for room in (width - across, height - side))
            box = CropBox(x, y, across, side)
            if number == 0:
                box = None
            views, size = [View([2, 0], box, flip=bool(number % 2))], (112, 112) if number % 4 < 2 else (224, 200)
            got, expected = (video.read(views, size)[0].astype(float) for video in (fast, plain))
            psnr = 10 * np.log10(255**2 / np.mean((got - expected) ** 2))
            assert psnr > 38 and abs(np.mean(got - expected)) < 0.5, (box, size, psnr)


SHARED = Path(__file__).parents[2].parent / "shared"
CLIPS = [
    path
    for folder in ("videos", "cases/inputs")
    for path in sorted((SHARED / folder).glob("*.*"))
    if path.suffix != ".txt"
]


@pytest.mark.parametrize("path", CLIPS, ids=lambda path: path.name)
def test_shared_clips_match_sequential_decoding(path):
    random = np.random.default_rng(0)
    try:
        plain = build_reader("pyav").open(path)
    except VideoError:
        pytest.skip("not a readable video")
    reader = build_reader("fused")
    with plain, reader.open(path) as video:
        assert video.info == plain.info and (video.damage is None) == (plain.damage is None)
        for _ in range(6):
            indices = random.integers(0, plain.info.num_frames, random.integers(1, 9))
            try:
                expected = plain.read([View(indices)])[0]
            except VideoError:
                continue
            np.testing.assert_array_equal(video.read([View(indices)])[0], expected)
    assert not reader.fallbacks or "corrupt" in path.name


def test_several_views_cost_one_decode(video_file, monkeypatch):
    numbers = fed_packets(monkeypatch)
    crops = [CropBox(x, 0, 64, 64) for x in (0, 16, 32)]
    clips = [np.arange(start, start + 16, 2) for start in range(0, 20, 2)]
    with build_reader("fused").open(video_file("plain.mp4")) as video:
        got = video.read([View(clip, crop) for clip in clips for crop in crops], (48, 48))
    assert len(got) == 30 and len(numbers) == len(set(numbers)) <= NUM_FRAMES
    single = build_reader("fused").read(video_file("plain.mp4"), clips[3], crops[1], (48, 48))
    np.testing.assert_array_equal(got[3 * 3 + 1], single)


def test_a_frame_that_does_not_come_is_decoded_from_the_start(video_file, monkeypatch, caplog):
    original = Mp4Feed.packets
    monkeypatch.setattr(Mp4Feed, "packets", lambda *a: (packet for packet in original(*a) if packet.pts != 19))
    every = to_rgb(decode_all(video_file("no_b.mp4")))
    reader, indices = build_reader("fused"), [3, 19, 25]
    with caplog.at_level(logging.WARNING, "paddlevideo_fast"):
        for _ in range(2):  # the second time the file is known to need it
            np.testing.assert_array_equal(reader.read(video_file("no_b.mp4"), indices), every[indices])
    assert sum(reader.fallbacks.values()) == 1 and len(caplog.records) == 1
    assert "did not come out" in caplog.text and "no_b.mp4" in caplog.text
    with reader.open(video_file("no_b.mp4")) as video:
        assert video._plain is not None


def test_a_header_that_lies_about_the_size_is_noticed(video_file, tmp_path):
    data = bytearray(video_file("plain.mp4").read_bytes())
    with av.open(str(video_file("plain.mp4"))) as container:
        honest = container.streams.video[0].codec_context.extradata
    encode(tmp_path / "other.mp4", options={"g": "12"}, size=(160, 64))
    with av.open(str(tmp_path / "other.mp4")) as container:
        lie = container.streams.video[0].codec_context.extradata
    if len(lie) != len(honest):
        lie = lie.ljust(len(honest), b"\0")[: len(honest)]
    data[data.index(honest) : data.index(honest) + len(honest)] = lie
    (tmp_path / "lie.mp4").write_bytes(data)
    for name in ("fused", "pyav"):
        try:
            clip = build_reader(name).read(tmp_path / "lie.mp4", [0, 30], size=(64, 64))
        except VideoError:
            continue
        assert clip.shape == (2, 64, 64, 3)


def test_odd_pixel_formats_take_the_plain_way(tmp_path):
    """Palettes and bits are no planes to cut from."""
    for mode in ("P", "1"):
        path = tmp_path / f"{mode}.mov"
        with av.open(str(path), "w") as output:
            stream = output.add_stream("png", rate=25)
            stream.width, stream.height, stream.pix_fmt = 96, 64, "pal8" if mode == "P" else "monob"
            for index in range(3):
                data = io.BytesIO()
                Image.fromarray(draw_picture(index)).convert(mode).save(data, "png")
                packet = av.Packet(data.getvalue())
                packet.stream, packet.time_base, packet.pts, packet.dts = stream, Fraction(1, 25), index, index
                packet.is_keyframe = True
                output.mux(packet)
        with build_reader("fused").open(path) as fast, build_reader("pyav").open(path) as plain:
            views = [View([2, 0], CropBox(3, 5, 40, 30), True)]
            np.testing.assert_array_equal(fast.read(views, (32, 32))[0], plain.read(views, (32, 32))[0])


@pytest.mark.parametrize("name", ["h264.ts", "mid_gop.ts", "plain.mp4"])
def test_a_file_that_goes_away_is_an_error_in_words(name, video_file, tmp_path):
    for reader in ("fused", "pyav"):
        path = tmp_path / f"{reader}_{name}"
        shutil.copy(video_file(name), path)
        with build_reader(reader).open(path) as video:
            path.unlink()
            try:
                video.read([View([3])])
            except VideoError as error:
                assert "can no longer be read" in str(error)
        with pytest.raises(VideoError, match="is closed" if reader == "fused" else "can no longer"):
            video.read([View([3])])


def test_a_stream_that_cannot_seek_is_read_once(video_file):
    class Pipe:
        def __init__(self, data):
            self._file = io.BytesIO(data)

        def read(self, *count):
            return self._file.read(*count)

    for name in ("h264_b.avi", "mid_gop.ts", "interlaced.mp4", "plain.mp4"):
        clip = build_reader("fused").read(Pipe(video_file(name).read_bytes()), [3, 1])
        np.testing.assert_array_equal(clip, build_reader("pyav").read(video_file(name), [3, 1]))


def test_an_open_video_keeps_few_scalers(video_file):
    with build_reader("fused").open(video_file("plain.mp4")) as video:
        for x in range(40):
            video.read([View([0], CropBox(x, 0, 40, 40))], (32, 32))
        assert len(video._boxes) == 32


def test_left_crops_are_left_to_ffmpeg(video_file, tmp_path):
    """The parameter set of 100x64 pictures cut by 4 to the left: FFmpeg may keep what it cannot cut."""
    filtered = tmp_path / "crop.mp4"
    with av.open(str(video_file("plain.mp4"))) as read, av.open(str(filtered), "w") as output:
        source = read.streams.video[0]
        cut = av.bitstream.BitStreamFilterContext("h264_metadata=crop_left=10:crop_top=8", source)
        packets = [made for packet in read.demux(source) for made in cut.filter(packet if packet.size else None)]
        stream = output.add_stream_from_template(source)
        stream.codec_context.extradata = cut.extradata if hasattr(cut, "extradata") else source.codec_context.extradata
        for packet in packets:
            packet.stream = stream
            output.mux(packet)
    reader = build_reader("fused")
    with reader.open(filtered) as fast, build_reader("pyav").open(filtered) as plain:
        assert fast.info == plain.info
        np.testing.assert_array_equal(fast.read([View([5])])[0], plain.read([View([5])])[0])


def test_a_changed_file_is_listed_anew(video_file, tmp_path):
    path, reader = tmp_path / "clip.mp4", build_reader("fused")
    shutil.copy(video_file("plain.mp4"), path)
    assert reader.probe(path).num_frames == NUM_FRAMES
    shutil.copy(video_file("three.mp4"), path)
    assert reader.probe(path).num_frames == 3
    data = path.read_bytes()
    shutil.copy(video_file("plain.mp4"), path)
    path.write_bytes(data)
    os.utime(path, ns=(0, 5))
    assert reader.probe(path).num_frames == 3


def test_what_is_known_of_files_is_bounded(video_file, tmp_path):
    reader = build_reader("fused", cache_bytes=20_000)
    for number in range(40):
        shutil.copy(video_file("plain.mp4"), tmp_path / f"{number}.mp4")
        reader.probe(tmp_path / f"{number}.mp4")
    facts = reader.known._facts
    assert 3 < len(facts) < 20 and str(tmp_path / "39.mp4") in [key[0] for key in facts]
    assert reader.known._used == sum(each.num_bytes for each in facts.values()) <= 20_000
    assert not pickle.loads(pickle.dumps(reader)).known._facts
    assert pickle.loads(pickle.dumps(reader)).known.max_bytes == 20_000


def test_memory_is_not_remembered(video_file):
    reader = build_reader("fused")
    reader.probe(video_file("plain.mp4").read_bytes())
    assert not reader.known._facts


@pytest.mark.slow
def test_twenty_thousand_reads_leave_memory_and_handles_level(video_file):
    """Every kind of file, by path and from memory, read and given up in the middle."""
    files = [video_file(name) for name in MAKERS]
    for path in files:
        build_reader("pyav").probe(path)
    reader, random = build_reader("fused"), np.random.default_rng(0)

    def read(count):
        for _ in range(count):
            path = files[random.integers(len(files))]
            source = path if random.random() < 0.8 else path.read_bytes()
            with reader.open(source) as video:
                views = [View(random.integers(0, video.info.num_frames, 2), flip=bool(random.integers(2)))]
                if random.random() < 0.05:
                    next(video.frames())
                else:
                    video.read(views, (32, 48))

    def resident():
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    read(1000)
    memory, handles = resident(), len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        read(2000)
        print(f"{resident() - memory:+.1f} MB")
    assert resident() - memory < 50 and len(os.listdir("/proc/self/fd")) <= handles
    assert reader.known._used <= reader.known.max_bytes


def test_it_is_the_first_reader():
    assert next(iter(READERS)) == "fused"
