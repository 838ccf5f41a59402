"""Where weights come from: which part of a file holds them, and what converts them for which model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from paddle import nn

from paddlevideo_fast.arguments import ArgumentError, lookup
from paddlevideo_fast.models import MODELS
from paddlevideo_fast.models.dual_encoder import DualEncoder
from paddlevideo_fast.models.resnet3d import VideoResNet
from paddlevideo_fast.models.slowfast import SlowFast
from paddlevideo_fast.models.timesformer import TimeSformer
from paddlevideo_fast.models.tsm import PPTSM, TSN, TSMMobileNetV2
from paddlevideo_fast.models.videomae import VideoMAE
from paddlevideo_fast.models.vit import VisionTransformer
from paddlevideo_fast.models.weights import (
    from_avion,
    from_caffe2,
    from_clip,
    from_huggingface,
    from_paddlevideo,
    from_pyslowfast,
    from_timesformer,
    from_timm,
    from_torchvision,
    from_tsm,
    from_videomae,
)
from paddlevideo_fast.models.weights.conversion import Conversion
from paddlevideo_fast.models.weights.files import read_state
from paddlevideo_fast.models.weights.load import without_wrapper

Convert = Callable[[Mapping[str, np.ndarray], nn.Layer], Conversion]


@dataclass(frozen=True)
class Source:
    """Weights of one toolkit.

    Attributes:
        converters: What fills which class of models, its subclasses included.
        keys: Names that a file may have the weights under, in this order; where it has none of them, they are the
            whole.
    """

    converters: Mapping[type[nn.Layer], Convert]
    keys: tuple[str, ...] = ()


def _each(classes: Iterable[type[nn.Layer]], convert: Convert) -> dict[type[nn.Layer], Convert]:
    return dict.fromkeys(classes, convert)


FRAME_MODELS = (TSN, TSMMobileNetV2)  # TSM is a TSN
SOURCES = {
    "torchvision": Source(
        {**_each(FRAME_MODELS, from_torchvision.convert), VideoResNet: from_pyslowfast.convert_torchvision},
        ("state_dict", "model"),
    ),
    "timm": Source(
        {VisionTransformer: from_timm.convert, TimeSformer: from_timesformer.convert}, ("state_dict", "model")
    ),
    "openai-clip": Source(_each((DualEncoder, VisionTransformer), from_clip.convert), ("state_dict",)),
    "pyslowfast": Source(_each((VideoResNet, SlowFast), from_pyslowfast.convert), ("model_state",)),
    "pyslowfast-caffe2": Source(_each((VideoResNet, SlowFast), from_caffe2.convert), ("blobs",)),
    "tsm": Source(_each(FRAME_MODELS, from_tsm.convert), ("state_dict",)),
    "avion": Source(
        _each((DualEncoder, VisionTransformer, VideoMAE), from_avion.convert), ("state_dict", "model", "module")
    ),
    "videomae": Source(_each((VisionTransformer, VideoMAE), from_videomae.convert), ("model", "module")),
    "timesformer": Source({TimeSformer: from_timesformer.convert}, ("model_state",)),
    "huggingface": Source(
        _each((TimeSformer, VisionTransformer, VideoMAE, DualEncoder), from_huggingface.convert), ("state_dict",)
    ),
    "paddlevideo": Source(
        {
            **_each((TSN, PPTSM), from_paddlevideo.convert),
            SlowFast: from_pyslowfast.convert_paddlevideo,
            TimeSformer: from_timesformer.convert_paddlevideo,
        }
    ),
}

COMPILED = "_orig_mod."

# The bias of what gives the logits, in any of these toolkits.
CLASSIFIER = re.compile(
    r"(?:.*\.)?(?:new_fc|fc|fc_cls|out|head|head\.fc|head\.projection|classifier|classifier\.1|pred)(?:\.bias|_b)"
)


def read_source(name: str, path: str | Path) -> dict[str, np.ndarray]:
    """Reads the state dict of a file; what torch.compile and data parallel wrappers add to names is taken off.

    Args:
        name: A key of `SOURCES`.
        path: The file.

    Raises:
        ArgumentError: There is no such source.
        WeightsError: The file cannot be read; the message names it.
    """
    state = read_state(path, lookup(SOURCES, name, "source").keys)
    return without_wrapper({key.replace(COMPILED, ""): array for key, array in state.items()})


def find_converter(name: str, model: str) -> Convert:
    """Returns what fills a model from a source.

    Args:
        name: A key of `SOURCES`.
        model: A key of `MODELS`.

    Raises:
        ArgumentError: There is no such source or model, or the source cannot fill it; the message says which it can.
    """
    source = lookup(SOURCES, name, "source")
    convert = _converter(source, lookup(MODELS, model, "model"))
    if convert is None:
        known = [other for other, constructor in MODELS.items() if _converter(source, constructor)]
        raise ArgumentError(f"source {name!r} cannot fill {model}, but these: {', '.join(sorted(known))}")
    return convert


def count_classes(state: Mapping[str, np.ndarray]) -> int | None:
    """Returns the number of classes of a state dict's only classifier, or None where it has none or several."""
    sizes = [array.size for key, array in state.items() if CLASSIFIER.fullmatch(key) and array.ndim == 1]
    return sizes[0] if len(sizes) == 1 else None


def _converter(source: Source, constructor: Any) -> Convert | None:
    while isinstance(constructor, partial):
        constructor = constructor.func
    return next((convert for kind, convert in source.converters.items() if issubclass(constructor, kind)), None)
