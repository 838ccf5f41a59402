"""Whether a static graph or channels-last memory makes a training step faster: what a key for them would be worth.

python benchmark/bench_graph.py [--device cpu|gpu] [--quick] [--output DIR]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

from paddlevideo_fast.cli.runtime import prepare

prepare()

import paddle
from allocator import waiter
from paddle import nn
from report import RESULTS, measure, write_report

from paddlevideo_fast.models import create_model

SMALL_VIT = {"embed_dim": 192, "depth": 4, "num_heads": 3, "num_frames": 8, "crop_size": 64}
MODELS = {
    "tsm_resnet18, a quarter as wide": ("tsm_resnet18", {"width": 0.25, "num_segments": 8}),
    "slowfast_resnet50, a quarter as wide": ("slowfast_resnet50", {"width": 0.25, "num_frames": 8}),
    "vit_small_patch16, 4 blocks of 192": ("vit_small_patch16", SMALL_VIT),
}
COLUMNS = {
    "what": "what",
    "plain_ms": "ms a step as it is, wall",
    "other_ms": "ms a step, the other way",
    "speedup": "speed-up",
    "cpu_speedup": "speed-up (CPU time)",
    "difference": "difference of the loss",
}


def step_of(forward: Callable, parameters: list, clip: paddle.Tensor) -> Callable[[], float]:
    """Return a function that takes a training step without changing the weights, and returns the loss."""
    optimizer = paddle.optimizer.SGD(0.0, parameters=[p for p in parameters if not p.stop_gradient])
    target = paddle.arange(clip.shape[0]) % 8

    def step() -> float:
        loss = nn.functional.cross_entropy(forward(clip), target)
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        return loss.item()

    return step


def row_of(what: str, plain: Callable[[], float], other: Callable[[], float], repeats: int) -> dict[str, object]:
    """Measure a pair and return its row."""
    difference = abs(plain() - other())
    timings = measure({"plain": plain, "other": other}, repeats, synchronise=waiter())
    plain_time, other_time = timings["plain"], timings["other"]
    return {
        "what": what,
        "plain_ms": plain_time.wall * 1e3,
        "other_ms": other_time.wall * 1e3,
        "speedup": plain_time.wall / other_time.wall,
        "cpu_speedup": plain_time.cpu / other_time.cpu,
        "difference": difference,
    }


def static_row(what: str, repeats: int, batch: int) -> dict[str, object]:
    """Compare a model as it is with its static graph."""
    name, arguments = MODELS[what]
    plain, static = (create_model(name, num_classes=8, dropout=0.0, **arguments) for _ in range(2))
    static.set_state_dict(plain.state_dict())
    clip = paddle.randn([batch, 3, 8, 64, 64])
    graph = paddle.jit.to_static(static, full_graph=True)
    runs = (step_of(plain, plain.parameters(), clip), step_of(graph, static.parameters(), clip))
    return row_of(f"static graph: {what}", *runs, repeats)


class ConvStack(nn.Layer):
    """Four bottlenecks without shortcut, in one of the two layouts."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.layout = layout
        layers: list[nn.Layer] = []
        for _ in range(4):
            for channels, out, kernel in ((128, 32, 1), (32, 32, 3), (32, 128, 1)):
                layers += [
                    nn.Conv2D(channels, out, kernel, padding=kernel // 2, bias_attr=False, data_format=layout),
                    nn.BatchNorm2D(out, data_format=layout),
                    nn.ReLU(),
                ]
        self.layers, self.fc = nn.Sequential(*layers), nn.Linear(128, 8)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return logits [N, 8] of x, [N, 128, H, W] or [N, H, W, 128]."""
        return self.fc(self.layers(x).mean([2, 3] if self.layout == "NCHW" else [1, 2]))


def layout_row(repeats: int, batch: int) -> dict[str, object]:
    """Compare the two layouts of a stack of 2D convolutions."""
    plain, other = ConvStack("NCHW"), ConvStack("NHWC")
    other.set_state_dict(plain.state_dict())
    x = paddle.randn([batch, 128, 28, 28])
    runs = (
        step_of(plain, plain.parameters(), x),
        step_of(other, other.parameters(), x.transpose([0, 2, 3, 1]).contiguous()),
    )
    return row_of("channels last: four bottlenecks of 128 channels, 28x28", *runs, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="few repeats")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    paddle.set_device(args.device)
    repeats, batch = (3 if args.quick else 9), (8 if args.device == "cpu" else 64)
    rows = [static_row(what, repeats, batch) for what in MODELS]
    rows.append(layout_row(repeats, batch * 4))
    notes = [
        f"Forward, backward and update of {batch} clips of 8x64x64 ({batch * 4} pictures), float32; medians of "
        "alternating steps; the loss is that of the first step.",
    ]
    write_report("graph", rows, COLUMNS, notes, args.output)


if __name__ == "__main__":
    main()
