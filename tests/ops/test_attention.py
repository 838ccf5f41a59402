"""Attention: numbers by PyTorch and by hand, the fast one against the plain one, masks, dropout, half precision."""

from __future__ import annotations

import math

import numpy as np
import paddle
import pytest

from paddlevideo_fast.ops.attention import attention_fast, attention_reference, resolve_attention

BOTH = [attention_fast, attention_reference]


def heads(rows) -> paddle.Tensor:
    """Rows [L, head_dim] as one head of one sample."""
    return paddle.to_tensor(rows, dtype="float32").unsqueeze([0, 2])


QUERY, KEY, VALUE = [[1, 0], [0, 2]], [[1, 1], [0, -1], [2, 0]], [[1, 0], [0, 1], [5, 5]]


def draw(length=5, keys=7, dim=8, dtype="float32"):
    rng = np.random.default_rng(0)
    shapes = (3, length, 2, dim), (3, keys, 2, dim), (3, keys, 2, dim), (3, length, 2, dim)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def run(attend, arrays, **kwargs):
    """Output and the gradients of query, key and value."""
    *inputs, upstream = arrays
    inputs = [paddle.to_tensor(array, stop_gradient=False) for array in inputs]
    out = attend(*inputs, **kwargs)
    out.backward(paddle.to_tensor(upstream))
    return [out.numpy(), *(tensor.grad.numpy() for tensor in inputs)]


def by_hand(query, key, value, bias=0.0):
    """softmax(q k / sqrt(d) + bias) v, in double precision."""
    query, key, value = (array.astype("float64").transpose(0, 2, 1, 3) for array in (query, key, value))
    scores = query @ key.swapaxes(-1, -2) / math.sqrt(query.shape[-1]) + bias
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return (weights @ value).transpose(0, 2, 1, 3)


@pytest.mark.parametrize("attend", BOTH)
def test_pytorchs_numbers(attend):
    query, key, value = heads(QUERY), heads(KEY), heads(VALUE)
    expected = [[3.163872241973877, 3.0199060440063477], [1.701386570930481, 0.9788568615913391]]
    np.testing.assert_allclose(attend(query, key, value)[0, :, 0].numpy(), expected, rtol=1e-6)
    mask = paddle.to_tensor([[True, True, False], [False, True, True]])
    expected = [[0.6697615385055542, 0.3302384614944458], [4.022148609161377, 4.217719078063965]]
    np.testing.assert_allclose(attend(query, key, value, mask=mask)[0, :, 0].numpy(), expected, rtol=1e-6)
    expected = [[1.0, 0.0], [0.9441927671432495, 0.05580722168087959]]
    out = attend(query, key[:, :2], value[:, :2], causal=True)
    np.testing.assert_allclose(out[0, :, 0].numpy(), expected, rtol=1e-6, atol=1e-7)


MASKS = {
    "none": None,
    "bool": np.random.default_rng(1).random((3, 2, 5, 7)) < 0.6,
    "bool for all heads": np.random.default_rng(1).random((3, 1, 5, 7)) < 0.6,
    "bool for all samples": np.random.default_rng(1).random((5, 7)) < 0.6,
    "bool for heads": np.random.default_rng(1).random((2, 5, 7)) < 0.6,
    "keys": (np.arange(7) < np.array([7, 3, 1])[:, None])[:, None, None],
    "added": np.random.default_rng(1).standard_normal((3, 2, 5, 7)).astype("float32"),
    "added to all": np.random.default_rng(1).standard_normal((1, 2, 5, 7)).astype("float32"),
    "minus infinity": np.where(np.arange(35).reshape(1, 1, 5, 7) % 3 == 0, -np.inf, 0.5).astype("float32"),
}
for _mask in MASKS.values():
    if _mask is not None and _mask.dtype == bool:
        _mask[..., 0] = True  # every query sees a key; those that see none have their own test


