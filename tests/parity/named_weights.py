"""Weights and clips that follow from names and shapes alone, the same in every framework."""

from __future__ import annotations

import math
import zlib

import numpy as np


def named_weight(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return float32 values for a parameter, by torchvision's name of it and PyTorch's layout ([out, in, ...])."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if name.endswith("running_var"):
        return rng.uniform(0.7, 1.3, shape).astype("float32")
    if name.endswith("running_mean"):
        return rng.normal(0.0, 0.2, shape).astype("float32")
    if len(shape) > 1:  # convolutions and linear layers
        scale = math.sqrt(2.0 / math.prod(shape[1:]))
        return rng.standard_normal(shape, dtype="float32") * np.float32(scale)
    if name.endswith("weight"):  # gamma: small enough for a hundred residual blocks to stay finite
        return rng.uniform(0.3, 0.7, shape).astype("float32")
    return rng.normal(0.0, 0.1, shape).astype("float32")


def named_clip(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return a float32 clip [N, 3, T, H, W] of normal values."""
    return np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, dtype="float32")


def load_into_paddle(model) -> None:
    """Fill a Paddle model whose names are torchvision's under `backbone.` and `head.`, buffers and all."""
    state = {}
    for key, value in model.state_dict().items():
        name = key.removeprefix("backbone.").removeprefix("head.")
        name = name.replace("._mean", ".running_mean").replace("._variance", ".running_var")
        shape = tuple(value.shape)
        linear = name == "fc.weight"  # Paddle keeps [in, out]
        weight = named_weight(name, shape[::-1] if linear else shape)
        state[key] = np.ascontiguousarray(weight.T) if linear else weight
    missing, unexpected = model.set_state_dict(state)
    assert not missing and not unexpected
