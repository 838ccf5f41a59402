"""What every model costs: parameters and multiply-adds against published ones, and the time and memory of a step.

    python benchmark/bench_models.py [--only TABLE ...] [--models NAME,...] [--device cpu|gpu] [--quick] [--output DIR]

Three tables: models (counted, at the published size), model_steps (a training step, plain and fast operators, with and
without recomputation; at a small size on a CPU) and tsm_i3d (TSM against I3D, inflated 3x1x1 and 3x3x3: the comparison
of "Training Kinetics in 15 Minutes").
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

from paddlevideo_fast.cli.runtime import prepare

prepare()

import numpy as np
import paddle
from allocator import peak_memory, waiter
from report import RESULTS, measure, write_report

from paddlevideo_fast.models import MODELS, create_model
from paddlevideo_fast.models.complexity import count_flops, count_parameters

MMACTION = "mmaction2, configs/recognition/*/README.md"
PYTORCHVIDEO = "pytorchvideo, docs/source/model_zoo.md"
VIDEOMAE = "arXiv 2203.12602"


@dataclass(frozen=True)
class Case:
    """A model at its published size.

    Attributes:
        name: Of `MODELS`.
        clip: Frames and side of the input.
        published: Parameters in millions and multiply-adds in billions for one view, as far as they are published.
        source: Where those stand.
        arguments: Of the model.
    """

    name: str
    clip: tuple[int, int]
    published: tuple[float | None, float | None] = (None, None)
    source: str = ""
    arguments: dict[str, Any] = field(default_factory=lambda: {"num_classes": 400})


def vit(name: str, published: tuple[float, float]) -> Case:
    arguments = {"num_classes": 400, "num_frames": 16, "tubelet_size": 2, "pool": "mean", "pos": "sinusoid"}
    return Case(name, (16, 224), published, VIDEOMAE, arguments)


def slowfast(name: str, alpha: int, kernel: int, published: tuple[float | None, float | None], source: str) -> Case:
    return Case(name, (32, 256), published, source, {"num_classes": 400, "alpha": alpha, "fusion_kernel": kernel})


CASES = (
    Case("tsn_resnet18", (8, 224)),
    Case("tsn_resnet50", (8, 224), (24.33, None), MMACTION),
    Case("tsn_resnet101", (8, 224), (43.32, None), MMACTION),
    Case("tsm_resnet18", (8, 224)),
    Case("tsm_resnet34", (8, 224)),
    Case("tsm_resnet50", (8, 224), (23.87, 32.88), MMACTION + " (parameters for 174 classes)"),
    Case("tsm_resnet101", (8, 224), (42.86, 62.66), MMACTION + " (parameters for 174 classes)"),
    Case("tsm_nl_resnet50", (8, 224), (31.68, 61.30), MMACTION),
    Case("tsm_mobilenetv2", (8, 224), (2.736, 3.269), MMACTION),
    Case("pptsm_resnet50", (8, 224)),
    Case("i3d_resnet50", (8, 256), (28.04, 37.53), PYTORCHVIDEO),
    Case("i3d_nl_resnet50", (8, 256)),
    Case("slow_resnet50", (8, 256), (32.45, 54.52), PYTORCHVIDEO),
    slowfast("slowfast_resnet50", 8, 5, (34.48, 36.69), PYTORCHVIDEO + " (4x16)"),
    slowfast("slowfast_resnet50", 4, 7, (34.57, 65.71), PYTORCHVIDEO + " (8x8)"),
    slowfast("slowfast_nl_resnet50", 4, 5, (None, None), ""),
    slowfast("slowfast_resnet101", 4, 5, (62.83, 127.20), PYTORCHVIDEO + " (8x8)"),
    vit("vit_small_patch16", (22, 57)),
    vit("vit_base_patch16", (87, 180)),
    vit("vit_large_patch16", (305, 597)),
    Case("vit_large_patch14", (4, 224), arguments={"num_classes": 400, "num_frames": 4, "pre_norm": True}),
    *(Case(f"videomae_{size}", (16, 224), arguments={"num_frames": 16}) for size in ("small", "base", "large")),
    Case("dual_encoder_base_patch16", (4, 224), arguments={"num_frames": 4}),
    Case("dual_encoder_large_patch14", (4, 224), arguments={"num_frames": 4}),
    Case("timesformer_base_patch16", (8, 224), (121.4, 196), "arXiv 2102.05095; multiply-adds: mmaction2"),
)

# What a CPU can do in seconds: frames and side of a clip.
SMALL = {"vit": (4, 96), "timesformer": (4, 96), "videomae": (4, 160), "dual": (4, 64)}
PATCH_14 = (4, 84)
SMALL_CNN = (8, 64)
STEP_BATCH = {"cpu": 2, "gpu": 8}
WAYS = {
    "reference": {"impl": "reference"},
    "fast": {"impl": "fast"},
    "fast, recomputed": {"impl": "fast", "recompute": True},
}
PLAIN_WAYS = {"reference": {}, "recomputed": {"recompute": True}}  # of a model without fast operators

MODEL_COLUMNS = {
    "model": "model",
    "input": "frames x side",
    "parameters": "parameters, M",
    "published_parameters": "published",
    "flops": "multiply-adds, G",
    "published_flops": "published, G",
    "source": "published in",
}
STEP_COLUMNS = {
    "model": "model",
    "input": "clips x frames x side",
    "way": "operators",
    "step_ms": "ms a step, wall",
    "cpu_ms": "ms a step, CPU",
    "speedup": "speed-up over reference",
    "mb": "MB",
    "memory": "memory, of reference",
}
COMPARISON_COLUMNS = {
    "model": "model",
    "frames": "frames",
    "parameters": "parameters, M",
    "flops": "multiply-adds, G at 224",
    "forward": "clips/s forward",
    "training": "clips/s training",
    "forward_ratio": "TSM's throughput over it, forward",
    "training_ratio": "the same, training",
}


def build(case: Case, **more: Any) -> paddle.nn.Layer:
    """Return the model of a case; arguments that it does not have are left out."""
    accepted = inspect.signature(MODELS[case.name]).parameters
    shape = {"num_segments": case.clip[0], "num_frames": case.clip[0], "crop_size": case.clip[1]}
    extra = {key: value for key, value in {**shape, **more}.items() if key in accepted}
    return create_model(case.name, **{**extra, **case.arguments})


def has_fast_paths(case: Case) -> bool:
    """Return whether some operator of the model has a fast and a reference implementation."""
    with paddle.LazyGuard():  # without filling its weights
        return "impl" in inspect.signature(MODELS[case.name]).parameters and bool(build(case).fast_paths)


def inputs(case: Case, batch: int, frames: int, side: int) -> tuple[paddle.Tensor, ...]:
    """Return what the model takes: clips, and where it wants them a mask of nine tokens in ten, or captions."""
    rng = np.random.default_rng(0)
    clip = paddle.to_tensor(rng.standard_normal((batch, 3, frames, side, side), dtype="float32"))
    if case.name.startswith("videomae"):
        tokens = frames // 2 * (side // 16) ** 2
        return clip, paddle.to_tensor(np.tile(np.arange(tokens) >= tokens // 10, (batch, 1)))
    if case.name.startswith("dual_encoder"):
        return clip, paddle.to_tensor(rng.integers(1, 49408, (batch, 77)))
    return (clip,)


def count(case: Case) -> dict[str, object]:
    """Return the row of a model: counted and published."""
    impl = {"impl": "reference"} if has_fast_paths(case) else {}
    with paddle.LazyGuard():  # shapes are enough to count
        model = build(case, **impl)
    frames, side = case.clip
    shapes = [(tensor.shape, str(tensor.dtype).removeprefix("paddle.")) for tensor in inputs(case, 1, frames, side)]
    return {
        "model": case.name,
        "input": f"{frames}x{side}",
        "parameters": count_parameters(model) / 1e6,
        "flops": None if case.name.startswith("videomae") else count_flops(model, *shapes) / 1e9,  # hangs on the mask
        "published_parameters": case.published[0],
        "published_flops": case.published[1],
        "source": case.source,
    }


def training_step(model: paddle.nn.Layer, given: tuple[paddle.Tensor, ...], half: bool) -> Callable[[], None]:
    """Return a function that runs one step: forward, backward of the mean square of the outputs, update."""
    model.train()
    parameters = [p for p in model.parameters() if not p.stop_gradient]
    optimizer = paddle.optimizer.Momentum(1e-4, parameters=parameters)

    def step() -> None:
        with paddle.amp.auto_cast(half):
            outputs = model(*given)
        outputs = outputs.values() if isinstance(outputs, dict) else [outputs]
        sum(output.astype("float32").square().mean() for output in outputs).backward()
        optimizer.step()
        optimizer.clear_grad()

    return step


def small_clip(name: str) -> tuple[int, int]:
    """Return frames and side of a clip that a CPU can train on."""
    if name.startswith("slowfast"):
        return 16, 64
    return PATCH_14 if name.endswith("patch14") else SMALL.get(name.split("_")[0], SMALL_CNN)


def steps(case: Case, device: str, repeats: int) -> list[dict[str, object]]:
    """Return the rows of one model's training step."""
    frames, side = case.clip if device == "gpu" else small_clip(case.name)
    batch = STEP_BATCH[device]
    small = Case(case.name, (frames, side), arguments={**case.arguments})
    small.arguments.pop("num_frames", None)
    ways = WAYS if has_fast_paths(small) else PLAIN_WAYS
    given, runs = inputs(small, batch, frames, side), {}
    for name, arguments in ways.items():
        runs[name] = training_step(build(small, **arguments), given, device == "gpu")
        runs[name]()  # the optimiser's state is there from now on
    memory = {name: peak_memory(run) for name, run in runs.items()}
    timings = measure(runs, repeats, synchronise=waiter())
    return [
        {
            "model": case.name,
            "input": f"{batch}x{frames}x{side}",
            "way": name,
            "step_ms": timing.wall * 1e3,
            "cpu_ms": timing.cpu * 1e3,
            "speedup": timings["reference"].wall / timing.wall,
            "mb": memory[name],
            "memory": memory[name] / memory["reference"],
        }
        for name, timing in timings.items()
    ]


