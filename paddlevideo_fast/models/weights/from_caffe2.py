"""Weights that PySlowFast's model zoo keeps in Caffe2's form (.pkl)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from paddle import nn

from paddlevideo_fast.models.weights.conversion import Conversion
from paddlevideo_fast.models.weights.from_pyslowfast import CONVOLUTIONS, pathway_names

NORM_NAMES = {"s": "weight", "b": "bias", "rm": "running_mean", "riv": "running_var"}
PREFIXES = ("", "t_")  # of the first (or only) and of the fast pathway


def convert(state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Fills a model from the `blobs` of a Caffe2 file.

    Args:
        state: Arrays by their names there, such as "t_res4_0_branch2a_bn_riv"; "riv" holds the variance itself.
        model: An I3D, Slow or SlowFast network.

    Returns:
        The account of every key.

    Raises:
        WeightsError: If the model is of another architecture.

    Source: PySlowFast's `c2_model_loading.py` and `checkpoint.py`.
    """
    conversion = Conversion(state, model)
    conversion.drop_all(r"lr|model_iter|.+_momentum", "state of Caffe2's optimiser")
    conversion.rename(_rules(pathway_names(model)))
    return conversion


def _rules(pathways: tuple[str, ...]) -> list[tuple[str, str]]:
    rules = [("pred_w", "head.fc.weight"), ("pred_b", "head.fc.bias")]
    for prefix, name in zip(PREFIXES, pathways, strict=False):
        rules.append((f"{prefix}conv1_w", f"{name}.conv1.weight"))
        rules += _norm(f"{prefix}res_conv1_bn", f"{name}.bn1")
        for stage in range(1, 5):
            block, ours = rf"{prefix}res{stage + 1}_(\d+)", rf"{name}.layer{stage}.\1"
            rules.append((f"{block}_branch1_w", f"{ours}.downsample.0.weight"))
            rules += _norm(f"{block}_branch1_bn", f"{ours}.downsample.1")
            for letter, number in CONVOLUTIONS.items():
                rules.append((f"{block}_branch2{letter}_w", f"{ours}.conv{number}.weight"))
                rules += _norm(f"{block}_branch2{letter}_bn", f"{ours}.bn{number}")
    for stage in range(1, 5):  # non-local blocks stand in the first pathway
        block, ours = rf"nonlocal_conv{stage + 1}_(\d+)", rf"{pathways[0]}.layer{stage}.\1.nonlocal_block"
        rules.append((f"{block}_(theta|phi|g|out)_w", rf"{ours}.conv_\2.weight"))
        rules.append((f"{block}_(theta|phi|g|out)_b", rf"{ours}.conv_\2.bias"))
        rules += _norm(f"{block}_bn", f"{ours}.bn")
    for fusion in range(4):
        theirs = rf"t_res{fusion + 1}_\d+_branch2c_bn_subsample" if fusion else "t_pool1_subsample"
        rules.append((f"{theirs}_w", f"fusions.{fusion}.conv.weight"))
        rules += _norm(f"{theirs}_bn", f"fusions.{fusion}.bn")
    return rules


def _norm(theirs: str, ours: str) -> list[tuple[str, str]]:
    return [(f"{theirs}_{suffix}", f"{ours}.{name}") for suffix, name in NORM_NAMES.items()]
