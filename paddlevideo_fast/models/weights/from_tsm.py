"""Weights of the authors' TSM and TSN (mit-han-lab/temporal-shift-module).

Their shift moves the first block of channels towards the past and the second towards the future, Paddle's operator
the other way round. So the two blocks change places in everything that writes or reads the channels that are
shifted, all along the residual stream; the function is the same, and the model is an ordinary one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from paddle import nn

from paddlevideo_fast.models.layers import model_name
from paddlevideo_fast.models.mobilenet import InvertedResidual, MobileNetV2
from paddlevideo_fast.models.resnet import BasicBlock, Bottleneck
from paddlevideo_fast.models.tsm import PPTSM, FrameClassifier
from paddlevideo_fast.models.weights.conversion import Conversion
from paddlevideo_fast.models.weights.load import WeightsError
from paddlevideo_fast.ops.temporal_shift import shifted_channels

NON_LOCAL_NAMES = {"g.0": "conv_g", "phi.0": "conv_phi", "theta": "conv_theta", "W.0": "conv_out", "W.1": "bn"}
# Their InvertedResidual is one flat sequence: place there -> place here.
EXPANDING = {"0": "0.0", "1": "0.1", "3": "1.0", "4": "1.1", "6": "2", "7": "3"}
PLAIN = {"0": "0.0", "1": "0.1", "3": "1", "4": "2"}


def convert(state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Fills a TSN or TSM; clips run forward as they did there.

    Args:
        state: The `state_dict` of one of their `.pth` files: `base_model.layer1.0.conv1.net.weight` and so on.
        model: `tsn_resnet*`, `tsm_resnet*`, `tsm_nl_resnet50` or `tsm_mobilenetv2`, with as many classes.

    Returns:
        The conversion, ready to finish.

    Raises:
        WeightsError: If the model is of another kind, shifts in other blocks than the weights do, or shifts a number
            of channels that theirs cannot.
    """
    if not isinstance(model, FrameClassifier) or isinstance(model, PPTSM):
        raise WeightsError(
            f"{model_name(model)} is none of mit-han-lab's architectures; their weights fit tsn_resnet*, "
            "tsm_resnet*, tsm_nl_resnet50 and tsm_mobilenetv2"
        )
    conversion = Conversion(state, model)
    blocks = {f"backbone.{name}": block for name, block in model.backbone.named_sublayers() if hasattr(block, "shift")}
    _check_shifts(conversion, blocks)
    shift_div = getattr(model, "shift_div", None)
    writers, readers = _stream(model.backbone, blocks) if shift_div else (set(), set())
    for key in conversion.remaining:
        target = _target(key, blocks)
        layer = target.rpartition(".")[0]
        axes = [axis for axis, layers in enumerate((writers, readers)) if layer in layers]
        conversion.move(key, target, _swap(axes, shift_div, key) if axes else None)
    return conversion


def _target(key: str, blocks: dict[str, nn.Layer]) -> str:
    """Returns the model's key for one of theirs; one that is unknown stays recognisable."""
    key = key.removeprefix("base_model.")
    if match := re.fullmatch(r"(?:new_fc|fc|classifier)\.(weight|bias)", key):
        return f"head.fc.{match[1]}"
    key = f"backbone.{key}".replace(".net.", ".").replace(".block.", ".")
    if match := re.fullmatch(r"(.+\.nl)\.(.+)\.(\w+)", key):
        return f"{match[1]}.{NON_LOCAL_NAMES.get(match[2], match[2])}.{match[3]}"
    if (match := re.fullmatch(r"(.+)\.conv\.(\d)\.(\w+)", key)) and match[1] in blocks:
        places = EXPANDING if blocks[match[1]].expands else PLAIN
        return f"{match[1]}.conv.{places.get(match[2], match[2])}.{match[3]}"
    return key


def _check_shifts(conversion: Conversion, blocks: dict[str, nn.Layer]) -> None:
    """Their shifted convolutions are named `.net`: compares where the weights shift with where the model does."""
    names = (_target(key, blocks) for key in conversion.state if re.search(r"\.(conv1|conv\.0)\.net\.weight$", key))
    theirs = {re.sub(r"\.(conv1|conv\.0\.0)\.weight$", "", name) for name in names}
    ours = {name for name, block in blocks.items() if block.shift is not None}
    if theirs != ours:
        name = model_name(conversion.model)
        raise WeightsError(
            f"the weights shift in {len(theirs)} blocks, {name} in {len(ours)}; they differ in "
            f"{', '.join(sorted(theirs ^ ours)[:4])}. Weights without shifts fit tsn_resnet*, whose names are those of "
            "tsm_resnet*"
        )


def _stream(backbone: nn.Layer, blocks: dict[str, nn.Layer]) -> tuple[set[str], set[str]]:
    """Returns the layers whose outputs are added to, and those whose inputs are read from, the residual stream."""
    if isinstance(backbone, MobileNetV2):
        writers, readers = set(), {f"backbone.features.{len(backbone.features) - 1}.0"}
    else:
        writers, readers = {"backbone.conv1", "backbone.bn1"}, {"head.fc"}
    for name, block in blocks.items():
        wrote, read = _ends(block)
        writers |= {f"{name}.{layer}" for layer in wrote}
        readers |= {f"{name}.{layer}" for layer in read}
    return writers, readers


def _ends(block: nn.Layer) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns which layers of a block write to the stream and which read from it."""
    if isinstance(block, InvertedResidual):
        # Without an expansion the first layer filters channels one by one, right behind the stem, which stays as it is.
        return (("conv.2", "conv.3"), ("conv.0.0",)) if block.expands else (("conv.1", "conv.2"), ())
    writers = {BasicBlock: ("conv2", "bn2"), Bottleneck: ("conv3", "bn3", "nl.conv_out", "nl.bn")}[type(block)]
    readers = ("conv1", "downsample.0", "nl.conv_theta", "nl.conv_phi", "nl.conv_g")
    return (*writers, "downsample.0", "downsample.1"), readers


def _swap(axes: list[int], shift_div: int, key: str):
    """Returns what exchanges the two shifted blocks of channels along some axes of an array."""

    def swapped(array: np.ndarray) -> np.ndarray:
        # A bias or a statistic of a layer that reads alone has no axis of inputs.
        for axis in (axis for axis in axes if axis < array.ndim):
            array = np.take(array, _order(array.shape[axis], shift_div, key), axis=axis)
        return array

    return swapped


def _order(channels: int, shift_div: int, key: str) -> np.ndarray:
    first, second = shifted_channels(channels, 1.0 / shift_div)
    if (first, second) != (channels // shift_div, 2 * (channels // shift_div)):
        raise WeightsError(
            f"{key}: of {channels} channels, shift_div={shift_div} shifts {first} and {second - first} here, "
            f"{channels // shift_div} each there; the weights fit only where both are equal"
        )
    return np.concatenate([np.arange(first, second), np.arange(first), np.arange(second, channels)])
