"""Weights in Caffe2's form: the outputs of PySlowFast, which reads them by its own table of names; errors."""

from __future__ import annotations

import numpy as np
import pytest
from originals import blank, caffe2_state, filled, golden, logits_of

from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.weights.from_caffe2 import convert
from paddlevideo_fast.models.weights.load import WeightsError

GOLDEN = golden("slowfast_caffe2")
MODELS = {
    "slowfast_nl": ("slowfast_nl_resnet50", {"num_frames": 8}),
    "i3d_nl": ("i3d_nl_resnet50", {"num_frames": 4}),
}


def build(case: str):
    name, kwargs = MODELS[case]
    return blank(name, num_classes=7, width=0.125, **kwargs)


@pytest.mark.parametrize("case", list(MODELS))
def test_gives_pyslowfasts_outputs(case):
    golden = GOLDEN[case]
    model = build(case)
    filled(convert(caffe2_state(golden["blobs"]), model))
    np.testing.assert_allclose(logits_of(model, golden), golden["logits"], rtol=1e-4, atol=2e-5)


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
    with pytest.raises(WeightsError, match="fit an I3D, Slow or SlowFast network, not tsn_resnet18"):
        convert(blobs, create_model("tsn_resnet18", num_classes=7, width=0.125))
