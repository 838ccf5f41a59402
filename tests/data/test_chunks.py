"""A long video cut into chunks shows the frames of the uncut one, and opens only the files that hold them."""

from __future__ import annotations

import json
import os
import pickle
from collections import Counter
from functools import partial

import numpy as np
import pytest
from conftest import RATE, draw_picture, encode, read_number

from paddlevideo_fast.data.annotations import load_annotations
from paddlevideo_fast.data.chunks import ChunkIndex, index_chunks, read_index, write_index
from paddlevideo_fast.data.crops import EvalCrop
from paddlevideo_fast.data.dataset import ClipDataset
from paddlevideo_fast.data.plan import ClipRecipe, frame_span
from paddlevideo_fast.data.readers import (
    ChunkSet,
    CropBox,
    DamagedVideoError,
    IsolatedReader,
    VideoError,
    View,
    available_readers,
    build_reader,
)
from paddlevideo_fast.data.readers.pyav import PyavReader
from paddlevideo_fast.data.records import VideoRecord
from paddlevideo_fast.data.samplers import SampleKey
from paddlevideo_fast.data.sampling import SegmentSampling
from paddlevideo_fast.data.targets import ClassTarget
from paddlevideo_fast.data.video import VideoInfo

COUNT = 60  # frames: two chunks of a second, 25 frames each, and one of 10
LOSSLESS = {"crf": "0", "g": "12"}
FILE_READERS = [name for name in available_readers() if name != "frames"]


def write_chunks(folder, count=COUNT, suffix=".mp4"):
    """Writes frame i of ``draw_picture`` into the chunk of its second."""
    folder.mkdir(parents=True)
    for first in range(0, count, RATE):
        draw = partial(lambda first, index, width, height: draw_picture(first + index, width, height), first)
        path = folder / f"{first // RATE}{suffix}"
        encode(path, options=LOSSLESS, count=min(RATE, count - first), draw=draw, container="mp4")
    return ChunkSet(str(folder))


def write_stored_index(source, counts=(25, 25, 10)):
    info = VideoInfo(sum(counts), 25.0, 96, 64, sum(counts) / 25)
    firsts = np.cumsum([0, *counts])
    write_index(source.path, ChunkIndex(1, ".mp4", firsts, info, "h264", "mov,mp4,m4a,3gp,3g2,mj2"))


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    """(path of the uncut video, chunks without an index, the same with one)."""
    folder = tmp_path_factory.mktemp("long")
    encode(folder / "whole.mp4", options=LOSSLESS, count=COUNT)
    plain, indexed = write_chunks(folder / "plain.mp4"), write_chunks(folder / "indexed.mp4")
    write_stored_index(indexed)
    return str(folder / "whole.mp4"), plain, indexed


@pytest.fixture
def chunks(tmp_path):
    return write_chunks(tmp_path / "v.mp4")


class CountingReader(PyavReader):
    """Counts how often each file is opened."""

    def __init__(self):
        super().__init__()
        self.opened = Counter()

    def open_file(self, source):
        self.opened[os.path.basename(source)] += 1
        return super().open_file(source)


@pytest.mark.parametrize("reader", FILE_READERS)
def test_the_frames_are_those_of_the_uncut_video(videos, reader):
    whole, *sets = videos
    views = [
        View([59, 0, 24, 25, 49, 50, 25]),
        View(np.arange(20, 56, 3), CropBox(7, 5, 41, 33), flip=True),
        View([30, 31], CropBox(0, 0, 60, 60)),
    ]
    for size in (None, (24, 40)):
        made = build_reader(reader)
        with made.open(whole) as video:
            expected, info = video.read(views, size), video.info
        for source in sets:
            with made.open(source) as video:
                assert video.info == pytest.approx(info) and video.info.num_frames == COUNT
                assert video.codec == "h264"
                for clip, reference in zip(video.read(views, size), expected, strict=True):
                    np.testing.assert_array_equal(clip, reference)


def test_frame_i_shows_number_i(videos):
    for source in videos[1:]:
        with build_reader("fused").open(source) as video:
            assert [read_number(picture) for picture in video.frames()] == list(range(COUNT))
            assert [(i, read_number(p)) for i, p in video.pictures([3, 24, 25, 59])] == [
                (3, 3),
                (24, 24),
                (25, 25),
                (59, 59),
            ]


def test_only_the_chunks_wanted_are_opened_each_once(videos):
    reader = CountingReader()
    with reader.open(videos[2]) as video:
        assert not reader.opened
        video.read([View([51, 24, 55]), View([23, 52])])
    assert reader.opened == {"0.mp4": 1, "2.mp4": 1}


