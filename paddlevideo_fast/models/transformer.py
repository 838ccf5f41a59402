"""Pieces of the transformers: patch embedding, attention, feed-forward, residual block, positions.

Names of parameters are timm's (`attn.qkv`, `attn.proj`, `norm1`, `mlp.fc1` ...). Whatever `impl` a layer has, its
parameters are the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from paddlevideo_fast.models.layers import DropPath, check_choice, check_positive, init_fan_in
from paddlevideo_fast.ops.attention import resolve_attention

NORM_EPS = 1e-6  # of layer normalisations, as timm, VideoMAE and TimeSformer have it


def init_linear(layer: nn.Linear, std: float = 0.02) -> None:
    """Fill a linear layer's weight from a normal distribution cut at 2 and -2, as timm cuts it, its bias with zeros."""
    nn.initializer.TruncatedNormal(0.0, std)(layer.weight)
    if layer.bias is not None:
        nn.initializer.Constant(0.0)(layer.bias)


def resolve_patch_embed(impl: str) -> tuple[bool, str]:
    """Choose how patches become tokens on the current device.

    Args:
        impl: See `PatchEmbed`.

    Returns:
        Whether by a product, and a line for the log.

    Raises:
        ValueError: If `impl` is another word.
    """
    check_choice("impl", impl, ("auto", "fast", "reference"))
    device = paddle.get_device().partition(":")[0]
    if impl == "reference":
        return False, "reference (convolution), as asked"
    if impl == "auto" and device != "gpu":
        # Putting the pixels of a patch side by side takes longer there than the product saves.
        return False, f"reference (convolution): faster on {device!r}"
    return True, "product of flattened patches"


def patch_grid(num_frames: int, crop_size: int, tubelet_size: int, patch_size: int) -> tuple[int, int, int]:
    """Return the patches of a clip in time, height and width.

    Raises:
        ValueError: If a size is not a positive multiple of the patch's.
    """
    for what, size, name, side in (
        ("num_frames", num_frames, "tubelet_size", tubelet_size),
        ("crop_size", crop_size, "patch_size", patch_size),
    ):
        check_positive(**{name: side})
        if size < 1 or size % side:
            raise ValueError(f"{what} is {size}; it must be a positive multiple of {name}, {side}")
    return num_frames // tubelet_size, crop_size // patch_size, crop_size // patch_size


