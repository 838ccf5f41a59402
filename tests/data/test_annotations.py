"""Annotations: every format, the mess real lists are in, and errors that name file and line."""

from __future__ import annotations

import contextlib
import json
import logging
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from paddlevideo_fast.data.annotations import FORMATS, AnnotationError, VideoRecord, load_annotations, load_class_names
from paddlevideo_fast.data.video import FrameFolder


@pytest.fixture
def write(tmp_path):
    def write(content, name="train.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def pairs(records, root):
    return [(str(Path(record.source).relative_to(root)), record.label) for record in records]


def message(path, **kwargs):
    with pytest.raises(AnnotationError) as error:
        load_annotations(path, **kwargs)
    return str(error.value)


# -- `path label` --


@pytest.mark.parametrize(
    "content",
    [
        "a.mp4 0\nb.mp4 1\n",
        "a.mp4 0\nb.mp4 1",
        "a.mp4 0\nb.mp4 1\n\n  \n\n",
        "a.mp4 0\r\nb.mp4 1\r\n",
        "a.mp4 0\rb.mp4 1\r",
        "\ufeffa.mp4 0\nb.mp4 1\n",
        "a.mp4\t0\nb.mp4\t1\n",
        "a.mp4\t0\nb.mp4 1\n",
        "a.mp4,0\nb.mp4,1\n",
        "a.mp4 , 0\nb.mp4, 1\n",
        "  a.mp4   0 \nb.mp4 1\n",
        '"a.mp4" 0\n"b.mp4" 1\n',
    ],
)
@pytest.mark.parametrize("format", ["auto", "video"])
def test_video_list(write, tmp_path, content, format):
    records = load_annotations(write(content), format, num_classes=2)
    assert pairs(records, tmp_path) == [("a.mp4", 0), ("b.mp4", 1)]
    assert records[1].origin == "train.txt:2"
    assert records[0] == VideoRecord(str(tmp_path / "a.mp4"), 0, origin="train.txt:1")


NAMES = [
    "drinking (31).mp4",
    "跳舞 视频.mp4",
    "跳舞\u3000视频.mp4",
    "\u3000跳舞.mp4",
    "100%_done {0}.mp4",
    "a'b.mp4",
    'say "hi".mp4',
    "a, b.mp4",
    "a,5.mp4",
    "clip 7.mp4",
    "#1.mp4",
    "[x] & $y;.mp4",
    "noext",
    "sub/dir with blank/x.avi",
    "line\u2028separator.mp4",
    "é.MP4",
]


@pytest.mark.parametrize("separator", [" ", "\t", ",", " \t "])
def test_paths_of_any_kind(write, tmp_path, separator):
    path = write("".join(f"{name}{separator}{label}\n" for label, name in enumerate(NAMES)))
    assert pairs(load_annotations(path), tmp_path) == [(name, label) for label, name in enumerate(NAMES)]


def test_paths_that_end_in_a_number(write, tmp_path):
    assert pairs(load_annotations(write("clip 7\t0\nclip 8\t1\n")), tmp_path) == [("clip 7", 0), ("clip 8", 1)]
    assert pairs(load_annotations(write("clip 7 0\nclip 8 1\n"), "video"), tmp_path) == [("clip 7", 0), ("clip 8", 1)]


def test_quoted_csv_paths(write, tmp_path):
    assert pairs(load_annotations(write('"a, ""b"".mp4",3\n')), tmp_path) == [('a, "b".mp4', 3)]


def test_root_and_working_directory(write, tmp_path, monkeypatch):
    path = write("sub/a.mp4 0\n/data/b.mp4 0\n", "lists/train.txt")
    monkeypatch.chdir(tmp_path)
    sources = [record.source for record in load_annotations("lists/train.txt")]
    assert sources == [str(tmp_path / "lists/sub/a.mp4"), "/data/b.mp4"]
    monkeypatch.chdir(tmp_path / "lists")
    assert load_annotations(path, root="..")[0].source == str(tmp_path / "sub/a.mp4")


def test_windows_paths(write, tmp_path):
    assert pairs(load_annotations(write("sub\\a.mp4 0\n")), tmp_path) == [("sub/a.mp4", 0)]
    assert "train.txt:2: 'D:/v/b.mp4' has a Windows drive letter" in message(write("a.mp4 0\nD:\\v\\b.mp4 1\n"))


def test_links_are_refused(write):
    assert "train.txt:1: 'https://x.org/a.mp4' is not a local path" in message(write("https://x.org/a.mp4 0\n"))


def test_label_names_need_a_map(write, tmp_path):
    path = write("a.mp4,air drumming\nb.mp4,dancing\n")
    label_map = {"dancing": 0, "air drumming": 1}
    assert pairs(load_annotations(path, label_map=label_map), tmp_path) == [("a.mp4", 1), ("b.mp4", 0)]
    assert pairs(load_annotations(write("a b.mp4 air_drumming\n"), label_map=label_map), tmp_path) == [("a b.mp4", 1)]
    assert "train.txt:1: label 'diving' is not one of the 2 class names" in message(
        write("a.mp4 diving\n"), label_map=label_map
    )
    assert "train.txt:1" in message(path)


# -- errors --


def test_label_outside_the_classes(write):
    text = message(write("a.mp4 1\nb.mp4 2\n"), num_classes=2)
    assert "label 2 at train.txt:2, num_classes=2; ids must be 0..1" in text
    assert "count from 1" in text
    assert "count from 1" not in message(write("a.mp4 0\nb.mp4 2\n"), num_classes=2)
    assert "label -1 at train.txt:2; ids count from 0" in message(write("a.mp4 0\nb.mp4 -1\n"))


def test_every_row_is_checked_and_the_first_few_are_shown(write):
    text = message(write("".join(f"a{row}.mp4 {row}\n" for row in range(100))), num_classes=90)
    assert "10 bad rows" in text and "train.txt:91" in text and "train.txt:95" in text and "train.txt:96" not in text
    assert "and 5 more" in text


def test_malformed_rows_are_all_named(write):
    text = message(write("ok.mp4 0 extra\n# comment\nok.mp4 zero\nok.mp4 1.0\nok.mp4 1\n"))
    assert text.startswith(str(write("")))
    for row, line in [(1, "ok.mp4 0 extra"), (2, "# comment"), (3, "ok.mp4 zero"), (4, "ok.mp4 1.0")]:
        assert f"train.txt:{row}: {line!r} has no label that is a whole number" in text


def test_header_is_recognised(write):
    text = message(write("path,label\na.mp4,0\n"))
    assert "train.txt:1: 'path,label'" in text and "header, remove it" in text


def test_rows_of_another_width(write):
    rows = [f"a{row}.mp4 0" for row in range(20)]
    rows[16] = "a16.mp4 30 0"
    text = message(write("\n".join(rows)))
    assert "train.txt:17: 3 columns where other rows have 2: 'a16.mp4 30 0'" in text and "multi_label" in text
    rows = [f"dir{row} 30 0" for row in range(20)]
    rows[4] = "dir4 0"
    assert "train.txt:5: 2 columns where other rows have 3: 'dir4 0'" in message(write("\n".join(rows)))
    assert "train.txt:2: 3 columns where other rows have 2" in message(write("a 0\nb 8 0\nc 1\n"))


@pytest.mark.parametrize(
    "content, row, hint",
    [
        (
            "name frames label\na 8 0\nb 9 1\n",
            1,
            "1 column where other rows have 3: 'name frames label'; if this is",
        ),
        ("dir,frames,label\na,8,0\n", 1, "1 column where other rows have 3: 'dir,frames,label'; if this is a header"),
        ("a.mp4 0\npath label\nb.mp4 1\n", 2, "'path label' has no label that is a whole number"),
        ("a.mp4 0\nb.mp4,1\n", 2, "'b.mp4,1' has .*other rows separate the columns by blanks, this one by commas"),
        ("a.mp4,0\nb.mp4,1\nc.mp4 1\n", 3, "other rows separate the columns by commas, this one by blanks"),
        ("a.mp4 0\nb 8 1\n", 2, "3 columns where other rows have 2"),
        ("a 0 8 0\nb 8 1\n", 2, "3 columns where other rows have 4"),
        ("a.mp4 0\nb.mp4 " + "9" * 5000, 2, "has no label that is a whole number"),
        ("a 8 0\nb 9 " + "9" * 30, 2, "1 column where other rows have 3"),
    ],
)
def test_rows_that_do_not_fit_are_named(write, content, row, hint):
    text = message(write(content))
    assert re.search(rf"train.txt:{row}: .*{hint}", text), text


def test_joined_files_and_binary_files(write, tmp_path):
    joined = write("\ufeffa.mp4 0\n\ufeffb.mp4 1\n")
    assert pairs(load_annotations(joined), tmp_path) == [("a.mp4", 0), ("b.mp4", 1)]
    assert "train.txt is not a text file (it starts with b'\\x00\\x00\\x00 ftyp" in message(
        write(b"\0\0\0\x20ftypisom\0\0" + bytes(500))
    )


def test_nonsense_never_gets_past_as_another_error(write):
    """Random pieces put into, and cut out of, lists of every kind."""
    kinds = {
        "train.txt": 'a.mp4 0\nb c.mp4 1\n"q, ""x"".mp4" 2\n',
        "frames.txt": "a 8 0\nb 9 1\n",
        "many.txt": "a.mp4 1 5 7\nb.mp4 2,3\n",
        "train.csv": KINETICS,
        "charades.csv": CHARADES,
        "items.json": '[{"id": "78687", "label": "x", "template": "b"}, {"id": "1", "template": "[a]"}]',
        "labels.json": '{"b": "0", "a": "1"}',
    }
    pieces = [
        "\t",
        ",",
        " ",
        '"',
        "\n",
        "\r",
        "-1",
        "9" * 25,
        "9" * 5000,
        "1e400",
        "\ufeff",
        "null",
        "[",
        "}",
        ":",
        "//",
    ]
    pieces += ["C:\\", "..", "\0", "跳", "{0}", "%s", "http://x", "١", '"""', "[" * 3000, "5", "{}"]
    random = np.random.default_rng(0)
    for _ in range(400):
        name = random.choice(list(kinds))
        text = kinds[name]
        for _ in range(random.integers(1, 4)):
            at, length = random.integers(0, len(text) + 1), random.integers(0, 6)
            text = text[:at] + str(random.choice(pieces)) * bool(random.random() < 0.6) + text[at + length :]
        path = write(text, name)
        for options in ({}, {"num_classes": 8, "require_labels": False, "label_map": {"a": 0, "testifying": 2}}):
            with contextlib.suppress(AnnotationError):
                load_class_names(path) if name == "labels.json" else load_annotations(path, **options)


@pytest.mark.parametrize("content", ["", "\n\n", "\ufeff", "  \r\n"])
def test_empty_list(write, content):
    assert "the list is empty" in message(write(content))


@pytest.mark.parametrize(
    "data, encoding",
    [
        ("a.mp4 0\n跳舞 视频.mp4 1\n".encode("gbk"), "GBK"),
        ("a.mp4 0\ncafé été.mp4 1\n".encode("cp1252"), "CP1252"),
        ("a.mp4 0\n".encode("utf-16"), "UTF-16"),
        ("a.mp4 0\n".encode("utf-16-le"), "UTF-16"),
    ],
)
def test_other_encodings_are_named(write, data, encoding):
    text = message(write(data))
    assert f"iconv -f {encoding} -t UTF-8 train.txt" in text
    assert f"line {2 if encoding in ('GBK', 'CP1252') else 1} is not UTF-8" in text


def test_missing_file_is_named_absolutely(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=str(tmp_path / "no.txt")):
        load_annotations("no.txt")


def test_unknown_format(write):
    assert "'vidoe' is not one of auto, video, frames" in message(write("a.mp4 0\n"), format="vidoe")


def test_missing_labels(write):
    path = write("ok.mp4\nclip 3.mp4\n")
    assert "train.txt:1: 'ok.mp4' has no label" in message(path)
    assert [record.label for record in load_annotations(path, require_labels=False)] == [None, None]
    assert "train.txt:2: no label, though 2 rows have one" in message(
        write("a.mp4 0\nb.mp4\nc.mp4 1\n"), require_labels=False
    )


def test_duplicates_are_counted(write, caplog):
    with caplog.at_level(logging.WARNING, "paddlevideo_fast"):
        records = load_annotations(write("a.mp4 0\nb.mp4 1\na.mp4 0\na.mp4 0\nb.mp4 0\n"))
    assert len(records) == 5
    assert "2 duplicate rows, the first at train.txt:3" in caplog.text
    assert "1 rows give a video another label, the first at train.txt:5" in caplog.text


def test_records_pickle(write):
    records = load_annotations(write("a.mp4 0\n")) + load_annotations(write("a 3 0\n"))
    assert pickle.loads(pickle.dumps(records)) == records
    error = AnnotationError("x:1: wrong")
    assert str(pickle.loads(pickle.dumps(error))) == "x:1: wrong"


# -- the other lists of rows --


@pytest.mark.parametrize("format", ["auto", "frames"])
@pytest.mark.parametrize("separator", [" ", "\t", ","])
def test_frame_list(write, tmp_path, format, separator):
    rows = [("v_a b (1)", 8, 0), ("跳舞/c", 250, 3)]
    path = write("".join(separator.join(map(str, row)) + "\n" for row in rows))
    records = load_annotations(path, format)
    assert records[0].source == FrameFolder(str(tmp_path / "v_a b (1)"), num_frames=8)
    assert [(record.num_frames, record.label, record.start) for record in records] == [(8, 0, None), (250, 3, None)]


def test_frame_list_with_offset(write, tmp_path):
    record = load_annotations(write("clip 100 30 2\nclip 0 30 1\n"))[0]
    assert record.source == FrameFolder(str(tmp_path / "clip"), start=101, num_frames=30)
    assert (record.label, record.num_frames) == (2, 30)


def test_frame_list_errors(write):
    assert "train.txt:2: 'b 0 1' needs at least 1 frame" in message(write("a 8 0\nb 0 1\n"))
    assert "is not `folder frames label`" in message(write("a.mp4 0\n"), format="frames")
    assert load_annotations(write("a 8\nb 9\n"), "frames", require_labels=False)[1].num_frames == 9


def test_multi_label(write, tmp_path):
    path = write("a b.mp4 1 5 7\nb.mp4 2,3\nc.mp4,4,4\nd.mp4 0\n")
    expected = [("a b.mp4", (1, 5, 7)), ("b.mp4", (2, 3)), ("c.mp4", (4,)), ("d.mp4", (0,))]
    assert pairs(load_annotations(path, "multi_label", num_classes=8), tmp_path) == expected
    assert "label 7 at train.txt:1, num_classes=7; ids must be 0..6" in message(
        path, format="multi_label", num_classes=7
    )
    assert "train.txt:1: 'a.mp4' has no label" in message(write("a.mp4\n"), format="multi_label")


def test_rows_that_mean_several_things_need_a_format(write, tmp_path):
    path = write("a.mp4 300 1\nb.mp4 250 0\n")
    assert "write format: multi_label" in message(path) and "avion" in message(path)
    records = load_annotations(path, "avion", num_classes=2)
    assert pairs(records, tmp_path) == [("a.mp4", 1), ("b.mp4", 0)] and records[0].num_frames == 300
    assert "is not `path frames label`" in message(write("a.mp4 0\n"), format="avion")


# -- folders and published annotations --


def test_folder(write, tmp_path, caplog):
    for name in ["b dance/2.mp4", "b dance/10.avi", "b dance/.hidden.mp4", "b dance/notes.txt", "a/x.MKV"]:
        write(b"", "data/" + name)
    write(b"", "data/a/frames/img_00001.jpg")
    write(b"", "data/classes.txt")
    with caplog.at_level(logging.WARNING, "paddlevideo_fast"):
        records = load_annotations(tmp_path / "data", num_classes=2)
    root = tmp_path / "data"
    assert [(record.source, record.label) for record in records] == [
        (FrameFolder(str(root / "a/frames")), 0),
        (str(root / "a/x.MKV"), 0),
        (str(root / "b dance/10.avi"), 1),
        (str(root / "b dance/2.mp4"), 1),
    ]
    assert "1 entries are no videos" in caplog.text and "notes.txt" in caplog.text
    assert [record.label for record in load_annotations(root, label_map={"b dance": 0, "a": 5})] == [5, 5, 0, 0]
    assert "2 class folders, num_classes=3" in message(root, num_classes=3)
    assert "label 'b dance' is not one of the 1 class names" in message(root, label_map={"a": 0})


def test_folder_errors(write, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "no class folders" in message(tmp_path / "empty")
    write(b"", "data/train/a/x.mp4")
    write(b"", "data/valid/a/x.mp4")
    assert "holds splits (train, valid)" in message(tmp_path / "data")
    (tmp_path / "data/train/a/x.mp4").unlink()
    assert "no videos found" in message(tmp_path / "data/train")
    assert "is a folder" in message(tmp_path / "data", format="video")


KINETICS = '''label,youtube_id,time_start,time_end,split
testifying,---QUuC4vJs,84,94,train
"playing ""guitar""",-a_b,7.0,17.0,train
air drumming,xyz,0,10,train
'''


def test_kinetics(write, tmp_path):
    records = load_annotations(write(KINETICS, "train.csv"), num_classes=3)
    assert pairs(records, tmp_path) == [
        ("---QUuC4vJs_000084_000094.mp4", 2),
        ("-a_b_000007_000017.mp4", 1),
        ("xyz_000000_000010.mp4", 0),
    ]
    assert records[2].origin == "train.csv:4" and records[0].start is None


@pytest.mark.parametrize("folder", ["{label}", "{key}", "train", "train/{key}"])
def test_kinetics_layouts_on_disk(write, tmp_path, folder):
    place = folder.format(label="air drumming", key="air_drumming")
    write(b"", f"videos/{place}/xyz_000000_000010.mp4")
    records = load_annotations(write(KINETICS, "train.csv"), root=tmp_path / "videos")
    assert Path(records[2].source).is_file()


def test_kinetics_class_ids_must_be_certain(write):
    path = write(KINETICS, "val.csv")
    assert "3 classes, num_classes=400" in message(path, num_classes=400)
    label_map = {"air_drumming": 0, "juggling": 1, "playing guitar": 2, "testifying": 3}
    assert [record.label for record in load_annotations(path, label_map=label_map, num_classes=4)] == [3, 2, 0]
    assert "val.csv:2: label 'testifying' is not one of the 1 class names" in message(path, label_map={"a": 0})


def test_kinetics_test_split_and_errors(write):
    test = write("youtube_id,time_start,time_end,split\nabc,1,11,test\n", "test.csv")
    assert "test.csv:2: no label" in message(test)
    assert load_annotations(test, require_labels=False)[0].label is None
    assert 'a list of `path label` rows is format "video"' in message(write("a.mp4 0\n"), format="kinetics_csv")
    bad = write("label,youtube_id,time_start,time_end,split\nx,abc,one,11,train\n", "bad.csv")
    assert "bad.csv:2: time_start and time_end must be seconds" in message(bad)
    header = "label,youtube_id,time_start,time_end,split\n"
    text = message(write(header + "x,abc,inf,11,train\nx,,1,2,train\nx,a,1,2,train,more\n", "bad.csv"))
    assert "3 bad rows" in text and "bad.csv:2: time_start" in text and "bad.csv:4: 6 columns, or no youtube_id" in text
    opened = write(header + '"x,abc,1,11,train\n' + "y," * 100_000, "open.csv")
    assert "not CSV" in message(opened) and "a quote may be left open" in message(opened)


def test_ucf101(write, tmp_path):
    write("1 ApplyEyeMakeup\r\n2 Archery\r\n", "ucf/classInd.txt")
    train = write("ApplyEyeMakeup/v_a_g08_c01.avi 1\nArchery/v_b_g08_c01.avi 2\n", "ucf/trainlist01.txt")
    test = write("Archery/v_b_g01_c01.avi\r\n", "ucf/testlist01.txt")
    root = tmp_path / "UCF-101"
    assert pairs(load_annotations(train, root=root, num_classes=2), root) == [
        ("ApplyEyeMakeup/v_a_g08_c01.avi", 0),
        ("Archery/v_b_g08_c01.avi", 1),
    ]
    assert pairs(load_annotations(test, root=root), root) == [("Archery/v_b_g01_c01.avi", 1)]
    wrong = write("Archery/v_b_g08_c01.avi 1\nDiving/v_c.avi 3\n", "ucf/trainlist02.txt")
    text = message(wrong)
    assert "trainlist02.txt:1: id 1, but Archery is number 2 in classInd.txt" in text
    assert "trainlist02.txt:2: label 'Diving' is not one of the 2 class names" in text
    alone = write("Archery/v_b_g08_c01.avi 1\n", "other/trainlist01.txt")
    assert "classInd.txt, which does not exist" in message(alone, format="ucf101")


def test_ssv2(write, tmp_path):
    labels = {"Pretending to put [something]": "1", "Holding something": "0"}
    labels = {name.replace("[", "").replace("]", ""): number for name, number in labels.items()}
    write(json.dumps(labels), "something-something-v2-labels.json")
    items = [
        {"id": "78687", "label": "holding potato", "template": "Holding [something]", "placeholders": ["potato"]},
        {"id": "42326", "label": "pretending to put cup", "template": "Pretending to put [something]"},
    ]
    path = write(json.dumps(items), "something-something-v2-train.json")
    records = load_annotations(path, num_classes=2)
    assert pairs(records, tmp_path) == [("78687.webm", 0), ("42326.webm", 1)]
    assert records[0].text == ("holding potato",) and records[1].origin == "something-something-v2-train.json:2"
    write(b"", "videos/78687.mp4")
    assert load_annotations(path, root=tmp_path / "videos")[1].source == str(tmp_path / "videos/42326.mp4")
    (tmp_path / "frames/78687").mkdir(parents=True)
    assert load_annotations(path, root=tmp_path / "frames")[0].source == FrameFolder(str(tmp_path / "frames/78687"))

    test = write(json.dumps([{"id": "1"}]), "something-something-v2-test.json")
    assert "something-something-v2-test.json:1: no template" in message(test)
    assert load_annotations(test, require_labels=False)[0].label is None
    assert "not a Something-Something list" in message(write('{"a": 1}', "other.json"))
    for item in ('{"id": "1", "template": null}', '{"template": "b"}', "5", '{"id": {}}'):
        odd = message(write(f'[{{"id": "1", "template": "b"}}, {item}]', "odd.json"))
        assert "odd.json:2: not a Something-Something object" in odd
    assert "nested too deeply" in message(write("[" * 100_000, "deep.json"))
    assert "broken.json:2: not JSON" in message(write('[{"id": 1},\n', "broken.json"))


CHARADES = """original_vido_id video_id frame_id path labels
001YG 0 0 001YG/001YG-000001.jpg "1,5"
001YG 0 1 001YG/001YG-000002.jpg ""
001YG 0 2 001YG/001YG-000003.jpg "5"
AB 1 0 a b/{x}9.png ""
"""


def test_charades_frames(write, tmp_path):
    first, second = load_annotations(write(CHARADES, "train.csv"), num_classes=6)
    assert first.source == FrameFolder(str(tmp_path / "001YG"), "001YG-{:06d}.jpg", 1, 3)
    assert first.label == ((1, 5), (), (5,)) and first.num_frames == 3 and first.origin == "train.csv:2"
    assert second.source.template.format(second.source.start) == "{x}9.png"
    assert second.source.path == str(tmp_path / "a b") and second.label == ((),)
    assert "label 5 at train.csv:2, num_classes=5" in message(write(CHARADES, "train.csv"), num_classes=5)


def test_charades_frames_errors(write):
    header = "original_vido_id video_id frame_id path labels\n"
    hole = write(header + 'v 0 0 v/1.jpg "1"\nv 0 1 v/3.jpg "1"\n', "hole.csv")
    assert "hole.csv:3: 'v/3.jpg' where frame 'v/2.jpg' should follow" in message(hole)
    short = write(header + 'v 0 0 v/1.jpg "1"\nv 0 1\n', "short.csv")
    assert "short.csv:3: not `original_vido_id video_id frame_id path" in message(short)
    bare = write(header + 'v 0 0 v/1.jpg ""\n', "bare.csv")
    assert "no frame of the list has a label" in message(bare)
    assert load_annotations(bare, require_labels=False)[0].label is None
    unpadded = write(header + "".join(f'v 0 {i} v/{i}.jpg "1"\n' for i in range(8, 13)), "unpadded.csv")
    assert load_annotations(unpadded)[0].source == FrameFolder(str(bare.parent / "v"), "{:01d}.jpg", 8, 5)


def test_every_format_is_documented():
    assert all(read.__doc__ for read in FORMATS.values())


def test_the_documented_examples_load(write):
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "data.md").read_text(encoding="utf-8")
    examples = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.M))
    assert set(examples) <= set(FORMATS)
    pages = "".join(path.read_text(encoding="utf-8") for path in docs.glob("*.md"))
    assert [name for name in FORMATS if f"`{name}`" not in pages] == []
    header = "label,youtube_id,time_start,time_end,split\n"
    frames = "original_vido_id video_id frame_id path labels\n"
    epic = (
        "narration_id,participant_id,video_id,narration_timestamp,start_timestamp,stop_timestamp,start_frame,"
        "stop_frame,narration,verb,verb_class,noun,noun_class,all_nouns,all_noun_classes\n"
    )
    write("1 ApplyEyeMakeup\n2 Archery\n", "classInd.txt")
    write('{"Holding something": "0"}', "labels.json")
    files = {
        "kinetics_csv": ("train.csv", header + "{}\n"),
        "charades_frames": ("charades.csv", frames + "{}\n"),
        "ssv2_json": ("train.json", "[{}]"),
        "ucf101": ("trainlist01.txt", "{}\n"),
        "epic": ("train.csv", epic + "{}\n"),
        "clips": ("train.csv", "path,start,end,label\n{}\n"),
        "ego4d": ("train.csv", "video_uid,start_second,end_second,narration\n{}\n"),
    }
    for format in set(examples) - {"folder"}:
        for row in re.findall(r"`(.*?)`", examples[format]):
            name, content = files.get(format, ("train.txt", "{}\n"))
            path = write(content.replace("{}", row), name)
            (record,) = load_annotations(path, format)
            assert record.label is not None or record.text
            if format not in ("multi_label", "avion", "frames", "epic"):
                assert load_annotations(path) == [record]