def test_without_an_index_the_files_are_looked_at_once(chunks):
    reader = CountingReader()
    assert reader.probe(chunks).num_frames == COUNT
    assert reader.opened == {"0.mp4": 1, "1.mp4": 1, "2.mp4": 1}
    assert reader.probe(ChunkSet(chunks.path)).num_frames == COUNT
    assert reader.read(chunks, [30]).shape == (1, 64, 96, 3)
    assert reader.opened == {"0.mp4": 1, "1.mp4": 2, "2.mp4": 1}
    os.remove(f"{chunks.path}/2.mp4")
    assert reader.probe(chunks).num_frames == 50


def test_seconds_of_a_record_lead_to_the_same_clip(videos):
    whole, *sets = videos
    records = [VideoRecord(source, 3, 0.8, 2.2, origin="list:1") for source in videos]
    recipe = ClipRecipe(SegmentSampling(), EvalCrop(40, 1), train=False)
    dataset = ClipDataset(records, recipe, build_reader("fused"), ClassTarget())
    clips = [dataset[SampleKey(0, index, 7, 32)]["clip"] for index in range(3)]
    assert clips[0].shape == (7, 32, 32, 3)
    for clip in clips[1:]:
        np.testing.assert_array_equal(clip, clips[0])
    # 0.8 s to 2.2 s at 25 frames a second: frames 20 to 54, of seven equal parts the middles
    assert frame_span(records[1], build_reader("fused").probe(sets[0])) == (20, 35)
    full = ClipRecipe(SegmentSampling(), lambda *_: (None, False), train=False)
    plan = full.make_plan(records[1], build_reader("fused").probe(sets[0]), SampleKey(0, 1, 7, 32))
    pictures = build_reader("fused").read(sets[0], plan.view.indices)
    assert [read_number(picture) for picture in pictures] == [22, 27, 32, 37, 42, 47, 52]


def test_in_a_child_process_and_pickled(videos):
    reader = pickle.loads(pickle.dumps(build_reader("fused")))
    expected = reader.read(videos[0], [24, 25, 59], CropBox(3, 3, 40, 40), (20, 20), flip=True)
    isolated = pickle.loads(pickle.dumps(IsolatedReader(reader)))
    for source in videos[1:]:
        got = isolated.read(source, [24, 25, 59], CropBox(3, 3, 40, 40), (20, 20), flip=True)
        np.testing.assert_array_equal(got, expected)
    error = pickle.loads(pickle.dumps(DamagedVideoError(videos[1], "why", 7)))
    assert (error.source, error.decodable) == (videos[1], 7) and str(error) == f"{videos[1].path}: why"


@pytest.mark.parametrize("indexed", [False, True])
def test_a_missing_chunk_is_named_where_it_is_wanted_and_shifts_no_other(chunks, indexed):
    if indexed:
        write_stored_index(chunks)
    os.remove(f"{chunks.path}/1.mp4")
    for reader in (build_reader("fused"), IsolatedReader(build_reader("pyav"))):
        with reader.open(chunks) as video:
            assert video.info == pytest.approx(VideoInfo(60, 25.0, 96, 64, 2.4))
            assert [read_number(p) for p in video.read([View([24, 50, 59])])[0]] == [24, 50, 59]
            with pytest.raises(
                DamagedVideoError, match=rf"^{chunks.path}: {chunks.path}/1.mp4: does not exist"
            ) as error:
                video.read([View([24, 49])])
            assert error.value.decodable == 25
    with build_reader("fused").open_first(chunks, 25) as video:
        assert video.info.num_frames == 25 and read_number(video.read([View([24])])[0][0]) == 24


