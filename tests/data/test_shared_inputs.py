"""What becomes of each of the sample inputs other tools were tried with, where they lie beside the project.

Every picture of most videos is one grey whose luma is 16 + 2 x number, which tells the frames apart.
"""

from __future__ import annotations

import logging
from pathlib import Path

import av
import numpy as np
import pytest

from paddlevideo_fast.data.annotations import AnnotationError, load_annotations
from paddlevideo_fast.data.readers import READERS, DamagedVideoError, FrameFolder, VideoError, View, build_reader
from paddlevideo_fast.data.readers.frames import check_frame_folders

INPUTS = Path(__file__).parents[2].parent / "shared" / "cases" / "inputs"
FILE_READERS = [name for name in READERS if name != "frames"]

pytestmark = pytest.mark.skipif(not INPUTS.is_dir(), reason="the sample inputs are not here")

PLAIN = (60, 128, 96)  # frames, width, height
VIDEOS = {
    "ok.mp4": PLAIN,
    "fast.mp4": PLAIN,
    "noext": PLAIN,
    "100%_done.mp4": PLAIN,
    "a'b.mp4": PLAIN,
    "drinking (31).mp4": PLAIN,
    "跳舞 视频.mp4": PLAIN,
    "bad_utf8_meta.avi": PLAIN,
    "mpeg4_plain.avi": PLAIN,
    "raw.h264": PLAIN,
    "rotated90.mp4": (60, 96, 128),
    "one_frame.mp4": (1, 128, 96),
    "three_frames.mp4": (3, 128, 96),
    "av1.mp4": (25, 128, 96),
    "odd_420.avi": (25, 127, 95),
    "odd_444.mp4": (25, 127, 95),
    "two_streams.mkv": (25, 128, 96),
    "long_audio.mkv": (30, 128, 96),
    "hevc.mp4": (99, 64, 64),
    "one_keyframe.mp4": (300, 128, 96),
    # Their greys are not consecutive, and the last is a test picture.
    "vfr.mp4": (26, 128, 96),
    "vfr.webm": (26, 128, 96),
    "full_range.mp4": (25, 128, 96),
}
CONSECUTIVE = [name for name in VIDEOS if name not in ("vfr.mp4", "vfr.webm", "full_range.mp4")]
REFUSED = {
    "zero_bytes.mp4": r"the file is empty \(0 bytes\)",
    "text.mp4": "not a video file",
    "audio_only.mp4": r"no video stream \(the file holds audio\)",
    "zero_frames.mp4": r"no video stream \(the file holds nothing\)",
    "truncated_nomoov.mp4": r"truncated: the index of the mp4 file \(moov box\) is missing",
    "corrupt_middle.mp4": "its first frame does not decode",
}
CUT = {"truncated_midgop.mp4": (10, "the file ends early: 13 of 60 pictures are there")}
FOLDERS = {
    "frames_from_0": 8,
    "frames_from_1": 8,
    "frames_three": 3,
    "frames_hole": r"img_00004\.jpg is missing \(numbers 1 to 8 expected\)",
    "frames_trunc": r"img_00002\.jpg is truncated or not a JPEG or PNG image \(200 bytes\)",
}
TWO = [("ok.mp4", 0), ("three_frames.mp4", 1)]
LISTS = {
    "list_blank_tail.txt": TWO,
    "list_crlf.txt": TWO,
    "list_bom.txt": TWO,
    "list_tab.txt": TWO,
    "list_comma.txt": TWO,
    "list_spaces_utf8.txt": [("drinking (31).mp4", 0), ("跳舞 视频.mp4", 1)],
    "list_backslash.txt": [("sub/ok.mp4", 0)],
    "list_bad_rows.txt": [("ok.mp4", 0), ("missing.mp4", 1), ("zero_bytes.mp4", 1), ("three_frames.mp4", 1)],
    "list_frames.txt": [("frames_from_0", 0), ("frames_from_1", 1), ("frames_three", 0), ("frames_hole", 1)],
    "list_empty.txt": "the list is empty",
    "list_gbk.txt": "line 1 is not UTF-8; the file looks like GBK. Convert it: iconv -f GBK -t UTF-8",
    "list_ids_from_1.txt": "label 2 at list_ids_from_1.txt:2, num_classes=2; ids must be 0..1\n"
    "  the ids seem to count from 1",
    "list_malformed.txt": "4 bad rows\n  list_malformed.txt:1: 'ok.mp4 0 extra' has no label",
    "list_no_label.txt": "2 bad rows\n  list_no_label.txt:1: 'ok.mp4' has no label",
}


def test_every_input_has_its_place():
    places = [VIDEOS, REFUSED, CUT, FOLDERS, LISTS]
    assert sorted(name for place in places for name in place) == sorted(entry.name for entry in INPUTS.iterdir())


