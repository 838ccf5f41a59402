"""Weights of PaddleVideo's TSN, TSM and ppTSM, and the ImageNet weights that it starts them from."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from paddle import nn

from paddlevideo_fast.models.layers import model_name
from paddlevideo_fast.models.resnet import Bottleneck, ResNet
from paddlevideo_fast.models.tsm import TSM, FrameClassifier
from paddlevideo_fast.models.weights.conversion import Conversion
from paddlevideo_fast.models.weights.load import WeightsError

# layer there -> (convolution, normalisation) here
STEM = {
    "conv": ("conv1", "bn1"),
    "conv1_1": ("conv1.0", "conv1.1"),
    "conv1_2": ("conv1.3", "conv1.4"),
    "conv1_3": ("conv1.6", "bn1"),
}
BRANCH = {"conv0": ("conv1", "bn1"), "conv1": ("conv2", "bn2"), "conv2": ("conv3", "bn3")}
SHORTCUT = {"B": ("downsample.0", "downsample.1"), "D": ("downsample.1", "downsample.2")}  # by variant of the ResNet


def convert(state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Fills a TSN, TSM or ppTSM of depth 50 or 101.

    PaddleVideo shifts 1 / num_seg of the channels each way: a model for weights of 16 segments needs shift_div=16.
    The weights do not say, and TSN's look like TSM's.

    Args:
        state: Arrays of a `.pdparams` file: `backbone.res2a.conv0._conv.weight` and so on, or the ImageNet weights of
            PaddleClas without `backbone.`, whose classifier fits 1000 classes only.
        model: `tsn_resnet50`, `tsn_resnet101`, `tsm_resnet50`, `tsm_resnet101` with shift_every=1, `tsm_nl_resnet50`,
            `pptsm_resnet50` or `pptsm_resnet101`.

    Returns:
        The conversion, ready to finish.

    Raises:
        WeightsError: If the model is of another kind or does not shift in every block.
    """
    backbone = model.backbone if isinstance(model, FrameClassifier) else None
    if not isinstance(backbone, ResNet) or not isinstance(backbone.layer1[0], Bottleneck):
        raise WeightsError(
            f"{model_name(model)} has no ResNet of bottlenecks; weights of PaddleVideo's TSN, TSM and ppTSM fit "
            "tsn_resnet50, tsm_resnet50, pptsm_resnet50 and the same of depth 101"
        )
    if isinstance(model, TSM) and model.shift_every != 1:
        raise WeightsError(
            f"PaddleVideo's TSM shifts in every block, this model in every {model.shift_every}: give it shift_every=1"
        )
    conversion = Conversion(state, model, paddle_layout=True)
    conversion.place_head(r"(?:backbone\.)?(?:out|fc)\.(weight|bias)")
    for key in conversion.remaining:
        conversion.move(key, _target(key, backbone.variant))
    conversion.leave_all(r".*\.nl\..*", "PaddleVideo has no non-local blocks; they start as the identity")
    return conversion


def _target(key: str, variant: str) -> str:
    """Returns the model's key for one of theirs; one that is unknown stays as it is."""
    match = re.fullmatch(r"(?:backbone\.)?(?:(.+)\.)?(\w+)\.(_conv|_batch_norm)\.(\w+)", key)
    if not match:
        return key
    block, layer, kind, name = match.groups()
    if block is None:
        names, place = STEM.get(layer), ""
    else:
        names, place = {**BRANCH, "short": SHORTCUT[variant]}.get(layer), _place(block)
    if names is None or place is None:
        return key
    return f"backbone.{place}{names[kind == '_batch_norm']}.{name}"


def _place(block: str) -> str | None:
    """Returns where a block is here: `res4c` and, in the long stage of depth 101, `res4b2`; `bb_2_2` in ppTSM."""
    if match := re.fullmatch(r"bb_(\d)_(\d+)", block):
        return f"layer{int(match[1]) + 1}.{match[2]}."
    if match := re.fullmatch(r"res(\d)(?:b(\d+)|([a-z]))", block):
        index = int(match[2]) if match[2] else ord(match[3]) - ord("a")
        return f"layer{int(match[1]) - 1}.{index}."
    return None
