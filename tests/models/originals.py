"""What tests of models and converters share: originals' values and weights, models that hold them, inputs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.weights.conversion import Conversion
from paddlevideo_fast.models.weights.load import without_wrapper

TESTS = Path(__file__).parents[1]
sys.path.append(str(TESTS / "parity"))

import named_states
from named_trees import caffe2_state, named_tree_state
from named_weights import load_into_paddle, named_clip, named_weight

__all__ = [
    "blank",
    "caffe2_state",
    "clip_of",
    "filled",
    "golden",
    "input_of",
    "load_into_paddle",
    "logits_of",
    "named_arrays",
    "named_clip",
    "named_state",
    "named_tree_state",
    "named_weight",
    "num_parameters",
]


def golden(name: str) -> dict[str, Any]:
    """What scripts of tests/parity have kept of an original."""
    return json.loads((TESTS / "golden" / f"{name}.json").read_text())


def named_state(lines: Iterable[str], gain: float = 1.0) -> dict[str, np.ndarray]:
    """The state dict of `named_states.describe`d lines, as reading a file gives it: without a wrapper's prefix."""
    return without_wrapper(named_states.named_state(lines, gain))


def named_arrays(shapes: Mapping[str, Iterable[int]]) -> dict[str, np.ndarray]:
    """The state dict of keys and shapes, likewise."""
    return without_wrapper({key: np.asarray(named_weight(key, tuple(shape))) for key, shape in shapes.items()})


def blank(name: str, **kwargs: Any) -> paddle.nn.Layer:
    """A model whose parameters have shapes alone: for a state dict to fill, in a twentieth of the time."""
    with paddle.LazyGuard():
        return create_model(name, **kwargs)


def filled(conversion: Conversion) -> paddle.nn.Layer:
    """The model with what the conversion makes of the weights, for evaluation; a blank one, too."""
    for key, parameter in conversion.model.named_parameters():
        if key in conversion.left and not parameter._is_initialized():
            parameter.initialize()
    assert conversion.model.set_state_dict(conversion.finish()) == ([], [])
    conversion.model.eval()
    return conversion.model


def input_of(name: str, shape: Iterable[int]) -> paddle.Tensor:
    """The values that an original has seen under a name."""
    return paddle.to_tensor(named_clip(name, tuple(shape)))


def logits_of(model: paddle.nn.Layer, case: Mapping[str, Any]) -> np.ndarray:
    """What a model makes of the clip of a case."""
    with paddle.no_grad():
        return model(input_of(case["clip"], case["shape"])).numpy()


def clip_of(*shape: int) -> paddle.Tensor:
    """Normal values, always the same."""
    return paddle.to_tensor(np.random.default_rng(3).standard_normal(shape, dtype="float32"))


def num_parameters(model: paddle.nn.Layer) -> int:
    """The number of values that training can change."""
    return sum(int(np.prod(p.shape)) for p in model.parameters() if not p.stop_gradient)
