"""Ending a run on request: SIGTERM and Ctrl-C save once, then the process exits."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class StoppedOnRequestError(RuntimeError):
    """The run was asked to stop and has saved its state.

    Attributes:
        signal_number: What asked for it; the exit status is 128 plus this, 143 for SIGTERM and 130 for Ctrl-C.
    """

    def __init__(self, signal_number: int):
        super().__init__(f"stopped by {signal.Signals(signal_number).name}; the state is saved, --resume continues")
        self.signal_number = signal_number


class StopRequest:
    """Remembers that a stop was asked for, until the loop is between two steps.

    Attributes:
        signal_number: The first signal that came; 0 before.
    """

    def __init__(self):
        self.signal_number = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Takes SIGTERM and SIGINT while inside; a second Ctrl-C does not wait for the step."""
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self._take) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, number: int, frame) -> None:
        if self.signal_number and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = self.signal_number or number
