"""EPIC-Kitchens and Ego4D lists: spans, captions and ids as they are written, sources as they lie on disk."""

from __future__ import annotations

import pytest

from paddlevideo_fast.data.annotations import AnnotationError, load_annotations
from paddlevideo_fast.data.egocentric_lists import epic_action_names
from paddlevideo_fast.data.records import VideoRecord
from paddlevideo_fast.data.video import ChunkSet

EPIC_HEADER = (
    "narration_id,participant_id,video_id,narration_timestamp,start_timestamp,stop_timestamp,start_frame,stop_frame,"
    "narration,verb,verb_class,noun,noun_class,all_nouns,all_noun_classes\n"
)
TRAIN = (
    "P01_01_0,P01,P01_01,00:00:01.089,00:00:00.14,00:00:03.37,8,202,open door,open,3,door,3,['door'],[3]\n"
    'P22_9_1,P22,P22_9,01:00:07.1,01:02:03.50,01:02:04.00,9,99,"take bowl, spoon",take,0,bowl,12,'
    "\"['bowl', 'spoon']\",\"[12, 1]\"\n"
)
VALIDATION = "P01_11_0,P01,P01_11,00:00:00.560,00:00:00.00,00:00:01.89,1,113,take plate,take,0,plate,2,['plate'],[2]\n"


@pytest.fixture
def epic(tmp_path):
    (tmp_path / "EPIC_100_train.csv").write_text(EPIC_HEADER + TRAIN)
    (tmp_path / "EPIC_100_validation.csv").write_text(EPIC_HEADER + VALIDATION)
    return tmp_path


def load(path, **arguments):
    return load_annotations(path, **{"format": "epic", **arguments})


def test_epic_rows(epic):
    first, second = load(epic / "EPIC_100_train.csv")
    # "0:12", "0:2", "3:3" in the order of text
    assert first == VideoRecord(
        str(epic / "P01/P01_01.MP4"),
        {"verb": 3, "noun": 3, "action": 2},
        0.14,
        3.37,
        text=("open door",),
        origin="EPIC_100_train.csv:2",
    )
    assert second.label == {"verb": 0, "noun": 12, "action": 0} and second.text == ("take bowl, spoon",)
    assert (second.start, second.end) == (3723.5, 3724.0)
    assert epic_action_names(epic / "EPIC_100_validation.csv") == ["0:12", "0:2", "3:3"]


@pytest.mark.parametrize(("key", "ids"), [("verb", [3, 0]), ("noun", [3, 12]), ("action", [2, 0])])
def test_epic_one_id_as_the_label(epic, key, ids):
    assert [record.label for record in load(epic / "EPIC_100_train.csv", format=f"epic_{key}")] == ids


def test_epic_actions_are_those_of_both_lists(epic):
    (record,) = load(epic / "EPIC_100_validation.csv", format="epic_action", num_classes=3)
    assert record.label == 1
    with pytest.raises(AnnotationError, match="3 actions, num_classes=3806"):
        load(epic / "EPIC_100_train.csv", format="epic_action", num_classes=3806)
    (epic / "retrieval").mkdir()
    (epic / "retrieval" / "EPIC_100_retrieval_test.csv").write_text(EPIC_HEADER + VALIDATION)
    assert load(epic / "retrieval" / "EPIC_100_retrieval_test.csv")[0].label == {"verb": 0, "noun": 2, "action": 1}
    (epic / "EPIC_100_train.csv").unlink()
    assert load(epic / "EPIC_100_validation.csv")[0].label == {"verb": 0, "noun": 2}
    with pytest.raises(
        AnnotationError, match="ids of actions come from EPIC_100_train.csv and EPIC_100_validation.csv"
    ):
        load(epic / "EPIC_100_validation.csv", format="epic_action")
    names = {"3:3": 0, "0:2": 1}
    assert load(epic / "EPIC_100_validation.csv", format="epic_action", label_map=names)[0].label == 1


def test_epic_test_list_has_no_labels(tmp_path):
    path = tmp_path / "EPIC_100_test_timestamps.csv"
    path.write_text(
        "uid,narration_id,participant_id,video_id,narration_timestamp,start_timestamp,stop_timestamp,start_frame,"
        "stop_frame\n1924,P01_101_0,P01,P01_101,00:00:02.851,00:00:02.86,00:00:03.87,143,193\n"
    )
    (record,) = load(path, require_labels=False)
    assert record == VideoRecord(str(tmp_path / "P01/P01_101.MP4"), None, 2.86, 3.87, origin=f"{path.name}:2")
    with pytest.raises(AnnotationError, match="lacks verb_class and noun_class; a test list has no labels"):
        load(path)


