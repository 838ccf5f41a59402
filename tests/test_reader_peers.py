"""The pipelines the reader benchmark compares with: the right frames, the right part of them, the right packets."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import HEIGHT, NUM_FRAMES, WIDTH, decode_all, read_number, to_rgb
from PIL import Image

BENCHMARK = Path(__file__).resolve().parents[1] / "benchmark"
sys.path.insert(0, str(BENCHMARK))

from bench_readers import GATES, draw_dense, draw_segments, draw_window, find_videos, measure_turns
from reader_clips import ClipKind, write_clip
from reader_peers import PEERS, SLOWFAST_PEERS, decode_needed, hold_packets, scale_box, short_side_size
from report import Timing

from paddlevideo_fast.data.video import CropBox, VideoInfo, View

WHOLE = CropBox(0, 0, WIDTH, HEIGHT)
WANTED = [3, 4, 17, 30, 39]


def skip_unless_available(peer) -> None:
    if not peer.available():
        pytest.skip(f"needs {', '.join(peer.packages)}")


def as_drawn(clip: np.ndarray) -> list[np.ndarray]:
    """The pictures of a clip of the whole picture, back at the size they were drawn in."""
    return [np.asarray(Image.fromarray(picture).resize((WIDTH, HEIGHT))) for picture in clip]


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("file", ["plain.mp4", "long_gop.mp4"])
def test_peer_reads_the_frames_asked_for(name: str, file: str, video_file: Callable[[str], Path]):
    skip_unless_available(PEERS[name])
    path = str(video_file(file))
    clip = PEERS[name].read(path, View(WANTED, WHOLE))
    assert clip.shape == (len(WANTED), 224, 224, 3) and clip.dtype == np.uint8
    assert [read_number(picture) for picture in as_drawn(clip)] == WANTED
    # Of all decoded frames the wanted one is the nearest, also in the parts that hold no number.
    decoded = to_rgb(decode_all(path))[:, 20:].astype(np.float32)
    for picture, wanted in zip(as_drawn(clip), WANTED, strict=True):
        assert np.argmin(np.abs(decoded - picture[20:]).mean((1, 2, 3))) == wanted


@pytest.mark.parametrize("name", PEERS)
def test_peer_takes_the_box_and_mirrors_it(name: str, video_file: Callable[[str], Path]):
    skip_unless_available(PEERS[name])
    path, box = str(video_file("plain.mp4")), CropBox(20, 16, 60, 40)
    picture = PEERS[name].read(path, View([11], box, flip=True))[0]
    frame = to_rgb(decode_all(path))[11]
    cut = Image.fromarray(frame[16:56, 20:80]).resize((224, 224), Image.Resampling.BILINEAR)
    expected = np.asarray(cut)[:, ::-1].astype(np.float32)
    far = np.abs(expected - picture).mean()
    assert far < 12  # drawn noise has a deviation of 6, and scaling twice blurs; the neighbouring frames are at 20
    assert far < 0.5 * np.abs(expected[:, ::-1] - picture).mean()


@pytest.mark.parametrize("name", SLOWFAST_PEERS)
def test_slowfast_pipeline_reads_the_frames_asked_for(name: str, video_file: Callable[[str], Path]):
    skip_unless_available(SLOWFAST_PEERS[name])
    path, box = str(video_file("plain.mp4")), CropBox(16, 0, HEIGHT, HEIGHT)
    clip = SLOWFAST_PEERS[name].read(path, View(WANTED, box))
    # A box of the whole height would need a short side of 224: held at 256, the middle 56 of 64 rows are left.
    frames = to_rgb(decode_all(path))[:, 4:60, 20:76].astype(np.float32)
    for picture, wanted in zip(clip, WANTED, strict=True):
        small = np.asarray(Image.fromarray(picture).resize((56, 56), Image.Resampling.BILINEAR))
        distances = np.abs(frames - small).mean((1, 2, 3))
        assert np.argmin(distances) == wanted and distances[wanted] < 6


@pytest.mark.parametrize("file", ["plain.mp4", "long_gop.mp4", "no_b.mp4"])
@pytest.mark.parametrize("indices", [[0], [39], [5, 6, 7], [2, 14, 25, 38], [31, 9, 9]])
def test_needed_packets_give_the_frames_of_a_full_decode(file: str, indices: list[int], video_file):
    path = str(video_file(file))
    frames = decode_needed(hold_packets(path), indices, keep=True)
    everything = decode_all(path)
    assert [frame.pts for frame in frames] == [everything[index].pts for index in sorted(set(indices))]
    for frame, index in zip(frames, sorted(set(indices)), strict=True):
        assert np.array_equal(frame.to_ndarray(), everything[index].to_ndarray())


def test_needed_packets_leave_out_what_nothing_refers_to(video_file):
    held = hold_packets(str(video_file("plain.mp4")))  # key frames every 12 pictures
    assert len(held.packets) == NUM_FRAMES and np.flatnonzero(held.idr).tolist() == [0, 12, 24, 36]
    assert held.needed([12]) == [12]
    chosen = held.needed([20])
    assert chosen[0] == 12 and len(chosen) < 9  # some of the pictures between are disposable
    assert hold_packets(str(video_file("no_b.mp4"))).needed([11]) == list(range(12))
    with pytest.raises(ValueError, match="its codec is hevc"):
        hold_packets(str(video_file("hevc.mp4")))


def test_sizes_and_boxes_of_the_originals():
    assert short_side_size(640, 360) == (455, 256)  # 640 * 256 / 360 = 455.1
    assert short_side_size(360, 640) == (256, 455)
    assert scale_box(CropBox(90, 36, 180, 72), (640, 360), (320, 180)) == CropBox(45, 18, 90, 36)
    assert scale_box(CropBox(0, 0, 640, 360), (640, 360), (341, 256)) == CropBox(0, 0, 341, 256)


def test_workloads_draw_what_they_say():
    info, rng = VideoInfo(450, 30.0, 512, 288, 15.0), np.random.default_rng(0)
    for _ in range(50):
        assert np.array_equal(draw_segments(info, rng) // (450 // 8), np.arange(8))
        dense = draw_dense(info, rng)
        assert len(dense) == 32 and set(np.diff(dense)) == {2} and dense[-1] < 450
        window = draw_window(info, rng)
        assert len(window) == 4 and np.all(np.diff(window) > 0) and window[-1] - window[0] < 120 and window[-1] < 450


def seconds(*cpu: float) -> list[Timing]:
    return [Timing(wall=9.0, cpu=each, wall_min=9.0, wall_max=9.0) for each in cpu]


def test_gates_compare_the_right_way_round():
    ours, slow = seconds(1, 2, 4), seconds(2, 6, 8)  # repeat by repeat 2, 3 and 2 times
    at_least = {"ratio": 2.0, "range": "2.00-2.50"}
    assert GATES["mmaction2"].judge("W1", ours, slow) == {**at_least, "gate": ">= 1.5", "met": "yes"}
    assert GATES["mmaction2"].judge("W2", slow, ours)["met"] == "no"
    floor = GATES["the needed packets, decoded"]
    assert floor.judge("W2", slow, ours) == {**at_least, "gate": "<= 1.5", "met": "no"}
    assert floor.judge("W3", ours, ours) == {"ratio": 1.0, "range": "1.00-1.00", "gate": "<= 1.15", "met": "yes"}


def test_every_candidate_reads_the_same_turns_the_first_unmeasured():
    seen = {"a": [], "b": []}
    reads = {name: lambda path, view, name=name: seen[name].append((path, view)) for name in seen}
    timings = measure_turns(reads, [[("x", 1), ("y", 2)], [("x", 3)], [("y", 4)]])
    assert seen["a"] == seen["b"] == [("x", 1), ("y", 2), ("x", 3), ("y", 4)]
    assert [len(taken) for taken in timings.values()] == [2, 2]


def test_made_clip_is_what_training_files_are_like(tmp_path: Path):
    path = tmp_path / "clip.mp4"
    write_clip(path, ClipKind(96, 64, 1), seed=0)
    held = hold_packets(str(path))
    assert len(held.packets) == 30 and np.flatnonzero(held.idr).tolist() == [0]
    assert 0 < held.referenced.mean() < 1  # there are B pictures nothing refers to
    pictures = to_rgb(decode_all(path)).astype(np.float32)
    assert np.abs(np.diff(pictures, axis=0)).mean() > 1 and pictures.std() > 20  # it moves, and is not flat


def test_own_videos_are_those_every_candidate_counts_alike(tmp_path: Path, video_file: Callable[[str], Path]):
    for name in ("plain.mp4", "hevc.mp4", "open_gop.mp4", "edit_list.mp4"):
        shutil.copy(video_file(name), tmp_path / name)
    (tmp_path / "notes.txt").write_text("no video")
    chosen, left_out = find_videos(tmp_path, 3)
    assert [path.name for path in chosen] == ["plain.mp4"]
    for reason in ("hevc.mp4 (codec hevc)", "edit_list.mp4 (", "open_gop.mp4 (key frames", "notes.txt (not a video"):
        assert reason in left_out
    with pytest.raises(SystemExit, match="no H.264 file to measure on"):
        find_videos(tmp_path / "none", 3)


def test_benchmark_runs_without_paddle():
    code = "import sys, bench_readers, report; report.machine_facts(); sys.exit('paddle' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=BENCHMARK).returncode == 0
