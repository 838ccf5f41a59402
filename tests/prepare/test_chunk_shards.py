"""Chunk sets in shards: each row keeps its frames, chunks that no row needs stay out, what is wrong is named."""

from __future__ import annotations

import os
import tarfile
from fractions import Fraction

import av
import numpy as np
import pytest
from conftest import draw_picture, read_number

from paddlevideo_fast.data.annotations import AnnotationError, load_annotations
from paddlevideo_fast.data.plan import frame_span
from paddlevideo_fast.data.readers import ShardReader, VideoError, available_readers, build_reader
from paddlevideo_fast.data.video import NamedBytes
from paddlevideo_fast.prepare.chunks import make_chunks
from paddlevideo_fast.prepare.cut import Cut
from paddlevideo_fast.prepare.encode import Settings
from paddlevideo_fast.prepare.shards import Options, make_shards

HEADER = "participant_id,video_id,start_timestamp,stop_timestamp,verb_class,noun_class\n"
# Of a video of 6.67 s in chunks of 1 s: 0 and 1 share a row, and 3 and 4; 5 stands alone; 2 and 6 are not needed.
ROWS = [(0.2, 0.9), (3.1, 3.5), (0.8, 1.4), (3.3, 4.9), (5.05, 5.95), (4.2, 4.3)]
FILE_READERS = [name for name in available_readers() if name not in ("frames", "opencv")]  # OpenCV opens paths only


def write_rows(path, rows, video="v"):
    text = "".join(f"me,{video},00:00:{a:05.2f},00:00:{b:05.2f},{n},0\n" for n, (a, b) in enumerate(rows))
    path.write_text(HEADER + text)


@pytest.fixture(scope="module")
def chunks(tmp_path_factory):
    """A chunk set of 200 frames at 30000/1001 a second, so 30 or 29 frames a chunk, and a list of its rows."""
    folder = tmp_path_factory.mktemp("long")
    with av.open(folder / "v.mp4", "w") as output:
        stream = output.add_stream("libx264", rate=Fraction(30000, 1001), options={"crf": "12"})
        stream.width, stream.height = 96, 64
        for number in range(200):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(draw_picture(number))))
        output.mux(stream.encode())
    assert make_chunks(str(folder / "v.mp4"), str(folder / "chunks"), Cut(1, Settings(short_side=None, crf=12))) == 0
    write_rows(folder / "list.csv", ROWS)
    return folder


@pytest.fixture(scope="module")
def shards(chunks):
    options = Options(shard_size=20_000, decode="all")
    folder = chunks / "shards"
    assert make_shards(str(chunks / "list.csv"), str(folder), options, str(chunks / "chunks"), "epic_verb") == 0
    return folder


def frames_of(record, reader):
    with reader.open(record.source) as video:
        first, count = frame_span(record, video.info)
        return [picture for _, picture in video.pictures(range(first, first + count))]


@pytest.mark.parametrize("reader", FILE_READERS)
def test_every_row_keeps_its_frames(chunks, shards, reader):
    plain = load_annotations(chunks / "list.csv", "epic_verb", chunks / "chunks")
    packed = {record.label: record for record in load_annotations(shards)}
    assert sorted(packed) == list(range(len(ROWS)))
    for record, (start, end) in zip(plain, ROWS, strict=True):
        expected = frames_of(record, build_reader(reader))
        numbers = [read_number(picture) for picture in expected]
        assert numbers == [n % 64 for n in range(200) if start <= n * 1001 / 30000 < end]  # by the definition of a span
        for source in (build_reader(reader), ShardReader(build_reader(reader), 1)):
            np.testing.assert_array_equal(frames_of(packed[record.label], source), expected)


