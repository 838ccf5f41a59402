"""Frames extracted by the tool are those of the video, and an interrupted run goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paddlevideo_fast.data.readers import FrameFolder, build_reader
from paddlevideo_fast.prepare.frames import Options, extract_frames, find_jobs, kept_indices, scaled_size

ROOT = Path(__file__).parents[2]


def psnr(a, b):
    return 10 * np.log10(255**2 / np.mean((a.astype(float) - b) ** 2))


@pytest.fixture
def videos(video_file, tmp_path):
    """A folder with a/plain.mp4, a/b/turned.mp4, three.mkv and a list that names them, and a bad one."""
    folder = tmp_path / "videos"
    (folder / "a" / "b").mkdir(parents=True)
    copies = {"a/plain.mp4": "plain.mp4", "a/b/turned clip.mp4": "rotated_90.mp4", "three.mp4": "three.mp4"}
    for name, source in copies.items():
        (folder / name).write_bytes(video_file(source).read_bytes())
    (folder / "bad.mp4").write_bytes(b"")
    (folder / "list.txt").write_text("a/plain.mp4 3\nbad.mp4 0\na/b/turned clip.mp4 1\nthree.mp4 2\nthree.mp4 7\n\n")
    return folder


def run(*arguments):
    command = [sys.executable, str(ROOT / "tools" / "data" / "extract_frames.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def test_command_end_to_end(videos, tmp_path):
    output = tmp_path / "frames"
    done = run(videos / "list.txt", output, "--workers", 2, "--quality", 97)
    assert done.returncode == 1
    assert done.stderr.count("BAD") == 1 and "bad.mp4: the file is empty" in done.stderr
    assert "3 videos, 83 frames" in done.stderr and "1 bad" in done.stderr
    assert (output / "frames.txt").read_text() == "a/plain\t40\t3\na/b/turned clip\t40\t1\nthree\t3\t2\nthree\t3\t7\n"
    for name in ("a/plain", "a/b/turned clip", "three"):
        source, folder = build_reader("pyav").open(videos / f"{name}.mp4"), build_reader("frames").open(output / name)
        with source, folder:
            assert folder.info.num_frames == source.info.num_frames
            for a, b in zip(source.frames(), folder.frames(), strict=True):
                assert psnr(a, b) > 36
    assert sorted(path.name for path in (output / "three").iterdir()) == [f"img_0000{i}.jpg" for i in (1, 2, 3)]
    assert not list(output.rglob("*.unfinished")) and not (output / "bad").exists()


def test_help_is_quick_and_mistakes_are_named(tmp_path):
    assert "--short-side" in run("--help").stdout
    done = run(tmp_path / "none.txt", tmp_path / "out")
    assert done.returncode == 2 and f"{tmp_path}/none.txt does not exist" in done.stderr
    code = (
        "import sys, runpy; sys.argv = ['x', '--help']\n"
        f"try: runpy.run_path({str(ROOT / 'tools/data/extract_frames.py')!r}, run_name='__main__')\n"
        "except SystemExit: print([m for m in ('numpy', 'av', 'cv2', 'PIL', 'paddle') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert out.strip().endswith("[]")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quality": 500}, "quality must be from 1 to 100, got 500"),
        ({"quality": 0}, "quality must be from 1 to 100, got 0"),
        ({"short_side": 0}, "short_side must be at least 1 pixel, got 0"),
        ({"fps": -1}, "fps must be a finite number above 0, got -1"),
        ({"fps": float("nan")}, "fps must be a finite number above 0, got nan"),
        ({"template": "x.jpg"}, r"template 'x.jpg' must hold one field, such as img_\{:05d\}.jpg"),
        ({"template": "{a}.jpg"}, "must hold one field"),
        ({"template": "{}{}.jpg"}, "must hold one field"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        Options(**options)


def test_places_that_cannot_be_written_are_one_line(videos, tmp_path):
    (tmp_path / "file").touch()
    done = run(videos, tmp_path / "file")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"extract_frames: {tmp_path}/file: a file is in the place of a folder" in done.stderr
    done = run(videos, tmp_path / "out", "--quality", 500)
    assert done.returncode == 2 and "extract_frames: quality must be from 1 to 100, got 500" in done.stderr
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="workers must be at least 1 and timeout above 0 s, got 0 and 600"):
        extract_frames(str(videos), str(tmp_path / "out"), Options(), workers=0)


def test_finished_videos_are_kept_and_unfinished_redone(videos, tmp_path, capsys):
    output = tmp_path / "frames"
    (videos / "bad.mp4").unlink()
    assert extract_frames(str(videos), str(output), Options()) == 0
    kept, redone = output / "three" / "img_00002.jpg", output / "a" / "plain"
    kept.write_bytes(b"mark")
    redone.rename(output / "a" / "plain.unfinished")
    (output / "a" / "plain.unfinished" / "img_00040.jpg").unlink()
    assert extract_frames(str(videos), str(output), Options()) == 0
    assert kept.read_bytes() == b"mark" and len(list(redone.iterdir())) == 40
    assert not (output / "a" / "plain.unfinished").exists() and not (output / "frames.txt").exists()
    with pytest.raises(ValueError, match="stored with .*'quality': 95.* not .*'quality': 80"):
        extract_frames(str(videos), str(output), Options(quality=80))
    assert "3/3 videos" in capsys.readouterr().err


def test_size_rate_and_template(videos, tmp_path):
    output = tmp_path / "frames"
    options = Options(template="{:03d}.jpg", quality=95, short_side=32, fps=5)
    (videos / "bad.mp4").unlink()
    assert extract_frames(str(videos), str(output), options) == 0
    whole = build_reader("pyav").read(videos / "a/plain.mp4", range(0, 40, 5))
    small = build_reader("frames").read(FrameFolder(str(output / "a/plain"), "{:03d}.jpg"), range(8))
    assert small.shape == (8, 32, 48, 3) and len(list((output / "a/plain").iterdir())) == 8
    for picture, original in zip(small, whole, strict=True):
        assert psnr(picture, np.asarray(Image.fromarray(original).resize((48, 32), Image.Resampling.BILINEAR))) > 34


def test_damaged_video_is_bad(videos, tmp_path, capsys):
    data = (videos / "three.mp4").read_bytes()
    (videos / "three.mp4").write_bytes(data[: len(data) // 2])
    (videos / "bad.mp4").unlink()
    assert extract_frames(str(videos), str(tmp_path / "frames"), Options()) == 1
    assert "three.mp4: truncated" in capsys.readouterr().err


def test_a_video_that_takes_too_long_is_bad(videos, tmp_path, capsys):
    (videos / "bad.mp4").unlink()
    failed = extract_frames(str(videos), str(tmp_path / "frames"), Options(), workers=2, timeout=0.0001)
    late = capsys.readouterr().err.count("no answer within 0.0001 s")
    assert failed == late >= 1  # the first one at least: its child takes longer than that to start
    assert not [path for path in (tmp_path / "frames").rglob("*") if path.is_dir() and "unfinished" in path.name]


def test_lists_of_any_kind(videos, tmp_path):
    (videos / "tabs.txt").write_bytes("\ufeffa/plain.mp4\t3\r\na/b/turned clip.mp4\t1\r\n".encode())
    assert [(job.name, job.label) for job in find_jobs(str(videos / "tabs.txt"), "out")] == [
        ("a/plain", "3"),
        ("a/b/turned clip", "1"),
    ]
    (videos / "bare.txt").write_text("a/plain.mp4\nthree.mp4\n")
    assert [job.label for job in find_jobs(str(videos / "bare.txt"), "out")] == [None, None]
    (videos / "names.txt").write_text("a/plain.mp4 dancing\n")
    with pytest.raises(ValueError, match="names.txt:1: .* has no label"):
        find_jobs(str(videos / "names.txt"), "out")


def test_kept_frames():
    assert kept_indices(10, 30.0, None).tolist() == list(range(10))
    assert kept_indices(10, 30.0, 60.0).tolist() == list(range(10))
    assert kept_indices(10, 30.0, 10.0).tolist() == [0, 3, 6, 9]
    assert kept_indices(10, 25.0, 10.0).tolist() == [0, 2, 5, 7]
    assert kept_indices(1, 25.0, 0.1).tolist() == [0]
    assert kept_indices(5, 0.0, 10.0).tolist() == list(range(5))


def test_scaled_size():
    assert scaled_size(720, 1280, 256) == (256, 455)
    assert scaled_size(1280, 720, 256) == (455, 256)
    assert scaled_size(64, 96, None) is None


def test_names_of_folders(tmp_path):
    (tmp_path / "list.txt").write_text("\ufeffa.mp4 0\na.avi 1\n/abs/b.mp4 2\nc d.mp4 3\n", encoding="utf-8")
    jobs = find_jobs(str(tmp_path / "list.txt"), "out")
    assert [job.name for job in jobs] == ["a.mp4", "a.avi", "abs/b", "c d"]
    assert [job.label for job in jobs] == ["0", "1", "2", "3"] and jobs[0].source == str(tmp_path / "a.mp4")
    (tmp_path / "nested.txt").write_text("x.mp4 0\nx/y.mp4 1\nx/y.mp4 2\n")
    nested = find_jobs(str(tmp_path / "nested.txt"), "out")
    assert [job.name for job in nested] == ["x.mp4", "x/y", "x/y"]
    (tmp_path / "bad.txt").write_text("../x.mp4 1\n")
    with pytest.raises(ValueError, match="'..'"):
        find_jobs(str(tmp_path / "bad.txt"), "out")
