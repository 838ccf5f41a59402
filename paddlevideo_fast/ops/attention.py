"""Attention: Paddle's scaled dot-product attention, which takes FlashAttention where it can, beside plain products.

Both take queries, keys and values as [N, L, heads, head_dim] and the same masks, and give the same values and
gradients. Memory of the plain one grows with the product of the two lengths, that of FlashAttention with their sum.
"""

from __future__ import annotations

from collections.abc import Callable

import paddle
from paddle.nn import functional as F

Attention = Callable[..., paddle.Tensor]


def attention_reference(
    query: paddle.Tensor,
    key: paddle.Tensor,
    value: paddle.Tensor,
    mask: paddle.Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> paddle.Tensor:
    """Attend with two matrix products and a softmax, on any device.

    Args:
        query: Floating point [N, L, heads, head_dim].
        key: [N, S, heads, head_dim].
        value: [N, S, heads, head_dim].
        mask: Bool, True where a query may look, or what is added to the scores, floating point; broadcast to
            [N, heads, L, S]. None lets every query see every key.
        causal: Let position i see the keys up to i only; needs L == S and no mask.
        dropout: Probability of dropping a weight; give 0 in evaluation.

    Returns:
        [N, L, heads, head_dim], dtype of `query`; zero for a query that the mask lets see no key.

    Raises:
        ValueError: If `causal` is given with a mask or with L != S.

    Source: Vaswani et al., arXiv 1706.03762, equation 1.
    """
    _check(query, key, mask, causal)
    # Scaled before the product: in half precision the products of long vectors overflow otherwise.
    query = query.transpose([0, 2, 1, 3]) * (query.shape[-1] ** -0.5)
    scores = paddle.matmul(query, key.transpose([0, 2, 3, 1])).astype("float32")  # [N, heads, L, S]
    seen = None
    if causal:
        scores = scores + paddle.triu(paddle.full(scores.shape[-2:], lowest("float32")), 1)
    elif mask is not None:
        mask, seen = _additive(mask, "float32")
        scores = scores + mask
    weights = F.softmax(scores, axis=-1).astype(query.dtype)
    if dropout:
        weights = F.dropout(weights, dropout)
    out = paddle.matmul(weights, value.transpose([0, 2, 1, 3])).transpose([0, 2, 1, 3])
    return out if seen is None else out * seen.astype(out.dtype)


def attention_fast(
    query: paddle.Tensor,
    key: paddle.Tensor,
    value: paddle.Tensor,
    mask: paddle.Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> paddle.Tensor:
    """Attend with `paddle.nn.functional.scaled_dot_product_attention`; arguments and result as `attention_reference`.

    On a GPU of compute capability 8 or more it runs FlashAttention in half precision, if heads have at most 256
    channels, a multiple of 8; elsewhere plain products.

    Raises:
        ValueError: As `attention_reference`, and if the mask wants a gradient, which FlashAttention does not give.

    Source: Dao et al., arXiv 2205.14135.
    """
    _check(query, key, mask, causal)
    if mask is None:
        return F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal)
    if not mask.stop_gradient:
        raise ValueError("the mask wants a gradient, which FlashAttention does not give; impl='reference' does")
    mask, seen = _additive(mask, query.dtype)
    # The kernel takes a mask for every sample; it broadcasts over the heads alone.
    heads = mask.shape[-3] if mask.ndim > 2 else 1
    mask = mask.expand([query.shape[0], heads, query.shape[1], key.shape[1]])
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout)
    return out * seen.astype(out.dtype)


def lowest(dtype: str | paddle.dtype) -> float:
    """Return what stands for minus infinity in a mask: gives a weight of 0, but no NaN where every key is masked."""
    return paddle.finfo(dtype).min / 2


def resolve_attention(impl: str) -> tuple[Attention, str]:
    """Choose the attention for the current device, once, when a model is built.

    Args:
        impl: "fast" for Paddle's operator, "reference" for plain products, "auto" for the fast one on a GPU.

    Returns:
        The function, and a line for the log that names it and says why.

    Raises:
        ValueError: If `impl` is another word.
    """
    if impl not in ("auto", "fast", "reference"):
        raise ValueError(f"impl is {impl!r}; it must be 'auto', 'fast' or 'reference'")
    if impl == "reference":
        return attention_reference, "reference (matrix products), as asked"
    fast = "fast (paddle.nn.functional.scaled_dot_product_attention)"
    device = paddle.get_device().partition(":")[0]
    if device == "gpu":
        return attention_fast, f"{fast}, FlashAttention in half precision"
    if impl == "fast":
        return attention_fast, f"{fast}, as asked; on {device!r} it has plain products inside"
    return attention_reference, f"reference (matrix products): FlashAttention has no kernel on {device!r}"


def _additive(mask: paddle.Tensor, dtype: str | paddle.dtype) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Returns what a mask adds to the scores, finite, and which queries see a key, bool, broadcast to the output."""
    low = lowest(dtype)
    if mask.dtype == paddle.bool:
        seen, mask = mask, paddle.where(mask, paddle.zeros([1], dtype), paddle.full([1], low, dtype))
    else:
        mask = mask.clip(min=low).astype(dtype)
        seen = mask > low
    seen = seen.any(-1, keepdim=True)  # [..., heads, L, 1]
    return mask, seen.swapaxes(-3, -2) if seen.ndim > 2 else seen.unsqueeze(-1)


def _check(query: paddle.Tensor, key: paddle.Tensor, mask: paddle.Tensor | None, causal: bool) -> None:
    if causal and (mask is not None or query.shape[1] != key.shape[1]):
        got = f"{query.shape[1]} queries, {key.shape[1]} keys and {'no' if mask is None else 'a'} mask"
        raise ValueError(f"causal attention takes as many queries as keys and no mask; got {got}")
