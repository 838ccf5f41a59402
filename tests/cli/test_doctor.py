"""The doctor: what works is said to work, and what does not ends in status 1 with a cure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from small_runs import config_file

from paddlevideo_fast.cli import doctor

ROOT = Path(__file__).parents[2]


def test_a_sound_machine_and_config(motion, tmp_path, capsys):
    doctor.main(["-c", str(config_file(motion, tmp_path / "run")), "--output", str(tmp_path)])
    report = capsys.readouterr().out
    assert "FAIL" not in report and report.rstrip().endswith("ready")
    for line in ("pyav ", "decord ", "opencv ", "frames "):
        assert f"ok    {line}" in report
    assert "16 records; the first batch is 4x4x32x32x3 bytes" in report
    assert report.count("two clips through the model: [2, 8]") == 3


def test_a_broken_config_fails_with_its_reason(motion, tmp_path, capsys):
    path = config_file(motion, tmp_path / "run", "data.train.annotations=none.txt")
    with pytest.raises(SystemExit) as caught:
        doctor.main(["-c", str(path)])
    assert caught.value.code == 1
    assert "data.train.annotations: none.txt: found neither at" in capsys.readouterr().out


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
