"""Chunks cut by the tool show every frame of their video once, at its time, and an interrupted run goes on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from conftest import RATE, decode_all, draw_picture, encode, read_number, to_rgb

from paddlevideo_fast.data.chunks import read_index
from paddlevideo_fast.data.readers import ChunkSet, VideoError, View, build_reader
from paddlevideo_fast.prepare import chunks as module
from paddlevideo_fast.prepare import cut as cutting
from paddlevideo_fast.prepare.chunks import find_jobs, index_folders, make_chunks
from paddlevideo_fast.prepare.cut import Cut, cut_video
from paddlevideo_fast.prepare.encode import Settings

ROOT = Path(__file__).parents[2]
GREY = [np.full((128, 192, 3), index % 250, np.uint8) for index in range(600)]
EXACT = Cut(1, Settings("default", None, 0))


def run(*arguments):
    command = [sys.executable, str(ROOT / "tools" / "data" / "make_chunks.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def write_ntsc(path, count):
    """Writes ``draw_picture`` at 30000/1001 frames a second."""
    with av.open(str(path), "w") as output:
        stream = output.add_stream("libx264", rate=Fraction(30000, 1001), options={"g": "50"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for index in range(count):
            frame = av.VideoFrame.from_ndarray(draw_picture(index))
            frame.pts, frame.time_base = index, Fraction(1001, 30000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))


@pytest.fixture
def videos(tmp_path):
    """A folder of P01/a.MP4 (63 frames, NTSC), b.mkv (51 frames) and bad.mp4."""
    folder = tmp_path / "videos"
    (folder / "P01").mkdir(parents=True)
    write_ntsc(folder / "a.mp4", 63)
    os.rename(folder / "a.mp4", folder / "P01" / "a.MP4")
    encode(folder / "b.mkv", options={"g": "60"}, count=51)
    (folder / "bad.mp4").write_bytes(b"")
    return folder


def starts_with_key(path):
    with av.open(str(path)) as container:
        return next(container.demux(video=0)).is_keyframe


def test_command_end_to_end(videos, tmp_path):
    output = tmp_path / "chunks"
    before = {path: path.read_bytes() for path in videos.rglob("*") if path.is_file()}
    done = run(videos, output, "--seconds", 1, "--short-side", 0, "--encode", "default", "--crf", 0, "--workers", 2)
    assert done.returncode == 1, done.stderr
    assert f"BAD {videos}/bad.mp4: the file is empty" in done.stderr and "2 videos in" in done.stderr
    assert {path: path.read_bytes() for path in before} == before
    made = sorted(str(path.relative_to(output)) for path in output.rglob("*") if path.is_file())
    assert made == sorted(
        ["P01/a.MP4/0.MP4", "P01/a.MP4/1.MP4", "P01/a.MP4/2.MP4", "P01/a.MP4/chunks.json", "P01/a.MP4/source.json"]
        + ["b.mkv/0.mp4", "b.mkv/1.mp4", "b.mkv/2.mp4", "b.mkv/chunks.json", "b.mkv/source.json"]
    )
    # frame i begins at i * 1001 / 30000 s: 30 of them before 1.001 s, but frame 30 itself after 1 s
    expected = {"P01/a.MP4": [30, 30, 3], "b.mkv": [25, 25, 1]}
    for name, counts in expected.items():
        whole = to_rgb(decode_all(videos / name))
        source = ChunkSet(str(output / name))
        index = read_index(source)
        assert (
            np.diff(index.firsts).tolist()
            == counts
            == [len(decode_all(output / name / index.name(number))) for number in range(3)]
        )
        assert all(starts_with_key(output / name / index.name(number)) for number in range(3))
        for stored in (True, False):
            if not stored:
                os.remove(output / name / "chunks.json")
            with build_reader("fused").open(source) as video:
                assert video.info == pytest.approx(build_reader("pyav").probe(videos / name))
                np.testing.assert_array_equal(np.stack(list(video.frames())), whole)


def test_help_is_quick_and_mistakes_are_named(videos, tmp_path):
    assert "--index-only" in run("--help").stdout
    done = run(tmp_path / "none", tmp_path / "out")
    assert done.returncode == 2 and f"{tmp_path}/none does not exist" in done.stderr
    assert run(videos).returncode == 2 and "OUTPUT is missing" in run(videos).stderr
    done = run(videos, tmp_path / "out", "--seconds", 0)
    assert done.returncode == 2 and "at least 1 second, got 0" in done.stderr
    (tmp_path / "empty").mkdir()
    for call, reason in [
        (lambda: find_jobs(videos, videos / "chunks"), "is inside .*, which is searched"),
        (lambda: find_jobs(videos, videos), "is inside"),
        (lambda: find_jobs(videos / "b.mkv", videos), r"b.mkv is a file; the folder of chunks cannot have its name"),
        (lambda: find_jobs(tmp_path / "empty", tmp_path / "out"), "holds no videos"),
        (lambda: make_chunks(videos, tmp_path / "out", EXACT, workers=0), "workers must be at least 1"),
        (lambda: index_folders(videos), "holds no chunks"),
    ]:
        with pytest.raises(ValueError, match=reason):
            call()
    assert not (tmp_path / "out").exists()


def test_an_interrupted_run_goes_on(videos, tmp_path, capsys):
    """Finished chunks stay as they are; those that are missing, cut off or of other pictures are written anew."""
    output = tmp_path / "chunks"
    source, folder = videos / "b.mkv", output / "b.mkv"
    assert make_chunks(source, output, EXACT) == 0
    expected = {path.name: path.read_bytes() for path in folder.iterdir()}
    times = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert make_chunks(source, output, EXACT) == 0
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == times

    work = output / "b.mkv.unfinished"
    for spoil in (
        lambda place: os.remove(place / "1.mp4"),
        lambda place: os.truncate(place / "1.mp4", 2000),
        lambda place: shutil.copy(place / "2.mp4", place / "1.mp4"),
        lambda place: os.rename(place / "1.mp4", place / "1.mp4.unfinished"),
    ):
        os.rename(folder, work)
        spoil(work)
        (work / "chunks.json").unlink()
        kept = (work / "0.mp4").stat().st_mtime_ns
        assert make_chunks(source, output, EXACT) == 0
        assert not work.exists() and (folder / "0.mp4").stat().st_mtime_ns == kept
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == expected
    os.remove(folder / "2.mp4")  # of a folder that was finished
    assert make_chunks(source, output, EXACT) == 0
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == expected
    capsys.readouterr()

    assert make_chunks(source, output, Cut(2, EXACT.settings)) == 1
    assert "was cut from another file, or otherwise" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == expected
    os.rename(folder, work)
    assert make_chunks(source, output, Cut(2, EXACT.settings)) == 0  # unfinished ones of another cut go
    assert sorted(path.name for path in folder.iterdir()) == ["0.mp4", "2.mp4", "chunks.json", "source.json"]


def test_a_damaged_source_leaves_nothing(videos, tmp_path, capsys):
    encode(videos / "cut.mp4", options={"g": "12"}, count=60, container_options={"movflags": "faststart"})
    os.truncate(videos / "cut.mp4", os.path.getsize(videos / "cut.mp4") * 3 // 4)
    assert make_chunks(videos / "cut.mp4", tmp_path / "out", EXACT) == 1
    assert f"BAD {videos}/cut.mp4: the file ends early" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*"))


def test_a_killed_run_does_not_disturb_the_next(tmp_path):
    """Killed for good, a run leaves a child at work; it ends with its chunk, and the next run waits for that."""
    encode(
        tmp_path / "v.mp4", options={"preset": "ultrafast"}, count=600, size=(192, 128), draw=lambda i, w, h: GREY[i]
    )
    command = [sys.executable, str(ROOT / "tools/data/make_chunks.py"), str(tmp_path / "v.mp4"), str(tmp_path / "out")]
    command += ["--seconds", "2", "--workers", "1", "--short-side", "0"]
    work, folder = tmp_path / "out" / "v.mp4.unfinished", tmp_path / "out" / "v.mp4"
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not (work / "2.mp4").exists():
        assert first.poll() is None
        time.sleep(0.02)
    first.kill()
    first.wait()
    assert not folder.exists()
    kept = (work / "0.mp4").stat().st_mtime_ns
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (folder / "0.mp4").stat().st_mtime_ns == kept and not work.exists()
    assert np.diff(read_index(ChunkSet(str(folder))).firsts).tolist() == [50] * 12
    with build_reader("fused").open(ChunkSet(str(folder))) as video:
        assert sum(1 for _ in video.pictures(range(600))) == 600


def test_two_runs_do_not_write_the_same_video(videos, tmp_path, monkeypatch):
    job = find_jobs(videos / "b.mkv", tmp_path / "out")[0]
    monkeypatch.setattr(cutting, "LOCK_SECONDS", 1)
    with cutting._only_one(job, job.folder + ".unfinished"):
        with pytest.raises(VideoError, match=r"b.mkv: another process writes to .*b.mkv.unfinished"):
            cut_video(job, EXACT, 1)
    cut_video(job, EXACT, 1)
    assert os.path.isdir(job.folder)


def test_a_full_disk_ends_the_run_and_keeps_what_is_there(videos, tmp_path, monkeypatch):
    def full(function, arguments, workers, timeout):
        yield 0, OSError(errno.ENOSPC, "x", "/out")

    monkeypatch.setattr(module, "map_in_children", full)
    with pytest.raises(OSError, match="No space left on device; what is finished is kept") as error:
        make_chunks(videos, tmp_path / "out", EXACT)
    assert error.value.errno == errno.ENOSPC


def test_scaled_and_turned_upright(tmp_path, video_file):
    """A picture of 96x64 turned by a quarter is 64x96; its shorter side becomes 48 and the other 72."""
    assert make_chunks(video_file("rotated_90.mp4"), tmp_path, Cut(1, Settings("default", 48, 10))) == 0
    source = ChunkSet(str(tmp_path / "rotated_90.mp4"))
    with build_reader("fused").open(source) as video:
        assert video.info[:4] == (40, 25.0, 48, 72)
        for index in (0, 24, 25, 39):
            (small,) = video.read([View([index])])
            (large,) = build_reader("pyav").open(video_file("rotated_90.mp4")).read([View([index])], size=(72, 48))
            assert 10 * np.log10(255**2 / np.mean((small.astype(float) - large) ** 2)) > 28


def test_variable_rate_keeps_every_frame(tmp_path):
    """Frames of 40 and 80 ms, and two seconds in which nothing is shown: that chunk has no file."""
    times = [index + index // 3 for index in range(30)] + [120 + index for index in range(20)]  # in 1/25 s
    encode(tmp_path / "vfr.mp4", options={"g": "60"}, count=50, times=times)
    assert make_chunks(tmp_path / "vfr.mp4", tmp_path / "out", EXACT) == 0
    source = ChunkSet(str(tmp_path / "out" / "vfr.mp4"))
    # times below 25 of 0, 1, 2, 4, 5, 6, 8, ...: 19; below 50: all 30; from 120 to 124: 5; from 125 on: 15
    assert np.diff(read_index(source).firsts).tolist() == [19, 11, 0, 0, 5, 15]
    assert sorted(path.name for path in Path(source.path).glob("*.mp4")) == ["0.mp4", "1.mp4", "4.mp4", "5.mp4"]
    with build_reader("fused").open(source) as video:
        assert [read_number(picture) for picture in video.frames()] == list(range(50))
        assert video.info == pytest.approx(build_reader("pyav").probe(tmp_path / "vfr.mp4"))


def test_index_of_chunks_made_elsewhere(tmp_path, capsys):
    folder = tmp_path / "P01" / "P01_01.MP4"
    folder.mkdir(parents=True)
    for start, count in ((0, 25), (1, 25), (2, 7)):
        encode(folder / f"{start}.mp4", count=count)
        os.rename(folder / f"{start}.mp4", folder / f"{start}.MP4")
    assert run(tmp_path, "--index-only").returncode == 0
    data = json.loads((folder / "chunks.json").read_text())
    assert data["num_frames"] == [25, 25, 7] and data["suffix"] == ".MP4" and data["fps"] == RATE
    assert data["duration"] == pytest.approx(57 / 25) and data["codec"] == "h264"
    os.remove(folder / "chunks.json")
    os.remove(folder / "1.MP4")
    assert index_folders(str(tmp_path)) == 1
    assert f"BAD {folder}" in (told := capsys.readouterr().err) and "1.MP4 is missing" in told
    assert index_folders(str(tmp_path), seconds=1) == 1
    assert "1.MP4: does not exist" in capsys.readouterr().err
    assert not (folder / "chunks.json").exists()