class PatchEmbed(nn.Layer):
    """Cuts a clip into patches of tubelet_size x patch_size x patch_size and projects each to a token.

    As a matrix product on the flattened patches ("fast"), or as the strided convolution it equals ("reference").

    Args:
        dim: Channels of a token.
        patch_size: Pixels of a side.
        tubelet_size: Frames of a patch.
        bias: Whether the projection has one.
        impl: "fast" takes the product, "reference" the convolution, "auto" the product on a GPU.

    Attributes:
        proj: Convolution whose parameters both ways use: weight [dim, 3, tubelet_size, patch_size, patch_size].
        resolved: Line for the log.

    Source: Dosovitskiy et al., arXiv 2010.11929, equation 1; as a product in AVION ("fast conv1", `transformer.py`).
    Initialisation: PyTorch's own, which timm, TimeSformer, VideoMAE and AVION leave.
    """

    def __init__(
        self, dim: int, *, patch_size: int = 16, tubelet_size: int = 1, bias: bool = True, impl: str = "auto"
    ) -> None:
        super().__init__()
        check_positive(embed_dim=dim)
        self.as_product, self.resolved = resolve_patch_embed(impl)
        self.kernel = (tubelet_size, patch_size, patch_size)
        self.proj = nn.Conv3D(3, dim, self.kernel, stride=self.kernel, bias_attr=None if bias else False)
        init_fan_in(self.proj)

    def forward(self, clip: paddle.Tensor) -> paddle.Tensor:
        """Return tokens [N, T / tubelet_size, H / patch_size, W / patch_size, dim] of a clip [N, 3, T, H, W].

        Raises:
            ValueError: If T, H or W is not a multiple of the patch.
        """
        if self.as_product:
            return self.project(self.cut(clip))
        self.grid(clip)
        return self.proj(clip).transpose([0, 2, 3, 4, 1])

    def grid(self, clip: paddle.Tensor) -> list[int]:
        """Return how many patches a clip [N, 3, T, H, W] has in time, height and width; raises as `forward`."""
        (t, h, w), (kt, kh, kw) = clip.shape[2:], self.kernel
        if paddle.in_dynamic_mode() and (t % kt or h % kh or w % kw):
            raise ValueError(
                f"a clip of {t} frames of {h}x{w} cannot be cut into patches of {kt} frames of {kh}x{kw}: "
                f"each must be a multiple"
            )
        return [t // kt, h // kh, w // kw]

    def cut(self, clip: paddle.Tensor) -> paddle.Tensor:
        """Return the values of the patches, [N, t, h, w, 3 * kt * kh * kw], of a clip [N, 3, T, H, W]."""
        (t, h, w), (kt, kh, kw) = self.grid(clip), self.kernel
        return clip.reshape([-1, 3, t, kt, h, kh, w, kw]).transpose([0, 2, 4, 6, 1, 3, 5, 7]).flatten(4)

    def project(self, patches: paddle.Tensor) -> paddle.Tensor:
        """Return tokens [..., dim] of the values of patches [..., 3 * kt * kh * kw]."""
        return F.linear(patches, self.proj.weight.flatten(1).t(), self.proj.bias)


def check_heads(dim: int, num_heads: int, name: str = "num_heads") -> None:
    """Raise ValueError for a number of heads, called `name`, that does not divide the channels of a token."""
    if num_heads < 1 or dim % num_heads:
        raise ValueError(f"{name} is {num_heads}; it must divide the {dim} channels of a token")


class SelfAttention(nn.Layer):
    """Multi-head attention of tokens to one another.

    Args:
        dim: Channels of a token.
        num_heads: Divides `dim`.
        qkv_bias: Whether the projection to queries, keys and values has a bias.
        attn_dropout: Probability of dropping an attention weight in training.
        dropout: Probability of dropping an output value in training.
        impl: See `ops.attention.resolve_attention`.

    Attributes:
        resolved: Line for the log.

    Source: Vaswani et al., arXiv 1706.03762, section 3.2; parameters as timm's `Attention`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        qkv_bias: bool = True,
        attn_dropout: float = 0.0,
        dropout: float = 0.0,
        impl: str = "auto",
    ) -> None:
        super().__init__()
        check_heads(dim, num_heads)
        self.num_heads, self.attn_dropout = num_heads, attn_dropout
        self.qkv = nn.Linear(dim, 3 * dim, bias_attr=None if qkv_bias else False)
        self.proj = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.qkv, self.proj):
            init_linear(layer)
        self.attend, self.resolved = resolve_attention(impl)

    def forward(self, x: paddle.Tensor, mask: paddle.Tensor | None = None, causal: bool = False) -> paddle.Tensor:
        """Return [N, L, dim] of x [N, L, dim]; mask and causal as `ops.attention.attention_reference`."""
        length, dim = x.shape[1:]
        query, key, value = self.qkv(x).reshape([-1, length, 3, self.num_heads, dim // self.num_heads]).unbind(2)
        dropout = self.attn_dropout if self.training else 0.0
        out = self.attend(query, key, value, mask=mask, causal=causal, dropout=dropout)
        return self.dropout(self.proj(out.reshape([-1, length, dim])))


class Mlp(nn.Layer):
    """Two linear layers with an activation between them.

    Args:
        dim: Channels of a token.
        hidden_dim: Channels between the layers.
        dropout: Probability of dropping a value after each layer in training.
        activation: Called on the hidden values; exact GELU by default.
    """

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        *,
        dropout: float = 0.0,
        activation: Callable[[paddle.Tensor], paddle.Tensor] = F.gelu,
    ) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden_dim), nn.Linear(hidden_dim, dim)
        self.dropout, self.activation = nn.Dropout(dropout), activation
        for layer in (self.fc1, self.fc2):
            init_linear(layer)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return [..., dim] of x [..., dim]."""
        return self.dropout(self.fc2(self.dropout(self.activation(self.fc1(x)))))


class Block(nn.Layer):
    """Residual block: normalise, attend, add; normalise, feed forward, add.

    Args:
        dim: Channels of a token.
        num_heads: Heads of attention.
        mlp_ratio: Hidden channels of the feed-forward part over `dim`.
        qkv_bias, attn_dropout, dropout, impl: As `SelfAttention`.
        drop_path_rate: Probability of leaving a sample's residual branch out in training.
        norm_eps: Epsilon of the layer normalisations.
        activation: As `Mlp`.

    Source: Dosovitskiy et al., arXiv 2010.11929, equations 2 and 3; names as timm's `Block`.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        attn_dropout: float = 0.0,
        dropout: float = 0.0,
        drop_path_rate: float = 0.0,
        norm_eps: float = NORM_EPS,
        activation: Callable[[paddle.Tensor], paddle.Tensor] = F.gelu,
        impl: str = "auto",
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, epsilon=norm_eps)
        self.attn = SelfAttention(
            dim, num_heads, qkv_bias=qkv_bias, attn_dropout=attn_dropout, dropout=dropout, impl=impl
        )
        self.norm2 = nn.LayerNorm(dim, epsilon=norm_eps)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), dropout=dropout, activation=activation)
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x: paddle.Tensor, mask: paddle.Tensor | None = None, causal: bool = False) -> paddle.Tensor:
        """Return [N, L, dim] of x [N, L, dim]; mask and causal as `SelfAttention.forward`."""
        x = x + self.drop_path(self.attn(self.norm1(x), mask, causal))
        return x + self.drop_path(self.mlp(self.norm2(x)))


def drop_path_rates(last: float, depth: int) -> list[float]:
    """Return the rate of each block, rising linearly from 0 to `last`."""
    return [float(rate) for rate in np.linspace(0.0, last, depth)]


def sinusoid_table(length: int, dim: int) -> np.ndarray:
    """Return fixed positions [length, dim], float32: sines in the even channels, cosines in the odd ones.

    Source: Vaswani et al., arXiv 1706.03762, section 3.5.
    """
    angles = np.arange(length)[:, None] / np.power(10000.0, 2 * (np.arange(dim) // 2) / dim)
    return np.where(np.arange(dim) % 2 == 0, np.sin(angles), np.cos(angles)).astype(np.float32)


def resize_grid(positions: paddle.Tensor, before: Sequence[int], after: Sequence[int]) -> paddle.Tensor:
    """Interpolate learned positions of a grid of patches to a grid of another size.

    Args:
        positions: [..., prod(before), dim] with one leading dimension or none.
        before: (h, w) or (t, h, w) of the grid the positions were made for.
        after: The grid wanted, as many numbers.

    Returns:
        [..., prod(after), dim]: bicubic in space, linear in time; the input itself where the grids are equal.
    """
    before, after = tuple(before), tuple(after)
    if before == after:
        return positions
    lead, dim = positions.shape[:-2], positions.shape[-1]
    frames = before[0] if len(before) == 3 else 1
    x = positions.reshape([frames, *before[-2:], dim]).transpose([0, 3, 1, 2])  # [t, dim, h, w]
    if before[-2:] != after[-2:]:
        x = F.interpolate(x, size=list(after[-2:]), mode="bicubic", align_corners=False)
    if len(before) == 3 and before[0] != after[0]:
        x = x.flatten(1).t().unsqueeze(0)  # [1, dim * h * w, t]
        x = F.interpolate(x, size=[after[0]], mode="linear", align_corners=False, data_format="NCW")
        x = x.squeeze(0).t().reshape([after[0], dim, *after[-2:]])
    return x.transpose([0, 2, 3, 1]).reshape([*lead, math.prod(after), dim])


def nearest(x: paddle.Tensor, axis: int, size: int) -> paddle.Tensor:
    """Resize one axis by taking, for each place of the new one, the nearest of the old below it.

    Args:
        x: Any shape.
        axis: The axis to resize.
        size: Its new length.

    Returns:
        x with `size` entries along `axis`; x itself where it has as many.

    Source: "nearest" of PyTorch's `interpolate`, by which facebookresearch/TimeSformer resizes its positions.
    """
    before = x.shape[axis]
    if before == size:
        return x
    return x.index_select(paddle.to_tensor([i * before // size for i in range(size)]), axis=axis)


def nearest_grid(positions: paddle.Tensor, before: Sequence[int], after: Sequence[int]) -> paddle.Tensor:
    """Return positions [1, prod(after), dim] of a grid (h, w), by `nearest` from [1, prod(before), dim] of another."""
    grid = positions.reshape([1, *before, positions.shape[-1]])
    return nearest(nearest(grid, 1, after[0]), 2, after[1]).flatten(1, 2)


class SinusoidPositions(nn.Layer):
    """Adds fixed positions to tokens, counted through time, height and width; none of it is in the state dict.

    Args:
        grid: Patches in time, height and width that the positions are counted over. Another grid takes positions
            interpolated from these, so that a place in the picture keeps its meaning while the clip's size changes.
        dim: Channels of a token.

    Source: VideoMAE, `get_sinusoid_encoding_table` in `modeling_finetune.py`. For another grid it is built anew there,
    as it is here for another `grid`.
    """

    def __init__(self, grid: tuple[int, int, int], dim: int) -> None:
        super().__init__()
        self.grid = grid
        table = paddle.to_tensor(sinusoid_table(math.prod(grid), dim)).unsqueeze(0)
        self.register_buffer("table", table, persistable=False)

    def forward(self, grid: Sequence[int]) -> paddle.Tensor:
        """Return positions [1, prod(grid), dim]."""
        return resize_grid(self.table, self.grid, grid)
