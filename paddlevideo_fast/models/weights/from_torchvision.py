"""ImageNet weights of torchvision's ResNets and MobileNetV2, for the models that look at frames with them."""

from __future__ import annotations

import re

import numpy as np
from paddle import nn

from paddlevideo_fast.models.mobilenet import MobileNetV2
from paddlevideo_fast.models.resnet import ResNet
from paddlevideo_fast.models.tsm import FrameClassifier
from paddlevideo_fast.models.weights.conversion import Conversion
from paddlevideo_fast.models.weights.load import WeightsError


def convert(state: dict[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Fills the backbone of a TSN or TSM, and its classifier if it has as many classes.

    Args:
        state: State dict of `torchvision.models.resnet{18,34,50,101}` or `mobilenet_v2`.
        model: `tsn_resnet*`, `tsm_resnet*`, `tsm_nl_resnet50` (whose non-local blocks start as the identity) or
            `tsm_mobilenetv2`.

    Returns:
        The conversion, ready to finish.

    Raises:
        WeightsError: If the model is of another kind.
    """
    backbone = model.backbone if isinstance(model, FrameClassifier) else None
    if isinstance(backbone, ResNet) and backbone.variant == "B":
        classifier, body = r"fc", r"conv1|bn1|layer\d"
    elif isinstance(backbone, MobileNetV2):
        classifier, body = r"classifier\.1", r"features"
    else:
        raise WeightsError(
            f"{type(model).__name__} is none of torchvision's architectures; its weights fit tsn_resnet*, "
            "tsm_resnet*, tsm_nl_resnet50 and tsm_mobilenetv2"
        )
    conversion = Conversion(state, model)
    place_classifier(conversion, rf"(?:module\.)?{classifier}\.(weight|bias)")
    conversion.rename([(rf"(?:module\.)?((?:{body})\..+)", r"backbone.\1")])
    for key in conversion.missing:
        if ".nl." in key:
            conversion.leave(
                key, "non-local blocks have no counterpart in an image network; they start as the identity"
            )
    return conversion


def place_classifier(conversion: Conversion, pattern: str) -> None:
    """Moves an image network's classifier to `head.fc` if the classes are as many, else drops it and leaves the head.

    Args:
        conversion: In the making.
        pattern: Regular expression of its keys, with `weight` or `bias` as the group.
    """
    keys = [key for key in conversion.remaining if re.fullmatch(pattern, key)]
    classes = conversion.model.head.fc.bias.shape[0]
    for key in keys:
        bias = re.sub(r"weight$", "bias", key)
        found = len(conversion.state[bias]) if bias in conversion.state else None
        if found == classes:
            conversion.move(key, f"head.fc.{re.fullmatch(pattern, key)[1]}")
        else:
            conversion.drop(key, f"classifies into {found} classes, the model into {classes}")
    if keys and not any(key.startswith("head.") for key in conversion.filled):
        for target in ("head.fc.weight", "head.fc.bias"):
            conversion.leave(target, "the classifier of the weights is for another number of classes")
