"""Memory that Paddle's allocator hands out, on the GPU or the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import paddle
from paddle.base import core


def peak_memory(run: Callable[[], Any]) -> float:
    """Return the MB that Paddle's allocator hands out at the peak of one call, above what it held before."""
    if paddle.get_device().startswith("gpu"):
        memory = paddle.device.cuda
        memory.reset_max_memory_allocated()
        before = memory.memory_allocated()
        result = run()
        paddle.device.synchronize()
        peak = memory.max_memory_allocated()
    else:
        core.host_memory_stat_reset_peak_value("Allocated", 0)
        before = core.host_memory_stat_current_value("Allocated", 0)
        result = run()
        peak = core.host_memory_stat_peak_value("Allocated", 0)
    del result
    return (peak - before) / 2**20


def waiter() -> Callable[[], None] | None:
    """Return what waits for the device in use; None for the CPU, which has nothing to wait for."""
    return paddle.device.synchronize if paddle.get_device().startswith("gpu") else None
