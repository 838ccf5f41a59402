"""Pieces of the transformers: patches, attention, positions, stochastic depth, recomputation."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from paddlevideo_fast.models.layers import DropPath, run_block
from paddlevideo_fast.models.transformer import (
    Block,
    Mlp,
    PatchEmbed,
    SelfAttention,
    drop_path_rates,
    init_linear,
    resize_grid,
    resolve_patch_embed,
    sinusoid_table,
)


def draw(*shape, seed=0):
    return paddle.to_tensor(np.random.default_rng(seed).standard_normal(shape, dtype="float32"))


def outcome(layer, *args, **kwargs):
    """Output, and gradients of the first argument and of every parameter, under a fixed upstream gradient."""
    first = args[0].detach()
    first.stop_gradient = False
    out = layer(first, *args[1:], **kwargs)
    layer.clear_gradients()
    out.backward(draw(*out.shape, seed=9))
    gradients = {name: p.grad.numpy() for name, p in layer.named_parameters()}
    return {"out": out.numpy(), "input": first.grad.numpy()} | gradients


def assert_same(left, right, rtol=1e-5, atol=1e-5):
    assert left.keys() == right.keys()
    for key in left:
        np.testing.assert_allclose(left[key], right[key], rtol=rtol, atol=atol, err_msg=key)


def pair(build):
    """The same layer in both implementations, with the same weights."""
    made = []
    for impl in ("fast", "reference"):
        paddle.seed(4)
        made.append(build(impl))
    states = [layer.state_dict() for layer in made]
    assert list(states[0]) == list(states[1])
    for key in states[0]:
        np.testing.assert_array_equal(states[0][key].numpy(), states[1][key].numpy())
    return made


@pytest.mark.parametrize(("tubelet_size", "bias"), [(1, True), (2, False), (3, True)])
def test_patches_by_product_equal_the_convolution(tubelet_size, bias):
    fast, reference = pair(lambda impl: PatchEmbed(10, patch_size=4, tubelet_size=tubelet_size, bias=bias, impl=impl))
    clip = draw(2, 3, 6, 8, 12)
    found = outcome(fast, clip)
    assert found["out"].shape == (2, 6 // tubelet_size, 2, 3, 10)
    assert_same(found, outcome(reference, clip))
    assert ("proj.bias" in found) == bias
    by_hand = (fast.proj.weight[7] * clip[1, :, tubelet_size : 2 * tubelet_size, 4:8, 8:12]).sum().item()
    if tubelet_size < 6:
        expected = by_hand + (fast.proj.bias[7].item() if bias else 0)
        assert found["out"][1, 1, 1, 2, 7] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert (fast.resolved, reference.resolved) == (
        "product of flattened patches",
        "reference (convolution), as asked",
    )


def test_patches_start_as_pytorchs_convolution_does():
    layer = PatchEmbed(400, patch_size=8, tubelet_size=2)
    bound = (3 * 2 * 8 * 8) ** -0.5
    for parameter in (layer.proj.weight, layer.proj.bias):
        assert 0.97 * bound < parameter.abs().max().item() <= bound
        assert parameter.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)


@pytest.mark.parametrize("impl", ["fast", "reference"])
def test_clips_that_cannot_be_cut(impl):
    embed = PatchEmbed(8, patch_size=16, tubelet_size=2, impl=impl)
    for shape, words in (((1, 3, 5, 32, 32), "5 frames of 32x32"), ((1, 3, 4, 32, 40), "4 frames of 32x40")):
        with pytest.raises(ValueError, match=f"a clip of {words} cannot be cut into patches of 2 frames of 16x16"):
            embed(paddle.zeros(shape))


def test_resolution_of_patches():
    assert resolve_patch_embed("fast") == (True, "product of flattened patches")
    assert resolve_patch_embed("reference") == (False, "reference (convolution), as asked")
    if paddle.get_device() == "cpu":
        assert resolve_patch_embed("auto") == (False, "reference (convolution): faster on 'cpu'")
    with pytest.raises(ValueError, match="impl is 'quick'; it must be 'auto', 'fast' or 'reference'"):
        PatchEmbed(8, impl="quick")


def test_attention_layer():
    fast, reference = pair(lambda impl: SelfAttention(12, 3, impl=impl))
    x = draw(2, 5, 12)
    mask = paddle.to_tensor(np.random.default_rng(2).random((2, 1, 5, 5)) < 0.7)
    mask[..., 0] = True
    for kwargs in ({}, {"causal": True}, {"mask": mask}):
        assert_same(outcome(fast, x, **kwargs), outcome(reference, x, **kwargs))
    causal = fast(x, causal=True)
    x[:, 3:] = 0
    np.testing.assert_allclose(fast(x, causal=True)[:, :3].numpy(), causal[:, :3].numpy(), rtol=1e-5, atol=1e-6)
    assert "qkv.bias" not in SelfAttention(12, 3, qkv_bias=False).state_dict()
    with pytest.raises(ValueError, match="num_heads is 5; it must divide the 12 channels"):
        SelfAttention(12, 5)


def test_block_adds_two_branches():
    fast, reference = pair(lambda impl: Block(12, 3, impl=impl))
    x = draw(2, 5, 12)
    found = outcome(fast, x)
    assert_same(found, outcome(reference, x))
    middle = x + fast.attn(fast.norm1(x))
    np.testing.assert_allclose(found["out"], (middle + fast.mlp(fast.norm2(middle))).numpy(), rtol=1e-5, atol=1e-6)
    assert fast.norm1._epsilon == 1e-6 and fast.mlp.fc1.weight.shape == [12, 48]


def test_gelu_is_exact():
    mlp = Mlp(1, 1)
    for layer in (mlp.fc1, mlp.fc2):
        nn.initializer.Constant(1.0)(layer.weight)
    # x * Phi(x); the usual approximation by a hyperbolic tangent has 0.8411920 and -0.1543286
    expected = [[0.8413447461], [-0.1542687694]]
    np.testing.assert_allclose(mlp(paddle.to_tensor([[1.0], [-0.5]])).numpy(), expected, rtol=1e-5)


def test_linear_layers_start_like_timms():
    layer = nn.Linear(300, 300)
    init_linear(layer)
    assert layer.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert 0.07 < layer.weight.abs().max().item()  # timm cuts at 2, a hundred deviations away
    assert not layer.bias.numpy().any()


def test_drop_path():
    paddle.seed(0)
    layer, x = DropPath(0.25), draw(4000, 2, 3)
    ratio = (layer(x) / x).numpy().reshape(4000, -1)
    np.testing.assert_allclose(ratio[ratio != 0], 4 / 3, rtol=1e-6)
    assert np.ptp(ratio, axis=1).max() < 1e-6  # a sample goes as a whole
    assert ratio[:, 0].mean() == pytest.approx(1.0, abs=0.03)
    layer.eval()
    assert layer(x) is x
    zero = DropPath(0.0)
    assert zero(x) is x
    for rate in (1.0, -0.1):
        with pytest.raises(ValueError, match=f"drop_path_rate is {rate}"):
            DropPath(rate)


def test_drop_path_gradient():
    paddle.seed(0)
    x = draw(64, 3)
    x.stop_gradient = False
    out = DropPath(0.5)(x)
    out.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.where(out.numpy() != 0, 2.0, 0.0))


def test_drop_path_rates_rise():
    np.testing.assert_allclose(drop_path_rates(0.3, 4), [0.0, 0.1, 0.2, 0.3])
    assert drop_path_rates(0.3, 1) == [0.0]


def test_sinusoid_table():
    table = sinusoid_table(1568, 768)
    assert table.shape == (1568, 768) and table.dtype == np.float32
    # Of `get_sinusoid_encoding_table(1568, 768)` in MCG-NJU/VideoMAE, modeling_finetune.py.
    for place, channel, value in (
        (0, 0, 0.0),
        (0, 1, 1.0),
        (1, 0, 0.8414709568023682),
        (1, 1, 0.5403022766113281),
        (7, 10, -0.07421641051769257),
        (7, 11, 0.9972421526908875),
        (196, 2, 0.27859652042388916),
        (1567, 0, 0.6089484095573425),
        (1567, 767, 0.9871468544006348),
        (1000, 400, 0.9210375547409058),
        (1000, 401, -0.3894737958908081),
    ):
        assert table[place, channel] == pytest.approx(value, abs=1e-7), (place, channel)
    assert table.sum(dtype="float64") == pytest.approx(245744.98956693235, rel=1e-7)


def test_resize_in_space():
    # PyTorch's interpolate(mode="bicubic", align_corners=False).
    small = paddle.to_tensor([1.0, 2, 4, 0, 3, -1]).reshape([1, 6, 1])
    expected = [
        [1.0274897813796997, 1.3384571075439453, 2.9123709201812744, 4.614967346191406],
        [0.3564453125, 1.88916015625, 2.359375, 1.42822265625],
        [-0.3145987391471863, 2.4398632049560547, 1.806379795074463, -1.758520245552063],
    ]
    resized = resize_grid(small, (2, 3), (3, 4))
    assert resized.shape == [1, 12, 1]
    np.testing.assert_allclose(resized.numpy().reshape(3, 4), expected, rtol=1e-5)
    large = paddle.to_tensor([1.0, 2, 4, 8, 0, 3, -1, 5, 2, 2, 7, 1, 6, 0, 1, 3]).reshape([16, 1])
    expected = [
        [0.6719112992286682, 1.3115234375, 5.9639410972595215],
        [3.6498491764068604, 2.8134765625, 2.1402270793914795],
    ]
    resized = resize_grid(large, (4, 4), (2, 3))
    assert resized.shape == [6, 1]
    np.testing.assert_allclose(resized.numpy().reshape(2, 3), expected, rtol=1e-5)


def test_resize_in_time():
    # PyTorch's interpolate(mode="linear", align_corners=False).
    times = paddle.to_tensor([1.0, 3, 2, -2])
    for size, expected in (
        (2, [2.0, 0.0]),
        (3, [1.3333333730697632, 2.5, -1.333333969116211]),
        (8, [1.0, 1.5, 2.5, 2.75, 2.25, 1.0, -1.0, -2.0]),
    ):
        resized = resize_grid(times.reshape([1, 4, 1]), (4, 1, 1), (size, 1, 1))
        np.testing.assert_allclose(resized.numpy().flatten(), expected, rtol=1e-5, atol=1e-6)


def test_resize_in_both():
    """A product of a function of time, one of space and one of the channel is resized factor by factor."""
    times, places = paddle.to_tensor([1.0, 3, 2, -2]), draw(6)
    channels = paddle.to_tensor([1.0, -2, 0.5])
    grid = times.reshape([4, 1, 1]) * places.reshape([1, 6, 1]) * channels
    new_times = resize_grid(times.reshape([4, 1]), (4, 1, 1), (3, 1, 1)).reshape([3, 1, 1])
    new_places = resize_grid(places.reshape([6, 1]), (2, 3), (4, 4)).reshape([1, 16, 1])
    resized = resize_grid(grid.reshape([1, 24, 3]), (4, 2, 3), (3, 4, 4))
    expected = (new_times * new_places * channels).reshape([1, 48, 3])
    np.testing.assert_allclose(resized.numpy(), expected.numpy(), rtol=1e-4, atol=1e-6)
    same = grid.reshape([1, 24, 3])
    assert resize_grid(same, (4, 2, 3), [4, 2, 3]) is same


def test_resized_positions_learn():
    positions = draw(1, 4, 3)
    positions.stop_gradient = False
    resize_grid(positions, (2, 2), (3, 3)).sum().backward()
    assert positions.grad.sum().item() == pytest.approx(27.0, rel=1e-4)  # each of 9 x 3 weights sums to one


class Noisy(nn.Layer):
    """A block with everything that recomputation could get wrong: dropout, drop path, running statistics."""

    def __init__(self):
        super().__init__()
        self.block = Block(12, 3, attn_dropout=0.3, dropout=0.4, drop_path_rate=0.3)
        self.bn = nn.BatchNorm1D(12)

    def forward(self, x):
        return self.bn(self.block(x).flatten(0, 1)).reshape(x.shape)


@pytest.mark.parametrize("wants_gradient", [False, True])
def test_recomputation_is_the_same_block(wants_gradient):
    found = []
    for recompute in (False, True):
        paddle.seed(4)
        blocks = nn.LayerList([Noisy(), Noisy()])
        x = draw(4, 5, 12)
        x.stop_gradient = not wants_gradient
        paddle.seed(8)
        out = x
        for block in blocks:
            out = run_block(block, out, recompute=recompute)
        after = paddle.rand([3])
        out.backward(draw(4, 5, 12, seed=9))
        state = {key: value.numpy() for key, value in blocks.state_dict().items()}
        gradients = {f"{name}.grad": p.grad.numpy() for name, p in blocks.named_parameters() if not p.stop_gradient}
        assert all(np.abs(gradients[key]).max() > 0 for key in gradients if "qkv.bias" not in key)
        found.append({"out": out.numpy(), "after": after.numpy()} | state | gradients)
    for key in found[0]:
        np.testing.assert_allclose(found[0][key], found[1][key], rtol=1e-5, atol=1e-6, err_msg=key)
    assert np.abs(found[0]["0.bn._mean"]).max() > 0


def test_recomputation_is_for_training_alone():
    block, calls = nn.Linear(2, 2), []
    block.register_forward_pre_hook(lambda layer, args: calls.append(1))
    run_block(block, draw(3, 2), recompute=True).sum().backward()
    assert len(calls) == 2
    calls.clear()
    with paddle.no_grad():
        run_block(block, draw(3, 2), recompute=True)
    block.eval()
    run_block(block, draw(3, 2), recompute=True).sum().backward()
    assert len(calls) == 2
