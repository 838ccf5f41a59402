"""Models by name: `create_model("tsm_resnet50", num_classes=400)`.

A model takes `clip [N, 3, T, H, W]` in floating point and returns `logits [N, num_classes]` or a dict of named
outputs. It knows no loss, label, rank or mixed precision. `model.fast_paths` says what its accelerated operators
resolved to.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from paddle import nn

from paddlevideo_fast.arguments import check_arguments, lookup
from paddlevideo_fast.models.resnet import DEPTHS
from paddlevideo_fast.models.tsm import TSM, TSN

MODELS: dict[str, Callable[..., nn.Layer]] = {
    **{f"tsn_resnet{depth}": partial(TSN, depth) for depth in DEPTHS},
    **{f"tsm_resnet{depth}": partial(TSM, depth) for depth in DEPTHS},
}


def create_model(name: str, /, **kwargs: Any) -> nn.Layer:
    """Build a model with fresh weights.

    Args:
        name: A key of `MODELS`, such as "tsm_resnet50".
        **kwargs: Keyword arguments of that model's constructor, plain Python values.

    Returns:
        The model, in training mode.

    Raises:
        ArgumentError: If the name or an argument is unknown, or a required argument is missing.
        ValueError: If the value of an argument is out of range.
    """
    constructor = lookup(MODELS, name, "model")
    return constructor(**check_arguments(constructor, kwargs, where=f"model {name}"))
