"""Keyword arguments against signatures: names, types read from annotations, ranges, and the words of a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest

from paddlevideo_fast.arguments import ArgumentError, check_arguments

if TYPE_CHECKING:
    from nowhere import Unknown


@dataclass(frozen=True)
class Thing:
    count: int = 1
    part: float = 0.5
    name: str = "a"
    on: bool = False
    pair: tuple[float, float] = (0.0, 1.0)
    many: Sequence[float] = ()
    words: list[str] | None = None
    kind: Literal["a", "b", 3] = "a"
    size: int | None = None
    either: float | str = 0.0
    hidden: float | Unknown = 1.0
    anything: Any = None
    late: float = None


def build(depth: int, *, unmarked=0.5, switch=True, steps=3, momentum: float = 0.9, **more: int):
    return depth


def refuse(function, **kwargs) -> str:
    with pytest.raises(ArgumentError) as caught:
        check_arguments(function, kwargs, "thing x")
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("count", 3, 3),
        ("count", np.int64(3), 3),
        ("part", 2, 2),
        ("part", "3e-5", 3e-5),
        ("part", np.float32(0.5), 0.5),
        ("pair", [1, "2e0"], (1, 2.0)),
        ("many", [1, 2.5], (1, 2.5)),
        ("many", [], ()),
        ("words", ["x"], ["x"]),
        ("words", None, None),
        ("kind", 3, 3),
        ("size", None, None),
        ("either", "1e3", "1e3"),
        ("either", 1.5, 1.5),
        ("hidden", 2, 2),
        ("anything", {1: 2}, {1: 2}),
        ("late", None, None),
    ],
)
def test_values_that_fit(name, value, taken):
    found = check_arguments(Thing, {name: value}, "thing x")[name]
    assert found == taken and type(found) in (type(taken), type(value))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("count", "3", "a whole number"),
        ("count", 3.0, "a whole number"),
        ("count", True, "a whole number"),
        ("count", None, "a whole number"),
        ("part", "abc", "a number"),
        ("part", True, "a number"),
        ("part", "nan", "a number"),
        ("part", [1], "a number"),
        ("name", 3, "text"),
        ("on", 1, "true or false"),
        ("pair", 3, "a list of 2 numbers"),
        ("pair", [1, 2, 3], "a list of 2 numbers"),
        ("pair", [1, "x"], "a list of 2 numbers"),
        ("many", 3, "a list of numbers"),
        ("many", "12", "a list of numbers"),
        ("words", [1], "a list of texts or null"),
        ("kind", "c", "'a' or 'b' or 3"),
        ("size", "big", "a whole number or null"),
        ("hidden", "x", "a number"),
    ],
)
def test_values_that_do_not_fit(name, value, words):
    assert refuse(Thing, **{name: value}) == f"thing x: {name} must be {words}, given {value!r}."


def test_functions_without_annotations_go_by_the_number_they_have_as_default():
    ready = partial(build, 18)
    assert check_arguments(ready, {"unmarked": "1e-1", "steps": "any", "more": 3}, "x")["unmarked"] == 0.1
    assert "unmarked must be a number" in refuse(ready, unmarked="x")
    assert "switch must be true or false" in refuse(ready, switch=3)


@pytest.mark.parametrize(("value", "fits"), [(0, True), (0.999, True), (1, False), (5, False), (-0.1, False)])
def test_a_share_is_one_everywhere(value, fits):
    if fits:
        assert check_arguments(build, {"depth": 1, "momentum": value}, "x")["momentum"] == value
    else:
        assert f"momentum must be from 0 to below 1, given {value}." in refuse(build, depth=1, momentum=value)


def test_what_comes_from_elsewhere_is_neither_missing_nor_offered():
    assert check_arguments(build, {}, "x", elsewhere=["depth"]) == {}
    with pytest.raises(ArgumentError) as caught:
        check_arguments(Thing, {"counts": 1}, "x", elsewhere=["part", "hidden"], keys=["counter"])
    assert "did you mean 'counter'?" in str(caught.value) or "did you mean 'count'?" in str(caught.value)
    assert "Valid arguments: counter, count=1, name='a'" in str(caught.value)
    assert "part" not in str(caught.value) and "hidden" not in str(caught.value)
