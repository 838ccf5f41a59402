"""The sums between two log lines."""

from __future__ import annotations

import math
import time

import paddle
import pytest

from paddlevideo_fast.data.samplers import SampleKey, Step
from paddlevideo_fast.engine.distributed import Ranks
from paddlevideo_fast.engine.interval import Interval

KEYS = [[SampleKey(0, index, 4, 32)] for index in range(6)]


def rows(*values):
    return paddle.to_tensor(values, dtype="float32")


def test_means_count_rows_by_weight():
    interval = Interval(Ranks(0, 1))
    interval.add({"loss": rows(1, 2), "top1": rows(1, 0)}, rows(1, 1))
    interval.add({"loss": rows(6, 100), "top1": rows(1, 1)}, rows(1, 0))  # the second row stands in for another
    interval.finish_step(1, 0.1, Step(3, 3, KEYS[:2]))
    interval.add({"loss": rows(4), "top1": rows(1)}, rows(1))
    interval.finish_step(2, 0.2, Step(1, 1, KEYS[2:3]))
    values, is_finite, broken = interval.read()
    assert values["loss"] == pytest.approx((1 + 2 + 6 + 4) / 4)
    assert values["top1"] == pytest.approx(3 / 4)
    assert is_finite and broken is None


def test_times_are_per_step():
    interval = Interval(Ranks(0, 1))
    for step in (1, 2):
        with interval.reading():
            time.sleep(0.05)
        time.sleep(0.03)
        interval.add({"loss": rows(1)}, rows(1))
        interval.finish_step(step, 0.1, Step(8, 8, KEYS[:1]))
    values, _, _ = interval.read()
    assert 0.05 <= values["reader_cost"] < 0.075
    assert values["reader_cost"] + 0.03 <= values["batch_cost"] < 0.2
    assert values["ips"] == pytest.approx(8 / values["batch_cost"], rel=1e-6)


def test_reading_starts_anew():
    interval = Interval(Ranks(0, 1))
    interval.add({"loss": rows(math.nan)}, rows(1))
    interval.finish_step(1, 0.1, Step(1, 1, KEYS[:1]))
    interval.read()
    interval.add({"loss": rows(3)}, rows(1))
    interval.finish_step(2, 0.1, Step(1, 1, KEYS[1:2]))
    values, is_finite, broken = interval.read()
    assert (values["loss"], is_finite, broken) == (3.0, True, None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_first_step_that_is_not_finite_is_named(value):
    interval = Interval(Ranks(0, 1))
    for step, loss in enumerate((1.0, 2.0, value, 3.0, value, 1.0)):
        interval.add({"loss": rows(loss)}, rows(1))
        interval.finish_step(step + 1, step / 10, Step(1, 1, KEYS[step : step + 1]))
    values, is_finite, broken = interval.read()
    assert not is_finite and not math.isfinite(values["loss"])
    assert (broken.number, broken.rate, broken.keys) == (3, 0.2, KEYS[2])


def test_an_interval_without_a_readable_clip_has_no_mean_but_is_not_broken():
    interval = Interval(Ranks(0, 1))
    interval.add({"loss": rows(2, 2)}, rows(0, 0))
    interval.finish_step(1, 0.1, Step(2, 2, KEYS[:1]))
    values, is_finite, broken = interval.read()
    assert math.isnan(values["loss"]) and is_finite and broken is None