# -- class names --


@pytest.mark.parametrize(
    "content",
    [
        "air drumming\ndancing\nZumba 2\n",
        "\ufeffair drumming\r\ndancing\r\nZumba 2\r\n\r\n",
        "1 air drumming\n2 dancing\n3 Zumba 2\n",
        "0\tair drumming\n1\tdancing\n2\tZumba 2",
        "id,name\n0,air drumming\n1,dancing\n2,Zumba 2\n",
        "2,Zumba 2\n0,air drumming\n1,dancing\n",
    ],
)
def test_class_names(write, content):
    assert load_class_names(write(content)) == ["air drumming", "dancing", "Zumba 2"]


def test_class_names_in_json(write):
    assert load_class_names(write('{"b": "0", "a": "1"}', "labels.json")) == ["b", "a"]
    assert load_class_names(write('["b", "a"]', "labels.json")) == ["b", "a"]


@pytest.mark.parametrize(
    "content, error",
    [
        ("a\nb\na\n", "'a' names both class 0 and class 2"),
        ("a\n\nb\n", "train.txt:2: blank line"),
        ("0 a\n2 b\n", "without gaps"),
        ("1 a\n1 b\n", "without gaps"),
        ("5 a\n6 b\n", "count from 0 or 1"),
        ("\n", "no class names"),
        ("跳舞\n".encode("gbk"), "iconv -f GBK"),
    ],
)
def test_class_name_errors(write, content, error):
    with pytest.raises(AnnotationError, match=error):
        load_class_names(write(content))


@pytest.mark.parametrize(
    "content, error",
    [
        ('{"a": "x"}', "not a JSON object of ids by name"),
        ('{"a": null}', "not a JSON object of ids by name"),
        ('{"a": 0, "b": 2}', "without gaps"),
        ("[1, 2]", "not a JSON list of names"),
        ("5", "not a JSON list of names"),
        ('["a",\n', "labels.json:2: not JSON"),
        ("[" * 100_000, "labels.json: "),
    ],
)
def test_class_names_in_bad_json(write, content, error):
    with pytest.raises(AnnotationError, match=error):
        load_class_names(write(content, "labels.json"))
