"""The check names every bad row with its reason, goes on after a hang, and keeps the good rows as they were."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import av
import numpy as np
import pytest
from conftest import draw_picture
from PIL import Image

from paddlevideo_fast.data.readers import Reader, VideoError
from paddlevideo_fast.data.readers.reader import Video
from paddlevideo_fast.data.video import VideoInfo
from paddlevideo_fast.prepare.check import check_dataset, inspect_all, kind_of
from paddlevideo_fast.prepare.clean import write_clean

ROOT = Path(__file__).parents[2]


def run(*arguments):
    command = [sys.executable, str(ROOT / "tools" / "data" / "check_dataset.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture
def videos(video_file, tmp_path):
    """A folder of good and bad files and a list of them, with a byte order mark, CRLF and a blank line."""
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in ("plain.mp4", "mpeg4.avi", "rotated_90.mp4"):
        (folder / name).write_bytes(video_file(name).read_bytes())
    (folder / "empty.mp4").write_bytes(b"")
    (folder / "text.mp4").write_bytes(b"not found\n" * 20)
    with av.open(str(folder / "plain.mp4")) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][20]
    data = bytearray((folder / "plain.mp4").read_bytes())
    data[packet.pos : packet.pos + packet.size] = b"\xff" * packet.size
    (folder / "rotten.mp4").write_bytes(bytes(data))
    lines = ["plain.mp4 0", "empty.mp4 1", "", "mpeg4.avi 1", "rotten.mp4 0", "gone one.mp4 1", "text.mp4 0"]
    lines += ["rotated_90.mp4 0", "plain.mp4 0", "empty.mp4 1"]
    (folder / "list.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())
    return folder


def test_command_end_to_end(videos, tmp_path):
    done = run(videos / "list.txt", "--workers", 2, "--clean", tmp_path / "good.txt", "--report", tmp_path / "report")
    assert done.returncode == 1, done.stderr
    bad = dict(re.findall(r"^BAD  list.txt:(\d+) .*?: (.*)$", done.stdout, re.M))
    assert set(bad) == {"2", "5", "6", "7", "10"} and bad["2"] == bad["10"] == "the file is empty (0 bytes)"
    assert "decoding stopped at frame" in bad["5"] and "does not exist" in bad["6"] and "not a video" in bad["7"]
    assert "      2  the file is empty\n      1  decoding stopped at frame N of N: Invalid data" in done.stdout
    assert "codecs     h264 2, mpeg4 1\n" in done.stdout and "sizes      96x64 2, 64x96 1\n" in done.stdout
    assert "9 rows, 7 videos: 4 good rows, 5 bad; 2 duplicates" in done.stdout
    assert "7/7 videos, 4 bad, 0 s left" in done.stderr
    good = b"\xef\xbb\xbfplain.mp4 0\r\n\r\nmpeg4.avi 1\r\nrotated_90.mp4 0\r\nplain.mp4 0\r\n"
    assert (tmp_path / "good.txt").read_bytes() == good
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["rows"] == 9 and report["bad"][0] == {
        "row": "list.txt:2",
        "path": str(videos / "empty.mp4"),
        "reason": "the file is empty (0 bytes)",
    }
    assert report["frames"] == {"min": 40.0, "median": 40.0, "max": 40.0} and report["fps"]["median"] == 25
    assert Image.open(tmp_path / "report" / "report.png").size == (1200, 720)
    again = run(tmp_path / "good.txt", "--root", videos, "--decode", "sample", "--reader", "opencv")
    assert again.returncode == 0 and "0 bad" in again.stdout and "BAD" not in again.stdout


def test_first_frame_only_misses_later_damage(videos, capsys):
    assert check_dataset(str(videos / "list.txt"), decode="first") == 4
    assert check_dataset(str(videos / "list.txt"), decode="sample") == 5


def test_mistakes_are_named(videos, tmp_path):
    done = run(tmp_path / "none.txt")
    assert done.returncode == 2 and f"there is no annotation {tmp_path}/none.txt" in done.stderr
    done = run(videos / "list.txt", "--reader", "pyva")
    assert done.returncode == 2 and "did you mean 'pyav'" in done.stderr
    (tmp_path / "bad.txt").write_text("a.mp4 zero\n")
    done = run(tmp_path / "bad.txt")
    assert done.returncode == 2 and "bad.txt:1: 'a.mp4 zero' has no label" in done.stderr and "Trace" not in done.stderr
    with pytest.raises(ValueError, match="is the list itself"):
        check_dataset(str(videos / "list.txt"), clean=str(videos / "list.txt"))
    with pytest.raises(ValueError, match="is a folder, which has no rows"):
        check_dataset(str(videos), clean=str(tmp_path / "x"))


def test_frame_folders(tmp_path, capsys):
    for name, numbers in {"a": range(1, 6), "b": range(1, 4), "c": [1, 2, 4, 5]}.items():
        (tmp_path / name).mkdir()
        for number in numbers:
            Image.fromarray(draw_picture(number)).save(tmp_path / name / f"img_{number:05d}.jpg")
    (tmp_path / "list.txt").write_text("a 5 0\nb 8 1\na 3 0\nc 5 1\nc 2 1\n")
    report = tmp_path / "report"
    assert check_dataset(str(tmp_path / "list.txt"), report=str(report)) == 1
    out = capsys.readouterr().out
    assert "BAD  list.txt:4  " in out and "img_00003.jpg is missing" in out
    assert "WARNING  list.txt:2  promises 8 frames, there are 3" in out
    assert "WARNING  list.txt:3  promises 3 frames, there are 5" in out and "2 with other frame counts" in out
    assert "jpeg 4" in out and "folder 4" in out and json.loads((report / "report.json").read_text())["fps"] is None


def test_spoilt_pictures_are_pointed_out(video_file, tmp_path, capsys):
    """Damage inside a picture, which the decoder covers up."""
    data = bytearray(video_file("no_b.mp4").read_bytes())
    with av.open(str(video_file("no_b.mp4"))) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][12]
    data[packet.pos + packet.size // 2 : packet.pos + packet.size // 2 + 40] = bytes(range(40))
    (tmp_path / "spoilt.mp4").write_bytes(bytes(data))
    (tmp_path / "list.txt").write_text("spoilt.mp4 0\n")
    assert check_dataset(str(tmp_path / "list.txt")) == 0
    assert re.search(r"WARNING  list.txt:1  decodes, with a complaint \(h264: .*spoilt.mp4", capsys.readouterr().out)


class StubbornReader(Reader):
    name = "stubborn"

    def open(self, source):
        if source.startswith("hang"):
            time.sleep(1000)
        if source == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if source == "mistake":
            raise KeyError("x")
        if source == "bad":
            raise VideoError(source, "is bad")
        return StubbornVideo()


class StubbornVideo(Video):
    info = VideoInfo(3, 10.0, 2, 2, 0.3)
    source = "good"

    def pictures(self, indices):
        yield from ((index, np.zeros((2, 2, 3), np.uint8)) for index in indices)

    def close(self):
        pass


def test_hangs_and_crashes_cost_their_own_row():
    sources = ["good", "hang", "crash", "mistake", "bad", *(f"good {number}" for number in range(20))]
    start = time.monotonic()
    facts = dict(inspect_all(sources, lambda source: StubbornReader(), "all", workers=2, timeout=3))
    assert time.monotonic() - start < 15 and set(facts) == set(sources)
    assert facts["hang"].reason.startswith("no answer within 3 s") and "SIGSEGV" in facts["crash"].reason
    assert facts["mistake"].reason == "the reader fails: KeyError: 'x'" and facts["bad"].reason == "is bad"
    assert all(facts[source].reason is None for source in sources if source.startswith("good"))


def test_stopping_does_not_wait_for_what_hangs():
    found = inspect_all(["good", "hang", "hang 2"], lambda source: StubbornReader(), "all", workers=2, timeout=60)
    assert next(found)[0] == "good"
    start, threads = time.monotonic(), threading.active_count()
    found.close()
    while threading.active_count() >= threads and time.monotonic() - start < 10:
        time.sleep(0.01)
    assert time.monotonic() - start < 5


def test_kinds_of_reasons():
    assert kind_of("/a/b c.jpg is missing (numbers 1 to 7 expected)") == kind_of(
        "/d/e c.jpg is missing (numbers 2 to 3)"
    )
    assert kind_of("decoding stopped at frame 12 of 40: x") == "decoding stopped at frame N of N: x"
    assert kind_of("truncated: the index of the mp4 file (moov box) is missing").count("mp4") == 1


class Bad:
    def __init__(self, row):
        self.origin = f"list:{row}"


@pytest.mark.parametrize(
    "name, content, bad, expected, kept",
    [
        ("a.txt", "a 0\n\nb 1\nc 2", [3], "a 0\n\nc 2", 2),
        ("a.txt", "\ufeffa 0\nb 1\n", [1], "\ufeffb 1\n", 1),
        ("a.txt", "a 0\rb 1\r", [2], "a 0\r", 1),
        (
            "k.csv",
            'label,youtube_id,time_start,time_end,split\nx,a,1,2,t\n"y\nz",b,1,2,t\nx,c,1,2,t\n',
            [4],
            "label,youtube_id,time_start,time_end,split\nx,a,1,2,t\nx,c,1,2,t\n",
            2,
        ),
        (
            "charades.csv",
            'original_vido_id video_id frame_id path labels\nv 0 0 v/1.jpg "1"\nw 1 0 w/1.jpg ""\nv 0 1 v/2.jpg ""\n',
            [2],
            'original_vido_id video_id frame_id path labels\nw 1 0 w/1.jpg ""\n',
            1,
        ),
    ],
)
def test_cleaned_lists(name, content, bad, expected, kept, tmp_path):
    (tmp_path / name).write_bytes(content.encode())
    output = tmp_path / "deep" / "good"
    assert write_clean(str(tmp_path / name), str(output), map(Bad, bad)) == kept
    assert output.read_bytes() == expected.encode() and os.listdir(output.parent) == ["good"]


def test_cleaned_json(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"id": "1", "label": "ä"}, {"id": "2"}, {"id": "3"}]))
    assert write_clean(str(tmp_path / "a.json"), str(tmp_path / "b.json"), [Bad(2)]) == 2
    assert json.loads((tmp_path / "b.json").read_text()) == [{"id": "1", "label": "ä"}, {"id": "3"}]


def test_shared_cases(tmp_path, capsys):
    inputs = ROOT.parent / "shared" / "cases" / "inputs"
    if not inputs.exists():
        pytest.skip("no shared cases")
    names = ["ok", "zero_bytes", "text", "audio_only", "zero_frames", "hevc", "truncated_nomoov", "corrupt_middle"]
    (tmp_path / "list.txt").write_text("".join(f"{name}.mp4 0\n" for name in names))
    assert check_dataset(str(tmp_path / "list.txt"), root=str(inputs), clean=str(tmp_path / "good.txt")) == 6
    assert (tmp_path / "good.txt").read_text() == "ok.mp4 0\nhevc.mp4 0\n"
