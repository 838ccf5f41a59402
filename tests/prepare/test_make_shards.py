"""Packing videos into shards: what is in them, that an interrupted run goes on, that bad videos are named."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from conftest import encode

from paddlevideo_fast.data.annotations import AnnotationError, load_annotations
from paddlevideo_fast.data.readers import ShardMember, build_reader
from paddlevideo_fast.prepare import shards as packing
from paddlevideo_fast.prepare.shards import Options, make_shards

ROOT = Path(__file__).parents[2]
QUICK = Options(shard_size=8_000, decode="none")


@pytest.fixture
def videos(tmp_path):
    """A list of twelve videos with odd names, two rows of one of them."""
    folder = tmp_path / "videos"
    folder.mkdir()
    rows = []
    encode(folder / "first.mp4", count=4, options={"g": "12"})
    for number in range(12):
        name = ["a.b c %s.mp4", "ünï %s.MP4", "%s.mp4"][number % 3] % number
        data = (folder / "first.mp4").read_bytes()
        (folder / name).write_bytes(data + number.to_bytes(4, "big"))  # a little different, each one
        rows.append(f"{name}\t{number % 5}\n")
    (folder / "first.mp4").unlink()
    (folder / "list.txt").write_text("".join(rows) + "2.mp4\t4\n", encoding="utf-8")
    return folder


def contents(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*.*"))}


def test_every_video_and_row_is_in_the_shards(videos, tmp_path):
    before = contents(videos)
    output = tmp_path / "shards"
    assert make_shards(str(videos / "list.txt"), str(output), QUICK, workers=3) == 0
    assert contents(videos) == before
    index = json.loads((output / "shards.json").read_text(encoding="utf-8"))
    assert sorted(path.name for path in output.iterdir()) == [s["name"] for s in index["shards"]] + ["shards.json"]
    assert len(index["shards"]) > 2
    found = []
    for shard in index["shards"]:
        data = (output / shard["name"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (shard["size"], shard["sha256"])
        assert sum(member["size"] for member in shard["members"]) <= 8_000
        with tarfile.open(output / shard["name"]) as archive:
            for member in shard["members"]:
                video = data[member["offset"] :][: member["size"]]
                assert archive.extractfile(member["name"]).read() == video
                side = json.load(archive.extractfile(os.path.splitext(member["name"])[0] + ".json"))
                assert side.get("rows", [side]) == member["rows"]
                assert member["name"].count(".") == 1 and member["name"].isascii()
                found += [(hashlib.sha256(video).hexdigest(), row["label"]) for row in member["rows"]]
    records = load_annotations(videos / "list.txt")
    expected = [(hashlib.sha256(Path(r.source).read_bytes()).hexdigest(), r.label) for r in records]
    assert sorted(found) == sorted(expected) and found != expected
    assert [record.label for record in load_annotations(output)] == [label for _, label in found]


def test_order_and_seed(videos, tmp_path):
    def labels(name, **options):
        make_shards(str(videos / "list.txt"), str(tmp_path / name), Options(shard_size=1, decode="none", **options))
        return [record.label for record in load_annotations(tmp_path / name)]

    in_order = labels("a", shuffle=False)
    assert in_order == [0, 1, 2, 4, 3, 4, 0, 1, 2, 3, 4, 0, 1]  # the second row of 2.mp4 comes with the first
    mixed = labels("b"), labels("c"), labels("d", seed=1)
    assert mixed[0] == mixed[1] != in_order and mixed[2] != mixed[0]
    assert contents(tmp_path / "b")["shard-000003.tar"] == contents(tmp_path / "c")["shard-000003.tar"]


def test_all_fields_of_a_record_come_back(video_file, tmp_path):
    csv = tmp_path / "list.csv"
    shutil.copy(video_file("plain.mp4"), tmp_path / "---QUuC4vJs_000001_000002.mp4")
    csv.write_text("label,youtube_id,time_start,time_end,split\ndancing,---QUuC4vJs,1,2,train\n")
    names = tmp_path / "classes.txt"
    names.write_text("singing\ndancing\n")
    make_shards(str(csv), str(tmp_path / "k"), QUICK, classes=str(names))
    (record,) = load_annotations(tmp_path / "k")
    (original,) = load_annotations(csv, label_map={"singing": 0, "dancing": 1})
    assert record[1:6] == original[1:6] and record.label == 1
    multi = tmp_path / "multi.txt"
    multi.write_text("---QUuC4vJs_000001_000002.mp4 1 5 7\n")
    make_shards(str(multi), str(tmp_path / "m"), QUICK, format="multi_label")
    assert load_annotations(tmp_path / "m")[0].label == (1, 5, 7)


def test_bad_videos_are_named_and_left_out(videos, tmp_path, capfd):
    (videos / "2.mp4").write_bytes(b"")
    (videos / "5.mp4").write_bytes(b"no video")
    (videos / "8.mp4").unlink()
    output = tmp_path / "shards"
    assert make_shards(str(videos / "list.txt"), str(output), Options(decode="first"), workers=2) == 4
    text = capfd.readouterr().err
    assert f"BAD list.txt:3 {videos}/2.mp4: the file is empty (0 bytes)" in text
    assert f"BAD list.txt:13 {videos}/2.mp4: the file is empty" in text
    assert f"BAD list.txt:6 {videos}/5.mp4: not a video file" in text
    assert f"BAD list.txt:9 {videos}/8.mp4: No such file" in text
    assert "9 videos in 1 shards" in text and "4 records left out" in text and " s left" in text
    assert len(load_annotations(output)) == 9
    assert make_shards(str(videos / "list.txt"), str(output), Options(decode="first")) == 4  # as it is


def test_nothing_but_bad_videos(videos, tmp_path):
    for path in videos.glob("*.[mM]*4"):
        path.unlink()
    with pytest.raises(AnnotationError, match="not one of its 13 records can be read"):
        make_shards(str(videos / "list.txt"), str(tmp_path / "shards"), QUICK)


def test_a_video_that_changes_meanwhile_is_left_out(videos, tmp_path, monkeypatch, capfd):
    plain = packing.plan_shards

    def change(items, options):
        (videos / "2.mp4").write_bytes(b"other")
        (videos / "5.mp4").unlink()
        return plain(items, options)

    monkeypatch.setattr(packing, "plan_shards", change)
    assert make_shards(str(videos / "list.txt"), str(tmp_path / "shards"), QUICK) == 3
    text = capfd.readouterr().err
    assert "2.mp4: it changed while it was packed, from " in text and "5.mp4: [Errno 2]" in text
    assert len(load_annotations(tmp_path / "shards")) == 10


def test_an_interrupted_run_goes_on(videos, tmp_path, monkeypatch):
    options = Options(shard_size=8_000, decode="first")
    make_shards(str(videos / "list.txt"), str(tmp_path / "whole"), options)
    output, plain, written = tmp_path / "shards", packing.write_shard, []

    def write(path, shard):
        if len(written) == 2 and output.exists():
            raise KeyboardInterrupt
        written.append(path.name)
        return plain(path, shard)

    with monkeypatch.context() as patch:
        patch.setattr(packing, "write_shard", write)
        with pytest.raises(KeyboardInterrupt):
            make_shards(str(videos / "list.txt"), str(output), options)
    assert not (output / "shards.json").exists()
    times = {name: (output / name).stat().st_mtime_ns for name in written}
    (output / f"{packing.SHARD_NAME.format(2)}.unfinished").write_bytes(b"half")
    with open(output / ".unfinished" / "checked.jsonl", "a") as file:
        file.write('[["half a li')
    with pytest.raises(ValueError, match="holds the beginnings of shards of another list"):
        make_shards(str(videos / "list.txt"), str(output), Options(shard_size=7_000, decode="first"))

    def refuse(sources, *_):
        assert not sources, "looked at again"
        return iter(())

    monkeypatch.setattr(packing, "inspect_all", refuse)
    (output / packing.SHARD_NAME.format(99)).write_bytes(b"of a run that found more to pack")
    assert make_shards(str(videos / "list.txt"), str(output), options) == 0
    assert contents(output) == contents(tmp_path / "whole")
    assert times == {name: (output / name).stat().st_mtime_ns for name in written}


def test_other_shards_are_not_overwritten(videos, tmp_path):
    output = tmp_path / "shards"
    make_shards(str(videos / "list.txt"), str(output), QUICK)
    with pytest.raises(ValueError, match="holds shards of another list, or made with other options"):
        make_shards(str(videos / "list.txt"), str(output), Options(shard_size=10, decode="none"))
    (output / "shard-000001.tar").write_bytes(b"short")
    with pytest.raises(ValueError, match="holds shards that are damaged"):
        make_shards(str(videos / "list.txt"), str(output), QUICK)
    (output / "shards.json").unlink()
    with pytest.raises(ValueError, match="holds tar files already"):
        make_shards(str(videos / "list.txt"), str(output), QUICK)


def test_what_is_read_back_is_compared(videos, tmp_path, monkeypatch):
    output = tmp_path / "shards"

    def rot(descriptor):
        os.pwrite(descriptor, b"rot", 2000)

    monkeypatch.setattr(packing.os, "fsync", rot)
    with pytest.raises(OSError, match=r"shard-00000\d.tar.unfinished: what is read back is not what was written"):
        make_shards(str(videos / "list.txt"), str(output), QUICK)
    assert not list(output.glob("*.tar*"))


def test_a_full_disk_is_noticed_before(videos, tmp_path, monkeypatch):
    monkeypatch.setattr(packing.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(9, 9, 9))
    with pytest.raises(OSError, match="GB are needed and 0.0 GB are free"):
        make_shards(str(videos / "list.txt"), str(tmp_path / "shards"), QUICK)


def test_shards_can_be_packed_anew(videos, tmp_path):
    make_shards(str(videos / "list.txt"), str(tmp_path / "a"), QUICK)
    make_shards(str(tmp_path / "a"), str(tmp_path / "b"), Options(decode="first"))
    records = load_annotations(tmp_path / "b")
    assert len(list((tmp_path / "b").glob("*.tar"))) == 1 and len(records) == 13
    assert all(isinstance(record.source, ShardMember) and record.source.name.count("-") == 1 for record in records)
    assert build_reader("fused").probe(records[0].source).num_frames == 4


def test_folders_of_frames_are_refused(tmp_path):
    (tmp_path / "list.txt").write_text("frames/v_1 10 3\n")
    with pytest.raises(AnnotationError, match="list.txt:1: .*v_1 is a folder of frames"):
        make_shards(str(tmp_path / "list.txt"), str(tmp_path / "shards"), QUICK)


def test_webdataset_reads_them(videos, tmp_path):
    wds = pytest.importorskip("webdataset")
    output = tmp_path / "shards"
    make_shards(str(videos / "list.txt"), str(output), QUICK)
    paths = sorted(map(str, output.glob("*.tar")))
    samples = list(wds.WebDataset(paths, shardshuffle=False).decode())
    records = list({record.source: record for record in load_annotations(output)}.values())
    assert [sample["__key__"] for sample in samples] == [os.path.splitext(r.source.name)[0] for r in records]
    fields = [sample["json"].get("rows", [sample["json"]])[-1] for sample in samples]  # one video has two rows
    assert [row["label"] for row in fields] == [record.label for record in records]


def test_the_command(videos, tmp_path):
    (videos / "2.mp4").unlink()
    command = [sys.executable, "tools/data/make_shards.py", str(videos / "list.txt")]
    for output, status in ((tmp_path / "shards", 1), (videos / "list.txt" / "x", 2)):
        done = subprocess.run([*command, str(output), "--size", "0.03"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
    assert "make_shards: " in done.stderr and "a file is in the place of a folder" in done.stderr