@pytest.mark.parametrize("name", VIDEOS)
@pytest.mark.parametrize("reader", FILE_READERS)
def test_videos(reader, name):
    count, width, height = VIDEOS[name]
    with build_reader(reader).open(INPUTS / name) as video:
        assert (video.info.num_frames, video.info.width, video.info.height, video.damage) == (*VIDEOS[name], None)
        assert video.info.fps == pytest.approx({"hevc.mp4": 10, "vfr.mp4": 11.2, "vfr.webm": 11.2}.get(name, 25), 0.01)
        wanted = sorted({0, count // 2, count * 7 // 8, count - 1}, reverse=True)
        clip = video.read([View(wanted)])[0]
        assert clip.shape == (len(wanted), height, width, 3)
        if name in CONSECUTIVE:
            levels = clip[:, 20:40, 20:40].mean(axis=(1, 2, 3))
            np.testing.assert_allclose(levels, [(2 * index % 200) * 255 / 219 for index in wanted], atol=4)
            assert clip.std(axis=(1, 2)).max() < 3  # flat: neither sheared nor mixed up
        assert sum(1 for _ in video.frames()) == count


@pytest.mark.parametrize("name", [name for name in VIDEOS if name != "full_range.mp4"])
def test_readers_show_the_same_colours_the_right_way_up(name):
    wanted = [0, VIDEOS[name][0] // 2]
    first, *others = [build_reader(reader).read(INPUTS / name, wanted).astype(float) for reader in FILE_READERS]
    assert max(np.abs(other - first).mean() for other in others) <= 1


@pytest.mark.parametrize("reader", FILE_READERS)
def test_full_range_colours(reader):
    """BT.709 in full range by hand where the chroma is even; at edges readers interpolate it each in its own way."""
    with av.open(str(INPUTS / "full_range.mp4")) as container:
        frame = next(container.decode(video=0))
    planes = [
        np.frombuffer(p, np.uint8).reshape(p.height, p.line_size)[:, : p.width].astype(float) for p in frame.planes
    ]
    neighbours = [
        np.roll(plane, (y, x), (0, 1)) - plane for plane in planes[1:] for y in (-1, 0, 1) for x in (-1, 0, 1)
    ]
    even = (np.abs(neighbours) <= 3).all(axis=0)
    even[:2] = even[-2:] = even[:, :2] = even[:, -2:] = False
    luma, blue, red = (planes[0], *(plane.repeat(2, 0).repeat(2, 1) - 128 for plane in planes[1:]))
    r, b = luma + 2 * (1 - 0.2126) * red, luma + 2 * (1 - 0.0722) * blue
    picture = np.stack([r, (luma - 0.2126 * r - 0.0722 * b) / 0.7152, b], -1).clip(0, 255)
    difference = np.abs(build_reader(reader).read(INPUTS / "full_range.mp4", [0])[0] - picture)
    assert even.mean() > 0.3 and difference[even.repeat(2, 0).repeat(2, 1)].mean() < 1  # BT.601: 8; limited range: 5


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("reader", FILE_READERS)
def test_what_is_no_video(reader, name):
    with pytest.raises(VideoError, match=f"{name}: {REFUSED[name]}"):
        build_reader(reader).probe(INPUTS / name)


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("reader", FILE_READERS)
def test_cut_videos(reader, name):
    count, damage = CUT[name]
    with build_reader(reader).open(INPUTS / name) as video:
        assert (video.info.num_frames, video.damage) == (count, damage)
        assert len(video.read([View(range(count))])[0]) == count
        with pytest.raises(VideoError, match=f"frame {count} is outside"):
            video.read([View([count])])


@pytest.mark.parametrize("name", FOLDERS)
def test_folders(name):
    reader, expected = build_reader("frames"), FOLDERS[name]
    if isinstance(expected, int):
        assert reader.probe(INPUTS / name)[:4] == (expected, 0.0, 128, 96)
        levels = reader.read(INPUTS / name, range(expected)).mean(axis=(1, 2, 3))
        np.testing.assert_allclose(levels, [2 * index * 255 / 219 for index in range(expected)], atol=4)
    else:
        with pytest.raises(DamagedVideoError, match=expected):
            reader.read(INPUTS / name, range(3 if name == "frames_trunc" else 7))


@pytest.mark.parametrize("name", LISTS)
def test_lists(name):
    if isinstance(LISTS[name], str):
        with pytest.raises(AnnotationError) as error:
            load_annotations(INPUTS / name, num_classes=2)
        assert str(error.value).startswith(str(INPUTS / name)) and LISTS[name] in str(error.value)
        return
    records = load_annotations(INPUTS / name, num_classes=2)
    sources = [r.source.path if isinstance(r.source, FrameFolder) else r.source for r in records]
    found = [(str(Path(source).relative_to(INPUTS)), r.label) for source, r in zip(sources, records)]
    assert found == LISTS[name]
    assert [r.origin for r in records] == [f"{name}:{row}" for row in range(1, len(found) + 1)]


def test_lists_of_no_label_can_be_asked_for():
    records = load_annotations(INPUTS / "list_no_label.txt", require_labels=False)
    assert [(Path(r.source).name, r.label) for r in records] == [("ok.mp4", None), ("three_frames.mp4", None)]


def test_every_bad_row_of_a_malformed_list_is_told():
    with pytest.raises(AnnotationError) as error:
        load_annotations(INPUTS / "list_malformed.txt", num_classes=2)
    for words in (":2: '# comment'", ":3: 'ok.mp4 zero'", "label -1 at list_malformed.txt:4, num_classes=2"):
        assert words in str(error.value)


def test_a_folder_with_fewer_frames_than_its_row_says_is_pointed_out(caplog):
    with caplog.at_level(logging.WARNING, "paddlevideo_fast"):
        short = check_frame_folders(load_annotations(INPUTS / "list_frames.txt"))
    assert [line.partition(": ")[0] for line in short] == ["list_frames.txt:3", "list_frames.txt:4"]
    assert "the list promises 8 frames, the folder has 3" in short[0]
