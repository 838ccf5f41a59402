"""Every reader gives the frames a plain sequential decode gives, or says why not."""

from __future__ import annotations

import io
import logging
import pickle
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from conftest import MAKERS, NUM_FRAMES, decode_all, draw_picture, read_number, to_rgb
from PIL import Image

from paddlevideo_fast.data.readers import (
    READERS,
    CropBox,
    FrameFolder,
    InexactReaderError,
    VideoError,
    View,
    build_reader,
)

FILE_READERS = [name for name in READERS if name != "frames"]
FIRST_NUMBER = {"edit_list.mp4": 5, "mid_gop.ts": 12, "mid_gop.mp4": 12}
COUNTS = {"one.mp4": 1, "three.mp4": 3, "edit_list.mp4": 35, "mid_gop.ts": 28, "mid_gop.mp4": 28}
# Quarter turns counter-clockwise a viewer makes; "mirrored" is checked in a test of its own.
TURNS = {"rotated_90.mp4": 1, "rotated_180.mp4": 2, "rotated_270.mp4": 3}
PLAIN = [
    "plain.mp4",
    "plain.mkv",
    "long_gop.mp4",
    "no_b.mp4",
    "hevc.mp4",
    "vp9.webm",
    "vp8.webm",
    "odd_444.mp4",
    "ten_bit.mp4",
    "bt709_full.mp4",
    "rotated_90.mp4",
    "fragmented.mp4",
    "one.mp4",
    "three.mp4",
    "vfr.mp4",
]
REFUSED = {
    "decord": [
        "mpeg4_b.avi",
        "mpeg4_b.mp4",
        "packed.avi",
        "h264_b.avi",
        "h264.ts",
        "hevc_open.mp4",
        "av1.mp4",
        "wmv2.wmv",
        "mpeg2.mpg",
        "repeated_times.mkv",
        "mirrored.mp4",
        "two_streams.mkv",
        "cover.mkv",
        "open_gop.mp4",
        "intra_refresh.mp4",
        "intra_refresh_no_b.mp4",
        "raw.h264",
        "edit_list.mp4",
        "mid_gop.ts",
        "mid_gop.mp4",
        "vp8_hidden.webm",
    ],
    "opencv": ["av1.mp4", "mirrored.mp4", "two_streams.mkv", "interlaced.mp4", "raw.h264", "packed.avi"],
}


@pytest.fixture(scope="session")
def expected(video_file):
    """A function from a fixture's name to its upright pictures, uint8 [N, H, W, 3], by plain sequential decoding."""
    cache = {}

    def get(name):
        if name not in cache:
            pictures = to_rgb(decode_all(video_file(name)))
            if name == "mirrored.mp4":
                pictures = turn_by_matrix(pictures, decode_all(video_file(name))[0])
            cache[name] = np.rot90(pictures, TURNS.get(name, 0), axes=(1, 2))
        return cache[name]

    return get


def turn_by_matrix(pictures, frame):
    """Moves every pixel to where the display matrix puts it: (x', y') = (a x + c y, b x + d y)."""
    a, b, _, c, d = np.frombuffer(bytes(frame.side_data["DISPLAYMATRIX"]), np.int32)[:5] / 65536
    y, x = np.mgrid[: frame.height, : frame.width]
    x, y = np.rint(a * x + c * y).astype(int), np.rint(b * x + d * y).astype(int)
    x, y = x - x.min(), y - y.min()
    turned = np.zeros((len(pictures), y.max() + 1, x.max() + 1, 3), np.uint8)
    turned[:, y, x] = pictures
    return turned


