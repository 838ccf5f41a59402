"""State dicts in an original's own names: written down as "key shape" lines, and filled again from them.

The arrays of a batch normalisation share a line, such as "bn1 torch.BatchNorm 64".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from named_weights import named_weight

BATCH_NORMS = {
    "torch.BatchNorm": ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"),
    "paddle.BatchNorm": ("weight", "bias", "_mean", "_variance"),
}


def describe(shapes: Mapping[str, Iterable[int]]) -> list[str]:
    """Return lines such as "conv1.weight 64 3 7 7" for keys and shapes."""
    lines: dict[str, str] = {}
    for key, shape in shapes.items():
        layer = key.rpartition(".")[0]
        kinds = [kind for kind, names in BATCH_NORMS.items() if all(f"{layer}.{name}" in shapes for name in names)]
        if not kinds:
            lines[key] = " ".join([key, *map(str, shape)])
        elif layer not in lines:
            lines[layer] = " ".join([layer, kinds[0], *map(str, shape)])
    return list(lines.values())


def named_state(lines: Iterable[str], gain: float = 1.0) -> dict[str, np.ndarray]:
    """Return the arrays that lines stand for; counters of batches are zero.

    Args:
        lines: From `describe`.
        gain: Multiplies gamma of every batch normalisation. Without residual blocks from end to end, a network needs
            more than 1 for its input to show in its output.
    """
    state = {}
    for line in lines:
        key, *shape = line.split()
        if shape and shape[0] in BATCH_NORMS:
            for name in BATCH_NORMS[shape[0]]:
                state[f"{key}.{name}"] = _array(f"{key}.{name}", shape[1:])
            state[f"{key}.weight"] *= np.float32(gain)
        else:
            state[key] = _array(key, shape)
    return state


def _array(key: str, shape: list[str]) -> np.ndarray:
    if key.endswith("num_batches_tracked"):
        return np.zeros((), "int64")
    name = key.replace("._mean", ".running_mean").replace("._variance", ".running_var")
    return named_weight(name, tuple(map(int, shape)))
