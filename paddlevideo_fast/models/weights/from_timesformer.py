"""Weights of TimeSformer: the authors' files, PaddleVideo's, and the image transformers that both start from."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.models.transformer import nearest, nearest_grid
from paddlevideo_fast.models.weights.conversion import Conversion, resize_places

PREFIX = r"(?:model\.|backbone\.)*"
COPIES = {"attn.": "temporal_attn.", "norm1.": "temporal_norm1."}


def convert(state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Gives a TimeSformer the weights of a file of facebookresearch/TimeSformer, or of timm's image transformer.

    Positions for another crop or number of frames are resized to the model's, as the forward pass would resize them:
    nearest, in space over the grid of patches. (The authors' loading takes the nearest of the patches in a row,
    which mixes up places; their forward pass does not.)

    A file without positions in time is an image classifier: attention over time starts as a copy of attention over
    space with its last layer at zero, positions in time at zero, the head fresh.

    Args:
        state: `model_state` of the file, keys as they are.
        model: `models.timesformer.TimeSformer`.

    Returns:
        The conversion, ready to `finish`.

    Source: `timesformer/models/helpers.py` of facebookresearch/TimeSformer, `load_pretrained`.
    """
    return _convert(Conversion(state, model))


def convert_paddlevideo(state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Gives a TimeSformer the weights of PaddleVideo's, or of the image transformer in Paddle's layout; see `convert`.

    Args:
        state: State dict of PaddleVideo's recogniser (`backbone.*`, `head.fc.*`) or of PaddleClas's ViT.
        model: `models.timesformer.TimeSformer`.
    """
    return _convert(Conversion(state, model, paddle_layout=True))


def _convert(conversion: Conversion) -> Conversion:
    names = {key: re.sub(f"^{PREFIX}", "", key) for key in conversion.remaining}
    from_images = "time_embed" not in names.values()
    for key, name in names.items():
        if name in ("pos_embed", "time_embed"):
            move_positions(conversion, key, name)
        elif from_images and name.startswith("head."):
            conversion.drop(key, "classifier of images")
        elif name.startswith("head.fc."):
            conversion.move(key, name.replace("head.fc.", "head."))
        else:
            conversion.move(key, name)
    if from_images:
        _start_from_images(conversion, names)
    return conversion


def _start_from_images(conversion: Conversion, names: Mapping[str, str]) -> None:
    conversion.leave_all(r"time_embed|.*\.temporal_fc\..*", "starts at zero")
    conversion.leave_all(r"head\..*", "the classes are others")
    missing = set(conversion.missing)
    for key, name in names.items():
        for part, copy in COPIES.items():
            target = name.replace(part, copy)
            if target != name and target in missing:
                conversion.move(key, target)


def move_positions(conversion: Conversion, source: str, target: str) -> None:
    """Moves learned positions, resized to those of the model where they differ.

    Args:
        conversion: Of a state for a TimeSformer.
        source: Key of positions [1, 1 + L, dim], the class token's first, or [1, T, dim].
        target: "pos_embed" or "time_embed".
    """
    model = conversion.model
    if target == "pos_embed":
        conversion.move(source, target, lambda x: resize_places(x, (model.side, model.side), nearest_grid))
    else:
        num_frames = model.time_embed.shape[1]
        conversion.move(source, target, lambda x: nearest(paddle.to_tensor(x), 1, num_frames).numpy())