def test_a_chunk_cut_off_is_damage_where_it_is_wanted(chunks):
    """A fragmented file ends where it was cut, so that its first frames can be read."""
    path = f"{chunks.path}/1.mp4"
    fragments = {"movflags": "frag_every_frame+empty_moov+default_base_moof"}
    draw = lambda index, width, height: draw_picture(25 + index, width, height)  # noqa: E731
    encode(path, options={**LOSSLESS, "bf": "0"}, count=25, draw=draw, container="mp4", container_options=fragments)
    os.truncate(path, os.path.getsize(path) // 2)
    reader = build_reader("fused")
    with reader.open(chunks) as video:
        assert video.info.num_frames == COUNT  # it takes the room of a whole one
        assert [read_number(p) for p in video.read([View([20, 55])])[0]] == [20, 55]
        with pytest.raises(DamagedVideoError, match=r"/1.mp4: ") as error:
            video.read([View([20, 45])])
        assert 25 < error.value.decodable < 45
    with reader.open_first(chunks, error.value.decodable) as video:
        assert read_number(video.read([View([error.value.decodable - 1])])[0][0]) == error.value.decodable - 1


def test_a_short_chunk_keeps_the_place_of_a_whole_one(chunks):
    encode(f"{chunks.path}/1.mp4", count=10)
    with build_reader("fused").open(chunks) as video:
        assert video.info.num_frames == COUNT
        assert [read_number(picture) for picture in video.read([View([34, 50])])[0]] == [9, 50]
        with pytest.raises(DamagedVideoError, match=r"1.mp4: has 10 frames where about 25 belong") as error:
            video.read([View([30, 35])])
    assert error.value.decodable == 35


def test_an_unreadable_chunk_is_an_error_where_it_is_wanted(chunks):
    with open(f"{chunks.path}/0.mp4", "wb"):
        pass
    with build_reader("fused").open(chunks) as video:
        assert read_number(video.read([View([25])])[0][0]) == 25
        with pytest.raises(DamagedVideoError, match=r"/0.mp4: the file is empty") as error:
            video.read([View([3])])
    assert error.value.decodable == 0


def test_what_differs_from_the_index_is_refused(chunks):
    write_stored_index(chunks, (25, 24, 10))
    with build_reader("fused").open(chunks) as video:
        with pytest.raises(
            VideoError, match=r"1.mp4: has 25 frames, chunks.json says 24; make the index again: python"
        ):
            video.read([View([30])])
        with pytest.raises(VideoError, match=r"1.mp4: has 25 frames, chunks.json says 24"):  # not only the first time
            video.read([View([30])])
    write_stored_index(chunks, (25, 26, 10))
    with pytest.raises(VideoError, match=r"has 25 frames, chunks.json says 26"):
        build_reader("fused").read(chunks, [30])
    write_stored_index(chunks)
    encode(f"{chunks.path}/2.mp4", count=10, size=(64, 64))
    with pytest.raises(VideoError, match=r"2.mp4: its pictures are 64x64, those of the other chunks 96x64"):
        build_reader("fused").read(chunks, [55])


def test_chunks_of_other_sizes_are_refused_without_an_index(chunks):
    encode(f"{chunks.path}/2.mp4", count=10, size=(64, 64))
    with pytest.raises(VideoError, match="chunks of one video have one size, but 2.mp4 is 64x64, others 96x64"):
        build_reader("fused").open(chunks)


@pytest.mark.parametrize(
    ("names", "seconds", "reason"),
    [
        ([], None, "holds no chunks: files named by the second"),
        (["00.mp4", "a.mp4", "0.txt", "-1.mp4"], None, "holds no chunks"),
        (["0.mp4", "15.MP4"], None, r"several kinds: .MP4, .mp4"),
        (["0.mp4", "15.mp4", "31.mp4"], None, "31.mp4 does not begin at a multiple of 15 s"),
        (["0.mp4", "15.mp4"], 10, "15.mp4 does not begin at a multiple of 10 s"),
    ],
)
def test_folders_that_are_no_chunk_sets(tmp_path, names, seconds, reason):
    for name in names:
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(VideoError, match=reason):
        build_reader("fused").open(ChunkSet(str(tmp_path), seconds))


def test_places_that_are_no_folders(tmp_path, videos):
    with pytest.raises(VideoError, match=f"does not exist .looked for {tmp_path}/x"):
        build_reader("fused").open(ChunkSet(str(tmp_path / "x")))
    with pytest.raises(VideoError, match="is a file, not a folder of chunks"):
        build_reader("fused").open(ChunkSet(videos[0]))
    with pytest.raises(VideoError, match="the 'frames' reader takes a folder of images"):
        build_reader("frames").open(videos[1])
    (tmp_path / "0.mp4").write_bytes(b"")
    with pytest.raises(VideoError, match=r"0.mp4: the file is empty"):
        build_reader("fused").open(ChunkSet(str(tmp_path)))


def facts(count, fps, size=(96, 64)):
    return VideoInfo(count, fps, *size, count / fps)


def test_index_of_an_ntsc_rate():
    """1000 frames at 30000/1001 a second in chunks of 5 s: a frame belongs where it begins to be shown."""
    rate = 30000 / 1001
    infos = {number: facts(150, rate) for number in range(6)} | {6: facts(100, rate)}
    index = index_chunks(ChunkSet("v"), 5, ".mp4", infos)
    assert index.firsts.tolist() == [0, 150, 300, 450, 600, 750, 900, 1000]
    assert index.info == pytest.approx(VideoInfo(1000, rate, 96, 64, 1000 / rate))
    assert index.numbers([0, 149, 150, 999]).tolist() == [0, 0, 1, 6] and index.name(3) == "15.mp4"


def test_index_with_gaps_and_short_chunks():
    infos = {0: facts(450, 30.0), 2: facts(200, 30.0), 3: facts(450, 30.0), 4: facts(60, 30.0)}
    index = index_chunks(ChunkSet("v"), 15, ".mp4", infos, damaged={2})
    assert index.firsts.tolist() == [0, 450, 900, 1350, 1800, 1860]
    assert index.info == pytest.approx(VideoInfo(1860, 30.0, 96, 64, 62.0))
    assert index_chunks(ChunkSet("v"), 15, ".mp4", infos).firsts.tolist() == index.firsts.tolist()


def test_where_each_cut_lost_a_frame_the_names_keep_the_time():
    infos = {number: facts(449, 30.0) for number in range(100)}
    info = index_chunks(ChunkSet("v"), 15, ".mp4", infos).info
    assert info.num_frames == 44900
    record = VideoRecord(ChunkSet("v"), 0, 1200.0, 1215.0)
    first, length = frame_span(record, info)
    assert abs(first - 80 * 449) <= 3 and abs(length - 449) <= 1  # 1200 s is where 1200.mp4, the 81st, begins


def test_names_that_promise_less_than_the_files_hold():
    with pytest.raises(VideoError, match=r"0.mp4 lasts 30.0 s, but the names follow each other by 15 s"):
        index_chunks(ChunkSet("v"), 15, ".mp4", {0: facts(900, 30.0), 1: facts(450, 30.0)})
    with pytest.raises(VideoError, match="15.mp4 has no frame rate"):
        index_chunks(ChunkSet("v"), 15, ".mp4", {0: facts(450, 30.0), 1: VideoInfo(450, 0.0, 96, 64, 0.0)})


def test_an_index_comes_back_as_it_was_written(videos):
    index = read_index(videos[2])
    assert index.stored and index.firsts.tolist() == [0, 25, 50, 60] and index.seconds == 1
    assert index.info == VideoInfo(60, 25.0, 96, 64, 2.4)
    with pytest.raises(VideoError, match=r"chunks.json has chunks of 1 s, not of 15 s"):
        read_index(ChunkSet(videos[2].path, 15))
    assert read_index(videos[1]) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda data: {**data, "num_frames": []},
        lambda data: {**data, "num_frames": [25, -1]},
        lambda data: {**data, "num_frames": [25, True]},
        lambda data: {**data, "seconds": 0},
        lambda data: {**data, "fps": "fast"},
        lambda data: {**data, "fps": 0},
        lambda data: {**data, "suffix": "/../x.mp4"},
        lambda data: {name: value for name, value in data.items() if name != "width"},
        lambda data: [1, 2],
        lambda data: None,
    ],
)
def test_a_wrong_index_is_named(chunks, change):
    write_stored_index(chunks)
    path = f"{chunks.path}/chunks.json"
    with open(path, encoding="utf-8") as file:
        data = change(json.load(file))
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file)
    with pytest.raises(VideoError, match=r"chunks.json is not an index of chunks; make it again: python tools/data"):
        build_reader("fused").open(chunks)
    with open(path, "w", encoding="utf-8") as file:
        file.write("{")
    with pytest.raises(VideoError, match=r"chunks.json cannot be read \(Expecting"):
        build_reader("fused").open(chunks)


