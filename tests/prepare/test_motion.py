"""The motion data set: what its files show, measured with optical flow, and that it is written as promised."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from paddlevideo_fast.prepare.motion import CLASSES, draw_clip, make_motion_dataset
from paddlevideo_fast.prepare.scenes import FAMILIES, PICTURES, TEXTURE_SIZE, draw_scene, paint_scene


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make_motion_dataset(tmp_path_factory.mktemp("motion"), train=24, valid=8, test=8, seed=3)


def rows_of(root, split):
    return [(name, int(label)) for name, label in (line.split(" ") for line in (root / f"{split}.txt").open())]


def decode(path):
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]


def digests(root):
    return {path.relative_to(root): hashlib.sha256(path.read_bytes()).digest() for path in root.rglob("*.mp4")}


def content_motion(path):
    """Follows corners from frame to frame and fits x' = a x - b y + c, y' = b x + a y + d; y down, middle 0.

    Corners, not dense flow: where a scene is soft, dense flow finds a fraction of the motion.

    Returns: total of (right, down, log magnification, turn clockwise in radians) of the picture content.
    """
    frames, total = decode(path), np.zeros(4)
    frames = frames[:: max(1, len(frames) // 16)]
    middle = (np.array(frames[0].shape[::-1], np.float32) - 1) / 2
    for before, after in zip(frames, frames[1:]):
        corners = cv2.goodFeaturesToTrack(before, 300, 0.01, 4)
        moved, found, _ = cv2.calcOpticalFlowPyrLK(before, after, corners, None, winSize=(21, 21), maxLevel=3)
        old, new = (points[found.ravel() == 1].reshape(-1, 2) - middle for points in (corners, moved))
        fit, _ = cv2.estimateAffinePartial2D(old, new, ransacReprojThreshold=1.0)
        (a, _, c), (b, _, d) = fit
        total += (*(np.array([c, d]) / min(before.shape)), np.log(np.hypot(a, b)), np.arctan2(b, a))
    return total


# what the content does when the camera does what the class says: axis of content_motion, sign
CONTENT = {
    "pan_left": (0, 1),
    "pan_right": (0, -1),
    "pan_up": (1, 1),
    "pan_down": (1, -1),
    "zoom_in": (2, 1),
    "zoom_out": (2, -1),
    "rotate_clockwise": (3, -1),
    "rotate_anticlockwise": (3, 1),
}


@pytest.mark.parametrize("name", CLASSES)
def test_a_file_moves_as_its_label_says(dataset, name):
    files = [path for path, label in rows_of(dataset, "train") if CLASSES[label] == name]
    assert len(files) == 3
    for path in files:
        axis, sign = CONTENT[name]
        moved = content_motion(dataset / path)
        assert np.argmax(np.abs(moved)) == axis, (path, moved)
        assert np.sign(moved[axis]) == sign, (path, moved)
        assert abs(moved[axis]) > 0.25 and np.abs(np.delete(moved, axis)).max() < 0.15, (path, moved)


def test_lists_names_and_captions(dataset):
    assert (dataset / "classes.txt").read_text().splitlines() == list(CLASSES)
    captions = dict(line.rstrip("\n").split("\t") for line in (dataset / "captions.txt").open())
    for split, count in (("train", 24), ("valid", 8), ("test", 8)):
        rows = rows_of(dataset, split)
        assert Counter(label for _, label in rows) == dict.fromkeys(range(8), count // 8)
        for name, label in rows:
            assert (dataset / name).is_file()
            assert not any(word in name for word in ("pan", "zoom", "rot"))
            assert any(word in captions[name] for word in CAPTION_WORDS[CLASSES[label]]), captions[name]
    assert len(captions) == 40
    assert len(set(captions.values())) >= 38


CAPTION_WORDS = {
    "pan_left": ("left",),
    "pan_right": ("right",),
    "pan_up": ("up", "rises"),
    "pan_down": ("down", "sinks"),
    "zoom_in": ("zooms in", "closes in", "closer"),
    "zoom_out": ("zooms out", "pulls back", "away"),
    "rotate_clockwise": ("clockwise", "to the right"),
    "rotate_anticlockwise": ("anticlockwise", "to the left"),
}


def test_formats_vary_and_are_h264(dataset):
    sizes, rates = set(), set()
    for name, _ in rows_of(dataset, "train") + rows_of(dataset, "valid"):
        with av.open(str(dataset / name)) as container:
            stream = container.streams.video[0]
            assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
            assert stream.width % 2 == stream.height % 2 == 0
            assert 112 <= min(stream.width, stream.height) and max(stream.width, stream.height) <= 240
            assert 1.5 - 0.05 <= stream.frames / stream.average_rate <= 4 + 0.05
            sizes.add((stream.width, stream.height))
            rates.add(stream.average_rate)
    assert len(sizes) > 28
    assert rates <= {12, 15, 24, 25, 30, Fraction(30000, 1001)} and len(rates) >= 5


def test_no_class_shows_in_the_format_or_the_framing(dataset):
    """Length, rate, size, and mean brightness of single frames do not differ between classes beyond chance."""
    values = []
    for name, label in rows_of(dataset, "train") + rows_of(dataset, "valid") + rows_of(dataset, "test"):
        frames = decode(dataset / name)
        height, width = frames[0].shape
        values.append((label, len(frames), width, height, np.mean(frames[0]) - np.mean(frames[-1])))
    table = np.array(values)
    everyone = table[:, 1:]
    for label in range(8):
        own = everyone[table[:, 0] == label]
        distance = np.abs(own.mean(0) - everyone.mean(0)) / (everyone.std(0) / np.sqrt(len(own)))
        assert distance.max() < 4, (CLASSES[label], distance)


def test_the_same_seed_gives_the_same_bytes_whatever_the_workers(tmp_path):
    options = {"train": 4, "valid": 2, "test": 0, "size": (64, 80), "duration": (0.3, 0.5)}
    one = make_motion_dataset(tmp_path / "one", seed=5, workers=1, **options)
    two = make_motion_dataset(tmp_path / "two", seed=5, workers=2, **options)
    other = make_motion_dataset(tmp_path / "other", seed=6, workers=1, **options)
    assert digests(one) == digests(two)
    assert (one / "captions.txt").read_text() == (two / "captions.txt").read_text()
    assert not set(digests(one).values()) & set(digests(other).values())
    assert len(set(digests(one).values())) == 6


def test_the_camera_goes_a_part_of_the_way(tmp_path):
    ways = []
    for travel in (1.0, 0.25):
        clip = draw_clip(np.random.default_rng(4), "a.mp4", CLASSES.index("rotate_clockwise"), (64, 64), (2, 2), travel)
        ways.append(clip.camera[-1, 3] - clip.camera[0, 3])
        assert 0.65 / 2 <= clip.speed <= 1 / 2
    # 1.25 radians at most; a hand that sways 0.04 at most either way is in both.
    assert 0.65 * 1.25 - 0.08 <= ways[0] <= 1.25 + 0.08
    assert ways[0] - ways[1] == pytest.approx(0.75 * ways[0], abs=0.06)


def test_goes_on_where_it_stopped_and_grows(tmp_path):
    options = {"valid": 0, "test": 0, "size": (64, 64), "duration": (0.3, 0.4)}
    make_motion_dataset(tmp_path, train=3, **options)
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "videos/train").iterdir()}
    lost = tmp_path / "videos/train/00001.mp4"
    content = lost.read_bytes()
    lost.unlink()
    lost.with_name("00001.mp4.partial").write_bytes(content[:100])  # as a killed run leaves it
    make_motion_dataset(tmp_path, train=5, **options)
    assert lost.read_bytes() == content
    assert sorted(path.name for path in (tmp_path / "videos/train").iterdir()) == [f"{n:05d}.mp4" for n in range(5)]
    del kept[lost]
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())
    assert len(rows_of(tmp_path, "train")) == 5


def test_refuses_what_it_cannot_do(tmp_path):
    make_motion_dataset(tmp_path / "old", train=0, valid=0, test=0, seed=1)
    with pytest.raises(ValueError, match="choose another folder"):
        make_motion_dataset(tmp_path / "old", train=0, valid=0, test=0, seed=2)
    with pytest.raises(ValueError, match="train must be at least 0 clips, got -1"):
        make_motion_dataset(tmp_path / "new", train=-1)
    with pytest.raises(ValueError, match=r"size .* got \(8, 16\)"):
        make_motion_dataset(tmp_path / "new", size=(8, 16))
    with pytest.raises(ValueError, match=r"duration .* got \(2, 1\)"):
        make_motion_dataset(tmp_path / "new", duration=(2, 1))
    with pytest.raises(ValueError, match="travel must be above 0 and at most 1, got 1.5"):
        make_motion_dataset(tmp_path / "new", travel=1.5)


def test_a_folder_made_before_there_was_travel_is_taken(tmp_path):
    options = {"train": 1, "valid": 0, "test": 0, "size": (64, 64), "duration": (0.3, 0.4)}
    note = make_motion_dataset(tmp_path, **options) / "settings.json"
    note.write_text(json.dumps({k: v for k, v in json.loads(note.read_text()).items() if k != "travel"}))
    make_motion_dataset(tmp_path, **options)
    with pytest.raises(ValueError, match="choose another folder"):
        make_motion_dataset(tmp_path, travel=0.5, **options)


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    tool = Path(__file__).parents[2] / "tools" / "data" / "make_motion_dataset.py"
    done = subprocess.run([sys.executable, str(tool), str(tmp_path / "file")], capture_output=True, text=True)
    assert done.returncode == 1
    message = (
        f"make_motion_dataset: {tmp_path}/file/videos/train: a file is in the place of a folder (Not a directory)\n"
    )
    assert done.stderr == message


def test_scenes_wrap_around_and_have_contrast():
    seen = set()
    for number in range(60):
        rng = np.random.default_rng(number)
        scene = draw_scene(rng, "train")
        if scene.family in seen:
            continue
        seen.add(scene.family)
        texture = paint_scene(rng, scene)
        assert texture.shape == (TEXTURE_SIZE, TEXTURE_SIZE, 3) and texture.dtype == np.uint8
        assert texture.std() > 15
        if scene.family == "patchwork":
            continue  # its pieces are cut to the edge: there is a real line there
        grey = texture.mean(axis=2)
        for picture in (grey, grey.T):  # the seam is no rougher than the roughest place inside
            inside = np.abs(np.diff(picture, axis=0)).mean(axis=1).max()
            assert np.abs(picture[0] - picture[-1]).mean() <= inside * 1.2, scene.family
    assert len(seen) >= 8 and seen <= set(FAMILIES)


def test_pictures_of_train_are_not_shown_elsewhere():
    for splits in PICTURES.values():
        assert splits["train"] not in {name for split, name in splits.items() if split != "train"}
