"""ImageNet weights of torchvision's ResNets and MobileNetV2, for the models that look at frames with them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from paddle import nn

from paddlevideo_fast.models.layers import model_name
from paddlevideo_fast.models.mobilenet import MobileNetV2
from paddlevideo_fast.models.resnet import ResNet
from paddlevideo_fast.models.tsm import FrameClassifier
from paddlevideo_fast.models.weights.conversion import Conversion
from paddlevideo_fast.models.weights.load import WeightsError


def convert(state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
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
            f"{model_name(model)} is none of torchvision's architectures; its weights fit tsn_resnet*, "
            "tsm_resnet*, tsm_nl_resnet50 and tsm_mobilenetv2"
        )
    conversion = Conversion(state, model)
    conversion.place_head(rf"{classifier}\.(weight|bias)")
    conversion.rename([(rf"((?:{body})\..+)", r"backbone.\1")])
    conversion.leave_all(r".*\.nl\..*", "an image network has no non-local blocks; they start as the identity")
    return conversion
