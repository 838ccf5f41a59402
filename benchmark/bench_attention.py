"""Attention composed of matrix products against Paddle's scaled_dot_product_attention, over sequence lengths.

    python benchmark/bench_attention.py [--device cpu|gpu] [--quick] [--output DIR]

On a GPU in half precision the fast one is FlashAttention: its memory grows with the length, that of the composed one
with its square. On a CPU both are plain products.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

from paddlevideo_fast.cli.runtime import prepare

prepare()

import paddle
from allocator import peak_memory, waiter
from report import RESULTS, measure, write_report

from paddlevideo_fast.ops.attention import attention_fast, attention_reference

WAYS = {"fast": attention_fast, "composed": attention_reference}
PASSES = ("forward", "forward+backward")
HEADS, HEAD_DIM = 12, 64  # ViT-B
# 4 and 8 frames of 14x14 patches, VideoMAE's 16 frames in pairs, 16 frames singly
LENGTHS = {"cpu": (197, 785, 1569), "gpu": (197, 785, 1569, 3137, 6273)}

COLUMNS = {
    "length": "tokens",
    "pass": "pass",
    "fast_ms": "fast ms",
    "composed_ms": "composed ms",
    "speedup": "speed-up",
    "fast_cpu_ms": "fast CPU ms",
    "composed_cpu_ms": "composed CPU ms",
    "fast_mb": "fast MB",
    "composed_mb": "composed MB",
}


def make_run(way: str, which: str, batch: int, length: int, dtype: str) -> Callable[[], object]:
    """Return a function without arguments that runs one pass."""
    shape = [batch, length, HEADS, HEAD_DIM]
    query, key, value = (paddle.randn(shape).astype(dtype) for _ in range(3))
    if which == "forward":
        return partial(WAYS[way], query, key, value)
    for tensor in (query, key, value):
        tensor.stop_gradient = False
    ones = paddle.ones(shape, dtype)
    return lambda: paddle.grad([WAYS[way](query, key, value)], [query, key, value], [ones])


def run_case(batch: int, length: int, which: str, dtype: str, repeats: int) -> dict[str, object]:
    """Measure one length and return its row."""
    runs = {way: make_run(way, which, batch, length, dtype) for way in WAYS}
    timings = measure(runs, repeats, synchronise=waiter())
    row: dict[str, object] = {"length": length, "pass": which, "batch": batch, "dtype": dtype}
    for way, timing in timings.items():
        row[f"{way}_ms"], row[f"{way}_cpu_ms"] = timing.wall * 1e3, timing.cpu * 1e3
        row[f"{way}_mb"] = peak_memory(runs[way])
    return {**row, "speedup": timings["composed"].wall / timings["fast"].wall}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="two lengths, few repeats")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    paddle.set_device(args.device)
    batch, dtype = (8, "float16") if args.device == "gpu" else (1, "float32")
    lengths, repeats = LENGTHS[args.device], 9
    if args.quick:
        lengths, repeats = lengths[:2], 3
    rows = [run_case(batch, length, which, dtype, repeats) for length in lengths for which in PASSES]
    notes = [
        f"{batch} clip(s), {HEADS} heads of {HEAD_DIM} channels as in ViT-B, {dtype}. Composed: two matrix products "
        "and a softmax (`ops/attention.py`).",
        "Times are medians of alternating calls; MB: peak of Paddle's allocator during a call, above the inputs.",
    ]
    write_report("attention", rows, COLUMNS, notes, args.output)


if __name__ == "__main__":
    main()
