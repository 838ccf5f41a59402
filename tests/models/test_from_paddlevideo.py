"""PaddleVideo's TSN, TSM and ppTSM weights: its logits, and every key accounted for."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import blank, filled, golden, named_clip, named_state

from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.weights.from_paddlevideo import convert
from paddlevideo_fast.models.weights.load import WeightsError

GOLDEN = golden("paddlevideo")


def state_of(name: str) -> dict[str, np.ndarray]:
    keys = GOLDEN[name]["keys"]
    return named_state(GOLDEN[keys]["keys"] if isinstance(keys, str) else keys)


@pytest.mark.parametrize(
    ("name", "model", "kwargs"),
    [
        ("tsn_resnet50", "tsn_resnet50", {"num_segments": 2}),
        ("tsm_resnet50", "tsm_resnet50", {}),
        pytest.param("tsm_resnet101", "tsm_resnet101", {"shift_every": 1}, marks=pytest.mark.slow),
        ("pptsm_resnet50", "pptsm_resnet50", {}),
        ("pptsm_resnet50_16", "pptsm_resnet50", {"num_segments": 16, "shift_div": 16}),
    ],
)
def test_logits_equal_paddlevideo(name, model, kwargs):
    golden = GOLDEN[name]
    model = blank(model, num_classes=7, **kwargs)
    conversion = convert(state_of(name), model)
    assert not conversion.left and not conversion.dropped
    filled(conversion)
    clip = paddle.to_tensor(named_clip(name, golden["shape"]))
    with paddle.no_grad():
        logits, backwards = model(clip).numpy(), model(clip.flip(2)).numpy()
    scale = np.abs(golden["logits"]).max()
    assert np.abs(logits - golden["logits"]).max() < 1e-5 * scale
    if not name.startswith("tsn"):
        assert np.abs(backwards - golden["logits"]).max() > 5e-5 * scale  # the direction shows at this precision


def test_imagenet_weights_without_prefix():
    state = {key.removeprefix("backbone."): value for key, value in state_of("pptsm_resnet50").items()}
    state["out.weight"], state["out.bias"] = np.zeros([2048, 1000], "float32"), np.zeros([1000], "float32")
    del state["head.fc.weight"], state["head.fc.bias"]
    conversion = convert(state, blank("pptsm_resnet50", num_classes=7))
    converted = {key: value.numpy() for key, value in filled(conversion).state_dict().items()}
    assert conversion.dropped["out.weight"] == "classifies into 1000 classes, the model into 7"
    np.testing.assert_array_equal(converted["backbone.conv1.3.weight"], state["conv1_2._conv.weight"])
    np.testing.assert_array_equal(converted["backbone.bn1._mean"], state["conv1_3._batch_norm._mean"])
    np.testing.assert_array_equal(
        converted["backbone.layer4.0.downsample.1.weight"], state["bb_3_0.short._conv.weight"]
    )


def test_what_does_not_fit():
    state = {"backbone.conv._conv.weight": np.zeros([8, 3, 7, 7], "float32")}
    with pytest.raises(WeightsError, match="shifts in every block, this model in every 2: give it shift_every=1"):
        convert(state, create_model("tsm_resnet101", num_classes=7, width=0.125))
    with pytest.raises(WeightsError, match="tsm_resnet18 has no ResNet of bottlenecks"):
        convert(state, create_model("tsm_resnet18", num_classes=7, width=0.125))
    with pytest.raises(WeightsError, match="missing.*1 unknown to the model .backbone.convx._conv.weight"):
        convert(
            {"backbone.convx._conv.weight": np.zeros([1], "float32")},
            create_model("tsm_resnet50", num_classes=7, width=0.125),
        ).finish()
