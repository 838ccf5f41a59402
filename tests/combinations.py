"""Choices that must work in any combination, rows that pair every choice with every other, and what a row runs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

import numpy as np
from small_runs import build, watch_records, weights

from paddlevideo_fast.engine.distributed import Ranks
from paddlevideo_fast.engine.train import train

Row = dict[str, str]

# Two epochs of 2 frames at 16 pixels in large batches, and one of full clips in which the crop changes.
MULTIGRID = (
    "multigrid={cycle: single, epoch_factor: 3, milestones: [0.5], long_cycle_shapes: [[0.5, 0.5], [1, 1]], "
    "sub_batch: 2}",
)

# Factor -> choice -> overrides of the small config. Later accelerations join here.
FACTORS: dict[str, dict[str, tuple[str, ...]]] = {
    "model": {
        "tsm": ("model={name: tsm_resnet18, num_classes: 8, width: 0.125}",),
        "slowfast": ("model={name: slowfast_resnet50, num_classes: 8, width: 0.125, alpha: 2, fusion_kernel: 3}",),
        "timesformer": (
            "model={name: timesformer_base_patch16, num_classes: 8, embed_dim: 24, depth: 2, num_heads: 2}",
        ),
        "vit": (
            "model={name: vit_small_patch16, num_classes: 8, embed_dim: 24, depth: 2, num_heads: 2, tubelet_size: 2, "
            "pool: mean, pos: sinusoid, drop_path_rate: 0.2}",
            "optimizer={name: adamw, lr: 0.001, weight_decay: 0.05, layer_decay: 0.75}",
        ),
    },
    "norm": {"local": (), "sub": ("model.norm=sub",)},
    "multigrid": {"off": (), "on": MULTIGRID},
    "reader": {
        **{name: (f"data.reader={name}", "data.train.annotations=VIDEOS") for name in ("fused", "pyav")},
        **{name: (f"data.reader={name}", "data.train.annotations=VIDEOS") for name in ("decord", "opencv")},
        "frames": ("data.reader=frames", "data.train.annotations=FRAMES"),
        "shards": ("data.reader=fused", "data.train.annotations=SHARDS"),
        "chunks": ("data.reader=fused", "data.train.annotations=SPANS", "data.train.root=CHUNKS"),
    },
    "sampling": {
        "segment": (),
        "dense": ("data.sampling={name: dense, window: 8}",),
        "uniform": ("data.sampling={name: uniform, frame_stride: 2}",),
    },
    "ranks": {"1": (), "2": ()},
    "resume": {"never stopped": (), "cut in an epoch": ()},
    "accum_steps": {"1": (), "2": ("accum_steps=2",)},
    "repeats": {"1": (), "2": ("data.train.repeats=2",)},
    "amp": {"off": (), "on": ("amp.enabled=true",), "bfloat16": ("amp={enabled: true, dtype: bfloat16}",)},
    "recompute": {"off": (), "on": ("model.recompute=true",)},
    "augment": {
        "none": (),
        "mixed": ("augment.mixup_alpha=0.8", "augment.cutmix_alpha=1.0", "augment.erase.probability=0.5"),
        "rand_augment": ("data.train.rand_augment=rand-m7-n4-mstd0.5-inc1", "augment.color_jitter.hue=0.1"),
    },
    "after": {"nothing": (), "ema": ("ema.decay=0.9",), "precise_bn": ("precise_bn.num_batches=2",)},
    "workers": {"0": (), "2": ("data.num_workers=2",)},
}
# What makes no sense together, and is refused: these networks have no batch norm.
EXCLUDED = {
    frozenset([("model", "vit"), ("after", "precise_bn")]),
    frozenset([("model", "timesformer"), ("after", "precise_bn")]),
    frozenset([("model", "vit"), ("norm", "sub")]),
    frozenset([("model", "timesformer"), ("norm", "sub")]),
}

Pair = frozenset[tuple[str, str]]


def all_pairs(factors: Mapping[str, Iterable[str]], excluded: Set[Pair] = frozenset()) -> set[Pair]:
    """Return every two choices of different factors that go together."""
    return {
        frozenset([(one, a), (two, b)])
        for one, two in itertools.combinations(factors, 2)
        for a, b in itertools.product(factors[one], factors[two])
    } - excluded


def pairwise(factors: Mapping[str, Iterable[str]], excluded: Set[Pair] = frozenset()) -> list[Row]:
    """Return rows in which every choice of a factor meets every choice of every other that it goes with.

    Greedy: each row begins with a pair that is still to be met, and takes for each factor what meets most others.
    """
    names, left = list(factors), all_pairs(factors, excluded)
    rows = []
    while left:
        row = dict(sorted(min(left, key=sorted)))
        for name in names:
            if name not in row:
                fit = [choice for choice in factors[name] if not _pairs(row, name, choice) & excluded]
                row[name] = max(fit, key=lambda choice: len(_pairs(row, name, choice) & left))
        rows.append({name: row[name] for name in names})
        left -= {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}
    return rows


def _pairs(row: Row, name: str, choice: str) -> set[Pair]:
    return {frozenset([(name, choice), item]) for item in row.items()}


ROWS = pairwise(FACTORS, EXCLUDED)


class PowerCutError(BaseException):
    """Ends a run without giving it a chance to save."""


def overrides(row: Row, lists: Mapping[str, Path]) -> list[str]:
    """Return the options of a row; ``lists`` says what VIDEOS, FRAMES, SHARDS, SPANS and CHUNKS stand for."""
    options = [option for factor, choice in row.items() for option in FACTORS[factor][choice]]
    for name, path in lists.items():
        options = [option.replace(name, str(path)) for option in options]
    batches = int(row["ranks"]) * int(row["accum_steps"])
    size = f"data.batch_size={2 if batches < 4 else 1}"  # an epoch of five records has two steps at least
    return [size, "checkpoint.every_steps=1", "log.interval=1", *options]


def run_row(row: Row, motion: Path, lists: Mapping[str, Path], folder: Path, ranks: Ranks) -> None:
    """Train a row and leave in the folder the arrays at its end and the records that counted.

    A row is an epoch, or three by multigrid. Where it is to be cut, it is trained once more, cut off in its second step
    and resumed.
    """
    options = overrides(row, lists)
    run = build(motion, folder / "whole", "epochs=1", *options, ranks=ranks)
    seen = watch_records(run)
    train(run)
    _leave(folder / f"whole.{ranks.rank}", run, seen)
    if row["resume"] == "cut in an epoch":
        _cut(build(motion, folder / "cut", "epochs=1", *options, ranks=ranks))
        run = build(motion, folder / "cut", "epochs=1", *options, ranks=ranks)
        train(run, resume=True)
        _leave(folder / f"cut.{ranks.rank}", run, [])


def _cut(run) -> None:
    plain = run.task.backward

    def backward(*arguments):
        if run.progress.step == 1:
            raise PowerCutError
        return plain(*arguments)

    run.task.backward = backward
    try:
        train(run)
    except PowerCutError:
        return
    raise AssertionError("the run was not cut off")


def _leave(path: Path, run, seen: list[list[int]]) -> None:
    arrays = weights(run.model)
    if run.ema is not None:
        arrays |= {f"ema.{name}": value for name, value in weights(run.ema.model).items()}
    np.savez(path.with_name(path.name + ".npz"), **arrays)
    path.with_name(path.name + ".json").write_text(json.dumps(seen))
