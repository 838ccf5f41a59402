"""Videos in tar files: what is found in them, that they read as the files do, and what is said of broken ones."""

from __future__ import annotations

import io
import json
import logging
import pickle
import tarfile
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest

from paddlevideo_fast.data.annotations import AnnotationError, load_annotations
from paddlevideo_fast.data.readers import IsolatedReader, ShardMember, ShardReader, VideoError, View, build_reader
from paddlevideo_fast.data.readers import shards as shard_reader
from paddlevideo_fast.data.shards import INDEX_NAME, shard_numbers


def write_tar(path: Path, files: dict[str, bytes], **options) -> Path:
    """A tar file made by the standard library, as webdataset's TarWriter makes it."""
    with tarfile.open(path, "w", **options) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def videos(video_file):
    return {name: video_file(name).read_bytes() for name in ("plain.mp4", "three.mp4", "vp8.webm", "mpeg4_b.avi")}


@pytest.fixture
def foreign(tmp_path, videos):
    """A folder of two shards without an index."""
    folder = tmp_path / "shards"
    folder.mkdir()
    label = json.dumps({"label": 2, "start": 0.5, "end": 1.0, "text": "a wave"}).encode()
    write_tar(
        folder / "a-000.tar",
        {"one.mp4": videos["plain.mp4"], "one.cls": b"3\n", "two.json": label, "two.mp4": videos["three.mp4"]},
    )
    long = f"{'deep/' * 30}three"  # longer than the name field of a header
    write_tar(
        folder / "b-000.tar",
        {f"{long}.webm": videos["vp8.webm"], f"{long}.cls": b"0", "lonely.cls": b"1", "four.AVI": videos["mpeg4_b.avi"],
         "four.txt": "zwei Wörter".encode(), "four.json": b'{"cls": [1, 4]}'},
    )  # fmt: skip
    return folder


def test_foreign_shards_are_indexed_once(foreign, videos, caplog):
    with caplog.at_level(logging.INFO, "paddlevideo_fast"):
        records = load_annotations(foreign)
        again = load_annotations(foreign / INDEX_NAME)
    assert again == records
    assert caplog.text.count("reading the headers of 2 shards") == 1
    assert "b-000.tar: 1 samples have no video" in caplog.text
    facts = [(record.label, record.start, record.end, record.text) for record in records]
    assert facts == [
        (3, None, None, ()),
        (2, 0.5, 1.0, ("a wave",)),
        (0, None, None, ()),
        ((1, 4), None, None, ("zwei Wörter",)),
    ]
    assert [record.origin for record in records[:2]] == ["a-000.tar:one.mp4", "a-000.tar:two.mp4"]
    for record, data in zip(records, videos.values(), strict=True):
        shard = Path(record.source.path).read_bytes()
        assert shard[record.source.offset :][: record.source.size] == data
    assert shard_numbers(records) == [0, 0, 1, 1]


def test_a_shard_that_came_or_changed_is_indexed_anew(foreign, videos):
    load_annotations(foreign)
    write_tar(foreign / "a-000.tar", {"new.mp4": videos["three.mp4"], "new.cls": b"1"})
    write_tar(foreign / "c-000.tar", {"last.mp4": videos["three.mp4"], "last.cls": b"2"})
    assert [record.label for record in load_annotations(foreign)] == [1, 0, (1, 4), 2]
    (foreign / "b-000.tar").unlink()
    assert [record.label for record in load_annotations(foreign)] == [1, 2]


def test_a_folder_that_cannot_be_written_to(foreign, monkeypatch, caplog):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("paddlevideo_fast.data.shards.os.replace", refuse)
    assert len(load_annotations(foreign)) == 4
    assert "the index is not kept (Permission denied)" in caplog.text
    assert sorted(path.name for path in foreign.iterdir()) == ["a-000.tar", "b-000.tar"]


