"""Non-local block: every position of a feature map looks at every other one, in space and time."""

from __future__ import annotations

import math

import paddle
from paddle import nn
from paddle.nn import functional as F

from paddlevideo_fast.models.layers import check_choice, check_positive, init_conv
from paddlevideo_fast.ops.attention import attention_reference, resolve_attention
from paddlevideo_fast.ops.norm import build_norm

MAX_FAST_CHANNELS = 256  # what FlashAttention takes for one head


class NonLocalBlock(nn.Layer):
    """Adds to each position a weighted sum over all positions, through a normalisation that starts at zero.

    Args:
        in_channels: Channels of the feature map.
        inner_channels: Channels of queries, keys and values; half of `in_channels` in the paper.
        instantiation: "softmax" (embedded Gaussian) or "dot_product" (products divided by the number of positions).
        pool: Kernel and stride (t, h, w) of the max-pooling that leaves fewer keys and values; (1, 1, 1) for none.
        pool_first: Pool the input before the projections to keys and values, as PySlowFast does; False pools the
            projected keys and values, as mit-han-lab does.
        scaled: Whether the products of "softmax" are multiplied by inner_channels ** -0.5, as in PySlowFast;
            "dot_product" knows no scale.
        zero_init: Start gamma of the normalisation at 0, so that the block starts as the identity.
        norm: Kind of batch normalisation, a name of `ops.norm.NORMS`.
        impl: Of the attention that "softmax" is: see `ops.attention.resolve_attention`.

    Attributes:
        resolved: Line for the log: what the attention resolved to.

    Raises:
        ValueError: If an argument is out of range.

    Source: Wang et al., "Non-local Neural Networks", arXiv 1711.07971, sections 3.2 and 3.3; names and initialisation
    as PySlowFast's `nonlocal_helper.py`.
    """

    def __init__(
        self,
        in_channels: int,
        inner_channels: int,
        *,
        instantiation: str = "softmax",
        pool: tuple[int, int, int] = (1, 2, 2),
        pool_first: bool = True,
        scaled: bool = True,
        zero_init: bool = True,
        norm: str = "local",
        impl: str = "auto",
    ) -> None:
        super().__init__()
        check_choice("instantiation", instantiation, ("softmax", "dot_product"))
        check_positive(in_channels=in_channels, inner_channels=inner_channels)
        if len(pool) != 3 or min(pool) < 1:
            raise ValueError(f"pool is {pool}; it must be three numbers of at least 1")
        self.inner_channels, self.pool, self.pool_first = inner_channels, tuple(pool), pool_first
        self.conv_theta = _pointwise(in_channels, inner_channels)
        self.conv_phi = _pointwise(in_channels, inner_channels)
        self.conv_g = _pointwise(in_channels, inner_channels)
        self.conv_out = _pointwise(inner_channels, in_channels)
        self.bn = build_norm(norm, in_channels, ndim=3)
        if zero_init:
            nn.initializer.Constant(0.0)(self.bn.weight)
        self.instantiation = instantiation
        self.query_scale = 1.0 if scaled else math.sqrt(inner_channels)  # takes the scale of the attention back
        self.attend, self.resolved = resolve_attention(impl)
        if instantiation == "dot_product":
            self.resolved = "matrix products: a dot product without softmax has no fast kernel"
        elif impl == "auto" and inner_channels > MAX_FAST_CHANNELS:
            self.attend = attention_reference
            self.resolved = (
                f"reference (matrix products): FlashAttention takes up to {MAX_FAST_CHANNELS} channels, "
                f"not {inner_channels}"
            )

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return [N, in_channels, T, H, W] of x [N, in_channels, T, H, W]."""
        seen = self._pooled(x) if self.pool_first else x
        phi, g = self.conv_phi(seen), self.conv_g(seen)
        if not self.pool_first:
            phi, g = self._pooled(phi), self._pooled(g)
        query, key, value = (_as_tokens(part) for part in (self.conv_theta(x), phi, g))  # [N, positions, 1, inner]
        if self.instantiation == "softmax":
            query = query if self.query_scale == 1.0 else query * self.query_scale
            out = self.attend(query, key, value).squeeze(2)
        else:
            # Divided first, so that sums over thousands of positions stay in the range of half precision.
            weights = paddle.matmul(query.squeeze(2) / key.shape[1], key.squeeze(2), transpose_y=True)
            out = paddle.matmul(weights, value.squeeze(2))
        out = out.transpose([0, 2, 1]).reshape([-1, self.inner_channels, *x.shape[2:]])
        return x + self.bn(self.conv_out(out))

    def _pooled(self, x: paddle.Tensor) -> paddle.Tensor:
        if self.pool == (1, 1, 1):
            return x
        return F.max_pool3d(x, kernel_size=list(self.pool), stride=list(self.pool))


def _pointwise(in_channels: int, out_channels: int) -> nn.Conv3D:
    conv = nn.Conv3D(in_channels, out_channels, 1)
    init_conv(conv)
    return conv


def _as_tokens(x: paddle.Tensor) -> paddle.Tensor:
    """Return [N, T * H * W, 1, C] of x [N, C, T, H, W]: one head of attention."""
    return x.flatten(2).transpose([0, 2, 1]).unsqueeze(2)
