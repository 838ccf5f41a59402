"""Weights of timm's vision transformers, which are image classifiers."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from paddlevideo_fast.models.vit import VisionTransformer
from paddlevideo_fast.models.weights.conversion import Conversion, resize_places


def convert(state: Mapping[str, np.ndarray], model: VisionTransformer, inflate: str = "mean") -> Conversion:
    """Gives a `models.vit.VisionTransformer` the weights of a timm `vit_*_patch*` of the same size.

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
    of_token = "fc_norm.weight" not in state  # timm averages the patches where it has an fc_norm
    if model.cls_token is None:
        conversion.drop_all("cls_token", "the model has no class token")
    if model.pos_embed is None:
        conversion.drop_all("pos_embed", "the model's positions are fixed")
    elif "pos_embed" in state:
        conversion.move("pos_embed", "pos_embed", lambda x: _places(x, model))
    if of_token != (model.cls_token is not None):
        what = "the class token" if of_token else "the average of the patches"
        conversion.drop_all(r"head\..*", f"classifier of {what}")
    conversion.place_head(r"head\.(weight|bias)")
    conversion.leave_all(r"head\..*", "another classifier than the image model's")
    norm = "fc_norm" if model.cls_token is None else "norm"
    conversion.rename([(r"(?:fc_)?norm\.(.*)", rf"{norm}.\1"), ("(.*)", r"\1")])
    conversion.leave_all("time_embed", "the image model knows no time")
    return conversion


def _places(positions: np.ndarray, model: VisionTransformer) -> np.ndarray:
    """Returns positions for the model's grid, with the class token's where it has one; timm has it or not."""
    if math.isqrt(positions.shape[1]) ** 2 == positions.shape[1]:
        positions = np.concatenate([np.zeros_like(positions[:, :1]), positions], axis=1)
    resized = resize_places(positions, model.grid[1:])
    return resized if model.cls_token is not None else resized[:, 1:]
