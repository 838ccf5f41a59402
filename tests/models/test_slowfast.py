"""SlowFast: PySlowFast's logits and gradients, its frames, sizes, errors."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import blank, filled, golden, logits_of, named_clip, named_tree_state, num_parameters

from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.slowfast import slow_indices
from paddlevideo_fast.models.weights.from_pyslowfast import convert

GOLDEN = {name: golden(name) for name in ("slowfast", "slowfast101")}
WIDTH, CLASSES = 0.25, 7
NAMES = ("slowfast_resnet50", "slowfast_nl_resnet50", "slowfast_resnet101")


def small(name: str = "slowfast_resnet50", **kwargs):
    paddle.seed(3)
    return create_model(name, **({"num_classes": 5, "num_frames": 8, "width": 0.125, "dropout": 0.0} | kwargs))


def converted(name: str, keys: dict, **kwargs):
    return filled(convert(named_tree_state(keys), blank(name, num_classes=CLASSES, **kwargs)))


@pytest.mark.parametrize(
    ("file", "case", "name", "kwargs"),
    [
        ("slowfast", "8x8", "slowfast_resnet50", {"width": WIDTH, "num_frames": 16}),
        (
            "slowfast",
            "4x16",
            "slowfast_resnet50",
            {"width": WIDTH, "num_frames": 16, "alpha": 8, "fusion_kernel": 5, "beta_inv": 4},
        ),
        ("slowfast", "nl", "slowfast_nl_resnet50", {"width": WIDTH, "num_frames": 16}),
        ("slowfast101", "50_50", "slowfast_resnet101", {"width": 0.125, "num_frames": 8, "temporal_blocks": [6, 6]}),
        ("slowfast101", "101_101", "slowfast_resnet101", {"width": 0.125, "num_frames": 8}),
    ],
)
def test_logits_equal_pyslowfast(file, case, name, kwargs):
    golden = GOLDEN[file][case]
    logits = logits_of(converted(name, golden["keys"], **kwargs), golden)
    np.testing.assert_allclose(logits, golden["logits"], rtol=1e-4, atol=2e-5)


def test_convolutional_head_equals_pyslowfast():
    golden = GOLDEN["slowfast"]["convolutional"]
    sizes = {"num_frames": golden["num_frames"], "crop_size": golden["crop_size"], "width": WIDTH}
    keys = GOLDEN["slowfast"]["8x8"]["keys"]
    probabilities = np.exp(logits_of(converted("slowfast_resnet50", keys, head="convolutional", **sizes), golden))
    np.testing.assert_allclose(probabilities, golden["probabilities"], rtol=1e-4, atol=1e-6)
    pooled = paddle.nn.functional.softmax(
        paddle.to_tensor(logits_of(converted("slowfast_resnet50", keys, **sizes), golden))
    )
    assert np.abs(pooled.numpy() - golden["probabilities"]).max() > 1e-4  # so the head shows


@pytest.fixture
def double_precision():
    paddle.set_default_dtype("float64")
    yield
    paddle.set_default_dtype("float32")


def test_training_equals_pyslowfast(double_precision):
    golden = GOLDEN["slowfast"]["training"]
    keys = GOLDEN["slowfast"]["8x8"]["keys"]
    model = converted("slowfast_resnet50", keys, width=WIDTH, num_frames=16, dropout=0.0)
    model.train()
    logits = model(paddle.to_tensor(named_clip(golden["clip"], golden["shape"]).astype("float64")))
    paddle.nn.functional.cross_entropy(logits, paddle.arange(2)).backward()
    np.testing.assert_allclose(logits.numpy(), golden["logits"], rtol=1e-7)
    ours = {entry.sources[0]: key for key, entry in convert(named_tree_state(keys), model).filled.items()}
    gradients = {name: p.grad for name, p in model.named_parameters()}
    for name, norm in golden["gradient_norms"].items():
        assert gradients[ours[name]].norm().item() == pytest.approx(norm, rel=1e-7), name


# torch.linspace(0, T - 1, T // alpha).long() of torch 2.14.1; 160 frames show its single precision (52, not 53).
@pytest.mark.parametrize(
    ("num_frames", "alpha", "indices"),
    [
        (32, 4, [0, 4, 8, 13, 17, 22, 26, 31]),
        (32, 8, [0, 10, 20, 31]),
        (16, 4, [0, 5, 10, 15]),
        (8, 8, [0]),
        (8, 1, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_slow_frames(num_frames, alpha, indices):
    assert slow_indices(num_frames, alpha) == indices


def test_slow_frames_in_single_precision():
    found = slow_indices(160, 4)
    assert (found[12:15], found[-1], len(found)) == ([48, 52, 57], 159, 40)


def test_slow_pathway_takes_its_frames_itself():
    model = small(num_frames=16)
    model.eval()
    clip = paddle.randn([1, 3, 16, 32, 32])
    seen = []
    model.slow.conv1.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].numpy()))
    model(clip)
    np.testing.assert_array_equal(seen[0], clip.numpy()[:, :, [0, 5, 10, 15]])


# Published by PyTorchVideo's model zoo, for 400 classes: 34.57M, 34.48M, 62.83M and 53.77M ("16x8", R101_50_50).
@pytest.mark.parametrize(
    ("name", "kwargs", "millions"),
    [
        ("slowfast_resnet50", {}, 34.57),
        ("slowfast_resnet50", {"alpha": 8, "fusion_kernel": 5}, 34.48),
        ("slowfast_resnet101", {}, 62.83),
        ("slowfast_resnet101", {"temporal_blocks": (6, 6)}, 53.77),
    ],
)
def test_sizes(name, kwargs, millions):
    assert round(num_parameters(blank(name, num_classes=400, **kwargs)) / 1e6, 2) == millions


def test_channels():
    with paddle.LazyGuard():
        model = small(width=1.0)
    assert model.slow.layer1[0].conv1.weight.shape[1] == 80  # 64 and 16 of the fusion: arXiv 1812.03982, section 3.4
    assert [fusion.conv.weight.shape[:3] for fusion in model.fusions] == [
        [16, 8, 7],
        [64, 32, 7],
        [128, 64, 7],
        [256, 128, 7],
    ]
    assert model.head.fc.weight.shape[0] == 2304
    assert small().fast.conv1.weight.shape[:2] == [1, 3]  # one channel at an eighth of the width
    assert small(beta_inv=2).fast.conv1.weight.shape[:2] == [4, 3]


def test_non_local_blocks_are_in_the_slow_pathway():
    model = small("slowfast_nl_resnet50")
    keys = {key.split(".nonlocal_block")[0] for key in model.state_dict() if "nonlocal" in key}
    assert keys == {"slow.layer2.1", "slow.layer2.3", "slow.layer3.1", "slow.layer3.3", "slow.layer3.5"}
    assert model.slow.layer2[1].nonlocal_block.instantiation == "dot_product"
    assert model.fusions[0].conv.weight.shape[2] == 5
    assert all("dot product" in line for line in model.fast_paths.values()) and model.fast_paths


def test_any_length_and_crop():
    model = small(num_frames=None)
    model.eval()
    for frames, height, width in ((4, 32, 32), (8, 40, 56), (12, 64, 32)):
        assert model(paddle.randn([1, 3, frames, height, width])).shape == [1, 5]
    with pytest.raises(ValueError, match="the clip has 10 frames, and alpha is 4.*a multiple of 4"):
        model(paddle.zeros([1, 3, 10, 32, 32]))
    with pytest.raises(ValueError, match=r"\[N, 3, 8, H, W\], got \[1, 3, 12.*12 frames need num_frames=12"):
        small()(paddle.zeros([1, 3, 12, 32, 32]))


def test_static_graph():
    model = small(head="convolutional", crop_size=32)
    model.eval()
    clip = paddle.randn([1, 3, 8, 64, 32])
    with paddle.no_grad():
        expected = model(clip).numpy()
        spec = paddle.static.InputSpec([None, 3, 8, None, None], "float32", name="clip")
        traced = paddle.jit.to_static(model, input_spec=[spec], full_graph=True)
        np.testing.assert_allclose(traced(clip).numpy(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_frames": 30}, "num_frames is 30, and alpha is 4.*a multiple of 4"),
        ({"alpha": 0}, "alpha is 0; it must be at least 1"),
        ({"beta_inv": 16}, "beta_inv is 16; it must divide the 8 channels of the slow stem"),
        ({"beta_inv": 3}, "beta_inv is 3; it must divide the 8 channels"),
        ({"fusion_kernel": 4}, "fusion_kernel is 4; it must be odd"),
        ({"temporal_blocks": [7, 6]}, r"temporal_blocks is \[7, 6\]; it must be two numbers from 0 to 6"),
        ({"temporal_blocks": [6]}, r"temporal_blocks is \[6\]; it must be two numbers"),
        ({"head": "convolutional", "num_frames": None}, "needs num_frames"),
    ],
)
def test_wrong_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        small(**kwargs)
