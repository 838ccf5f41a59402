"""I3D and Slow: PySlowFast's logits, the heads, designs, sizes, errors."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import blank, filled, golden, logits_of, named_tree_state, num_parameters

from paddlevideo_fast.arguments import ArgumentError, check_arguments
from paddlevideo_fast.models import MODELS, create_model
from paddlevideo_fast.models.heads import PathwayHead
from paddlevideo_fast.models.resnet3d import SLOW, ResNet3D
from paddlevideo_fast.models.weights.from_pyslowfast import convert
from paddlevideo_fast.ops.norm import AllReduceBatchNorm

GOLDEN = golden("resnet3d")
WIDTH, CLASSES = 0.25, 7
NAMES = ("i3d_resnet50", "i3d_nl_resnet50", "slow_resnet50")


def small(name: str, **kwargs):
    paddle.seed(3)
    return create_model(name, **({"num_classes": 5, "num_frames": 4, "width": 0.125, "dropout": 0.0} | kwargs))


def converted(name: str, keys: dict, **kwargs):
    return filled(convert(named_tree_state(keys), blank(name, num_classes=CLASSES, **kwargs)))


@pytest.mark.parametrize(
    ("case", "name", "kwargs"),
    [
        ("i3d", "i3d_resnet50", {"num_frames": 4}),
        ("i3d_nl", "i3d_nl_resnet50", {"width": WIDTH}),
        ("slow", "slow_resnet50", {"width": WIDTH}),
    ],
)
def test_logits_equal_pyslowfast(case, name, kwargs):
    golden = GOLDEN[case]
    logits = logits_of(converted(name, golden["keys"], **kwargs), golden)
    np.testing.assert_allclose(logits, golden["logits"], rtol=1e-4, atol=2e-5)


def test_convolutional_head_equals_pyslowfast():
    golden = GOLDEN["convolutional"]
    sizes = {"num_frames": golden["num_frames"], "crop_size": golden["crop_size"], "width": WIDTH}
    model = converted("i3d_nl_resnet50", GOLDEN["i3d_nl"]["keys"], head="convolutional", **sizes)
    probabilities = np.exp(logits_of(model, golden))
    np.testing.assert_allclose(probabilities, golden["probabilities"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
    adaptive = converted("i3d_nl_resnet50", GOLDEN["i3d_nl"]["keys"], **sizes)
    pooled = paddle.nn.functional.softmax(paddle.to_tensor(logits_of(adaptive, golden))).numpy()
    assert np.abs(pooled - golden["probabilities"]).max() > 1e-4  # so the head shows


def test_heads_agree_on_the_training_crop_and_in_training():
    clip = paddle.randn([2, 3, 4, 64, 64])
    adaptive = small("i3d_resnet50")
    convolutional = small("i3d_resnet50", head="convolutional", crop_size=64)
    for model in (adaptive, convolutional):
        model.train()
    np.testing.assert_array_equal(adaptive(clip).numpy(), convolutional(clip).numpy())
    for model in (adaptive, convolutional):
        model.eval()
    softmax = paddle.nn.functional.softmax
    np.testing.assert_allclose(softmax(adaptive(clip)).numpy(), softmax(convolutional(clip)).numpy(), rtol=1e-5)


def test_convolutional_head_by_hand():
    head = PathwayHead([2], 2, dropout=0.0, head="convolutional", lengths=[1], crop_size=64)
    head.fc.weight.set_value(np.eye(2, dtype="float32"))
    head.eval()
    features = np.zeros([1, 2, 1, 2, 3], "float32")
    features[0, 0] = [[4, 0, 0], [0, 0, 8]]  # windows of 2x2 have means 1 and 2
    expected = np.mean([np.e / (np.e + 1), np.e**2 / (np.e**2 + 1)])
    found = np.exp(head([paddle.to_tensor(features)]).numpy())
    np.testing.assert_allclose(found, [[expected, 1 - expected]], rtol=1e-5)

    several = PathwayHead([2], 2, dropout=0.0, head="convolutional_sigmoid", lengths=[1], crop_size=64)
    several.fc.weight.set_value(np.eye(2, dtype="float32"))
    several.eval()
    found = paddle.nn.functional.sigmoid(several([paddle.to_tensor(features)])).numpy()
    np.testing.assert_allclose(found, [[expected, 0.5]], rtol=1e-5)  # each class by itself: sigmoid(1), sigmoid(2)
    certain = several([paddle.to_tensor(100 * features)]).numpy()
    assert np.isfinite(certain).all() and certain[0, 0] > 60  # the mean of sigmoid(100) and sigmoid(200)


# Published: 28,043,472 (ecr23xx/video-model-benchmark, PySlowFast's I3D 8x8), 32.45M (PyTorchVideo's model zoo), 35.4M
# (MMAction2, I3D with non-local blocks) and 33.0M (MMAction2, "heavy"). "3x3x3" by hand: torchvision's ResNet-50 of
# 23,508,032 less its classifier, four more slices of the stem (64 * 3 * 49), two more of the 3x3 kernels
# (9 * (3 * 64**2 + 4 * 128**2 + 6 * 256**2 + 3 * 512**2)), and 2049 * 400 of the classifier.
@pytest.mark.parametrize(
    ("name", "kwargs", "parameters"),
    [
        ("i3d_resnet50", {}, 28_043_472),
        ("slow_resnet50", {}, 32_454_096),
        ("i3d_nl_resnet50", {}, 35_401_936),
        ("i3d_resnet50", {"inflate": "3x1x1"}, 33_024_208),
        ("i3d_resnet50", {"inflate": "3x3x3"}, 46_999_760),
    ],
)
def test_sizes(name, kwargs, parameters):
    assert num_parameters(blank(name, num_classes=400, **kwargs)) == parameters


def test_where_kernels_extend_over_time():
    def lengths(model) -> list[list[tuple[int, int]]]:
        kernels = [[(b.conv1.weight.shape[2], b.conv2.weight.shape[2]) for b in s] for s in model.backbone.stages]
        assert all(b.conv3.weight.shape[2] == 1 for s in model.backbone.stages for b in s)
        return kernels

    on, off = (3, 1), (1, 1)
    i3d = small("i3d_resnet50")
    assert lengths(i3d) == [[on] * 3, [on, off] * 2, [on, off] * 3, [off, on, off]]
    assert i3d.backbone.conv1.weight.shape == [8, 3, 5, 7, 7]
    assert lengths(small("slow_resnet50")) == [[off] * 3, [off] * 4, [on] * 6, [on] * 3]
    assert small("slow_resnet50").backbone.conv1.weight.shape[2] == 1
    blocks = (3, 4, 6, 3)
    assert lengths(small("i3d_resnet50", inflate="3x1x1")) == [[on] * count for count in blocks]
    assert lengths(small("i3d_resnet50", inflate="3x3x3")) == [[(1, 3)] * count for count in blocks]


def test_where_non_local_blocks_are():
    stages = small("i3d_nl_resnet50").backbone.stages
    found = [[i for i, block in enumerate(stage) if block.nonlocal_block is not None] for stage in stages]
    assert found == [[], [1, 3], [1, 3, 5], []]
    block = stages[1][1].nonlocal_block
    assert (block.inner_channels, block.pool, block.instantiation) == (32, (1, 2, 2), "softmax")


@pytest.mark.parametrize("name", NAMES)
def test_any_length_and_crop(name):
    model = small(name, num_frames=None)
    model.eval()
    for frames, height, width in ((2, 32, 32), (5, 40, 56), (8, 32, 64)):
        assert model(paddle.randn([1, 3, frames, height, width])).shape == [1, 5]


def test_one_frame_cannot_be_halved():
    with pytest.raises(ValueError, match="the clip has 1 frame; i3d_resnet50 pools pairs of frames"):
        small("i3d_resnet50", num_frames=None)(paddle.zeros([1, 3, 1, 32, 32]))
    assert small("slow_resnet50", num_frames=None)(paddle.zeros([2, 3, 1, 32, 32])).shape == [2, 5]


def test_frames_and_size_inside():
    model = small("i3d_resnet50")
    clip = paddle.randn([1, 3, 4, 64, 96])
    assert model.backbone.stem(clip).shape == [1, 8, 4, 16, 24]
    assert model.backbone(clip).shape == [1, 256, 2, 2, 3]  # halved in time after the first stage
    assert small("slow_resnet50").backbone(clip).shape == [1, 256, 4, 2, 3]


def test_initialisation():
    paddle.seed(0)
    model = create_model("i3d_nl_resnet50", num_classes=400, width=0.5)
    weight = model.backbone.layer2[0].conv1.weight.numpy()  # [64, 128, 3, 1, 1]
    assert weight.std() == pytest.approx((2 / (64 * 3)) ** 0.5, rel=0.03)
    assert model.head.fc.weight.numpy().std() == pytest.approx(0.01, rel=0.02)
    assert not model.head.fc.bias.numpy().any()
    block = model.backbone.layer2[1]
    assert not block.bn3.weight.numpy().any() and not block.nonlocal_block.bn.weight.numpy().any()
    x = paddle.rand([1, 256, 2, 4, 4])
    np.testing.assert_allclose(block(x).numpy(), x.numpy(), rtol=1e-6)  # starts as the identity
    kept = small("i3d_nl_resnet50", zero_init_residual=False).backbone.layer2[1]
    assert kept.bn3.weight.numpy().all() and kept.nonlocal_block.bn.weight.numpy().all()


def test_norm_and_fast_paths():
    assert small("slow_resnet50").fast_paths == {}
    model = small("i3d_nl_resnet50", norm="sync")
    assert isinstance(model.backbone.layer1[0].bn1, AllReduceBatchNorm)
    assert isinstance(model.backbone.layer2[1].nonlocal_block.bn, AllReduceBatchNorm)
    assert "all-reduce" in model.fast_paths["norm"]
    assert any("reference" in line for key, line in model.fast_paths.items() if key.startswith("non_local"))
    asked = small("i3d_nl_resnet50", impl="reference").fast_paths
    assert asked and all("as asked" in line for line in asked.values())


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"head": "mean"}, "head is 'mean'; it must be 'adaptive', 'convolutional' or 'convolutional_sigmoid'"),
        ({"head": "convolutional", "num_frames": None}, "needs num_frames"),
        ({"crop_size": 31}, "crop_size is 31; it must be at least 32"),
        ({"num_frames": 1}, "num_frames is 1; it must be at least 2"),
        ({"num_classes": 0}, "num_classes is 0; it must be at least 1"),
        ({"dropout": 1.5}, "dropout is 1.5; it must be from 0 to 1"),
        ({"width": 0.1}, "width is 0.1: 64 channels would become 6.4"),
        ({"impl": "fast"}, "impl is 'fast', but this network has no non-local block"),
        ({"inflate": "2x1x1"}, "unknown inflation of I3D '2x1x1'"),
        ({"norm": "batch"}, "unknown norm 'batch'"),
    ],
)
def test_wrong_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        small("i3d_resnet50", **kwargs)


def test_wrong_names():
    with pytest.raises(ArgumentError, match="inflat"):
        check_arguments(MODELS["slow_resnet50"], {"num_classes": 2, "inflate": "3x1x1"}, where="slow_resnet50")
    with pytest.raises(ArgumentError, match="unknown 3D ResNet depth 34. Valid names: 50, 101"):
        ResNet3D(34, 8, SLOW)


def test_wrong_clips():
    model = small("i3d_resnet50", head="convolutional", crop_size=64)
    with pytest.raises(ValueError, match=r"i3d_resnet50 expects a clip of shape \[N, 3, 4, H, W\]"):
        model(paddle.zeros([1, 3, 8, 64, 64]))
    with pytest.raises(TypeError, match="floating-point"):
        model(paddle.zeros([1, 3, 4, 64, 64], "uint8"))
    model.eval()
    with pytest.raises(ValueError, match=r"pools \[2, 2, 2\] positions.*the feature map has \[2, 1, 1\]"):
        model(paddle.zeros([1, 3, 4, 32, 32]))
