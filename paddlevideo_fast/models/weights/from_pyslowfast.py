"""Weights of PySlowFast's 3D ResNets, and of what shares its names or its architecture: PaddleVideo, torchvision."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from paddle import nn

from paddlevideo_fast.models.layers import model_name
from paddlevideo_fast.models.resnet3d import VideoResNet
from paddlevideo_fast.models.slowfast import SlowFast
from paddlevideo_fast.models.weights.conversion import Conversion
from paddlevideo_fast.models.weights.load import WeightsError

CONVOLUTIONS = {"a": "1", "b": "2", "c": "3"}  # of a block, as PySlowFast and as torchvision have them


def convert(state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Fills a model from PySlowFast's `model_state`.

    The weights of a ResNet over space under the same names (4D kernels) are inflated, as TRAIN.CHECKPOINT_INFLATE
    does; their classifier comes along only if it has as many classes.

    Args:
        state: Arrays by PySlowFast's names, such as "s3.pathway0_res1.branch2.b.weight".
        model: An I3D, Slow or SlowFast network.

    Returns:
        The account of every key.

    Raises:
        WeightsError: If the model is of another architecture.

    Source: PySlowFast's `video_model_builder.py`, `resnet_helper.py`, `nonlocal_helper.py`, `checkpoint.py`.
    """
    conversion = Conversion(state, model)
    if any(array.ndim == 4 for array in state.values()):
        conversion.place_head(r"head\.projection\.(weight|bias)")
    conversion.rename(rules(model))
    return conversion


def convert_paddlevideo(state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Fills a SlowFast network from PaddleVideo's.

    Args:
        state: Arrays by PaddleVideo's names, such as "backbone.s1.pathway0_stem._conv.weight".
        model: A SlowFast network.

    Returns:
        The account of every key.

    Raises:
        WeightsError: If the model is of another architecture.

    Source: PaddleVideo's `backbones/resnet_slowfast.py` and `heads/slowfast_head.py`.
    """
    conversion = Conversion(state, model, paddle_layout=True)
    conversion.rename(rules(model, prefix=r"(?:backbone\.)?", mark="_"))
    return conversion


def convert_torchvision(state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Fills a network of one pathway from an image network of torchvision, its kernels repeated over time.

    The classifier comes along only if it has as many classes; otherwise the model keeps its own. Non-local blocks,
    which images do not have, stay as they are.

    Args:
        state: Arrays by torchvision's names, such as "layer2.0.downsample.0.weight".
        model: An I3D or Slow network.

    Returns:
        The account of every key.

    Raises:
        WeightsError: If the model is of another architecture.

    Source: Carreira and Zisserman, arXiv 1705.07750, section 2.4; PySlowFast's `checkpoint.py`, inflate_weight.
    """
    if not isinstance(model, VideoResNet):
        raise WeightsError(
            f"{model_name(model)} cannot start from an image network, as an I3D or a Slow network can: in SlowFast "
            f"the stages take in channels of the fast pathway, which an image network does not have"
        )
    conversion = Conversion(state, model)
    conversion.place_head(r"fc\.(weight|bias)")
    conversion.rename([(r"((?:conv1|bn1|layer\d)\..+)", r"backbone.\1")])
    conversion.leave_all(
        r".*\.nonlocal_block\..*", "an image network has no non-local blocks; they start as the identity"
    )
    return conversion


def rules(model: nn.Layer, prefix: str = "", mark: str = "") -> list[tuple[str, str]]:
    """Returns pairs for `Conversion.rename` from PySlowFast's names.

    Args:
        model: An I3D, Slow or SlowFast network.
        prefix: Regular expression of what may stand before a name.
        mark: What stands before the names of the layers of stems and fusions.

    Raises:
        WeightsError: If the model is of another architecture.
    """
    pairs = [(r"head\.projection\.(weight|bias)", r"head.fc.\1")]
    for pathway, name in enumerate(pathway_names(model)):
        stem = rf"s1\.pathway{pathway}_stem\.{mark}"
        pairs += [(rf"{stem}conv\.weight", f"{name}.conv1.weight"), (rf"{stem}bn\.(\w+)", rf"{name}.bn1.\1")]
        for stage in range(1, 5):
            block, ours = rf"s{stage + 1}\.pathway{pathway}_res(\d+)", rf"{name}.layer{stage}.\1"
            pairs += [
                (rf"{block}\.branch1\.weight", rf"{ours}.downsample.0.weight"),
                (rf"{block}\.branch1_bn\.(\w+)", rf"{ours}.downsample.1.\2"),
            ]
            for letter, number in CONVOLUTIONS.items():
                pairs += [
                    (rf"{block}\.branch2\.{letter}\.weight", rf"{ours}.conv{number}.weight"),
                    (rf"{block}\.branch2\.{letter}_bn\.(\w+)", rf"{ours}.bn{number}.\2"),
                ]
            nonlocal_block = rf"s{stage + 1}\.pathway{pathway}_nonlocal(\d+)\.(.+)"
            pairs.append((nonlocal_block, rf"{ours}.nonlocal_block.\2"))
    for fusion in range(4):
        theirs = rf"s{fusion + 1}_fuse\.{mark}"
        pairs += [
            (rf"{theirs}conv_f2s\.weight", f"fusions.{fusion}.conv.weight"),
            (rf"{theirs}bn\.(\w+)", rf"fusions.{fusion}.bn.\1"),
        ]
    return [(prefix + pattern, target) for pattern, target in pairs]


def pathway_names(model: nn.Layer) -> tuple[str, ...]:
    """Returns the model's names of PySlowFast's pathways 0 and, if there are two, 1.

    Raises:
        WeightsError: If the model is of another architecture.
    """
    if isinstance(model, SlowFast):
        return ("slow", "fast")
    if isinstance(model, VideoResNet):
        return ("backbone",)
    raise WeightsError(f"PySlowFast's weights fit an I3D, Slow or SlowFast network, not {model_name(model)}")
