"""Videos encoded anew show the same frames at the same times, upright and in the same colours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.frame import PictureType
from conftest import HEIGHT, NUM_FRAMES, VFR, WIDTH, draw_picture, encode, read_number

from paddlevideo_fast.data.annotations import load_annotations
from paddlevideo_fast.data.readers import VideoError, View, build_reader
from paddlevideo_fast.data.readers.mp4 import read_samples
from paddlevideo_fast.prepare.encode import ENCODES, Settings, encode_video, encoded_size, verify
from paddlevideo_fast.prepare.relist import write_list
from paddlevideo_fast.prepare.videos import prepare_videos

ROOT = Path(__file__).parents[2]
TOOL = [sys.executable, str(ROOT / "tools" / "data" / "prepare_videos.py")]


def psnr(a, b):
    return 10 * np.log10(255**2 / np.mean((np.asarray(a, float) - b) ** 2))


def decode_all(path):
    """Every frame of the first video stream, by PyAV alone."""
    with av.open(str(path)) as container:
        return list(container.decode(video=0))


def rgb(frame):
    return frame.to_ndarray(format="rgb24")


def rgb_by_hand(frame):
    """Of 4:2:0, ITU-R BT.601, limited range: Y' from 16 to 235, chroma from 16 to 240."""
    planes = frame.to_ndarray().astype(float)
    y, rest = (
        (planes[:HEIGHT] - 16) / 219 * 255,
        (planes[HEIGHT:].reshape(2, HEIGHT // 2, WIDTH // 2) - 128) / 224 * 255,
    )
    blue, red = rest.repeat(2, 1).repeat(2, 2)
    return np.stack([y + 1.402 * red, y - 0.344136 * blue - 0.714136 * red, y + 1.772 * blue], -1).clip(0, 255)


@pytest.fixture
def videos(video_file, tmp_path):
    """A folder with videos below a/, a damaged and an empty one, and a list that names them."""
    folder = tmp_path / "videos"
    (folder / "a" / "b").mkdir(parents=True)
    for name, source in {"a/plain.mp4": "plain.mp4", "a/b/old clip.avi": "mpeg4.avi", "three.mkv": "three.mp4"}.items():
        (folder / name).write_bytes(video_file(source).read_bytes())
    (folder / "empty.mp4").write_bytes(b"")
    data = bytearray((folder / "a/plain.mp4").read_bytes())
    with av.open(str(folder / "a/plain.mp4")) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][20]
    data[packet.pos : packet.pos + packet.size] = b"\xff" * packet.size
    (folder / "rotten.mp4").write_bytes(bytes(data))
    rows = ["a/plain.mp4 3", "empty.mp4 0", "a/b/old clip.avi 1", "rotten.mp4 2", "three.mkv 2", "three.mkv 7"]
    (folder / "list.txt").write_text("\n".join(rows) + "\n\n")
    return folder


@pytest.fixture
def good(videos):
    for name in ("empty.mp4", "rotten.mp4"):
        (videos / name).unlink()
    (videos / "list.txt").write_text("a/plain.mp4 3\na/b/old clip.avi 1\nthree.mkv 2\n")
    return videos


def prepare(videos, output, settings=None, **options):
    return prepare_videos(str(videos / "list.txt"), str(output), settings or Settings(), **options)


def test_command_end_to_end(videos, tmp_path):
    output = tmp_path / "new"
    before = {path: path.read_bytes() for path in videos.rglob("*") if path.is_file()}
    done = subprocess.run([*TOOL, videos / "list.txt", output, "--workers", "2"], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert (output / "list.txt").read_text() == "a/plain.mp4 3\na/b/old clip.mp4 1\nthree.mp4 2\nthree.mp4 7\n"
    for name, old in {"a/plain.mp4": "a/plain.mp4", "a/b/old clip.mp4": "a/b/old clip.avi"}.items():
        assert [read_number(rgb(frame)) for frame in decode_all(output / name)] == list(range(NUM_FRAMES))
        one, other = build_reader("pyav").probe(videos / old), build_reader("pyav").probe(output / name)
        assert one == other
    report = json.loads((output / "report.json").read_text())
    reasons = {row["row"]: row["reason"] for row in report["bad"]}
    assert set(reasons) == {"list.txt:2", "list.txt:4"} and reasons["list.txt:2"] == "the file is empty (0 bytes)"
    assert "decoding stopped at frame" in reasons["list.txt:4"] and "2 bad rows of 6" in done.stdout
    assert "BAD  list.txt:4" in done.stdout and "rotten.mp4: decoding stopped" in done.stderr
    sizes = [(videos / name).stat().st_size for name in ("a/plain.mp4", "a/b/old clip.avi", "three.mkv")]
    files = sorted(path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file())
    made = ["a/b/old clip.mp4", "a/plain.mp4", "three.mp4"]
    assert files == sorted([*made, "list.txt", "manifest.jsonl", "report.json"])
    assert report["bytes"]["before"] == sum(sizes)
    assert report["bytes"]["after"] == sum((output / name).stat().st_size for name in made)
    assert set(report["reading"]) == {"8 segments", "32 frames, stride 2"} and report["frames"] == 2 * NUM_FRAMES + 3
    assert before == {path: path.read_bytes() for path in videos.rglob("*") if path.is_file()}


def test_mistakes_are_one_line(good, tmp_path):
    words = (good / "none.txt", tmp_path / "new")
    done = subprocess.run([*TOOL, *words], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "none.txt does not exist" in done.stderr
    assert not (tmp_path / "new").exists()
    for options, message in [
        ({"encode": "best"}, "'best' is not one of default, g30, b7"),
        ({"crf": 60}, "crf must be from 0 to 51, got 60"),
        ({"short_side": 0}, "short_side must be at least 16 pixels, got 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            Settings(**options)
    with pytest.raises(ValueError, match="workers must be at least 1 and timeout above 0 s, got 0 and 3600"):
        prepare(good, tmp_path / "new", workers=0)


@pytest.mark.parametrize("name", ["vfr.mp4", "vfr.webm", "late_start.mp4", "h264.ts", "mpeg4_b.avi", "packed.avi"])
def test_frames_keep_their_times(video_file, tmp_path, name):
    encode_video(str(video_file(name)), str(tmp_path / "new.mp4"), Settings())
    frames = decode_all(tmp_path / "new.mp4")
    times = VFR if name.startswith("vfr") else range(NUM_FRAMES)
    assert [read_number(rgb(frame)) for frame in frames] == list(range(NUM_FRAMES))
    assert np.abs([float(frame.pts * frame.time_base) for frame in frames] - np.array(times) / 25).max() < 0.001


@pytest.mark.parametrize(("name", "turns"), [("rotated_90.mp4", 1), ("rotated_180.mp4", 2), ("rotated_270.mp4", 3)])
def test_pictures_are_upright(video_file, tmp_path, name, turns):
    encode_video(str(video_file(name)), str(tmp_path / "new.mp4"), Settings(crf=10))
    for number, frame in enumerate(decode_all(tmp_path / "new.mp4")):
        assert "DISPLAYMATRIX" not in frame.side_data
        assert psnr(rgb(frame), np.rot90(draw_picture(number), turns)) > 26


@pytest.mark.parametrize(
    ("name", "matrix", "range"),
    [("bt709_full.mp4", 1, 2), ("bt709.mp4", 1, 1), ("full.mp4", 5, 2), ("plain.mp4", 2, 0)],
)
def test_colours_are_kept(video_file, tmp_path, name, matrix, range):
    encode_video(str(video_file(name)), str(tmp_path / "new.mp4"), Settings(crf=10))
    for old, new in zip(decode_all(video_file(name)), decode_all(tmp_path / "new.mp4"), strict=True):
        assert (new.colorspace, new.color_range) == (matrix, range)
        assert psnr(old.to_ndarray(), new.to_ndarray()) > 38  # the levels of the planes, not only what is made of them


@pytest.mark.parametrize(("codec", "kind"), [("libx264rgb", "rgb24"), ("png", "rgb24"), ("png", "gray")])
def test_pictures_without_yuv(tmp_path, codec, kind):
    encode(tmp_path / "old.mov", codec, kind, options={"crf": "5"} if codec == "libx264rgb" else {}, count=8)
    encode_video(str(tmp_path / "old.mov"), str(tmp_path / "new.mp4"), Settings(crf=5))
    for old, new in zip(decode_all(tmp_path / "old.mov"), decode_all(tmp_path / "new.mp4"), strict=True):
        assert (new.colorspace, new.color_range) == (2, 0)  # untagged: BT.601, limited range
        shown = rgb_by_hand(new)
        assert psnr(rgb(old), shown) > 33 and np.abs((shown - rgb(old)).mean((0, 1))).max() < 0.4


@pytest.mark.parametrize(
    ("name", "size"), [("ten_bit.mp4", (96, 64)), ("odd_444.mp4", (126, 94)), ("mjpeg.avi", (96, 64))]
)
def test_pictures_are_8_bit_420(video_file, tmp_path, name, size):
    encode_video(str(video_file(name)), str(tmp_path / "new.mp4"), Settings(crf=10))
    old, new = decode_all(video_file(name)), decode_all(tmp_path / "new.mp4")
    assert len(new) == NUM_FRAMES
    for index, frame in enumerate(new):
        assert frame.format.name in ("yuv420p", "yuvj420p") and (frame.width, frame.height) == size
        assert read_number(rgb(frame)) == index
        assert abs(rgb(frame).mean() - rgb(old[index]).mean()) < 1.5


def test_interlaced_pictures_and_sound(tmp_path):
    encode(tmp_path / "fields.mp4", options={"x264-params": "interlaced=1:keyint=12"}, interlaced=True)
    with av.open(str(tmp_path / "both.mp4"), "w") as output:
        stream, sound = output.add_stream("libx264", rate=25), output.add_stream("aac", rate=16000)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for index in range(NUM_FRAMES):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(draw_picture(index))))
            samples = av.AudioFrame.from_ndarray(np.zeros((1, 640), np.float32), "fltp", "mono")
            samples.sample_rate, samples.pts = 16000, 640 * index
            output.mux(sound.encode(samples))
        output.mux([*stream.encode(None), *sound.encode(None)])
    for name in ("fields.mp4", "both.mp4"):
        assert encode_video(str(tmp_path / name), str(tmp_path / "new.mp4"), Settings()).num_frames == NUM_FRAMES
        with av.open(str(tmp_path / "new.mp4")) as container:
            assert [stream.type for stream in container.streams] == ["video"]
        assert [read_number(rgb(frame)) for frame in decode_all(tmp_path / "new.mp4")] == list(range(NUM_FRAMES))


def test_sizes():
    assert encoded_size(1280, 720, 256) == (456, 256)
    assert encoded_size(720, 1280, 256) == (256, 456)
    assert encoded_size(340, 256, 256) == (340, 256)
    assert encoded_size(320, 240, 256) == (320, 240)  # never enlarged
    assert encoded_size(127, 95, 256) == (126, 94)
    assert encoded_size(1919, 1079, None) == (1918, 1078)


def test_pictures_are_scaled(video_file, tmp_path):
    encode_video(str(video_file("plain.mp4")), str(tmp_path / "new.mp4"), Settings(short_side=32, crf=10))
    for index, frame in enumerate(decode_all(tmp_path / "new.mp4")):
        halved = draw_picture(index).reshape(32, 2, 48, 2, 3).mean((1, 3))
        assert (frame.width, frame.height) == (48, 32) and psnr(rgb(frame), halved) > 25


def nal_heads(packet, extradata):
    """First bytes of the slices of an mp4 packet, lengths of 4 bytes before each unit; ISO/IEC 14496-15, 5.3.3."""
    assert extradata[4] & 3 == 3
    data, heads, place = bytes(packet), [], 0
    while place < len(data):
        heads.append(data[place + 4])
        place += 4 + int.from_bytes(data[place : place + 4], "big")
    return [head for head in heads if head & 31 in (1, 5)]


@pytest.mark.parametrize(
    ("encode_name", "step"), [("b7", 8), ("b7-fastdecode", 8), ("b15-fastdecode", 16), ("intra", 1)]
)
def test_encodes_are_what_they_are_named(tmp_path, encode_name, step):
    encode(tmp_path / "old.mp4", options={"g": "250"}, count=100, draw=lambda i, w, h: draw_picture(i // 4, w, h))
    encode_video(str(tmp_path / "old.mp4"), str(tmp_path / "new.mp4"), Settings(encode_name))
    kinds = "".join(PictureType(frame.pict_type).name for frame in decode_all(tmp_path / "new.mp4"))
    period = 1 if encode_name == "intra" else 64
    for place, kind in enumerate(kinds[: 64 if encode_name != "intra" else 100]):
        expected = "I" if place % period == 0 else "P" if place % step == 0 else "B"
        assert kind == expected or place > 60  # x264 ends a group as it must
    with av.open(str(tmp_path / "new.mp4")) as container:
        stream = container.streams.video[0]
        extradata = stream.codec_context.extradata
        heads = [nal_heads(packet, extradata) for packet in container.demux(stream) if packet.size]
    assert len(heads) == 100
    idr = [all(head & 31 == 5 for head in each) for each in heads]
    unreferenced = sum(all(head >> 5 == 0 for head in each) for each in heads)
    assert idr[0] and sum(idr) == (100 if encode_name == "intra" else 2)
    assert unreferenced == kinds.count("B")
    assert set(ENCODES) == {"default", "g30", "b7", "b7-fastdecode", "b15-fastdecode", "intra"}


@pytest.mark.parametrize(
    "name", ["plain.mp4", "vfr.webm", "mpeg4_b.avi", "bt709_full.mp4", "rotated_90.mp4", "hevc_open.mp4"]
)
def test_new_files_are_read_the_fast_way(video_file, tmp_path, name):
    """The fused reader finds their packets in the tables of the file and decodes only those a clip needs."""
    encode_video(str(video_file(name)), str(tmp_path / "new.mp4"), Settings())
    with open(tmp_path / "new.mp4", "rb") as file:
        assert len(read_samples(file).sizes) == NUM_FRAMES
    reader = build_reader("fused")
    with reader.open(tmp_path / "new.mp4") as video:
        assert sum(map(len, video.packets_to_decode([10, 30]))) <= 7  # 0, 8, 10, 16, 24, 30, 32, or less at a cut
        assert len(video.read([View([10, 30])])[0]) == 2 and video.selective and not reader.fallbacks


def test_a_wrong_file_is_found(video_file, tmp_path):
    source, target = str(video_file("plain.mp4")), str(tmp_path / "new.mp4")
    encode_video(source, target, Settings())
    ticks = np.arange(NUM_FRAMES) * 400
    planes = {index: frame.to_ndarray() for index, frame in enumerate(decode_all(target)) if index in (3, 20)}
    assert planes[3].min() >= 1
    shifted = {index: plane - 1 for index, plane in planes.items()}
    right = {"size": (96, 64), "ticks": ticks, "scale": 10000, "duration": 1.6, "samples": shifted}
    assert verify(source, target, **right) == pytest.approx(20 * np.log10(255), abs=1e-3)  # one level everywhere
    for wrong, message in [
        ({"size": (96, 62)}, r"pictures of \(96, 64\) instead of \(96, 62\)"),
        ({"ticks": np.arange(NUM_FRAMES + 1) * 400}, "40 frames instead of 41"),
        ({"ticks": np.maximum(ticks, 1)}, "frames at other times"),
        ({"duration": 1.8}, "1.600 s instead of 1.800 s"),
    ]:
        with pytest.raises(VideoError, match=message):
            verify(source, target, **{**right, **wrong})


def test_a_run_goes_on(good, tmp_path, capsys):
    output = tmp_path / "new"
    assert prepare(good, output, workers=2) == 0
    made = [output / "a/plain.mp4", output / "a/b/old clip.mp4", output / "three.mp4"]
    times = [path.stat().st_mtime_ns for path in made]
    made[0].write_bytes(made[0].read_bytes()[:-100])  # cut off by a crash
    (good / "three.mkv").write_bytes((good / "a/plain.mp4").read_bytes())  # another source
    manifest = output / "manifest.jsonl"
    manifest.write_text(manifest.read_text() + '{"source": "/vid')  # cut off by a crash
    (good / "list.txt").write_text((good / "list.txt").read_text().replace("\n", "\r\n"))
    assert prepare(good, output) == 0
    assert "1 of 3 videos are there already" in capsys.readouterr().err
    assert [path.stat().st_mtime_ns == before for path, before in zip(made, times)] == [False, True, False]
    assert len(decode_all(made[0])) == len(decode_all(made[2])) == NUM_FRAMES
    assert (output / "list.txt").read_bytes() == b"a/plain.mp4 3\r\na/b/old clip.mp4 1\r\nthree.mp4 2\r\n"
    assert prepare(good, output) == 0 and "3 videos (0 of them new)" in capsys.readouterr().out
    moved = good.rename(tmp_path / "moved")
    assert prepare(moved, output) == 0 and "3 videos (0 of them new)" in capsys.readouterr().out


def test_other_settings_are_not_mixed(good, tmp_path, capsys):
    output = tmp_path / "new"
    prepare(good, output)
    before = (output / "three.mp4").read_bytes()
    with pytest.raises(
        ValueError, match="stored with --encode b7-fastdecode --short-side 256 --crf 23, not .* --crf 30;"
    ):
        prepare(good, output, Settings(crf=30))
    assert (output / "three.mp4").read_bytes() == before
    assert prepare(good, output, Settings(crf=30), redo=True) == 0 and "(3 of them new)" in capsys.readouterr().out
    assert (output / "three.mp4").read_bytes() != before
    assert prepare(good, output, Settings(crf=30)) == 0 and "(0 of them new)" in capsys.readouterr().out


def test_nothing_of_others_is_overwritten(good, tmp_path):
    with pytest.raises(ValueError, match="is the folder of the videos themselves"):
        prepare(good, good)
    with pytest.raises(ValueError, match="is inside .*, which is searched for videos"):
        prepare_videos(str(good), str(good / "new"), Settings())
    (tmp_path / "all.txt").write_text("videos/a/plain.mp4 0\n")
    with pytest.raises(ValueError, match="all.txt is one of the inputs and would be overwritten"):
        prepare_videos(str(tmp_path / "all.txt"), str(tmp_path), Settings(), root=str(tmp_path / "videos/.."[:-3]))
    with pytest.raises(ValueError, match="plain.mp4 is one of the inputs and would be overwritten"):
        rows = tmp_path / "lists" / "rows.txt"
        rows.parent.mkdir()
        rows.write_text(f"{good}/a/plain.mp4 0\n")
        prepare_videos(str(rows), "/", Settings())
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "three.mp4").write_bytes(b"mine")
    with pytest.raises(ValueError, match="three.mp4 was not made by this tool"):
        prepare(good, tmp_path / "new")
    assert (tmp_path / "new" / "three.mp4").read_bytes() == b"mine"


def test_files_of_another_data_set_are_not_replaced(good, tmp_path):
    prepare(good, tmp_path / "new")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "three.avi").write_bytes((good / "a/plain.mp4").read_bytes())
    (tmp_path / "other" / "list.txt").write_text("three.avi 0\n")
    with pytest.raises(ValueError, match=r"three.mp4 was made of .*three.mkv, not .*other/three.avi"):
        prepare(tmp_path / "other", tmp_path / "new")


def test_names_that_would_be_shared(good, tmp_path):
    (good / "three.avi").write_bytes((good / "a/b/old clip.avi").read_bytes())
    (good / "list.txt").write_text("three.mkv 0\nthree.avi 1\n")
    assert prepare(good, tmp_path / "new") == 0
    assert (tmp_path / "new" / "list.txt").read_text() == "three.mkv.mp4 0\nthree.avi.mp4 1\n"
    assert len(decode_all(tmp_path / "new" / "three.mkv.mp4")) == 3


def test_a_folder_of_class_folders(good, tmp_path):
    (good / "list.txt").unlink()
    (good / "three.mkv").rename(good / "a" / "three.mkv")
    (good / "c").mkdir()
    (good / "a" / "b" / "old clip.avi").rename(good / "c" / "old clip.avi")
    (good / "a" / "b").rmdir()
    (good / "b").mkdir()
    (good / "b" / "empty.mp4").write_bytes(b"")
    assert prepare_videos(str(good), str(tmp_path / "new"), Settings()) == 1
    rows = "a/plain.mp4\t0\na/three.mp4\t0\nc/old clip.mp4\t2\n"  # as in the whole folder, though b has no video left
    assert (tmp_path / "new" / "videos.txt").read_text() == rows
    assert [record.label for record in load_annotations(tmp_path / "new" / "videos.txt")] == [0, 0, 2]


def test_a_folder_without_classes(good, tmp_path):
    (good / "list.txt").unlink()
    assert prepare_videos(str(good), str(tmp_path / "new"), Settings()) == 0
    made = sorted(path.relative_to(tmp_path / "new").as_posix() for path in (tmp_path / "new").rglob("*.mp4"))
    assert made == ["a/b/old clip.mp4", "a/plain.mp4", "three.mp4"]  # though only one is in a class folder
    assert not (tmp_path / "new" / "videos.txt").exists()


LISTS = {
    "video": ("t.txt", 'x 1.avi,0\n"y,2.webm",3\nz.mp4,1\n', 'x 1.mp4,0\n"y,2.mp4",3\n'),
    "multi_label": ("m.txt", "\ufeffx 1.avi 3 5\n\ny,2.webm\t1\t2\nz.mp4 9", "\ufeffx 1.mp4 3 5\ny,2.mp4\t1\t2\n"),
    "avion": ("a.txt", "x 1.avi\t40\t3\ny,2.webm\t7\t0\nz.mp4\t9\t9\n", "x 1.mp4\t40\t3\ny,2.mp4\t7\t0\n"),
}


@pytest.mark.parametrize("format", LISTS)
def test_rows_are_kept_as_they_were_written(tmp_path, format):
    name, text, expected = LISTS[format]
    (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "new").mkdir()
    records = load_annotations(tmp_path / name, format)
    made = {str(tmp_path / "x 1.avi"): "x 1.mp4", str(tmp_path / "y,2.webm"): "y,2.mp4"}  # z.mp4 is bad
    target = write_list(str(tmp_path / name), format, str(tmp_path), tmp_path / "new", records, made)
    assert target.read_text(encoding="utf-8") == expected


def test_published_lists(tmp_path):
    new = tmp_path / "new"
    new.mkdir()
    (tmp_path / "classInd.txt").write_text("1 Run\n2 Jump\n")
    (tmp_path / "trainlist01.txt").write_text("Run/v_a.avi 1\nJump/v_b.avi 2\n")
    records = load_annotations(tmp_path / "trainlist01.txt")
    made = {str(tmp_path / "Jump/v_b.avi"): "Jump/v_b.mp4"}
    write_list(str(tmp_path / "trainlist01.txt"), "ucf101", str(tmp_path), new, records, made)
    assert [(r.source, r.label) for r in load_annotations(new / "trainlist01.txt")] == [(f"{new}/Jump/v_b.mp4", 1)]

    (tmp_path / "labels.json").write_text('{"Holding something": "0", "Moving something": "1"}')
    items = [{"id": str(i), "template": "Moving [something]", "label": f"moving {i}"} for i in (7, 8)]
    (tmp_path / "train.json").write_text(json.dumps(items))
    for place in (tmp_path / "7.webm", tmp_path / "8.webm", new / "8.mp4"):
        place.touch()
    records = load_annotations(tmp_path / "train.json")
    made = {str(tmp_path / "8.webm"): "8.mp4"}
    write_list(str(tmp_path / "train.json"), "ssv2_json", str(tmp_path), new, records, made)
    found = load_annotations(new / "train.json")
    assert [(r.source, r.label, r.text) for r in found] == [(f"{new}/8.mp4", 1, ("moving 8",))]


def test_class_ids_do_not_shift_where_a_class_is_lost(tmp_path):
    (tmp_path / "new").mkdir()
    head = "label,youtube_id,time_start,time_end,split\n"
    (tmp_path / "k.csv").write_text(head + "abseiling,a,1,11,train\nzumba,z,0,10,train\nmowing,m,2,12,train\n")
    records = load_annotations(tmp_path / "k.csv")
    names = {record.source: os.path.relpath(record.source, tmp_path) for record in records}
    target = write_list(str(tmp_path / "k.csv"), "kinetics_csv", str(tmp_path), tmp_path / "new", records, names)
    assert target.read_text() == (tmp_path / "k.csv").read_text()
    del names[records[0].source]
    target = write_list(str(tmp_path / "k.csv"), "kinetics_csv", str(tmp_path), tmp_path / "new", records, names)
    assert target.read_text() == "z_000000_000010.mp4\t2\nm_000002_000012.mp4\t1\n"
    assert not (tmp_path / "new" / "k.csv").exists()


def test_lists_of_parts_of_long_videos(tmp_path):
    new = tmp_path / "new"
    (new / "P01").mkdir(parents=True)
    (tmp_path / "P01").mkdir()
    for place in (tmp_path / "x.mp4", tmp_path / "P01/P01_01.MP4", new / "x.mp4", new / "P01/P01_01.mp4"):
        place.touch()
    text = "video_uid,start_second,end_second,narration\nx,1.0,2.5,#C C cuts\ny,1.0,2.0,#C C waits\n"
    (tmp_path / "ego.csv").write_text(text)
    records = load_annotations(tmp_path / "ego.csv", require_labels=False)
    made = {str(tmp_path / "x.mp4"): "x.mp4"}
    target = write_list(str(tmp_path / "ego.csv"), "ego4d", str(tmp_path), new, records, made)
    assert target.read_text() == text.rpartition("y,")[0]

    columns = "narration_id,participant_id,video_id,narration_timestamp,start_timestamp,stop_timestamp,start_frame,"
    columns += "stop_frame,narration,verb,verb_class,noun,noun_class,all_nouns,all_noun_classes\n"
    row = "P01_01_0,P01,P01_01,00:00:01.0,00:00:00.1,00:00:03.3,8,202,open door,open,3,door,3,['door'],[3]\n"
    for name in ("EPIC_100_train.csv", "EPIC_100_validation.csv"):
        (tmp_path / name).write_text(columns + row)
    path = str(tmp_path / "EPIC_100_train.csv")
    records = load_annotations(path, "epic")
    made = {str(tmp_path / "P01/P01_01.MP4"): "P01/P01_01.mp4"}
    assert records[0].label == {"verb": 3, "noun": 3, "action": 0}
    # One of the two lists alone does not tell which actions there are.
    (new / "deep").mkdir()
    assert write_list(path, "epic", str(tmp_path), new / "deep", records, made) is None
    assert load_annotations(path, "epic", root=new)[0].source == str(new / "P01/P01_01.mp4")


def test_lists_that_name_no_video_files(tmp_path):
    (tmp_path / "frames.txt").write_text("some/folder 40 3\n")
    with pytest.raises(ValueError, match="frames.txt:1 is no video file but a FrameFolder .*some/folder"):
        prepare_videos(str(tmp_path / "frames.txt"), str(tmp_path / "new"), Settings())
    (tmp_path / "up.txt").write_text("../x.mp4 3\n")
    with pytest.raises(ValueError, match="outside of .*--root"):
        prepare_videos(str(tmp_path / "up.txt"), str(tmp_path / "new"), Settings())


def test_a_video_that_takes_too_long_is_bad(good, tmp_path, capsys):
    assert (
        prepare(good, tmp_path / "new", timeout=0.0001) >= 1
    )  # the first one at least: its child takes longer to start
    assert "no answer within 0.0001 s" in capsys.readouterr().err
    assert not list((tmp_path / "new").rglob("*.unfinished"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_ends_the_run(good, tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "three.mp4.unfinished").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device; what is finished is kept") as error:
        prepare(good, tmp_path / "new")
    assert error.value.filename == str(tmp_path / "new") and os.path.exists("/dev/full")
    assert not (tmp_path / "new" / "three.mp4").exists() and not (tmp_path / "new" / "list.txt").exists()
    assert len(decode_all(tmp_path / "new" / "a/plain.mp4")) == NUM_FRAMES
    assert prepare(good, tmp_path / "new") == 0


def test_ctrl_c_leaves_nothing_half_done(tmp_path):
    encode(tmp_path / "0.mp4", size=(192, 128), count=80)
    rows = [f"{number}.mp4 {number}" for number in range(12)]
    for number in range(1, 12):
        (tmp_path / f"{number}.mp4").hardlink_to(tmp_path / "0.mp4")
    (tmp_path / "list.txt").write_text("\n".join(rows))
    command = [*TOOL, tmp_path / "list.txt", tmp_path / "new", "--workers", "2"]
    run = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    manifest, end = tmp_path / "new" / "manifest.jsonl", time.monotonic() + 30
    while not (manifest.exists() and manifest.read_text().count("\n") > 1) and time.monotonic() < end:
        time.sleep(0.01)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=30)
    assert run.returncode == 130 and "interrupted; the same command goes on" in errors and "Traceback" not in errors
    assert not list((tmp_path / "new").rglob("*.unfinished"))
    finished = len(list((tmp_path / "new").glob("*.mp4")))
    assert 1 < finished < 12 and not (tmp_path / "new" / "list.txt").exists()
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and f"{finished} of 12 videos are there already" in done.stderr
    assert (tmp_path / "new" / "list.txt").read_text() == "\n".join(rows) + "\n"


def test_a_source_without_times_of_its_own(video_file, tmp_path):
    """A raw stream has no times: they follow each other at the rate its reader gives."""
    done = encode_video(str(video_file("raw.h264")), str(tmp_path / "new.mp4"), Settings())
    frames = decode_all(tmp_path / "new.mp4")
    rate = build_reader("pyav").probe(video_file("raw.h264")).fps
    assert done.num_frames == len(frames) == NUM_FRAMES
    steps = {frame.pts * frame.time_base for frame in frames}
    assert steps == {number / Fraction(rate).limit_denominator(1001) for number in range(NUM_FRAMES)}
