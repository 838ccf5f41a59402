"""The authors' TSM weights: their logits on clips that run forward, although Paddle's shift runs the other way."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import blank, filled, golden, input_of, named_state

from paddlevideo_fast.models.weights.from_tsm import convert
from paddlevideo_fast.models.weights.load import WeightsError

GOLDEN = golden("tsm")


@pytest.mark.parametrize(
    "name",
    [
        "tsn_resnet18",
        "tsm_resnet18",
        pytest.param("tsm_resnet101", marks=pytest.mark.slow),
        "tsm_nl_resnet50",
        "tsm_mobilenetv2",
    ],
)
def test_logits_equal_the_authors(name):
    golden = GOLDEN[name]
    model = blank(name, num_classes=7, num_segments=4)
    conversion = convert(named_state(golden["keys"], golden["gain"]), model)
    filled(conversion)
    assert not conversion.left
    assert all(key.endswith("num_batches_tracked") for key in conversion.dropped)
    clip = input_of(name, golden["shape"])
    with paddle.no_grad():
        logits, backwards = model(clip).numpy(), model(clip.flip(2)).numpy()
    scale = np.abs(golden["logits"]).max()
    assert np.abs(logits - golden["logits"]).max() < 1e-4 * scale
    if name.startswith("tsm"):
        assert np.abs(backwards - golden["logits"]).max() > 1e-3 * scale  # the direction shows at this precision


@pytest.fixture(scope="module")
def state():
    return named_state(GOLDEN["tsm_resnet18"]["keys"])


def test_which_channels_change_places(state):
    converted = convert(state, blank("tsm_resnet18", num_classes=7)).finish()
    stem, stem_before = converted["backbone.conv1.weight"], state["base_model.conv1.weight"]
    np.testing.assert_array_equal(stem[:8], stem_before[8:16])
    np.testing.assert_array_equal(stem[8:16], stem_before[:8])
    np.testing.assert_array_equal(stem[16:], stem_before[16:])
    # From the stem's 64 channels to 128: both sides of the projection, the input alone of the shifted convolution.
    key = "layer2.0.downsample.0.weight"
    projection, before = converted[f"backbone.{key}"], state[f"base_model.{key}"]
    order_in, order_out = [*range(8, 16), *range(8), *range(16, 64)], [*range(16, 32), *range(16), *range(32, 128)]
    np.testing.assert_array_equal(projection, before[order_out][:, order_in])
    shifted = converted["backbone.layer2.0.conv1.weight"]
    np.testing.assert_array_equal(shifted, state["base_model.layer2.0.conv1.net.weight"][:, order_in])
    inner = "layer2.0.bn1.running_mean"
    np.testing.assert_array_equal(converted["backbone.layer2.0.bn1._mean"], state[f"base_model.{inner}"])


def test_shifts_in_other_blocks(state):
    with pytest.raises(WeightsError, match="shift in 8 blocks, tsn_resnet18 in 0; they differ in backbone.layer1.0"):
        convert(state, blank("tsn_resnet18", num_classes=7))
    unshifted = named_state(GOLDEN["tsn_resnet18"]["keys"])
    with pytest.raises(WeightsError, match="in 0 blocks, tsm_resnet18 in 8.*Weights without shifts fit tsn_resnet"):
        convert(unshifted, blank("tsm_resnet18", num_classes=7))
    with pytest.raises(WeightsError, match="differ in backbone.layer1.1"):
        convert(state, blank("tsm_resnet18", num_classes=7, shift_every=2))


def test_shift_that_their_rounding_cannot_do(state):
    convert(state, blank("tsm_resnet18", num_classes=7, shift_div=16))
    # A fifth of 64 channels is 12.8: the second block ends at 25 here, at 24 there.
    with pytest.raises(WeightsError, match="of 64 channels, shift_div=5 shifts 12 and 13 here, 12 each there"):
        convert(state, blank("tsm_resnet18", num_classes=7, shift_div=5))


def test_what_does_not_fit(state):
    with pytest.raises(WeightsError, match="pptsm_resnet50 is none of mit-han-lab's architectures"):
        convert(state, blank("pptsm_resnet50", num_classes=7, width=0.125))
    model = blank("tsm_resnet18", num_classes=7)
    with pytest.raises(WeightsError, match="1 unknown to the model .base_model.extra.weight"):
        convert({**state, "base_model.extra.weight": np.zeros([4])}, model).finish()
    with pytest.raises(WeightsError, match=r"of another shape \(new_fc.weight -> head.fc.weight"):
        convert(state, blank("tsm_resnet18", num_classes=9)).finish()
