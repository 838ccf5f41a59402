"""Class names of the config that are not those of the weights are pointed out."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import paddle
import pytest
from small_runs import config

from paddlevideo_fast.engine.build import build_model
from paddlevideo_fast.inference.class_names import warn_of_other_names
from paddlevideo_fast.inference.predictor import Predictor


@pytest.fixture
def warned(tmp_path, caplog):
    """Compares names with those in the JSON text beside weights; returns the warning, "" for none."""

    def compare(names: list[str] | None, beside: str | None) -> str:
        caplog.clear()
        if beside is not None:
            (tmp_path / "w.json").write_text(beside)
        with caplog.at_level(logging.WARNING, "paddlevideo_fast"):
            warn_of_other_names(tmp_path / "w.pdparams", names, "names.txt")
        assert len(caplog.messages) <= 1
        return "".join(caplog.messages)

    return compare


@pytest.mark.parametrize(
    ("names", "trained", "used", "known"),
    [
        (["a", "c", "b"], ["a", "b", "c"], "calls class 1 'c'", "calls class 1 'b'"),
        (["a"], ["a", "b"], "has no class 1", "calls class 1 'b'"),
        (["a", "b"], ["a"], "calls class 1 'b'", "has no class 1"),
    ],
)
def test_the_first_difference_is_named_with_both_files(warned, tmp_path, names, trained, used, known):
    message = warned(names, json.dumps({"class_names": trained}))
    assert message.startswith(f"class names: names.txt {used}, but {tmp_path}/w.json, beside the weights, {known}: ")


@pytest.mark.parametrize("beside", [None, '{"class_names": ["a", "b"]}', "{}", '{"class_names": null}', "[1]", "{cut"])
def test_where_there_is_nothing_to_compare_nothing_is_said(warned, beside):
    assert warned(["a", "b"], beside) == ""
    assert warned(None, beside) == ""


def test_a_prediction_with_other_names_is_warned_of(motion, tmp_path, caplog):
    settings = config(motion, tmp_path / "run")
    paddle.save(build_model(settings).state_dict(), str(tmp_path / "w.pdparams"))
    names = Path(settings.data.class_names).read_text().split()
    (tmp_path / "w.json").write_text(json.dumps({"class_names": [names[1], names[0], *names[2:]]}))
    with caplog.at_level(logging.WARNING, "paddlevideo_fast"):
        Predictor(settings, "small run", tmp_path / "w.pdparams")
    assert f"{settings.data.class_names} calls class 0 {names[0]!r}, but {tmp_path}/w.json" in caplog.text
