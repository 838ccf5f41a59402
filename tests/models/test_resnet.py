"""The ResNet backbone: torchvision's logits, names and sizes; width, initialisation, errors."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import blank, golden, load_into_paddle, named_clip, num_parameters
from paddle import nn

from paddlevideo_fast.arguments import ArgumentError
from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.resnet import ResNet

GOLDEN = golden("resnet")


@pytest.mark.parametrize("depth", ["18", "50"])
def test_logits_equal_torchvision(depth):
    golden = GOLDEN["tsn"][depth]
    model = blank(f"tsn_resnet{depth}", num_classes=7, num_segments=2)
    load_into_paddle(model)
    model.eval()
    with paddle.no_grad():
        logits = model(paddle.to_tensor(named_clip(f"tsn{depth}", golden["shape"]))).numpy()
    np.testing.assert_allclose(logits, golden["logits"], rtol=1e-4, atol=2e-5)


# torchvision's published sizes less the classifier of 1,000 classes.
@pytest.mark.parametrize(
    ("depth", "parameters"),
    [
        (18, 11_689_512 - 513_000),
        (34, 21_797_672 - 513_000),
        (50, 25_557_032 - 2_049_000),
        (101, 44_549_160 - 2_049_000),
    ],
)
def test_sizes(depth, parameters):
    with paddle.LazyGuard():
        assert num_parameters(ResNet(depth)) == parameters


def test_names_are_torchvisions():
    names = set(blank("tsn_resnet50", num_classes=3).state_dict())
    assert {
        "backbone.conv1.weight",
        "backbone.bn1._mean",
        "backbone.layer1.0.conv3.weight",
        "backbone.layer2.0.downsample.0.weight",
        "backbone.layer2.0.downsample.1._variance",
        "backbone.layer4.2.bn3.bias",
        "head.fc.weight",
        "head.fc.bias",
    } <= names
    assert not any("layer2.1.downsample" in name for name in names)
    assert len(names) == 53 * 5 + 2  # 53 convolutions, each with a normalisation of four arrays, and the classifier


def test_quarter_width():
    backbone = ResNet(18, width=0.25)
    assert [stage[-1].conv2.weight.shape[0] for stage in backbone.stages] == [16, 32, 64, 128]
    features = backbone(paddle.zeros([2, 3, 64, 48]))
    assert features.shape == [2, 128, 2, 2]
    assert ResNet(50, width=0.125).out_channels == 256
    with pytest.raises(ValueError, match="width is 0.3: 64 channels would become 19.2.*take a multiple of 0.125"):
        ResNet(18, width=0.3)


def test_stride_sits_in_the_3x3():
    first = ResNet(50, width=0.125).layer2[0]
    assert (first.conv1._stride, first.conv2._stride) == ([1, 1], [2, 2])


def test_initialisation():
    paddle.seed(0)
    model = create_model("tsn_resnet18", num_classes=400)
    # He over the fan-out: 128 channels of a 3x3 kernel, whatever the stride and the fan-in.
    weight = model.backbone.layer2[0].conv1.weight.numpy()
    assert weight.std() == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.02)
    assert model.backbone.conv1.weight.numpy().std() == pytest.approx((2 / (64 * 49)) ** 0.5, rel=0.03)
    assert model.head.fc.weight.numpy().std() == pytest.approx(0.001, rel=0.02)
    assert not model.head.fc.bias.numpy().any()


@pytest.mark.parametrize("depth", [18, 50])
def test_zero_init_residual_makes_blocks_the_identity(depth):
    block = ResNet(depth, width=0.125, zero_init_residual=True).layer1[1]
    x = paddle.rand([2, block.conv1.weight.shape[1], 4, 4])
    np.testing.assert_array_equal(block(x, 1).numpy(), x.numpy())
    plain = ResNet(depth, width=0.125).layer1[1]
    assert np.abs(plain(x, 1).numpy() - x.numpy()).max() > 0.1


def test_variant_d_averages_before_it_projects():
    net = ResNet(50, width=0.125, variant="D")
    assert [type(block.downsample[0]) for block in (net.layer1[0], net.layer2[0])] == [nn.Identity, nn.AvgPool2D]
    # An odd size: the last row and column are averaged over what there is.
    x = paddle.arange(9, dtype="float32").reshape([1, 1, 3, 3])
    np.testing.assert_array_equal(net.layer2[0].downsample[0](x)[0, 0].numpy(), [[2, 3.5], [6.5, 8]])
    assert net(paddle.zeros([1, 3, 40, 33])).shape == [1, 256, 2, 2]
    names = set(net.state_dict())
    assert {"conv1.0.weight", "conv1.1._mean", "conv1.6.weight", "bn1.weight", "layer1.0.downsample.1.weight"} <= names


def test_unknown_depth():
    with pytest.raises(ValueError, match="variant is 'C'; it must be 'B' or 'D'"):
        ResNet(50, variant="C")
    with pytest.raises(ValueError, match="depth is 18; variant D exists from depth 50 on"):
        ResNet(18, variant="D")
    with pytest.raises(ArgumentError, match="unknown ResNet depth 152. Valid names: 18, 34, 50, 101"):
        ResNet(152)
