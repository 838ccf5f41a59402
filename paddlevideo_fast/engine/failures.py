"""Unreadable records: each is logged once, all are counted, and too many stop the run."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

logger = logging.getLogger("paddlevideo_fast")

_ENOUGH_SEEN = 32
_ALL_FAILED = 8


class TooManyFailuresError(RuntimeError):
    """More records cannot be read than the configuration allows."""


class Failures:
    """Counts what could not be read: of this rank within an epoch, of all ranks at its end.

    Args:
        max_share: Share of failed records, 0..1, above which the run stops.
        stop_at_first: Stop at the first failure, whatever the share.
    """

    def __init__(self, max_share: float, stop_at_first: bool = False):
        self.max_share, self.stop_at_first = max_share, stop_at_first
        self.messages: dict[str, int] = {}
        self.seen = self.failed = 0
        self._epoch_seen = self._epoch_failed = 0

    def add(self, num_records: int, errors: list[str]) -> None:
        """Takes in one batch.

        Args:
            num_records: Records the batch was to hold.
            errors: One message for each that could not be read.

        Raises:
            TooManyFailuresError: The share is exceeded by far, so that chance cannot be the cause, or the first records
                all failed; names the first cause.
        """
        self._epoch_seen += num_records
        self._epoch_failed += len(errors)
        for message in errors:
            if message not in self.messages:
                logger.warning("cannot read %s", message)
            self.messages[message] = self.messages.get(message, 0) + 1
        if not errors:
            return
        if self.stop_at_first:
            self._stop("a record cannot be read, and data.bad_files is raise")
        seen, failed = self._epoch_seen, self._epoch_failed
        if failed == seen and seen >= _ALL_FAILED:
            self._stop(f"all of the first {seen} records failed")
        expected = self.max_share * seen
        if seen >= _ENOUGH_SEEN and failed > expected + 3 * math.sqrt(expected):  # three standard deviations
            self._stop_share(f"{failed} of the first {seen} reads failed")

    def check_epoch(self, gather: Callable[[Any], list[Any]] = lambda value: [value]) -> None:
        """Sums up an epoch over all ranks, which stop together.

        Args:
            gather: Returns the objects of all ranks on each of them; every rank must call this.

        Raises:
            TooManyFailuresError: The share of the epoch is exceeded, or nothing could be read; names the first cause.
        """
        shares = gather((self._epoch_seen, self._epoch_failed, self.messages))
        seen, failed = (sum(share[place] for share in shares) for place in (0, 1))
        for _, _, messages in shares:
            for message in messages:
                if message not in self.messages:
                    logger.warning("cannot read %s", message)
            self.messages = {**messages, **self.messages}
        self.seen, self.failed = self.seen + seen, self.failed + failed
        self._epoch_seen = self._epoch_failed = 0
        if failed and failed == seen:
            self._stop(f"all {seen} records failed")
        if failed > self.max_share * seen:
            self._stop_share(f"{failed} of the {seen} reads of an epoch failed")

    def _stop_share(self, what: str) -> None:
        self._stop(
            f"{what}, more than data.max_failed_share = {self.max_share:g} allows; tools/data/check_dataset.py --clean "
            "writes a list of the good ones"
        )

    def summary(self) -> str | None:
        """Returns a sentence on what failed in the epochs so far; None if nothing did."""
        if not self.failed:
            return None
        files = len(self.messages)
        return (
            f"{self.failed} of {self.seen} reads failed so far and counted with weight 0: {files} records, named above"
        )

    def _stop(self, what: str) -> None:
        raise TooManyFailuresError(f"{what}. The first: {next(iter(self.messages))}")
