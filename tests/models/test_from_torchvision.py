"""torchvision's ImageNet weights: its logits, and every key accounted for."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import blank, filled, golden, input_of, named_state

from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.weights.from_torchvision import convert
from paddlevideo_fast.models.weights.load import WeightsError

GOLDEN = golden("torchvision")


@pytest.mark.parametrize(
    ("name", "model", "kwargs"),
    [
        ("resnet18", "tsn_resnet18", {}),
        ("resnet50", "tsm_nl_resnet50", {}),
        ("mobilenet_v2", "tsm_mobilenetv2", {}),
        ("mobilenet_v2_quarter", "tsm_mobilenetv2", {"width": 0.25}),
    ],
)
def test_logits_equal_torchvision(name, model, kwargs):
    golden = GOLDEN[name]
    model = blank(model, num_classes=7, num_segments=2, **kwargs)
    conversion = convert(named_state(golden["keys"], golden["gain"]), model)
    filled(conversion)
    places = ("layer2.0", "layer2.2", "layer3.0", "layer3.2", "layer3.4") if "non_local" in model.fast_paths else ()
    assert {key.split(".nl.")[0] for key in conversion.left} == {f"backbone.{block}" for block in places}
    for block in model.sublayers():
        if hasattr(block, "shift"):
            block.shift = None  # images know none
    with paddle.no_grad():
        clip = input_of(name, golden["shape"])
        logits, backwards, elsewhere = (model(x).numpy() for x in (clip, clip.flip(2), clip.flip([3, 4])))
    scale = np.abs(golden["logits"]).max()
    assert np.abs(logits - golden["logits"]).max() < 1e-4 * scale
    assert np.abs(backwards - golden["logits"]).max() < 1e-4 * scale  # no frame sees another
    assert np.abs(elsewhere - golden["logits"]).max() > 1e-2 * scale  # the input shows


@pytest.fixture(scope="module")
def quarter():
    return named_state(GOLDEN["mobilenet_v2_quarter"]["keys"])


def test_classifier_of_other_classes_is_dropped(quarter):
    model = create_model("tsm_mobilenetv2", num_classes=5, width=0.25)
    before = model.head.fc.weight.numpy().copy()
    conversion = convert(quarter, model)
    assert conversion.dropped["classifier.1.weight"] == "classifies into 7 classes, the model into 5"
    assert set(conversion.left) == {"head.fc.weight", "head.fc.bias"}
    state = conversion.finish()
    np.testing.assert_array_equal(state["head.fc.weight"], before)
    np.testing.assert_array_equal(state["backbone.features.0.0.weight"], quarter["features.0.0.weight"])


def test_what_does_not_fit(quarter):
    with pytest.raises(WeightsError, match="pptsm_resnet50 is none of torchvision's architectures"):
        convert(quarter, create_model("pptsm_resnet50", num_classes=7, width=0.125))
    model = create_model("tsm_mobilenetv2", num_classes=7, width=0.25)
    with pytest.raises(WeightsError, match=r"1 not accounted for \(features.19.0.weight|unknown to the model"):
        convert({**quarter, "features.19.0.weight": np.zeros([1])}, model).finish()
    with pytest.raises(WeightsError, match=r"1 missing \(backbone.features.0.0.weight\)"):
        convert({key: value for key, value in quarter.items() if key != "features.0.0.weight"}, model).finish()
    with pytest.raises(WeightsError, match="not accounted for"):
        convert(quarter, create_model("tsn_resnet18", num_classes=7, width=0.125)).finish()
