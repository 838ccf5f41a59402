"""Loading a state dict into a model, with an account of every key."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import paddle

from paddlevideo_fast.models.weights.pickles import load_arrays

logger = logging.getLogger("paddlevideo_fast")


class WeightsError(ValueError):
    """Weights that do not fit the model; the message names the file and the keys."""


def read_weights(path: str | Path) -> dict[str, np.ndarray]:
    """Reads a state dict: a ``.pdparams`` file, or the weights inside a training state.

    Args:
        path: A file that ``paddle.save(model.state_dict(), path)`` wrote, or a checkpoint of this project, whose
            averaged weights are taken where it has them.

    Raises:
        WeightsError: The file is missing, damaged, or holds something else.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"{path.absolute()}: no such weights file")
    try:
        state = load_arrays(path)
    except ValueError as error:
        raise WeightsError(str(error)) from error
    if isinstance(state, dict) and "model" in state and isinstance(state["model"], dict):
        state = state.get("ema") or state["model"]
    if not isinstance(state, dict):
        raise WeightsError(f"{path}: expected a mapping of names to arrays, found {type(state).__name__}")
    state = {key: value for key, value in state.items() if key != "StructuredToParameterName@@"}
    wrong = [key for key, value in state.items() if not isinstance(value, np.ndarray)]
    if wrong or not state:
        found = f"{wrong[0]!r} is {type(state[wrong[0]]).__name__}" if wrong else "it is empty"
        raise WeightsError(f"{path}: expected a mapping of names to arrays, but {found}")
    return state


def load_weights(model: paddle.nn.Layer, path: str | Path) -> None:
    """Loads weights that fit the model in every key and shape.

    Raises:
        WeightsError: Keys are missing, left over or of another shape; nothing has been loaded.
    """
    state = read_weights(path)
    own = model.state_dict(use_hook=False)
    problems = explain_misfit(own, state)
    if problems:
        raise WeightsError(
            f"{path} does not fit {type(model).__name__}, which has {len(own)} keys: {'; '.join(problems)}"
        )
    set_state(own, state)
    logger.info("loaded %d arrays from %s", len(own), Path(path).absolute())


def explain_misfit(own: Mapping[str, paddle.Tensor], state: Mapping[str, np.ndarray]) -> list[str]:
    """Returns what keeps a state from fitting a model: keys missing, left over, of another shape; empty if nothing."""
    missing = [key for key in own if key not in state]
    unknown = [key for key in state if key not in own]
    misshapen = [
        f"{key} {list(state[key].shape)} for {list(own[key].shape)}"
        for key in own
        if key in state and list(state[key].shape) != list(own[key].shape)
    ]
    return [
        f"{len(keys)} {what} ({', '.join(keys[:4])}{', ...' if len(keys) > 4 else ''})"
        for keys, what in ((missing, "missing"), (unknown, "unknown to the model"), (misshapen, "of another shape"))
        if keys
    ]


def set_state(own: Mapping[str, paddle.Tensor], state: Mapping[str, np.ndarray]) -> None:
    """Copies arrays into the tensors of a state dict, in the tensors' dtype."""
    for key, tensor in own.items():
        tensor.set_value(paddle.to_tensor(state[key]).astype(tensor.dtype))