def test_only_chunks_that_are_needed_are_stored_and_each_once(chunks, shards):
    stored = {}
    for path in sorted(shards.glob("*.tar")):
        with tarfile.open(path) as archive:
            for info in archive:
                if info.name.endswith(".chunks.tar"):
                    with tarfile.open(fileobj=archive.extractfile(info)) as inner:
                        stored[info.name] = [inner.extractfile(name).read() for name in inner.getnames()[1:]]
    files = {(chunks / f"chunks/v.mp4/{number}.mp4").read_bytes(): number for number in range(7)}
    assert sorted([files[data] for data in run] for run in stored.values()) == [[0, 1], [3, 4], [5]]
    assert len(list(shards.glob("*.tar"))) > 1  # the runs are packed apart


def test_an_unpacked_member_is_a_chunk_set(chunks, shards, tmp_path):
    record = next(record for record in load_annotations(shards) if record.label == 3)
    with open(record.source.path, "rb") as file:
        file.seek(record.source.offset)
        (tmp_path / "run.tar").write_bytes(file.read(record.source.size))
    with tarfile.open(tmp_path / "run.tar") as archive:
        assert archive.getnames() == ["chunks.json", "0.mp4", "1.mp4"]
        archive.extractall(tmp_path / "v.mp4", filter="data")
    write_rows(tmp_path / "list.csv", [(record.start, record.end)])
    (plain,) = load_annotations(tmp_path / "list.csv", "epic_verb", tmp_path)
    np.testing.assert_array_equal(frames_of(plain, build_reader("fused")), frames_of(record, build_reader("fused")))


def test_headers_alone_tell_the_same_and_shards_are_packed_anew(shards, tmp_path):
    known = load_annotations(shards)
    (tmp_path / "a").mkdir()
    for path in shards.glob("*.tar"):
        (tmp_path / "a" / path.name).write_bytes(path.read_bytes())
    found = load_annotations(tmp_path / "a")
    assert [(r.label, r.start, r.end, r.source.name) for r in found] == [
        (r.label, r.start, r.end, r.source.name) for r in known
    ]
    assert make_shards(str(tmp_path / "a"), str(tmp_path / "b"), Options(decode="first")) == 0
    again = {record.label: record for record in load_annotations(tmp_path / "b")}
    for record in known:
        other = again[record.label]
        assert (other.start, other.end) == (record.start, record.end) and other.source.name.count("-") == 1
        assert other.source.name.endswith("-v.chunks.tar")


def test_what_is_wrong_is_named_and_the_rest_is_packed(chunks, tmp_path, capfd):
    folder = tmp_path / "chunks/v.mp4"
    folder.mkdir(parents=True)
    for path in (chunks / "chunks/v.mp4").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "1.mp4").unlink()
    (folder / "5.mp4").write_bytes(b"no video")
    write_rows(tmp_path / "list.csv", [*ROWS, (40.0, 41.0)])
    given = str(tmp_path / "list.csv"), str(tmp_path / "shards"), Options(), str(tmp_path / "chunks"), "epic_verb"
    assert make_shards(*given) == 4
    text = capfd.readouterr().err
    reasons = {2: "1.mp4: No such file", 4: "1.mp4: No such file", 6: "5.mp4: not a video file", 8: ": 40 s to 41 s is"}
    for row, part in reasons.items():
        assert any(line.startswith(f"BAD list.csv:{row} ") and part in line for line in text.splitlines()), text
    assert sorted(record.label for record in load_annotations(tmp_path / "shards")) == [1, 3, 5]
    os.remove(folder / "chunks.json")
    with pytest.raises(AnnotationError, match=rf"v.mp4 has no chunks.json; make it first: .*--index-only {folder}$"):
        make_shards(*given[:1], str(tmp_path / "other"), *given[2:])


def test_other_bytes_are_an_error_of_the_member():
    data = NamedBytes(b"no tar file")
    data.name = "shard-000000.tar:0000000-v.chunks.tar"
    with pytest.raises(VideoError, match=r"v.chunks.tar: is no tar file of chunks and chunks.json \(ReadError"):
        build_reader("fused").open(data)
