"""When unreadable records stop a run."""

from __future__ import annotations

import logging

import pytest

from paddlevideo_fast.engine import failures as module
from paddlevideo_fast.engine.failures import Failures, TooManyFailuresError


def test_a_share_up_to_the_limit_is_passed_over():
    failures = Failures(0.25)
    for number in range(100):
        failures.add(4, [f"list:{number} x.mp4: broken"])
    failures.check_epoch()
    assert (failures.seen, failures.failed) == (400, 100)


def test_far_above_the_limit_it_stops_once_enough_was_seen():
    """At a share of 0.25, 8 of 32 are expected, and 3 sqrt(8) = 8.5 more may be chance."""
    failures = Failures(0.25)
    failures.add(4, ["list:1 first.mp4: broken", "list:2 b.mp4: broken"])
    for _ in range(6):
        failures.add(4, ["list:3 c.mp4: broken", "list:4 d.mp4: broken"])
    with pytest.raises(
        TooManyFailuresError, match=r"^17 of the first 32 reads failed, .* 0.25 allows; .* The first: list:1 first.mp4"
    ):
        failures.add(4, ["list:3 c.mp4: broken", "list:4 d.mp4: broken", "list:5 e.mp4: broken"])


def test_a_little_above_the_limit_it_stops_at_the_end_of_the_first_epoch():
    """Two of 19 are 10.5 %: whatever the order, and however short the list."""
    failures = Failures(0.1)
    failures.add(19, ["list:1 a.mp4: broken", "list:2 b.mp4: broken"])
    with pytest.raises(TooManyFailuresError, match=r"^2 of the 19 reads of an epoch failed, .* 0.1 allows"):
        failures.check_epoch()
    failures = Failures(0.1)
    for _ in range(5):
        failures.add(20, ["list:1 a.mp4: broken", "list:2 b.mp4: broken"])
        failures.check_epoch()
    assert (failures.seen, failures.failed) == (100, 10)


def test_ranks_sum_up_an_epoch_together(monkeypatch, caplog):
    monkeypatch.setattr(module.logger, "propagate", True)
    failures = Failures(0.25)
    failures.add(10, ["list:1 a.mp4: broken"])
    other = (10, 4, {"list:1 a.mp4: broken": 1, "list:7 g.mp4: broken": 3})
    with caplog.at_level(logging.WARNING):
        failures.check_epoch(lambda own: [own, other])
    assert (failures.seen, failures.failed) == (20, 5) and "2 records" in failures.summary()
    assert [record.getMessage() for record in caplog.records] == [
        "cannot read list:1 a.mp4: broken",
        "cannot read list:7 g.mp4: broken",
    ]
    with pytest.raises(TooManyFailuresError, match="6 of the 20 reads"):
        failures.check_epoch(lambda own: [own, (20, 6, {})])


def test_if_nothing_can_be_read_it_stops_sooner():
    failures = Failures(1.0)
    failures.add(6, [f"list:{number} x.mp4: broken" for number in range(6)])
    with pytest.raises(TooManyFailuresError, match="all of the first 8 records failed. The first: list:0 x.mp4"):
        failures.add(2, ["list:6 x.mp4: broken", "list:7 x.mp4: broken"])


def test_one_good_record_is_enough_for_a_limit_of_one():
    failures = Failures(1.0)
    failures.add(2, ["a"])
    for _ in range(50):
        failures.add(2, ["b", "c"])


def test_nothing_may_fail_at_a_limit_of_zero():
    failures = Failures(0.0)
    failures.add(31, ["a"])
    with pytest.raises(TooManyFailuresError):
        failures.add(1, ["b"])


def test_each_record_is_logged_once(monkeypatch, caplog):
    monkeypatch.setattr(module.logger, "propagate", True)
    failures = Failures(1.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            failures.add(4, ["list:1 a.mp4: broken", "list:2 b.mp4: broken"])
    assert [record.getMessage() for record in caplog.records] == [
        "cannot read list:1 a.mp4: broken",
        "cannot read list:2 b.mp4: broken",
    ]
    assert failures.messages == {"list:1 a.mp4: broken": 3, "list:2 b.mp4: broken": 3}


def test_an_epoch_without_one_good_record_stops_however_short():
    failures = Failures(1.0)
    failures.add(3, ["list:1 a.mp4: broken", "list:2 b.mp4: broken", "list:3 c.mp4: broken"])
    with pytest.raises(TooManyFailuresError, match="all 3 records failed. The first: list:1 a.mp4"):
        failures.check_epoch()
    failures.add(1, [])
    failures.check_epoch()