def assert_same_frames(got, wanted, every, exact):
    """Holds frames to the expected ones: the same bits, or the nearest of all frames and a small mean difference.

    decord and OpenCV convert with FFmpeg's default scaler flags, biased by up to 3 levels on this content.
    """
    assert got.shape == every[wanted].shape and got.dtype == np.uint8
    if exact:
        np.testing.assert_array_equal(got, every[wanted])
        return
    for picture, index in zip(got[:12], wanted[:12], strict=True):
        distances = np.abs(every.astype(np.int16) - picture).mean(axis=(1, 2, 3))
        assert np.argmin(distances) == index and distances[index] < 4


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("reader_name", FILE_READERS)
def test_frames_match_sequential_decoding(reader_name, name, video_file, expected):
    every, path = expected(name), video_file(name)
    reader = build_reader(reader_name)
    count = len(every)
    assert count == COUNTS.get(name, NUM_FRAMES)
    random = np.random.default_rng(0)
    views = [
        View(random.integers(0, count, 9)),
        View(np.linspace(0, count - 1, 5).astype(int)[::-1]),
        View([count - 1] * 50),
        View(np.arange(count)[:: max(1, count // 4)]),
    ]
    with reader.open(path) as video:
        info = video.info
        clips = video.read(views) + [video.read([view])[0] for view in views]
    assert info.num_frames == count and (info.height, info.width) == every.shape[1:3]
    exact = reader_name in ("pyav", "fused") or bool(getattr(reader, "fallbacks", None))
    for clip, view in zip(clips, views * 2, strict=True):
        assert_same_frames(clip, np.asarray(view.indices), every, exact)


# What follows the hidden picture refers to a doubled one: its numbers blur.
@pytest.mark.parametrize("name", [name for name in MAKERS if name not in (*TURNS, "mirrored.mp4", "vp8_hidden.webm")])
def test_pictures_carry_their_numbers(name, video_file):
    first = FIRST_NUMBER.get(name, 0)
    with build_reader("pyav").open(video_file(name)) as video:
        numbers = [read_number(picture) for picture in video.frames()]
    assert numbers == list(range(first, first + COUNTS.get(name, NUM_FRAMES)))


@pytest.mark.parametrize("name", PLAIN)
def test_plain_files_need_no_fallback(name, video_file):
    for reader in FILE_READERS:
        assert build_reader(reader, fallback=None).probe(video_file(name)).num_frames == COUNTS.get(name, NUM_FRAMES)


@pytest.mark.parametrize("reader, name", [(reader, name) for reader in REFUSED for name in REFUSED[reader]])
def test_doubtful_files_are_refused(reader, name, video_file):
    with pytest.raises(InexactReaderError, match=f"{reader} cannot promise .*; use the 'pyav' reader"):
        build_reader(reader, fallback=None).probe(video_file(name))


def test_opencv_counts_agree(video_file):
    cv2 = pytest.importorskip("cv2")
    for name in ("plain.mp4", "edit_list.mp4", "mid_gop.ts", "mid_gop.mp4", "packed.avi", "wmv2.wmv", "vfr.webm"):
        capture, count = cv2.VideoCapture(str(video_file(name)), cv2.CAP_FFMPEG), 0
        while capture.grab():
            count += 1
        assert build_reader("pyav").probe(video_file(name)).num_frames == count, name


@pytest.mark.parametrize("reader", FILE_READERS)
@pytest.mark.parametrize("name", ["plain.mp4", "plain.mkv", "raw.h264", "h264.ts"])
def test_memory_and_file_objects(reader, name, video_file, expected, tmp_path):
    data = video_file(name).read_bytes()
    indices = np.array([7, 39, 0, 39])
    with open(video_file(name), "rb") as file:
        file.seek(100)
        clips = [build_reader(reader).read(source, indices) for source in (data, io.BytesIO(data), file, file)]
        assert not file.closed
    for clip in clips:
        assert_same_frames(clip, indices, expected(name), reader in ("pyav", "fused"))


@pytest.mark.parametrize("reader", FILE_READERS)
def test_crop_size_and_flip(reader, video_file):
    path, box, rounding = video_file("plain.mp4"), CropBox(11, 6, 60, 40), 2 if reader == "fused" else 0
    reader = build_reader(reader)
    whole = reader.read(path, [3, 8])
    np.testing.assert_array_equal(reader.read(path, [3, 8], box), whole[:, 6:46, 11:71])
    mirrored = reader.read(path, [3, 8], box, (40, 60), flip=True)
    np.testing.assert_array_equal(mirrored, whole[:, 6:46, 11:71][:, :, ::-1])
    cut = Image.fromarray(whole[1]).crop((11, 6, 71, 46)).resize((32, 24), Image.Resampling.BILINEAR)
    with reader.open(path) as video:
        clips = video.read([View([8], box), View([3, 8]), View([8], box, flip=True)], (24, 32))
    assert np.abs(clips[0][0] - np.asarray(cut, float)).mean() <= rounding
    np.testing.assert_array_equal(clips[2], clips[0][:, :, ::-1])
    assert clips[1].shape == (2, 24, 32, 3)


# FFmpeg's number of the matrix (2: none given), and Kr, Kb of BT.601, BT.709 and BT.2020.
MATRICES = [(2, 0.299, 0.114), (5, 0.299, 0.114), (1, 0.2126, 0.0722), (9, 0.2627, 0.0593)]


@pytest.mark.parametrize("matrix, kr, kb", MATRICES)
@pytest.mark.parametrize("colour_range, full", [(0, False), (1, False), (2, True)])
@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv444p", "yuv420p10le"])
def test_colour_equations(matrix, kr, kb, colour_range, full, pix_fmt):
    from paddlevideo_fast.data.readers.pictures import Converter

    frame = av.VideoFrame(16, 16, pix_fmt)
    frame.colorspace, frame.color_range = matrix, colour_range
    for plane, level in zip(frame.planes, (120, 90, 170), strict=True):
        deep = pix_fmt.endswith("10le")
        np.frombuffer(plane, np.uint16 if deep else np.uint8)[:] = level * (4 if deep else 1)
    luma, blue, red = (120, -38, 42) if full else (104 * 255 / 219, -38 * 255 / 224, 42 * 255 / 224)
    r, b = luma + 2 * (1 - kr) * red, luma + 2 * (1 - kb) * blue
    g = (luma - kr * r - kb * b) / (1 - kr - kb)
    np.testing.assert_allclose(Converter()(frame, 16, 16)[8, 8], [r, g, b], atol=1)


def test_colours_follow_chroma_siting(video_file):
    """H.264 without a tag puts chroma between rows, on the left column: interpolated here by hand."""
    frame = decode_all(video_file("plain.mp4"))[5]
    planes = [np.frombuffer(p, np.uint8).reshape(p.height, p.line_size) for p in frame.planes]
    planes = [plane[:, : p.width].astype(float) for plane, p in zip(planes, frame.planes, strict=True)]

    def interpolate(plane):
        rows = np.stack([np.interp(np.arange(96) / 2, np.arange(48), row) for row in plane])
        return np.stack([np.interp((np.arange(64) - 0.5) / 2, np.arange(32), column) for column in rows.T], 1)

    luma = (planes[0] - 16) * 255 / 219
    blue, red = ((interpolate(plane) - 128) * 255 / 224 for plane in planes[1:])
    r, b = luma + 1.402 * red, luma + 1.772 * blue
    picture = np.stack([r, (luma - 0.299 * r - 0.114 * b) / 0.587, b], -1).clip(0, 255)
    got = build_reader("pyav").read(video_file("plain.mp4"), [5])[0]
    assert np.abs(got - picture).max() < 1.5 and abs((got - picture).mean()) < 0.1


def test_vp9_headers():
    """VP9 bitstream specification 6.2: marker 10, profile, show_existing_frame, frame_type, show_frame."""
    from paddlevideo_fast.data.readers.bitstream import is_hidden_vp9

    assert not is_hidden_vp9(bytes([0b10000010, 0]))  # shown key frame
    assert is_hidden_vp9(bytes([0b10000100, 0]))  # inter frame, show_frame 0
    assert not is_hidden_vp9(bytes([0b10000110, 0]))
    assert not is_hidden_vp9(bytes([0b10001000]))  # shows an earlier frame again
    assert is_hidden_vp9(bytes([0b10110010, 0]))  # profile 3: one reserved bit more
    assert not is_hidden_vp9(bytes([0b10000100, 0, 0b11000000]))  # a superframe


@pytest.mark.parametrize("name", ["plain.mp4", "bt709.mp4", "bt709_full.mp4", "full.mp4", "ten_bit.mp4"])
@pytest.mark.parametrize("reader", FILE_READERS)
def test_colours_come_back(reader, name, video_file):
    if name == "plain.mp4":  # untagged, written with the BT.601 default
        assert decode_all(video_file(name))[0].colorspace == 2
    picture = build_reader(reader).read(video_file(name), [10])[0].astype(int)
    difference = (picture - draw_picture(10))[20:]
    assert np.abs(difference.mean(axis=(0, 1))).max() < 3 and np.abs(difference).mean() < 9


def write(path, data):
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("reader", FILE_READERS)
def test_errors_in_words(reader, video_file, tmp_path):
    whole = video_file("plain.mp4").read_bytes()
    sound_only = tmp_path / "sound.mkv"
    with av.open(str(sound_only), "w") as output:
        stream = output.add_stream("pcm_s16le", rate=8000, layout="mono")
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), "s16", "mono")
        sound.sample_rate = 8000
        output.mux(stream.encode(sound))
    cases = [
        (write(tmp_path / "empty.mp4", b""), r"empty\.mp4: the file is empty"),
        (b"", "0 bytes in memory.*empty"),
        (write(tmp_path / "text.mp4", b"not a video at all\n" * 50), "not a video file"),
        (write(tmp_path / "cut.mp4", whole[: len(whole) // 2]), r"truncated.*moov"),
        (sound_only, "no video stream .*audio"),
        (tmp_path / "none.mp4", f"does not exist .*{tmp_path}/none.mp4"),
        ("http://example.com/a.mp4", "only local files"),
        ("concat:a.mp4|b.mp4", "only local files"),
        (tmp_path, "is a folder"),
        (FrameFolder(str(tmp_path)), "is a folder of images; the 'frames' reader"),
        (write(tmp_path / "a.m3u8", b"#EXTM3U\n#EXTINF:1,\nplain.mp4\n#EXT-X-ENDLIST\n"), "is a playlist"),
        (
            write(tmp_path / "a.txt", f"ffconcat version 1.0\nfile {video_file('plain.mp4')}\n".encode()),
            "is a playlist",
        ),
        (3, "not int"),
    ]
    for source, message in cases:
        with pytest.raises(VideoError, match=message) as error:
            build_reader(reader).probe(source)
        assert len(str(error.value)) < 400


@pytest.mark.parametrize("reader", FILE_READERS)
def test_impossible_views(reader, video_file):
    with build_reader(reader).open(video_file("plain.mp4")) as video:
        for view, size, message in [
            (View([40]), None, "frame 40 is outside 0..39"),
            (View([-1]), None, "frame -1"),
            (View([]), None, "non-empty"),
            (View([0.5]), None, "integers"),
            (View([0], CropBox(90, 0, 10, 10)), None, "outside the 96x64"),
            (View([0]), (0, 5), "size"),
        ]:
            with pytest.raises(VideoError, match=message):
                video.read([view], size)


@pytest.mark.parametrize("reader", FILE_READERS)
def test_odd_names(reader, video_file, tmp_path, monkeypatch):
    data = video_file("plain.mp4").read_bytes()
    monkeypatch.chdir(tmp_path)
    for name in ("100%_done.mp4", "a:b.mp4", "http:x.mp4", "跳舞 视频 (31).mp4", "a'b", "img_%03d.mp4", "-x.mp4"):
        write(tmp_path / name, data)
        assert build_reader(reader).read(name, [39]).shape == (1, 64, 96, 3)


def test_truncated_file_keeps_what_decodes(video_file, tmp_path):
    fast = tmp_path / "fast.mp4"
    with av.open(str(video_file("plain.mp4"))) as source:
        with av.open(str(fast), "w", container_options={"movflags": "faststart"}) as output:
            stream = output.add_stream_from_template(source.streams.video[0])
            for packet in source.demux(video=0):
                if packet.size:
                    packet.stream = stream
                    output.mux(packet)
    whole = fast.read_bytes()
    cut = write(tmp_path / "cut.mp4", whole[: int(len(whole) * 0.7)])
    every = build_reader("pyav").read(fast, range(40))
    for name in FILE_READERS:
        with build_reader(name).open(cut) as video:
            count = video.info.num_frames
            assert 5 < count < 40 and "ends early" in video.damage
            np.testing.assert_array_equal(video.read([View(range(count))])[0], every[:count])
            with pytest.raises(VideoError, match="outside"):
                video.read([View([count])])


def damage_packet(source, target, number, damage):
    """Copies a file and changes the payload of one packet in place."""
    with av.open(str(source)) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][number]
    data = bytearray(source.read_bytes())
    data[packet.pos : packet.pos + packet.size] = damage(bytes(packet))
    return write(target, bytes(data))


@pytest.mark.parametrize("reader", FILE_READERS)
def test_damage_in_the_middle_is_named(reader, video_file, tmp_path, expected):
    source = video_file("plain.mp4")
    broken = damage_packet(source, tmp_path / "broken.mp4", 20, lambda data: b"\xff" * len(data))
    with build_reader("pyav").open(broken) as video:
        np.testing.assert_array_equal(video.read([View(range(15))])[0], expected("plain.mp4")[:15])
        with pytest.raises(VideoError, match=r"decoding stopped at frame \d+ of 40: Invalid data"):
            video.read([View([30])])
        np.testing.assert_array_equal(video.read([View([3])])[0], expected("plain.mp4")[[3]])
    with pytest.raises(VideoError, match="decoding stopped at frame"):
        build_reader(reader).read(broken, [5, 22])


def test_a_picture_lost_in_silence_is_noticed(video_file, tmp_path):
    def to_filler(data):  # length prefix, then NAL unit header: type 38 is filler, which decoders skip
        return data[:4] + bytes([38 << 1]) + data[5:]

    source = video_file("hevc.mp4")
    with av.open(str(source)) as container:
        times = [packet.pts for packet in container.demux(video=0) if packet.size]
    lost = int(np.argsort(np.argsort(times))[22])
    broken = damage_packet(source, tmp_path / "broken.mp4", 22, to_filler)
    assert len(decode_all(broken)) == 39
    for reader in ("pyav", "opencv"):  # decord does not tell the times of the pictures it returns
        with pytest.raises(VideoError, match=f"decoding stopped at frame {lost} of 40: another picture"):
            build_reader(reader).read(broken, [lost, lost + 1])


def test_fallback_is_counted_and_logged_once(video_file, caplog):
    reader = build_reader("decord")
    with caplog.at_level(logging.WARNING, "paddlevideo_fast"):
        for name in ("h264_b.avi", "mpeg4.avi", "av1.mp4", "plain.mp4"):
            reader.probe(video_file(name))
    assert sorted(reader.fallbacks.values()) == [1, 2] and len(caplog.records) == 2
    assert "h264_b.avi" in caplog.text and "container avi" in caplog.text and "mpeg4.avi" not in caplog.text


def test_refusal_while_reading_reaches_the_fallback(video_file, expected, monkeypatch):
    from paddlevideo_fast.data.readers.opencv import OpencvVideo

    def refuse(self):
        raise InexactReaderError(self.source, "it stops")

    reader = build_reader("opencv")
    with reader.open(video_file("plain.mp4")) as video:
        monkeypatch.setattr(OpencvVideo, "_retrieve", refuse)
        clip = video.read([View([30, 2])])[0]
    np.testing.assert_array_equal(clip, expected("plain.mp4")[[30, 2]])
    assert reader.fallbacks == {"it stops": 1}
    monkeypatch.undo()
    with reader.open(video_file("plain.mp4")) as video:
        video.keep(25)
        pictures = []
        for number, picture in enumerate(video.frames()):
            pictures.append(picture)
            if number == 9:
                monkeypatch.setattr(OpencvVideo, "_retrieve", refuse)
        assert [read_number(picture) for picture in pictures] == list(range(25)) and video.info.num_frames == 25


def test_wrong_names_and_arguments():
    with pytest.raises(
        ValueError, match="unknown reader 'decrod'; did you mean 'decord'.*decord, frames, fused, opencv, pyav"
    ):
        build_reader("decrod")
    with pytest.raises(ValueError, match="reader pyav: unknown argument 'thread'; did you mean 'threads'"):
        build_reader("pyav", thread=2)
    assert build_reader("decord", threads=2).second.threads == 2


def test_readers_survive_pickling(video_file):
    for name in FILE_READERS:
        reader = pickle.loads(pickle.dumps(build_reader(name)))
        assert reader.probe(video_file("h264_b.avi")).num_frames == NUM_FRAMES
        pickle.loads(pickle.dumps(reader))
    error = pickle.loads(pickle.dumps(InexactReaderError("a.mp4", "why")))
    assert str(error) == "a.mp4: why"


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_importing_needs_no_optional_package():
    loaded = "print([name for name in ('av', 'decord', 'cv2') if name in sys.modules])"
    assert run(f"import sys; import paddlevideo_fast.data.readers; {loaded}").strip() == "[]"


@pytest.mark.parametrize("module, reader", [("av", "pyav"), ("decord", "decord"), ("cv2", "opencv")])
def test_missing_package_is_named(module, reader):
    out = run(
        f"import sys; sys.modules[{module!r}] = None\n"
        "from paddlevideo_fast.data.readers import build_reader\n"
        f"try: build_reader({reader!r}); print('built')\n"
        "except ImportError as error: print(error)\n"
    )
    assert "pip install" in out and "is not installed" in out and "readers available here" in out
    assert f"{reader}," not in out.split("available here:")[1] and out.count("\n") == 1


def test_handles_are_closed(video_file, tmp_path):
    descriptors = Path("/proc/self/fd")
    if not descriptors.exists():
        pytest.skip("needs /proc")
    bad = write(tmp_path / "bad.mp4", video_file("plain.mp4").read_bytes()[:3000])
    for name in FILE_READERS:
        reader = build_reader(name)
        reader.read(video_file("plain.mp4"), [3])
        before = len(list(descriptors.iterdir()))
        for _ in range(5):
            reader.read(video_file("plain.mp4"), [3])
            with pytest.raises(VideoError):
                reader.probe(bad)
        assert len(list(descriptors.iterdir())) <= before, name


def test_no_noise_on_the_console(video_file, tmp_path, capfd):
    data = bytearray(video_file("plain.mp4").read_bytes())
    for position in range(2000, 6000, 7):
        data[position] ^= 0x5A
    rotten = write(tmp_path / "rotten.mp4", bytes(data))
    capfd.readouterr()
    for name in FILE_READERS:
        for source in (rotten, b"text" * 30, video_file("mid_gop.ts")):
            try:
                build_reader(name).read(source, [0, 10])
            except VideoError:
                continue
    captured = capfd.readouterr()
    assert len(captured.out + captured.err) < 200, captured.err


def test_shared_videos():
    folder = Path(__file__).parents[2].parent / "shared" / "videos"
    if not folder.exists():
        pytest.skip("no shared videos")
    for path in sorted(folder.iterdir()):
        every = build_reader("pyav").probe(path)
        assert every.num_frames == len(decode_all(path))
        indices = np.linspace(0, every.num_frames - 1, 5).astype(int)[::-1]
        clips = [build_reader(name).read(path, indices, size=(64, 96)).astype(int) for name in FILE_READERS]
        assert max(np.abs(clip - clips[0]).mean() for clip in clips) < 3, path
