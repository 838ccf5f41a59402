"""State dicts of 3D ResNets in an original's own names: written down as nested names and shapes, and filled again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from named_weights import named_weight


def describe(shapes: Mapping[str, Iterable[int]]) -> dict[str, Any]:
    """Return names and shapes nested at the dots, a fifth of the size of a flat list."""
    root: dict[str, Any] = {}
    for key, shape in shapes.items():
        *path, leaf = key.split(".")
        node = root
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = list(shape)
    return root


def weight(key: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array for a key; a tenth in the last convolution of non-local blocks, whose dot products grow with
    the third power of the input."""
    if key.endswith("num_batches_tracked"):
        return np.zeros((), "int64")
    name = key.replace("._mean", ".running_mean").replace("._variance", ".running_var")
    tenth = "nonlocal" in key and "_out." in key and len(shape) > 1
    return named_weight(name, shape) * np.float32(0.1 if tenth else 1)


def named_tree_state(node: Mapping[str, Any], path: str = "") -> dict[str, np.ndarray]:
    """Return the arrays that nested names and shapes stand for."""
    state: dict[str, np.ndarray] = {}
    for name, below in node.items():
        key = f"{path}{name}"
        if isinstance(below, Mapping):
            state |= named_tree_state(below, f"{key}.")
        else:
            state[key] = weight(key, tuple(below))
    return state


def caffe2_state(blobs: Mapping[str, Iterable[int]]) -> dict[str, np.ndarray]:
    """Return the arrays that Caffe2's names and shapes stand for."""
    endings = {"_rm": ".running_mean", "_riv": ".running_var", "_s": ".weight", "_w": ".weight", "_b": ".bias"}
    state = {}
    for key, shape in blobs.items():
        ending = next(ending for ending in endings if key.endswith(ending))
        state[key] = weight(key.removesuffix(ending) + endings[ending], tuple(shape))
    return state
