"""Weights of timm's vision transformers, which are image classifiers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.models.transformer import resize_grid
from paddlevideo_fast.models.weights.conversion import Conversion
from paddlevideo_fast.models.weights.load import WeightsError


def convert(state: Mapping[str, np.ndarray], model: nn.Layer, inflate: str = "mean") -> Conversion:
    """Give a `models.vit.ClipEncoder`, a classifier or not, the weights of a timm `vit_*_patch*` of the same size.

    The patch embedding is inflated to the tubelet. Learned positions are resized to the model's grid, bicubic, and
    those in time start as they are, at zero. A model with `pos="sinusoid"` has no use for positions, one with
    `pool="mean"` none for the class token; its last normalisation takes the image model's. The classifier comes over
    where it has the model's number of classes and the class token to work on.

    Args:
        state: timm's state dict, keys as they are.
        model: What the weights are for.
        inflate: "mean" or "centre", see `Conversion`.

    Returns:
        The conversion, ready to `finish`.

    Source: timm's `vision_transformer.py`; "centre" as ViViT (Arnab et al., arXiv 2103.15691), section 3.4.
    """
    conversion = Conversion(state, model, inflate=inflate)
    names = {key: re.sub(r"^(module\.)*", "", key) for key in conversion.remaining}
    of_token = "fc_norm.weight" not in names.values()  # timm averages the patches where it has an fc_norm
    norm = "fc_norm" if model.cls_token is None else "norm"
    for key, name in names.items():
        if name == "cls_token" and model.cls_token is None:
            conversion.drop(key, "the model has no class token")
        elif name == "pos_embed" and model.pos_embed is None:
            conversion.drop(key, "the model's positions are fixed")
        elif name == "pos_embed":
            conversion.move(key, name, partial(resize_places, model=model))
        elif name.startswith("head."):
            _move_head(conversion, key, name, of_token)
        else:
            conversion.move(key, re.sub(r"^(fc_)?norm\.", f"{norm}.", name))
    if model.time_embed is not None:
        conversion.leave("time_embed", "the image model knows no time")
    for target in conversion.missing:
        if target.startswith("head."):
            conversion.leave(target, "another classifier than the image model's")
    return conversion


def resize_places(positions: np.ndarray, model: nn.Layer) -> np.ndarray:
    """Return the positions of a frame [1, tokens + h * w, dim] that fit a model's grid.

    Raises:
        WeightsError: If the patches are not those of a square.
    """
    places = model.grid[1] * model.grid[2]
    own_token = int(model.cls_token is not None)
    length = positions.shape[1]
    token = length - math.isqrt(length) ** 2  # timm has the class token's place, or none, before a square's
    side = math.isqrt(length - token)
    if token > 1:
        raise WeightsError(f"pos_embed has {length} places; with a class token or without, they make no square")
    resized = positions[:, token:]
    if side**2 != places:
        tensor = paddle.to_tensor(resized.astype("float32"))
        resized = resize_grid(tensor, (side, side), model.grid[1:]).numpy()
    lead = positions[:, :own_token] if token else np.zeros([1, own_token, positions.shape[2]], positions.dtype)
    return np.concatenate([lead, resized], axis=1)


def _move_head(conversion: Conversion, key: str, name: str, of_token: bool) -> None:
    head = getattr(conversion.model, "head", None)
    wanted = head.weight.shape[1] if head else 0
    num_classes = conversion.state[key].shape[0]
    if num_classes != wanted:
        conversion.drop(key, f"classifier of {num_classes} classes, not {wanted}")
    elif of_token != (conversion.model.cls_token is not None):
        conversion.drop(key, f"classifier of {'the class token' if of_token else 'the average of the patches'}")
    else:
        conversion.move(key, name)
