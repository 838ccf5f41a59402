"""The doctor: what works is said to work, and what does not ends in status 1 with a cure."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from small_runs import config_file

from paddlevideo_fast.cli import doctor

ROOT = Path(__file__).parents[2]


def test_a_sound_machine_and_config(motion, tmp_path, capsys):
    doctor.main(["-c", str(config_file(motion, tmp_path / "run")), "--output", str(tmp_path)])
    report = capsys.readouterr().out
    assert "FAIL" not in report and "\nready" in report
    for line in ("pyav ", "decord ", "opencv ", "frames "):
        assert f"ok    {line}" in report
    assert "16 records, 16 looked at; a clip is 4x32x32x3 bytes" in report
    assert report.count("two clips through the model: [2, 8]") == 3


def test_a_broken_config_fails_with_its_reason(motion, tmp_path, capsys):
    path = config_file(motion, tmp_path / "run", "data.train.annotations=none.txt")
    with pytest.raises(SystemExit) as caught:
        doctor.main(["-c", str(path)])
    assert caught.value.code == 1
    assert "data.train.annotations: none.txt: found neither at" in capsys.readouterr().out


def with_bad_rows(motion, folder, count):
    """A training list whose first rows, ``count`` of its 16, name files that are not there."""
    rows = (motion / "train.txt").read_text().splitlines()
    rows = [f"gone_{n}.mp4 0" if n < count else str(motion / row) for n, row in enumerate(rows)]
    (folder / "bad.txt").write_text("\n".join(rows) + "\n")
    return f"data.train.annotations={folder / 'bad.txt'}"


@pytest.mark.parametrize(
    ("count", "override", "outcome"),
    [
        (
            1,
            "seed=1",
            "ready|1 of 16 rows looked at cannot be read: they count with weight 0, as data.max_failed_share",
        ),
        (4, "seed=1", "FAIL|4 of 16 rows looked at cannot be read: training stops if 25% of all fail, more than"),
        (4, "data.max_failed_share=0.3", "ready|weight 0, as data.max_failed_share = 0.3 allows; tools/data/check_da"),
        (1, "data.bad_files=raise", "FAIL|1 of 16 rows looked at cannot be read: training stops at the first (data."),
        (16, "seed=1", "FAIL|16 of 16 rows looked at cannot be read: nothing could be read; a wrong root is the usual"),
    ],
)
def test_unreadable_rows_are_counted_and_what_comes_of_them(motion, tmp_path, capsys, count, override, outcome):
    path = config_file(motion, tmp_path / "run", with_bad_rows(motion, tmp_path, count), override)
    end, text = outcome.split("|")
    with pytest.raises(SystemExit) if end == "FAIL" else contextlib.nullcontext():
        doctor.main(["-c", str(path), "--output", str(tmp_path)])
    report = capsys.readouterr().out
    assert text in report and report.count("cannot read bad.txt:") == min(count, 5)
    last = report.splitlines()[-1]
    assert last == "something needs a cure: see FAIL above" if end == "FAIL" else "to look at: see WARN above" in last


def test_only_packages_are_named_that_something_here_uses():
    modules = {"paddlepaddle": "paddle", "paddlepaddle-gpu": "paddle", "opencv-python-headless": "cv2"}
    code = "\n".join(path.read_text() for path in (ROOT / "paddlevideo_fast").rglob("*.py") if path.name != "doctor.py")
    for package in doctor.PACKAGES:
        name = modules.get(package, package)
        assert re.search(rf"^ *(import|from) {name}\b|load_package\(\"{name}\"", code, re.MULTILINE), package
    assert set(doctor.OPTIONAL) <= set(doctor.PACKAGES)


def test_overrides_need_a_config(capsys):
    with pytest.raises(SystemExit):
        doctor.main(["-o", "epochs=1"])
    assert "give one with -c" in capsys.readouterr().err


def test_short_limits_are_warned_of_with_the_cure(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "LEAST_SHM", 1 << 60)
    monkeypatch.setattr(doctor, "LEAST_FILES", 1 << 40)
    found = {finding.name: finding for finding in doctor.check_limits(tmp_path / "new" / "folder")}
    assert found["/dev/shm"].mark == "warn" and "--shm-size" in found["/dev/shm"].detail
    assert found["open files"].mark in ("warn", "ok")  # ok where there is no limit at all
    assert str(tmp_path / "new" / "folder") in found["disk"].detail