@pytest.mark.parametrize("name", MASKS)
def test_fast_equals_reference_and_the_formula(name):
    arrays, mask = draw(), MASKS[name]
    bias = 0.0 if mask is None else np.where(mask, 0.0, -np.inf) if mask.dtype == bool else mask
    mask = None if mask is None else paddle.to_tensor(mask)
    fast, reference = (run(attend, arrays, mask=mask) for attend in BOTH)
    np.testing.assert_allclose(reference[0], by_hand(*arrays[:3], bias), rtol=1e-5, atol=1e-6)
    for left, right in zip(fast, reference, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


def test_causal():
    arrays = draw(keys=5)
    fast, reference = (run(attend, arrays, causal=True) for attend in BOTH)
    bias = np.where(np.tril(np.ones((5, 5), bool)), 0.0, -np.inf)
    np.testing.assert_allclose(reference[0], by_hand(*arrays[:3], bias), rtol=1e-5, atol=1e-6)
    for left, right in zip(fast, reference, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_the_formula():
    arrays = draw()
    gradients = run(attention_reference, arrays)[1:]
    rng = np.random.default_rng(7)
    for number, gradient in enumerate(gradients):
        step = rng.standard_normal(arrays[number].shape) * 1e-4
        ends = []
        for sign in (1, -1):
            moved = [array.astype("float64") for array in arrays[:3]]
            moved[number] = moved[number] + sign * step
            ends.append((by_hand(*moved) * arrays[3]).sum())
        assert (gradient * step).sum() == pytest.approx((ends[0] - ends[1]) / 2, rel=1e-4)


@pytest.mark.parametrize("attend", BOTH)
@pytest.mark.parametrize("kind", ["bool", "minus infinity", "rows for all"])
def test_a_query_that_sees_no_key_gives_zero(attend, kind):
    arrays = draw()
    mask = np.ones((3, 1, 5, 7), bool)
    mask[1, :, 2] = False
    if kind == "rows for all":
        mask = np.ones((5, 7), bool)
        mask[2] = False
    given = mask if kind != "minus infinity" else np.where(mask, 0.0, -np.inf).astype("float32")
    out, *gradients = run(attend, arrays, mask=paddle.to_tensor(given))
    sample = 1 if kind != "rows for all" else slice(None)
    assert not out[sample, 2].any() and not gradients[0][sample, 2].any()
    plain = run(attend, arrays)[0]
    out[sample, 2], plain[sample, 2] = 0, 0
    np.testing.assert_allclose(out, plain, rtol=1e-5, atol=1e-6)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("attend", BOTH)
def test_dropout_keeps_the_mean(attend):
    paddle.seed(3)
    length, share = 64, 0.25
    query = paddle.zeros([4, length, 2, 8])  # every key has the weight 1 / length
    value = paddle.eye(length).unsqueeze([0, 2]).expand([4, length, 2, length])
    weights = attend(query, query, value, dropout=share).numpy()
    kept = weights != 0
    assert kept.mean() == pytest.approx(1 - share, abs=0.01)
    np.testing.assert_allclose(weights[kept], 1 / length / (1 - share), rtol=1e-5)
    other = attend(query, query, value, dropout=share).numpy()
    assert (other != weights).any()
    paddle.seed(3)
    np.testing.assert_array_equal(attend(query, query, value, dropout=share).numpy(), weights)


def test_dropout_is_the_same_draw_on_the_cpu():
    if paddle.get_device() != "cpu":
        pytest.skip("FlashAttention draws inside its kernel")
    found = []
    for attend in BOTH:
        paddle.seed(3)
        found.append(run(attend, draw(), dropout=0.3))
    for left, right in zip(*found, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("attend", BOTH)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(attend, dtype):
    arrays = draw()
    mask = paddle.to_tensor(MASKS["bool"])
    inputs = [paddle.to_tensor(array).astype(dtype) for array in arrays[:3]]
    exact = by_hand(*(tensor.astype("float32").numpy() for tensor in inputs), np.where(MASKS["bool"], 0.0, -np.inf))
    try:
        out = attend(*inputs, mask=mask)
    except (RuntimeError, NotImplementedError) as error:
        if paddle.get_device() != "cpu":
            raise
        pytest.skip(f"the CPU lacks a kernel in {dtype}: {str(error).splitlines()[-1][:120]}")
    assert str(out.dtype) == f"paddle.{dtype}"
    np.testing.assert_allclose(out.astype("float32").numpy(), exact, atol=4e-3 if dtype == "float16" else 3e-2)


def test_scores_of_large_values_stay_finite():
    """A product of 64 channels of 40 is 102 400, above what float16 holds; after scaling it is 12 800."""
    big = np.full((1, 4, 1, 64), 40.0, "float32")
    for dtype in ("float16", "float32"):
        try:
            out = attention_reference(*[paddle.to_tensor(big).astype(dtype)] * 3)
        except RuntimeError as error:
            if paddle.get_device() != "cpu" or dtype == "float32":
                raise
            pytest.skip(f"the CPU lacks a kernel in {dtype}: {str(error).splitlines()[-1][:120]}")
        np.testing.assert_array_equal(out.astype("float32").numpy(), big)


def test_a_mask_that_learns():
    arrays, bias = draw(), np.random.default_rng(1).standard_normal((1, 2, 5, 7)).astype("float32")
    mask = paddle.to_tensor(bias, stop_gradient=False)
    run(attention_reference, arrays, mask=mask)
    step = np.random.default_rng(7).standard_normal(bias.shape) * 1e-4
    ends = [(by_hand(*arrays[:3], bias + sign * step) * arrays[3]).sum() for sign in (1, -1)]
    assert (mask.grad.numpy() * step).sum() == pytest.approx((ends[0] - ends[1]) / 2, rel=1e-4)
    with pytest.raises(ValueError, match="the mask wants a gradient, .* impl='reference' does"):
        run(attention_fast, arrays, mask=mask)


@pytest.mark.parametrize("attend", BOTH)
def test_causal_alone(attend):
    query, key = paddle.zeros([1, 3, 1, 4]), paddle.zeros([1, 2, 1, 4])
    with pytest.raises(ValueError, match="got 3 queries, 2 keys and no mask"):
        attend(query, key, key, causal=True)
    with pytest.raises(ValueError, match="got 3 queries, 3 keys and a mask"):
        attend(query, query, query, mask=paddle.ones([3, 3], dtype="bool"), causal=True)


def test_resolution():
    assert resolve_attention("reference")[0] is attention_reference
    assert resolve_attention("fast")[0] is attention_fast
    if paddle.get_device() == "cpu":
        function, line = resolve_attention("auto")
        assert function is attention_reference and line.endswith("FlashAttention has no kernel on 'cpu'")
        assert "on 'cpu' it has plain products inside" in resolve_attention("fast")[1]
    with pytest.raises(ValueError, match="impl is 'flash'; it must be 'auto', 'fast' or 'reference'"):
        resolve_attention("flash")
