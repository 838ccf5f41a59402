"""Weights in Caffe2's form: the outputs of PySlowFast, which reads them by its own table of names; errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest

from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.weights.from_caffe2 import convert
from paddlevideo_fast.models.weights.load import WeightsError

TESTS = Path(__file__).parents[1]
GOLDEN = json.loads((TESTS / "golden" / "slowfast_caffe2.json").read_text())
sys.path.append(str(TESTS / "parity"))

from named_trees import caffe2_state
from named_weights import named_clip

MODELS = {
    "slowfast_nl": ("slowfast_nl_resnet50", {"num_frames": 8}),
    "i3d_nl": ("i3d_nl_resnet50", {"num_frames": 4}),
}


def build(case: str):
    name, kwargs = MODELS[case]
    return create_model(name, num_classes=7, width=0.125, **kwargs)


@pytest.mark.parametrize("case", list(MODELS))
def test_gives_pyslowfasts_outputs(case):
    golden = GOLDEN[case]
    model = build(case)
    missing, unexpected = model.set_state_dict(convert(caffe2_state(golden["blobs"]), model).finish())
    assert not missing and not unexpected
    model.eval()
    with paddle.no_grad():
        logits = model(paddle.to_tensor(named_clip(golden["clip"], golden["shape"]))).numpy()
    np.testing.assert_allclose(logits, golden["logits"], rtol=1e-4, atol=2e-5)


def test_state_of_the_optimiser_is_dropped():
    blobs = caffe2_state(GOLDEN["i3d_nl"]["blobs"])
    scalar = np.zeros(1, "float32")
    extra = {"lr": scalar, "model_iter": scalar, "res2_0_branch2a_bn_s_momentum": scalar, "pred_w_momentum": scalar}
    conversion = convert(blobs | extra, build("i3d_nl"))
    conversion.finish()
    assert set(conversion.dropped) == set(extra)
    assert conversion.dropped["lr"] == "state of Caffe2's optimiser"


def test_linear_weights_with_trailing_dimensions():
    blobs = caffe2_state(GOLDEN["i3d_nl"]["blobs"])
    weight = blobs["pred_w"]
    blobs["pred_w"] = weight.reshape([*weight.shape, 1, 1, 1])
    arrays = convert(blobs, build("i3d_nl")).finish()
    np.testing.assert_array_equal(arrays["head.fc.weight"], weight.T)


def test_pathways_and_unknown_names():
    blobs = caffe2_state(GOLDEN["slowfast_nl"]["blobs"])
    with pytest.raises(WeightsError, match=r"not accounted for \(t_"):
        convert(blobs, build("i3d_nl")).finish()  # the fast pathway has no place there
    with pytest.raises(WeightsError, match="fit an I3D, Slow or SlowFast network, not TSN"):
        convert(blobs, create_model("tsn_resnet18", num_classes=7, width=0.125))
