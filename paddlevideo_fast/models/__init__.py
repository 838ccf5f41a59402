"""Models by name: `create_model("tsm_resnet50", num_classes=400)`.

A model takes `clip [N, 3, T, H, W]` in floating point and returns `logits [N, num_classes]` or a dict of named
outputs. It knows no loss, label, rank or mixed precision. `model.fast_paths` says what its accelerated operators
resolved to.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from paddle import nn

from paddlevideo_fast.arguments import check_arguments, lookup
from paddlevideo_fast.models.dual_encoder import SIZES as DUAL_SIZES
from paddlevideo_fast.models.dual_encoder import DualEncoder
from paddlevideo_fast.models.resnet import DEPTHS
from paddlevideo_fast.models.resnet3d import I3D, SLOW, VideoResNet
from paddlevideo_fast.models.slowfast import SlowFast
from paddlevideo_fast.models.timesformer import TimeSformer
from paddlevideo_fast.models.tsm import PPTSM, TSM, TSN, TSMMobileNetV2
from paddlevideo_fast.models.videomae import DECODERS, VideoMAE
from paddlevideo_fast.models.vit import SIZES, VisionTransformer

MODELS: dict[str, Callable[..., nn.Layer]] = {
    **{f"tsn_resnet{depth}": partial(TSN, depth) for depth in DEPTHS},
    **{f"tsm_resnet{depth}": partial(TSM, depth) for depth in DEPTHS},
    "tsm_nl_resnet50": partial(TSM, 50, non_local=True),
    "tsm_mobilenetv2": TSMMobileNetV2,
    **{f"pptsm_resnet{depth}": partial(PPTSM, depth) for depth in (50, 101)},
    "i3d_resnet50": partial(I3D, 50, False),
    "i3d_nl_resnet50": partial(I3D, 50, True),
    "slow_resnet50": partial(VideoResNet, 50, SLOW),
    "slowfast_resnet50": partial(SlowFast, 50, False),
    "slowfast_nl_resnet50": partial(SlowFast, 50, True, fusion_kernel=5),
    "slowfast_resnet101": partial(SlowFast, 101, False, fusion_kernel=5),
    "timesformer_base_patch16": TimeSformer,
    **{f"dual_encoder_{size}": partial(DualEncoder, **kwargs) for size, kwargs in DUAL_SIZES.items()},
    **{f"vit_{size}_patch16": partial(VisionTransformer, **kwargs) for size, kwargs in SIZES.items()},
    "vit_large_patch14": partial(VisionTransformer, patch_size=14, **SIZES["large"]),
    **{f"videomae_{size}": partial(VideoMAE, **SIZES[size], **kwargs) for size, kwargs in DECODERS.items()},
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
    arguments = check_arguments(constructor, kwargs, where=f"model {name}")
    model = constructor(**arguments)
    model.name = name  # for errors
    model.arguments = {**_defaults(constructor), **arguments}  # to compare with those that weights were made with
    return model


def _defaults(constructor: Callable) -> dict[str, Any]:
    parameters = inspect.signature(constructor).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty}
