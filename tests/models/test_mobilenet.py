"""MobileNetV2: torchvision's sizes, names, rounding of widths, initialisation, freezing."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import num_parameters

from paddlevideo_fast.models.mobilenet import MobileNetV2, round_channels


def test_size_is_torchvisions():
    assert num_parameters(MobileNetV2()) == 3_504_872 - 1_281_000  # published, less the classifier of 1,000 classes


def test_names_are_torchvisions():
    names = set(MobileNetV2(width=0.25).state_dict())
    assert {
        "features.0.0.weight",
        "features.0.1._mean",
        "features.1.conv.0.0.weight",  # filters channels; this block has no expansion
        "features.1.conv.2.bias",
        "features.2.conv.0.0.weight",
        "features.2.conv.1.1._variance",
        "features.17.conv.3.weight",
        "features.18.1.weight",
    } <= names
    assert len(names) == 52 * 5


# Computed with torchvision's _make_divisible.
@pytest.mark.parametrize(
    ("channels", "rounded"), [(4, 8), (8, 8), (11, 16), (12, 16), (13.2, 16), (18, 24), (20, 24), (33.6, 32), (44, 48)]
)
def test_rounding(channels, rounded):
    assert round_channels(channels) == rounded


def test_width_and_shapes():
    net = MobileNetV2(width=0.25)
    assert [block.conv[-1].weight.shape[0] for block in net.blocks[::4]] == [8, 8, 16, 24, 80]
    assert net(paddle.zeros([2, 3, 64, 40])).shape == [2, 1280, 2, 2]
    assert MobileNetV2(width=1.4).out_channels == 1792
    with pytest.raises(ValueError, match="width is 0; it must be above 0"):
        MobileNetV2(width=0)


def test_projection_has_no_activation():
    block = MobileNetV2(width=0.25).blocks[1]
    out = block(paddle.randn([2, 8, 8, 8]), 1)
    assert not block.residual and (out < 0).any().item()


def test_initialisation():
    paddle.seed(0)
    net = MobileNetV2()
    # He over the fan-out: as many kernels of 3x3 as channels, although each sees one channel alone.
    depthwise = net.blocks[13].conv[1][0].weight.numpy()
    assert depthwise.shape == (576, 1, 3, 3)
    assert depthwise.std() == pytest.approx((2 / (576 * 9)) ** 0.5, rel=0.05)
    assert net.features[18][0].weight.numpy().std() == pytest.approx((2 / 1280) ** 0.5, rel=0.02)


def test_partial_bn_freezes_all_but_the_first():
    net = MobileNetV2(width=0.25, partial_bn=True)
    before = {key: value.numpy().copy() for key, value in net.state_dict().items()}
    net(paddle.randn([4, 3, 32, 32]))
    moved = [key for key, value in net.state_dict().items() if not np.array_equal(before[key], value.numpy())]
    assert moved == ["features.0.1._mean", "features.0.1._variance"]
    learns = {key for key, p in net.named_parameters() if not p.stop_gradient}
    assert {key for key in learns if key.rpartition(".")[0].endswith((".1", "conv.3"))} >= {"features.0.1.weight"}
    assert "features.2.conv.0.1.weight" not in learns and "features.18.1.weight" not in learns