def test_a_batch_from_a_list_of_spans(chunks, tmp_path):
    """From EPIC-Kitchens' CSV to a batch: a row whose chunk is missing is named and has weight 0."""
    os.renames(chunks.path, tmp_path / "P01" / "P01_01.MP4")
    os.remove(tmp_path / "P01" / "P01_01.MP4" / "2.mp4")
    encode(tmp_path / "P01" / "P01_01.MP4" / "3.mp4", count=5)
    header = "narration_id,participant_id,video_id,start_timestamp,stop_timestamp,narration,verb_class,noun_class"
    rows = ["a,P01,P01_01,00:00:00.90,00:00:01.30,x,7,3", "b,P01,P01_01,00:00:01.90,00:00:02.50,y,9,3"]
    (tmp_path / "list.csv").write_text("\n".join([header, *rows]))
    records = load_annotations(tmp_path / "list.csv", "epic_verb")
    recipe = ClipRecipe(SegmentSampling(), EvalCrop(64, 1), train=False)
    dataset = ClipDataset(records, recipe, build_reader("fused"), ClassTarget())
    batch = dataset.read_batch([SampleKey(0, index, 4, 64) for index in (0, 1)])
    assert batch["weight"].tolist() == [1, 0] and batch["target"].tolist() == [7, 7]
    (error,) = batch["errors"]
    assert error.startswith(f"list.csv:3: {tmp_path}/P01/P01_01.MP4: {tmp_path}/P01/P01_01.MP4/2.mp4: does not exist")
