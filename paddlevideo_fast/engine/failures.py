"""Unreadable records: each is logged once, all are counted, and too many stop the run."""

from __future__ import annotations

import logging

logger = logging.getLogger("paddlevideo_fast")

_ENOUGH_SEEN = 32
_ALL_FAILED = 8


class TooManyFailuresError(RuntimeError):
    """More records cannot be read than the configuration allows."""


class Failures:
    """Counts what this rank could not read.

    Args:
        max_share: Share of failed records, 0..1, above which the run stops.
        stop_at_first: Stop at the first failure, whatever the share.
    """

    def __init__(self, max_share: float, stop_at_first: bool = False):
        self.max_share, self.stop_at_first = max_share, stop_at_first
        self.messages: dict[str, int] = {}
        self.seen = self.failed = 0

    def add(self, num_records: int, errors: list[str]) -> None:
        """Takes in one batch.

        Args:
            num_records: Records the batch was to hold.
            errors: One message for each that could not be read.

        Raises:
            TooManyFailuresError: The share is exceeded, or the first records all failed; names the first cause.
        """
        self.seen += num_records
        self.failed += len(errors)
        for message in errors:
            if message not in self.messages:
                logger.warning("cannot read %s", message)
            self.messages[message] = self.messages.get(message, 0) + 1
        if not errors:
            return
        if self.stop_at_first:
            self._stop("a record cannot be read, and data.bad_files is raise")
        if self.failed == self.seen and self.seen >= _ALL_FAILED:
            self._stop(f"all of the first {self.seen} records failed")
        if self.seen >= _ENOUGH_SEEN and self.failed > self.max_share * self.seen:
            self._stop(
                f"{self.failed} of the first {self.seen} reads failed, more than data.max_failed_share = "
                f"{self.max_share:g} allows; tools/data/check_dataset.py --clean writes a list of the good ones"
            )

    def check_epoch(self) -> None:
        """Stops after an epoch in which not one record could be read, few as they may be.

        Raises:
            TooManyFailuresError: Names the first cause.
        """
        if self.failed and self.failed == self.seen:
            self._stop(f"all {self.seen} records failed")

    def summary(self) -> str | None:
        """Returns a sentence on what failed so far; None if nothing did."""
        if not self.failed:
            return None
        files = len(self.messages)
        return (
            f"{self.failed} of {self.seen} reads failed so far and counted with weight 0: {files} records, named above"
        )

    def _stop(self, what: str) -> None:
        raise TooManyFailuresError(f"{what}. The first: {next(iter(self.messages))}")
