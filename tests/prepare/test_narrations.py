"""Pickled narrations become a list, and nothing in a pickle is executed."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from paddlevideo_fast.data.annotations import load_annotations
from paddlevideo_fast.data.records import AnnotationError
from paddlevideo_fast.pickles import UnsafePickleError
from paddlevideo_fast.prepare.narrations import convert_narrations

ROOT = Path(__file__).parents[2]


def write(path, value):
    path.write_bytes(pickle.dumps(value))
    return path


def test_the_command_writes_a_list(tmp_path):
    items = [
        ("000786a7", 3.5, np.float64(5), "#C C opens the door"),
        ("000786a7", 0, 10, ['#C C, "so" said\nhe', "ü"], "more"),
        ("000a3525", 1.0, 2.0, "[x]"),
        ("000a3525", 0.1, 2.0, []),
    ]
    source = write(tmp_path / "ego4d_train.pkl", items)
    command = [sys.executable, str(ROOT / "tools/data/build_list.py"), str(source), str(tmp_path / "lists")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and "4 rows in" in done.stdout, done.stderr
    records = load_annotations(tmp_path / "lists" / "ego4d_train.csv", root=tmp_path)
    assert [record.text for record in records] == [
        ("#C C opens the door",),
        ('#C C, "so" said\nhe', "ü"),
        ("[x]",),
        (),
    ]
    assert [(record.start, record.end) for record in records] == [(3.5, 5.0), (0, 10), (1, 2), (0.1, 2)]
    assert [record.origin for record in records] == [f"ego4d_train.csv:{line}" for line in (2, 3, 4, 5)]
    assert records[2].source == str(tmp_path / "000a3525.mp4")


class Call:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call[0], self.call[1:]


def test_nothing_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / "x.pkl", [("v", 1, 2, Call(os.mkdir, "ran"))])
    with pytest.raises(UnsafePickleError, match=r"x.pkl: asks for posix.mkdir, .*it was not executed"):
        convert_narrations(source, tmp_path)
    assert sorted(os.listdir()) == ["x.pkl"]
    (tmp_path / "y.pkl").write_bytes(b"cpandas.core.frame\nDataFrame\n.")
    with pytest.raises(UnsafePickleError, match="EPIC-Kitchens publishes the same list as CSV"):
        convert_narrations(tmp_path / "y.pkl", tmp_path)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": 1}, "x.pkl is not a list of .video, start, end, narration., but dict"),
        ([], "is not a list"),
        ([("v", 1, 2, "a"), ("v", 1, 2)], "x.pkl: item 1 is not"),
        ([(1, 1, 2, "a")], "item 0 is not"),
        ([("v", "1", 2, "a")], "item 0: start and end must be seconds, got '1' and 2"),
        ([("v", 1, float("nan"), "a")], "item 0: start and end must be seconds"),
        ([("v", 1, 2, ["a", 3])], "item 0: narration must be text or texts"),
        ([("v", 1, 2, None)], "item 0: narration must be text or texts, got None"),
    ],
)
def test_other_pickles_are_named(tmp_path, value, reason):
    with pytest.raises(AnnotationError, match=reason):
        convert_narrations(write(tmp_path / "x.pkl", value), tmp_path)
    assert not (tmp_path / "x.csv").exists()
    with pytest.raises(ValueError, match="not a file of pickled arrays, or damaged"):
        (tmp_path / "x.pkl").write_bytes(b"video,1,2")
        convert_narrations(tmp_path / "x.pkl", tmp_path)