def test_labels_are_checked(foreign, videos, tmp_path):
    with pytest.raises(AnnotationError, match=r"label 3 at a-000.tar:one.mp4, num_classes=3"):
        load_annotations(foreign, num_classes=3)
    other = tmp_path / "other"
    other.mkdir()
    write_tar(other / "s.tar", {"x.mp4": videos["three.mp4"], "y.mp4": videos["three.mp4"], "y.cls": b"wave hand"})
    with pytest.raises(AnnotationError, match=r"s.tar:x.mp4: no label"):
        load_annotations(other)
    named = tmp_path / "named"
    named.mkdir()
    write_tar(named / "s.tar", {"y.mp4": videos["three.mp4"], "y.cls": b"wave hand"})
    assert [record.label for record in load_annotations(named, label_map={"wave hand": 7})] == [7]


@pytest.mark.parametrize(
    "fields",
    [
        '{"label": 1.5}',
        '{"label": [1, "a"]}',
        '{"label": {"verb": "a"}}',
        '{"label": 1, "start": "now"}',
        '{"label": 1, "text": [3]}',
        '{"label": 1, "num_frames": [1]}',
        '{"rows": [7]}',
        '{"rows": 3}',
    ],
)
def test_fields_that_no_record_has_are_named(videos, tmp_path, fields):
    write_tar(tmp_path / "s.tar", {"x.mp4": videos["three.mp4"], "x.json": fields.encode()})
    with pytest.raises(AnnotationError, match="s.tar:x.mp4: .* does not hold the fields of a record"):
        load_annotations(tmp_path)


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"format": 2, "shards": []}', '{"format": 1, "shards": [{"members": []}]}']
)
def test_what_is_no_index_is_said_to_be_none(tmp_path, text):
    (tmp_path / INDEX_NAME).write_text(text)
    with pytest.raises(AnnotationError, match="shards.json is not an index"):
        load_annotations(tmp_path)


def test_a_folder_without_shards(tmp_path):
    with pytest.raises(AnnotationError, match="holds no tar files"):
        load_annotations(tmp_path, "shards")
    (tmp_path / "class").mkdir()
    write_tar(tmp_path / "backup.tar", {})
    with pytest.raises(AnnotationError, match="no videos found"):  # a folder of classes, whatever lies beside them
        load_annotations(tmp_path)


@pytest.mark.parametrize("name", ["fused", "pyav", "decord", "opencv"])
def test_members_read_as_files_do(foreign, video_file, name):
    if name == "decord":
        pytest.importorskip("decord")
    records = load_annotations(foreign)
    plain = build_reader(name)
    views = [View([2, 0, 1]), View([1], flip=True)]
    for reader in (plain, ShardReader(plain, 1), IsolatedReader(plain), ShardReader(IsolatedReader(plain), 1)):
        for record, file in zip(records, ("plain.mp4", "three.mp4", "vp8.webm", "mpeg4_b.avi"), strict=True):
            with reader.open(record.source) as video, plain.open(video_file(file)) as expected:
                assert video.info == expected.info
                for clip, right in zip(video.read(views, (40, 50)), expected.read(views, (40, 50)), strict=True):
                    if name == "opencv":  # memory goes to the fallback, whose rounding differs
                        assert np.abs(clip.astype(int) - right).mean() < 2
                    else:
                        np.testing.assert_array_equal(clip, right)
            with reader.open_first(record.source, 2) as video:
                assert video.info.num_frames == 2


