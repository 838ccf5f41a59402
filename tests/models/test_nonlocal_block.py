"""The non-local block: values and gradients of PySlowFast and mit-han-lab, its start as the identity, errors."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import golden, named_clip, named_weight

from paddlevideo_fast.models.nonlocal_block import NonLocalBlock
from paddlevideo_fast.ops.attention import attention_fast, attention_reference

GOLDEN = golden("nonlocal")


# mit-han-lab's names of the layers
MIT = {"g.0": "conv_g", "phi.0": "conv_phi", "theta": "conv_theta", "W.0": "conv_out", "W.1": "bn"}


def filled(name: str, **kwargs) -> NonLocalBlock:
    block = NonLocalBlock(GOLDEN["shape"][1], GOLDEN["inner"], **kwargs)
    state = {}
    for key, shape in GOLDEN[name]["keys"].items():
        layer, _, kind = key.rpartition(".")
        kind = {"running_mean": "_mean", "running_var": "_variance"}.get(kind, kind)
        state[f"{MIT.get(layer, layer)}.{kind}"] = named_weight(f"{name}.{key}", tuple(shape))
    missing, unexpected = block.set_state_dict(state)
    assert not missing and not unexpected
    return block


@pytest.mark.parametrize("impl", ["fast", "reference"])
@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("softmax2", {}),
        ("softmax1", {"pool": (1, 1, 1)}),
        ("dot_product2", {"instantiation": "dot_product"}),
        ("dot_product1", {"instantiation": "dot_product", "pool": (1, 1, 1)}),
        ("mit", {"pool_first": False, "scaled": False}),
    ],
)
def test_values_and_gradients_equal_the_originals(name, kwargs, impl):
    block = filled(name, impl=impl, **kwargs)
    block.eval()
    x = paddle.to_tensor(named_clip(name, GOLDEN["shape"]), stop_gradient=False)
    out = block(x)
    (out * out).sum().backward()
    for found, expected in ((out, GOLDEN[name]["out"]), (x.grad, GOLDEN[name]["grad"])):
        found = found[0, :4].sum(1).flatten().numpy()
        assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_options_show_in_the_values():
    """The golden numbers would tell the variants from one another."""
    x = paddle.to_tensor(named_clip("mit", GOLDEN["shape"]))
    outs = []
    for kwargs in ({}, {"pool_first": False}, {"scaled": False}, {"instantiation": "dot_product"}):
        block = filled("mit", **kwargs)
        block.eval()
        outs.append(block(x).numpy())
    for i, first in enumerate(outs):
        for second in outs[i + 1 :]:
            assert np.abs(first - second).max() > 1e-2


def test_starts_as_the_identity_and_learns():
    paddle.seed(0)
    block = NonLocalBlock(16, 8)
    x = paddle.randn([2, 16, 4, 6, 6])
    np.testing.assert_array_equal(block(x).numpy(), x.numpy())
    block(x).square().sum().backward()
    assert block.bn.weight.grad.abs().max().item() > 0
    assert np.abs(NonLocalBlock(16, 8, zero_init=False)(x).numpy() - x.numpy()).max() > 0.1


def test_half_of_the_channels_of_a_resnet_stage():
    block = NonLocalBlock(512, 256)
    # three projections to 256 and one back, each with a bias, and gamma and beta
    expected = 3 * (512 * 256 + 256) + 256 * 512 + 512 + 2 * 512
    assert sum(p.size for p in block.parameters() if not p.stop_gradient) == expected
    # He over the fan-out of a 1x1x1 kernel
    assert block.conv_theta.weight.numpy().std() == pytest.approx((2 / 256) ** 0.5, rel=0.02)
    assert not block.conv_theta.bias.numpy().any()


def test_what_it_resolves_to():
    assert NonLocalBlock(8, 4, impl="reference").attend is attention_reference
    assert NonLocalBlock(8, 4, impl="fast").attend is attention_fast
    assert "FlashAttention takes up to 256 channels, not 512" in NonLocalBlock(8, 512).resolved
    assert "dot product" in NonLocalBlock(8, 4, instantiation="dot_product").resolved


def test_wrong_arguments():
    with pytest.raises(ValueError, match="instantiation is 'gaussian'; it must be 'softmax' or 'dot_product'"):
        NonLocalBlock(8, 4, instantiation="gaussian")
    with pytest.raises(ValueError, match=r"pool is \(1, 0, 2\)"):
        NonLocalBlock(8, 4, pool=(1, 0, 2))