@pytest.mark.parametrize("layout", ["P01/{}.MP4", "P01/videos/{}.MP4", "{}.MP4", "{}.mp4"])
@pytest.mark.parametrize("chunked", [True, False])
def test_sources_are_what_lies_there(epic, tmp_path, layout, chunked):
    root = tmp_path / "videos"
    for video in ("P01_11", "P01_12"):
        place = root / layout.format(video)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.mkdir() if chunked else place.write_bytes(b"")
    rows = [VALIDATION.replace("P01_11", f"P01_{number}") for number in (11, 12, 13)]
    (epic / "list.csv").write_text(EPIC_HEADER + "".join(rows))
    paths = [str(root / layout.format(f"P01_{number}")) for number in (11, 12, 13)]  # the third is not there
    sources = [record.source for record in load(epic / "list.csv", root=root)]
    assert sources == ([ChunkSet(path) for path in paths] if chunked else paths)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            TRAIN.replace("00:00:03.37", "3.37"),
            "train.csv:2: start_timestamp '00:00:00.14' and stop_timestamp '3.37' are",
        ),
        (TRAIN.replace("00:00:03.37", "00:00:00.13"), "no HH:MM:SS.ss in rising order"),
        (TRAIN.replace("00:00:03.37", "00:99:00.13"), "no HH:MM:SS.ss"),
        (TRAIN.replace(",P01_01,", ",,"), "train.csv:2: the video_id is missing"),
        (TRAIN.replace("open,3,", "open,97,"), "train.csv:2: verb_class '97' is not one of 0..96"),
        (TRAIN.replace("bowl,12,", "bowl,x,"), "train.csv:3: noun_class 'x' is not one of 0..299"),
        (TRAIN.replace(",['door'],[3]", ",['door']"), "train.csv:2: 14 columns instead of 15 as in the header"),
        (TRAIN.replace("[3]\n", "[3],1\n"), "train.csv:2: 16 columns instead of 15"),
        (TRAIN.replace('"take bowl, spoon"', '"take bowl, spoon'), "not CSV"),
        ("", "the list is empty but for its header"),
    ],
)
def test_epic_mistakes_have_file_and_line(epic, text, reason):
    (epic / "train.csv").write_text(EPIC_HEADER + text)
    with pytest.raises(AnnotationError, match=reason):
        load(epic / "train.csv")


def test_epic_has_to_be_named_and_needs_its_columns(epic):
    with pytest.raises(AnnotationError, match="write format: epic_verb, epic_noun or epic_action"):
        load_annotations(epic / "EPIC_100_train.csv")
    (epic / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(AnnotationError, match="x.csv:1: the header lacks participant_id, video_id, start_timestamp"):
        load(epic / "x.csv")


def test_ego4d(tmp_path):
    path = tmp_path / "ego4d.csv"
    path.write_text(
        "video_uid,start_second,end_second,narration\n"
        "000786a7,3.5,5.0,#C C opens the door\n"
        '000786a7,-0.5,1e1,"[""#C C [sic] ü"", ""#O walks""]"\n'
        '000a3525,7.25,7.25,"a, b"\n',
        encoding="utf-8",
    )
    (tmp_path / "000786a7.mp4").mkdir()
    first, second, third = load_annotations(path)
    chunks = ChunkSet(str(tmp_path / "000786a7.mp4"))
    assert first == VideoRecord(chunks, None, 3.5, 5.0, text=("#C C opens the door",), origin="ego4d.csv:2")
    assert (second.start, second.end, second.text) == (0.0, 10.0, ("#C C [sic] ü", "#O walks"))
    assert third.source == ChunkSet(str(tmp_path / "000a3525.mp4")) and third.text == ("a, b",)
    assert third.start == 7.25 and 7.25 < third.end < 7.26  # a moment: one frame


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("v,1,nan,x", "ego4d.csv:2: start_second '1' and end_second 'nan' are no seconds in rising order"),
        ("v,2,1,x", "ego4d.csv:2: start_second '2' and end_second '1' are no seconds in rising order"),
        ("v,1,2", "ego4d.csv:2: 3 columns instead of 4"),
        ('v,1,2,"[""a"", 1]"', "ego4d.csv:2: narration .* is not a JSON list of texts"),
        ("v,1,2,[a]", "is not a JSON list of texts"),
        (",1,2,a", "ego4d.csv:2: the video_uid is missing"),
    ],
)
def test_ego4d_mistakes_have_file_and_line(tmp_path, row, reason):
    (tmp_path / "ego4d.csv").write_text(f"video_uid,start_second,end_second,narration\n{row}\n")
    with pytest.raises(AnnotationError, match=reason):
        load_annotations(tmp_path / "ego4d.csv")


def test_clips_of_ones_own(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text("path,start,end,label\nday 1.mp4,1.5,4,2\nsub/b.mp4,00:01:00,00:01:02.5,0\n")
    assert load_annotations(path) == [
        VideoRecord(str(tmp_path / "day 1.mp4"), 2, 1.5, 4.0, origin="train.csv:2"),
        VideoRecord(str(tmp_path / "sub/b.mp4"), 0, 60.0, 62.5, origin="train.csv:3"),
    ]


def test_clips_with_names_and_chunks(tmp_path):
    (tmp_path / "day.mp4").mkdir()
    path = tmp_path / "train.csv"
    path.write_text("label,path,start,end\nwash hands,day.mp4,0,2\n")
    (record,) = load_annotations(path, label_map={"cook": 0, "wash hands": 1})
    assert record == VideoRecord(ChunkSet(str(tmp_path / "day.mp4")), 1, 0.0, 2.0, origin="train.csv:2")
    path.write_text("path,start,end\nday.mp4,0,2\n")
    assert load_annotations(path, require_labels=False)[0].label is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a.mp4,4,1.5,0", "train.csv:2: start '4' and end '1.5' are no seconds or HH:MM:SS.ss in rising order"),
        ("a.mp4,0,soon,0", "no seconds or HH:MM:SS.ss in rising order"),
        ("a.mp4,0,1,cook", "cook"),
        ("a.mp4,0,1", "3 columns instead of 4 as in the header"),
    ],
)
def test_clips_that_are_wrong(tmp_path, row, message):
    path = tmp_path / "train.csv"
    path.write_text(f"path,start,end,label\n{row}\n")
    with pytest.raises(AnnotationError, match=message):
        load_annotations(path, num_classes=3)