def test_each_shard_is_read_once_by_many_threads(foreign):
    records = load_annotations(foreign)
    reader = ShardReader(build_reader("fused"), 2)
    barrier = threading.Barrier(8)

    def read(record):
        barrier.wait()
        for _ in range(5):
            reader.read(record.source, [0])

    threads = [threading.Thread(target=read, args=[record]) for record in records * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reader.loads == 2
    fresh = pickle.loads(pickle.dumps(reader))
    assert fresh.loads == 0 and fresh.num_shards == 2 and fresh.read(records[0].source, [0]).shape == (1, 64, 96, 3)


def test_no_more_shards_are_kept_than_asked_for(foreign):
    records = load_annotations(foreign)
    reader = ShardReader(build_reader("fused"), 1)
    for record in (records[0], records[1], records[2], records[0]):
        reader.probe(record.source)
    assert reader.loads == 3


def readers():
    plain = build_reader("fused")
    return {"plain": plain, "kept": ShardReader(plain, 2), "isolated": ShardReader(IsolatedReader(plain), 2)}


@pytest.mark.parametrize("kind", readers())
def test_a_truncated_shard_loses_what_is_cut_off(foreign, kind):
    records = load_annotations(foreign)
    second = records[1].source
    shard = Path(second.path)
    shard.write_bytes(shard.read_bytes()[: second.offset + 100])
    reader = readers()[kind]
    assert reader.probe(records[0].source).num_frames == 40
    stop = second.offset + 100
    with pytest.raises(VideoError, match=rf"a-000.tar:two.mp4: the shard is cut off: it ends at byte {stop}, this"):
        reader.probe(second)


@pytest.mark.parametrize("kind", readers())
def test_a_missing_shard_is_named(foreign, kind):
    records = load_annotations(foreign)
    Path(records[0].source.path).unlink()
    with pytest.raises(VideoError, match=r"a-000.tar:one.mp4: the shard cannot be read: No such file"):
        readers()[kind].probe(records[0].source)


def test_a_shard_is_tried_again_after_a_while(foreign, monkeypatch):
    (record, *_) = load_annotations(foreign)
    path, away = Path(record.source.path), foreign / "away"
    path.rename(away)
    reader = ShardReader(build_reader("fused"), 1)
    for _ in range(2):
        with pytest.raises(VideoError, match="No such file"):
            reader.probe(record.source)
    away.rename(path)
    assert reader.loads == 1
    monkeypatch.setattr(shard_reader, "RETRY_SECONDS", -1)
    assert reader.probe(record.source).num_frames == 40


@pytest.mark.parametrize("kind", readers())
def test_changed_bytes_are_noticed_where_the_sum_is_known(foreign, videos, kind):
    source = load_annotations(foreign)[0].source
    source = ShardMember(*[getattr(source, name) for name in ("path", "name", "offset", "size")],
                         crc32=zlib.crc32(videos["plain.mp4"]))  # fmt: skip
    assert readers()[kind].probe(source).num_frames == 40
    shard = bytearray(Path(source.path).read_bytes())
    shard[source.offset + source.size // 2] ^= 1
    Path(source.path).write_bytes(shard)
    with pytest.raises(VideoError, match=r"a-000.tar:one.mp4: the shard is corrupted or another one: .*CRC-32"):
        readers()[kind].probe(source)


@pytest.mark.parametrize("kind", readers())
def test_what_is_wrong_with_a_video_is_said_with_its_shard(tmp_path, kind):
    write_tar(tmp_path / "s.tar", {"x.mp4": b"no video at all", "x.cls": b"0"})
    (record,) = load_annotations(tmp_path)
    with pytest.raises(VideoError, match=r"s.tar:x.mp4: not a video file") as raised:
        readers()[kind].probe(record.source)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_a_shard_cut_off_before_it_was_indexed(foreign, videos, caplog):
    shard = foreign / "a-000.tar"
    shard.write_bytes(shard.read_bytes()[: 512 + len(videos["plain.mp4"]) - 300])
    (foreign / "b-000.tar").write_bytes(b"")
    records = load_annotations(foreign, require_labels=False)
    assert "a-000.tar: the shard is damaged or cut off (unexpected end of data)" in caplog.text
    assert "b-000.tar: the shard is damaged or cut off" in caplog.text
    with pytest.raises(VideoError, match="a-000.tar:one.mp4: the shard is cut off"):
        build_reader("fused").probe(records[0].source)


def test_shards_that_are_not_as_their_index_says_are_warned_of(foreign, caplog):
    load_annotations(foreign)
    index = json.loads((foreign / INDEX_NAME).read_text())
    for shard in index["shards"]:
        shard["sha256"] = "0" * 64  # as of shards made with their index
    (foreign / INDEX_NAME).write_text(json.dumps(index))
    (foreign / "a-000.tar").unlink()
    assert len(load_annotations(foreign)) == 4
    assert "1 of 2 shards are not as their index says" in caplog.text and "a-000.tar is missing" in caplog.text
