"""Lists built from folders and published annotations: no overlap, even splits, and files that load again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from paddlevideo_fast.data.annotations import AnnotationError, VideoRecord, load_annotations, load_class_names
from paddlevideo_fast.data.video import FrameFolder
from paddlevideo_fast.prepare.lists import build_lists, count_table, split_records

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def videos(tmp_path):
    """Three classes of 10, 5 and 1 empty files: lists are built from names alone."""
    for name, count in [("跳舞 a", 10), ("b", 5), ("c", 1)]:
        (tmp_path / "videos" / name).mkdir(parents=True)
        for index in range(count):
            (tmp_path / "videos" / name / f"clip {index}.mp4").touch()
    return tmp_path / "videos"


def sources(path, **kwargs):
    return [str(record.source) for record in load_annotations(path, **kwargs)]


def test_folder(videos, tmp_path):
    output = tmp_path / "lists"
    splits = build_lists(videos, output, valid=0.2, test=0.2)
    names = load_class_names(output / "classes.txt")
    assert names == ["b", "c", "跳舞 a"]
    loaded = {split: load_annotations(output / f"{split}.txt", num_classes=3) for split in ("train", "valid", "test")}
    for split, records in loaded.items():
        assert [(r.source, r.label) for r in records] == [(r.source, r.label) for r in splits[split]]
        assert all(Path(r.source).is_file() and Path(r.source).parent.name == names[r.label] for r in records)
    every = [record.source for records in loaded.values() for record in records]
    assert len(every) == len(set(every)) == 16
    counts = {split: Counter(record.label for record in records) for split, records in loaded.items()}
    assert counts["valid"] == {0: 1, 2: 2} and counts["test"] == {0: 1, 2: 2} and counts["train"] == {0: 3, 1: 1, 2: 6}


def test_empty_class_folders_are_named_and_get_no_id(videos, tmp_path, caplog):
    for name in ("a", "bb"):
        (videos / name).mkdir()
    (videos / "bb" / "notes.txt").touch()
    build_lists(videos, tmp_path / "lists", valid=0.2)
    assert load_class_names(tmp_path / "lists/classes.txt") == ["b", "c", "跳舞 a"]
    labels = {Path(r.source).parent.name: r.label for r in load_annotations(tmp_path / "lists/train.txt")}
    assert labels == {"b": 0, "c": 1, "跳舞 a": 2}
    text = f"{videos}: class folders without a video get no class id: a, bb; remove them, or put videos in them"
    assert text in caplog.messages


def test_seed_decides_the_split(videos, tmp_path):
    def valid(name, seed):
        build_lists(videos, tmp_path / name, valid=0.3, seed=seed)
        return sources(tmp_path / name / "valid.txt")

    assert valid("a", 0) == valid("b", 0) != valid("c", 1)
    assert not (tmp_path / "a" / "test.txt").exists()


def test_lists_beside_the_videos_can_move_with_them(videos, tmp_path):
    build_lists(videos, videos)
    videos.rename(tmp_path / "moved")
    assert all(Path(source).is_file() for source in sources(tmp_path / "moved" / "train.txt"))
    assert "/" == (tmp_path / "moved" / "train.txt").read_text()[1]


@pytest.mark.parametrize("sizes", [[7] * 30, [1] * 40 + [20], [2] * 50, [3, 100, 5, 1, 41]])
@pytest.mark.parametrize("parts", [{"valid": 0.2}, {"valid": 0.1, "test": 0.25}, {"valid": 0.0}])
def test_splits_are_even(sizes, parts):
    records = [VideoRecord(f"{label}/{i}", label) for label, size in enumerate(sizes) for i in range(size)]
    splits = split_records(records, parts, seed=3)
    assert sorted(r.source for split in splits.values() for r in split) == sorted(r.source for r in records)
    for split, part in parts.items():
        counts = Counter(record.label for record in splits[split])
        assert all(counts[label] <= part * size + 1 for label, size in enumerate(sizes))
        assert all(counts[label] > part * size - 1 for label, size in enumerate(sizes) if size > 1)
    assert len({record.label for record in splits["train"]}) == len(sizes)
    again = split_records(records[::-1], parts, seed=3)
    assert {s: {r.source for r in g} for s, g in again.items()} == {s: {r.source for r in g} for s, g in splits.items()}


def test_folders_of_frames(tmp_path):
    for name in ["a/clip 7", "a/clip 8", "b/x"]:
        (tmp_path / "frames" / name).mkdir(parents=True)
        for index in range(3):
            (tmp_path / "frames" / name / f"img_{index:05d}.jpg").touch()
    build_lists(tmp_path / "frames", tmp_path / "lists", valid=0.0)
    records = load_annotations(tmp_path / "lists" / "train.txt", num_classes=2)
    assert [record.source for record in records] == [
        FrameFolder(str(tmp_path / "frames" / name), num_frames=3) for name in ("a/clip 7", "a/clip 8", "b/x")
    ]
    (tmp_path / "frames/b/y.mp4").touch()
    with pytest.raises(AnnotationError, match="a list holds one kind"):
        build_lists(tmp_path / "frames", tmp_path / "other")


def test_ucf101_takes_the_published_split(tmp_path, capsys):
    (tmp_path / "classInd.txt").write_text("1 Archery\n2 Diving\n")
    (tmp_path / "trainlist01.txt").write_text("Archery/a.avi 1\nDiving/b.avi 2\nDiving/gone.avi 2\n")
    (tmp_path / "testlist01.txt").write_text("Diving/c.avi\n")
    for name in ["Archery/a.avi", "Diving/b.avi", "Diving/c.avi"]:
        (tmp_path / "UCF-101" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "UCF-101" / name).touch()
    build_lists(tmp_path / "trainlist01.txt", tmp_path / "lists", root=tmp_path / "UCF-101")
    assert [Path(s).name for s in sources(tmp_path / "lists/train.txt")] == ["a.avi", "b.avi"]
    assert [(Path(r.source).name, r.label) for r in load_annotations(tmp_path / "lists/valid.txt")] == [("c.avi", 1)]
    assert load_class_names(tmp_path / "lists/classes.txt") == ["Archery", "Diving"]
    assert "left out 1 videos not on disk" in capsys.readouterr().out
    with pytest.raises(AnnotationError, match="no video is on disk; the first would be .*nowhere/Archery/a.avi"):
        build_lists(tmp_path / "trainlist01.txt", tmp_path / "lists", root=tmp_path / "nowhere")


def test_kinetics_and_ssv2(tmp_path):
    header = "label,youtube_id,time_start,time_end,split\n"
    (tmp_path / "k").mkdir()
    (tmp_path / "k/train.csv").write_text(header + "zumba,a,0,10,train\nair drumming,b,5,15,train\n")
    (tmp_path / "k/validate.csv").write_text(header + "zumba,c,1,11,validate\n")
    for name in ["a_000000_000010", "b_000005_000015", "c_000001_000011"]:
        (tmp_path / "k" / f"{name}.mp4").touch()
    build_lists(tmp_path / "k/train.csv", tmp_path / "k/lists")
    assert [r.label for r in load_annotations(tmp_path / "k/lists/train.txt")] == [1, 0]
    assert [r.label for r in load_annotations(tmp_path / "k/lists/valid.txt")] == [1]
    assert load_class_names(tmp_path / "k/lists/classes.txt") == ["air drumming", "zumba"]

    (tmp_path / "s").mkdir()
    (tmp_path / "s/labels.json").write_text(json.dumps({"Holding something": "0", "Moving something": "1"}))
    items = [{"id": str(index), "template": "Moving [something]"} for index in range(10)]
    (tmp_path / "s/train.json").write_text(json.dumps(items))
    for index in range(10):
        (tmp_path / "s" / f"{index}.webm").touch()
    splits = build_lists(tmp_path / "s/train.json", tmp_path / "s/lists")
    assert {split: len(records) for split, records in splits.items()} == {"train": 8, "valid": 2}
    assert "Holding something" in count_table(splits, load_class_names(tmp_path / "s/lists/classes.txt"))


def test_class_names_that_begin_with_numbers_keep_their_ids(tmp_path):
    for name in ["0 apples", "10 pears", "2 plums", "1 fig"] + [f"{n} x" for n in range(3, 10)]:
        (tmp_path / "videos" / name).mkdir(parents=True)
        (tmp_path / "videos" / name / "v.mp4").touch()
    build_lists(tmp_path / "videos", tmp_path / "lists")
    names = load_class_names(tmp_path / "lists/classes.txt")
    assert names[:4] == ["0 apples", "1 fig", "10 pears", "2 plums"]


def test_published_lists_that_overlap_are_refused(tmp_path):
    (tmp_path / "classInd.txt").write_text("1 Archery\n")
    (tmp_path / "Archery").mkdir()
    (tmp_path / "Archery/a.avi").touch()
    for name in ("trainlist01.txt", "testlist01.txt"):
        (tmp_path / name).write_text("Archery/a.avi\n")
    with pytest.raises(AnnotationError, match="a.avi is in train and in valid"):
        build_lists(tmp_path / "trainlist01.txt", tmp_path / "lists")


def test_refuses_what_a_list_cannot_hold_and_stale_splits(videos, tmp_path):
    build_lists(videos, tmp_path / "lists", test=0.2)
    with pytest.raises(AnnotationError, match="test.txt of other splits"):
        build_lists(videos, tmp_path / "lists")
    with pytest.raises(AnnotationError, match="leave some for training"):
        build_lists(videos, tmp_path / "lists", valid=0.7, test=0.3)
    (videos / "b" / "line\nbreak.mp4").touch()
    with pytest.raises(AnnotationError, match="cannot hold tabs, line breaks"):
        build_lists(videos, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "list.txt").write_text("a.mp4 0\n")
    with pytest.raises(AnnotationError, match="format 'video' has no class names"):
        build_lists(tmp_path / "list.txt", tmp_path / "new")


def run(*arguments, cwd):
    command = [sys.executable, str(REPOSITORY / "tools/data/build_list.py"), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_command(videos, tmp_path):
    done = run("videos", "lists", "--valid", "0.2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["all", "3", "classes", "13", "3"]
    assert len(sources(tmp_path / "lists/valid.txt")) == 3
    failed = run("no such folder", "lists", cwd=tmp_path)
    assert failed.returncode == 1 and failed.stderr.startswith("build_list: there is no folder or annotation /")
    assert len(failed.stderr.splitlines()) == 1
