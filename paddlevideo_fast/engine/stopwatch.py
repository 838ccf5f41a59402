"""Stop-watches that are put around functions and methods from outside, and taken off again."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

END = object()


class Watch:
    """Adds up the time of named parts; that of an inner part does not count for the outer one.

    Args:
        synchronise: Called before a clock is read, so that work handed to a device is counted where it was asked for.

    Attributes:
        active: Parts that begin outside of another one are counted.
    """

    def __init__(self, synchronise: Callable[[], None] | None = None):
        self.synchronise, self.active = synchronise, False
        self._own = threading.local()  # sums of a thread's own: a lock would be waited for inside the outer part
        self._threads: list[dict[str, Counter[str]]] = []

    @property
    def wall(self) -> Counter[str]:
        """Name -> seconds, over all threads."""
        return self._sum("wall")

    @property
    def cpu(self) -> Counter[str]:
        """Name -> CPU seconds of the threads."""
        return self._sum("cpu")

    @property
    def outermost(self) -> Counter[str]:
        """Name -> times it was counted outside of another part."""
        return self._sum("outermost")

    def _sum(self, kind: str) -> Counter[str]:
        joined: Counter[str] = Counter()
        for sums in list(self._threads):
            joined.update(sums[kind].copy())
        return joined

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[bool]:
        """Counts the time inside, if the part around it is counted; yields whether this is a counted outermost one."""
        if not hasattr(self._own, "stack"):
            self._own.stack, self._own.sums = [], {kind: Counter() for kind in ("wall", "cpu", "outermost")}
            self._threads.append(self._own.sums)
        stack, sums = self._own.stack, self._own.sums
        counts, is_outermost = stack[-1][0] if stack else self.active, not stack
        frame = [counts, 0.0, 0.0]  # and what inner parts took
        stack.append(frame)
        wall, cpu = self._clocks(counts)
        try:
            yield counts and is_outermost
        finally:
            wall_end, cpu_end = self._clocks(counts)
            wall, cpu = wall_end - wall, cpu_end - cpu
            stack.pop()
            if stack:
                stack[-1][1] += wall
                stack[-1][2] += cpu
            if counts:
                sums["wall"][name] += wall - frame[1]
                sums["cpu"][name] += cpu - frame[2]
                sums["outermost"][name] += is_outermost

    def _clocks(self, counts: bool) -> tuple[float, float]:
        if counts and self.synchronise is not None:
            self.synchronise()
        return time.perf_counter(), time.thread_time()

    def around(self, name: str) -> Callable[[Callable], Callable]:
        """Returns what puts this watch around a function."""

        def wrap(plain: Callable) -> Callable:
            def timed(*arguments, **options):
                with self.part(name):
                    return plain(*arguments, **options)

            return timed

        return wrap

    def around_items(self, name: str) -> Callable[[Callable], Callable]:
        """Returns what puts this watch around the making of each item of a generator."""

        def wrap(plain: Callable) -> Callable:
            def timed(*arguments, **options):
                items = iter(plain(*arguments, **options))
                while True:
                    with self.part(name):
                        item = next(items, END)
                    if item is END:
                        return
                    yield item

            return timed

        return wrap


def put(changes: contextlib.ExitStack, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    """Puts something around an attribute of an object, class or module until ``changes`` end."""
    had, plain = vars(owner).get(name, END), getattr(owner, name)
    setattr(owner, name, wrap(plain))
    changes.callback(*((delattr, owner, name) if had is END else (setattr, owner, name, had)))


def put_everywhere(changes: contextlib.ExitStack, function: FunctionType, wrap: Callable[[Any], Any]) -> None:
    """Puts something around a function in every module of this package that has imported it."""
    for name in [name for name in sys.modules if name.startswith("paddlevideo_fast.")]:
        module = sys.modules[name]
        for key in [key for key, value in vars(module).items() if value is function]:
            put(changes, module, key, wrap)


def subclasses(kind: type) -> Iterator[type]:
    """Yields a class and all that inherit from it."""
    yield kind
    for inheriting in kind.__subclasses__():
        yield from subclasses(inheriting)
