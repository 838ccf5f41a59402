"""Very small training runs for the tests: the config, a model without batch norm, and what a run leaves behind."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import yaml
from paddle import nn

from paddlevideo_fast import models
from paddlevideo_fast.config import Config, validate
from paddlevideo_fast.engine.build import Training, build_training
from paddlevideo_fast.engine.distributed import Ranks
from paddlevideo_fast.engine.failures import Failures

ALONE = Ranks(0, 1)


class Toy(nn.Layer):
    """A linear classifier on pooled pixels, with a hidden layer: no batch norm, no dropout, exact in any batch size."""

    def __init__(self, *, num_classes: int, num_segments: int | None = None) -> None:
        super().__init__()
        self.hidden = nn.Linear(3 * 4 * 4 * 4, 8)
        self.fc = nn.Linear(8, num_classes)

    def forward(self, clip: paddle.Tensor) -> paddle.Tensor:
        """Return logits of clip [N, 3, 4, H, W]."""
        pooled = nn.functional.adaptive_avg_pool3d(clip, (4, 4, 4)).flatten(1)
        return self.fc(paddle.tanh(self.hidden(pooled)))


def settings(motion: Path, output_dir: Path, *overrides: str) -> dict[str, Any]:
    """The plain values of a small config; ``a.b=value`` strings change keys."""
    values = {
        "output_dir": str(output_dir),
        "epochs": 2,
        "model": {"name": "tsm_resnet18", "num_classes": 8, "width": 0.125, "dropout": 0.0},
        "data": {
            "num_frames": 4,
            "crop_size": 32,
            "batch_size": 4,
            "sampling": {"name": "segment"},
            "num_workers": 0,
            "class_names": str(motion / "classes.txt"),
            "train": {"annotations": str(motion / "train.txt")},
            "valid": {"annotations": str(motion / "valid.txt"), "short_side": 36},
            "test": {"annotations": str(motion / "test.txt"), "short_side": 36},
        },
        "optimizer": {"name": "momentum", "lr": 0.05, "weight_decay": 5.0e-4},
        "schedule": {"name": "cosine"},
        "log": {"interval": 1, "visualdl": False},
    }
    for override in overrides:
        key, _, text = override.partition("=")
        *parents, last = key.split(".")
        node = values
        for name in parents:
            node = node.setdefault(name, {})
        node[last] = yaml.safe_load(text)
    return copy.deepcopy(values)


def config(motion: Path, output_dir: Path, *overrides: str) -> Config:
    """The checked config of ``settings``."""
    return validate(settings(motion, output_dir, *overrides), "small run")


def config_file(motion: Path, output_dir: Path, *overrides: str) -> Path:
    """Writes the config of ``settings`` beside its output folder."""
    path = output_dir.parent / f"{output_dir.name}.yaml"
    path.write_text(yaml.safe_dump(settings(motion, output_dir, *overrides)))
    return path


def build(motion: Path, output_dir: Path, *overrides: str, ranks: Ranks = ALONE, validate: bool = False) -> Training:
    """What ``train`` takes."""
    return build_training(config(motion, output_dir, *overrides), "small run", ranks, validate=validate)


def use_toy(monkeypatch) -> None:
    """Makes ``model.name=toy`` known."""
    monkeypatch.setitem(models.MODELS, "toy", Toy)


TOY = ("model={name: toy, num_classes: 8}",)


def lines(output_dir: Path, phase: str | None = None) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl."""
    rows = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if phase in (None, row["phase"])]


def losses(output_dir: Path) -> list[float]:
    """The training losses of a run, one a logged interval."""
    return [row["loss"] for row in lines(output_dir, "train")]


def weights(layer: nn.Layer) -> dict[str, Any]:
    """Copies of a model's arrays by name."""
    return {name: value.numpy().copy() for name, value in layer.state_dict().items()}


def same(left: dict[str, Any], right: dict[str, Any], rtol: float = 0.0, atol: float = 0.0) -> None:
    """Asserts that two sets of arrays are equal, to the last bit unless a tolerance is given."""
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_allclose(left[name], right[name], rtol=rtol, atol=atol, err_msg=name)


def watch_records(run: Training) -> list[list[int]]:
    """A list that [step, epoch, record] is added to for each row that counts in the loss of a training step."""
    seen: list[list[int]] = []
    plain = run.task.loss

    def loss(outputs, batch):
        good = batch["index"].numpy()[batch["weight"].numpy() > 0]
        seen.extend([run.progress.step + 1, run.progress.epoch, int(index)] for index in good)
        return plain(outputs, batch)

    run.task.loss = loss
    return seen


def no_failures() -> Failures:
    """A count that tolerates everything."""
    return Failures(1.0)
