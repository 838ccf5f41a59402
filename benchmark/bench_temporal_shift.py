"""Paddle's native temporal shift against the shift composed of padding, slices and a concatenation.

    python benchmark/bench_temporal_shift.py [--device cpu|gpu] [--quick] [--output DIR]

Takes four minutes on an idle CPU; --quick a few seconds. Expected on a CPU: the native
operator 1.6 to 4 times as fast forward, 2.6 to 4 times with the backward pass, with a quarter to a third of the
memory forward.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

from paddlevideo_fast.cli.runtime import prepare

prepare()

import paddle
from allocator import peak_memory, waiter
from report import RESULTS, measure, write_report

from paddlevideo_fast.ops.temporal_shift import temporal_shift_native, temporal_shift_reference

SHIFTS = {"native": temporal_shift_native, "composed": temporal_shift_reference}
PASSES = ("forward", "forward+backward")


@dataclass(frozen=True)
class Case:
    """One input: shape [N * num_frames, C, H, W], and the guide's figures for it where it has some.

    Attributes:
        guide: Milliseconds native and composed, then MB of the card in use native and composed (V100, forward).
    """

    shape: tuple[int, int, int, int]
    num_frames: int
    shift_ratio: float
    guide: tuple[float, float, int, int] | None = None


CASES = (
    Case((32, 16, 32, 32), 2, 0.2, guide=(0.04577, 0.29325, 1058, 1074)),
    Case((128, 64, 128, 128), 2, 0.2, guide=(1.8617, 9.9088, 2588, 5160)),
    # Inputs of the shifted blocks of TSM-ResNet-50, two clips of 8 frames at 224 x 224.
    Case((16, 64, 56, 56), 8, 0.125),
    Case((16, 256, 56, 56), 8, 0.125),
    Case((16, 512, 28, 28), 8, 0.125),
    Case((16, 1024, 14, 14), 8, 0.125),
    Case((16, 2048, 7, 7), 8, 0.125),
)
QUICK_CASES = (CASES[0], CASES[4])

COLUMNS = {
    "shape": "shape",
    "num_frames": "T",
    "shift_ratio": "ratio",
    "pass": "pass",
    "native_ms": "native ms",
    "composed_ms": "composed ms",
    "speedup": "speed-up",
    "native_cpu_ms": "native CPU ms",
    "composed_cpu_ms": "composed CPU ms",
    "native_mb": "native MB",
    "composed_mb": "composed MB",
    "guide_native_ms": "guide native ms",
    "guide_composed_ms": "guide composed ms",
    "guide_speedup": "guide speed-up",
    "guide_mb": "guide MB native / composed",
}

NOTES = (
    (
        "Composed: pad the frames, slice three times, concatenate, as the guide's script does. Both run forward, and "
        "forward with the gradient of the input; float32, NCHW."
    ),
    (
        "Times are medians of alternating rounds, on a GPU synchronised before and after; CPU ms count all threads of "
        "the process. MB: peak of Paddle's allocator during one call above the input (and the output's gradient); the "
        "output itself is part of it."
    ),
    "Where the wall time is well above the CPU time, the machine had other work; the speed-up is one of wall times.",
    (
        "Guide: PaddleVideo, docs/zh-CN/tutorials/accelerate.md, V100 16 GB, Paddle 2.0.0-rc1, forward only, no device "
        "synchronisation; its MB are the whole card's use, context and input included."
    ),
)


def make_run(case: Case, alternative: str, which: str) -> Callable[[], paddle.Tensor]:
    """Return a function without arguments that runs one pass of one alternative."""
    shift = partial(SHIFTS[alternative], num_frames=case.num_frames, shift_ratio=case.shift_ratio)
    x = paddle.full(case.shape, 0.5)
    if which == "forward":
        return lambda: shift(x)
    x.stop_gradient = False
    ones = paddle.ones(case.shape)
    return lambda: paddle.grad([shift(x)], [x], [ones])[0]


def time_case(case: Case, which: str, repeats: int) -> dict[str, float]:
    """Return the times of both alternatives in milliseconds."""
    runs = {name: make_run(case, name, which) for name in SHIFTS}
    inner = max(1, 2_000_000 // math.prod(case.shape))
    timings = measure(runs, repeats, inner=inner, warmup=2, synchronise=waiter())
    return {
        "native_ms": timings["native"].wall * 1e3,
        "composed_ms": timings["composed"].wall * 1e3,
        "speedup": timings["composed"].wall / timings["native"].wall,
        "native_cpu_ms": timings["native"].cpu * 1e3,
        "composed_cpu_ms": timings["composed"].cpu * 1e3,
    }


def run_case(case: Case, which: str, repeats: int) -> dict[str, object]:
    """Measure one case and return its row."""
    row: dict[str, object] = {
        "shape": "x".join(map(str, case.shape)),
        "num_frames": case.num_frames,
        "shift_ratio": case.shift_ratio,
        "pass": which,
        "device": paddle.get_device(),
        **time_case(case, which, repeats),
    }
    for name in SHIFTS:
        row[f"{name}_mb"] = peak_memory(make_run(case, name, which))
    if case.guide is not None and which == "forward":
        native, composed, native_mb, composed_mb = case.guide
        row["guide_native_ms"], row["guide_composed_ms"] = native, composed
        row["guide_speedup"] = composed / native
        row["guide_mb"] = f"{native_mb} / {composed_mb}"
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="two shapes, few repeats")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    paddle.set_device(args.device)
    cases, repeats = (QUICK_CASES, 3) if args.quick else (CASES, 9)
    rows = [run_case(case, which, repeats) for case in cases for which in PASSES]
    write_report("temporal_shift", rows, COLUMNS, NOTES, args.output)


if __name__ == "__main__":
    main()