def compare(device: str, repeats: int) -> list[dict[str, object]]:
    """Return the rows of TSM and the two kinds of I3D, all on clips of 8 frames."""
    side, batch = (224, 8) if device == "gpu" else (64, 2)
    cases = {
        "TSM-R50": Case("tsm_resnet50", (8, 224)),
        "I3D-R50 3x1x1": Case("i3d_resnet50", (8, 224), arguments={"num_classes": 400, "inflate": "3x1x1"}),
        "I3D-R50 3x3x3": Case("i3d_resnet50", (8, 224), arguments={"num_classes": 400, "inflate": "3x3x3"}),
    }
    given = inputs(cases["TSM-R50"], batch, 8, side)
    counted = {name: count(case) for name, case in cases.items()}
    forward, training = {}, {}
    for name, case in cases.items():
        trained, evaluated = build(case, num_segments=8), build(case, num_segments=8)
        evaluated.eval()
        training[name] = training_step(trained, given, device == "gpu")
        forward[name] = paddle.no_grad()(lambda model=evaluated: model(*given))
    times = {way: measure(runs, repeats, synchronise=waiter()) for way, runs in (("f", forward), ("t", training))}
    return [
        {
            "model": name,
            "frames": 8,
            "parameters": counted[name]["parameters"],
            "flops": counted[name]["flops"],
            "forward": batch / times["f"][name].wall,
            "training": batch / times["t"][name].wall,
            "forward_ratio": times["f"][name].wall / times["f"]["TSM-R50"].wall,
            "training_ratio": times["t"][name].wall / times["t"]["TSM-R50"].wall,
            "side": side,
        }
        for name in cases
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = ("models", "model_steps", "tsm_i3d")
    parser.add_argument("--only", nargs="+", choices=tables, default=tables, metavar="TABLE", help=", ".join(tables))
    parser.add_argument("--models", default="", metavar="NAME,...", help="only these models")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="few repeats, no model of more than 50 M parameters")
    parser.add_argument("--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    paddle.set_device(args.device)
    large = ("_base", "_large", "resnet101") if args.quick else ()
    cases = [case for case in CASES if not any(word in case.name for word in large)]
    if args.models:
        cases = [case for case in cases if case.name in args.models.split(",")]
    repeats = 3 if args.quick else 7
    if "models" in args.only:
        notes = [
            "Multiply-adds of convolutions and matrix products, attention's among them, for one view of 400 classes, "
            "read from the graph (`models/complexity.py`). mmaction2 counts normalisations, activations "
            "and pooling besides.",
        ]
        write_report("models", [count(case) for case in cases], MODEL_COLUMNS, notes, args.output)
    if "model_steps" in args.only:
        notes = [
            "Forward, backward and update; medians of alternating steps. MB: peak of Paddle's allocator in a step, on "
            "top of weights and optimiser state. Recomputed: only the inputs of the blocks are kept.",
            "On a CPU at a small size, float32, without the large ones; on a GPU as published, mixed precision.",
        ]
        # Of a large one, three copies with their optimiser's state do not fit into a small machine's memory.
        by_name = {case.name: case for case in cases if args.device == "gpu" or "_large" not in case.name}
        rows = []
        for number, case in enumerate(by_name.values(), 1):
            print(f"[{number}/{len(by_name)}] {case.name}", file=sys.stderr, flush=True)
            rows += steps(case, args.device, repeats)
        write_report("model_steps", rows, STEP_COLUMNS, notes, args.output)
    if "tsm_i3d" in args.only:
        notes = [
            "arXiv 1910.00932: training 1.6 and 2.9 times as fast as earlier 3D models, throughput 1.8 times I3D's; "
            "which of the two I3D each figure is of is not said in its abstract.",
            "Clips of 8 frames; side 64 on a CPU, 224 on a GPU; multiply-adds at 224.",
        ]
        write_report("tsm_i3d", compare(args.device, repeats), COMPARISON_COLUMNS, notes, args.output)


if __name__ == "__main__":
    main()
