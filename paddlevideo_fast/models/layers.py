"""Pieces that several models share: checks, folding of frames, convolutions, initialisation, recomputation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import paddle
from paddle import nn
from paddle.distributed.fleet.utils import recompute as recompute_call

from paddlevideo_fast.ops.norm import norm_momentum, resolve_sync_norm


def check_positive(**values: int) -> None:
    """Raise ValueError for the first of the named values that is below 1."""
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")


def check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    """Raise ValueError for a value of an argument that is none of the choices."""
    if value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"{name} is {value!r}; it must be {', '.join(others)} or {last}")


def check_dropout(dropout: float) -> None:
    """Raise ValueError for what is no probability."""
    if not 0 <= dropout <= 1:
        raise ValueError(f"dropout is {dropout}; it must be from 0 to 1")


def model_name(model: nn.Layer) -> str:
    """Return what a model is called in errors: the name it was created by, else that of its class."""
    return getattr(model, "name", type(model).__name__)


def check_clip(
    clip: paddle.Tensor, model: nn.Layer, num_frames: int | None = None, argument: str = "num_frames"
) -> None:
    """Check that a batch of clips has the layout that models take; while a graph is traced all is well.

    Args:
        clip: What was handed to the model.
        model: Named in the error.
        num_frames: Frames that a clip must have; None takes any number.
        argument: What the model calls that number, for the error.

    Raises:
        ValueError: If the shape is not [N, 3, num_frames, H, W].
        TypeError: If the values are not floating point.
    """
    if not paddle.in_dynamic_mode():
        return
    shape = list(clip.shape)
    expected = f"[N, 3, {num_frames or 'T'}, H, W]"
    if clip.ndim != 5 or shape[1] != 3 or num_frames not in (None, shape[2]):
        hint = _shape_hint(shape, num_frames, argument)
        raise ValueError(f"{model_name(model)} expects a clip of shape {expected}, got {shape}{hint}")
    if not paddle.is_floating_point(clip):
        raise TypeError(f"{model_name(model)} expects a normalised floating-point clip {expected}, got {clip.dtype}")


def _shape_hint(shape: list[int], num_frames: int | None, argument: str) -> str:
    if len(shape) == 4 and shape[1] == 3:
        return "; frames are not folded into the batch: keep time as the third dimension"
    if len(shape) == 5 and shape[2] == 3 and shape[1] != 3:
        return "; time comes after the channels: clip.transpose([0, 2, 1, 3, 4])"
    if len(shape) == 5 and shape[4] == 3:
        return "; channels come first: clip.transpose([0, 4, 1, 2, 3])"
    if len(shape) == 5 and shape[1] == 3 and num_frames is not None:
        return f"; {shape[2]} frames need {argument}={shape[2]} (or null, for any number)"
    return ""


def fold_frames(clip: paddle.Tensor) -> paddle.Tensor:
    """Fold the frames of clips into the batch, so that 2D layers see images.

    Args:
        clip: [N, C, T, H, W].

    Returns:
        [N * T, C, H, W], the frames of a clip next to one another.
    """
    # A stack of whole colour planes: three times as fast on the CPU as the transpose it equals.
    return paddle.stack(paddle.unbind(clip, axis=1), axis=2).flatten(0, 1)


def init_conv(conv: nn.Layer) -> None:
    """Fill a convolution with He's normal initialisation over the fan-out, and its bias with zeros.

    Args:
        conv: `nn.Conv2D` or `nn.Conv3D`; weight [out, in / groups, *kernel].

    Source: He et al., arXiv 1502.01852, section 2.2, backward case; what torchvision's ResNet does.
    """
    fan_out = conv.weight.shape[0] * math.prod(conv.weight.shape[2:])
    nn.initializer.Normal(0.0, math.sqrt(2.0 / fan_out))(conv.weight)
    if conv.bias is not None:
        nn.initializer.Constant(0.0)(conv.bias)


def init_fan_in(layer: nn.Layer) -> None:
    """Fill a convolution's or a linear layer's weight and bias as PyTorch does: uniformly within 1 / sqrt(fan-in)."""
    shape = layer.weight.shape  # [out, in, *kernel], or [in, out]
    bound = (shape[0] if isinstance(layer, nn.Linear) else math.prod(shape[1:])) ** -0.5
    for parameter in layer.parameters():
        nn.initializer.Uniform(-bound, bound)(parameter)


def conv2d(in_channels: int, out_channels: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Conv2D:
    """Return a convolution without bias that keeps the size at stride 1, He-initialised."""
    conv = nn.Conv2D(
        in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, groups=groups, bias_attr=False
    )
    init_conv(conv)
    return conv


def norm_path(norm: str) -> dict[str, str]:
    """Return what the batch normalisation resolved to, for `fast_paths`."""
    return {"norm": resolve_sync_norm()[1]} if norm == "sync" else {}


def scale_width(num_channels: int, width: float) -> int:
    """Multiply a layer's channels by the width of the model.

    Args:
        num_channels: Channels at width 1.
        width: Multiplier; the product must be a whole multiple of 8, so that every shift and split comes out even.

    Returns:
        The number of channels.

    Raises:
        ValueError: If the product is not a positive multiple of 8.
    """
    scaled = num_channels * width
    if scaled < 8 or scaled % 8:
        raise ValueError(
            f"width is {width}: {num_channels} channels would become {scaled:g}, not a positive multiple of 8; "
            f"take a multiple of {8 / num_channels:g}"
        )
    return int(scaled)


class DropPath(nn.Layer):
    """Leaves the residual branch of a sample out in training, and scales those that stay.

    Args:
        rate: Probability of leaving a branch out.

    Source: Huang et al., "Deep Networks with Stochastic Depth", arXiv 1603.09382, with the scale in training.
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"drop_path_rate is {rate}; it must be from 0 to below 1")
        self.rate = rate

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return x [N, ...] with whole samples zero."""
        if not self.rate or not self.training:
            return x
        keep = 1.0 - self.rate
        kept = paddle.bernoulli(paddle.full([x.shape[0]] + [1] * (x.ndim - 1), keep))
        return x * (kept / keep).astype(x.dtype)


def run_block(block: nn.Layer, *args: Any, recompute: bool = False) -> Any:
    """Run a block, keeping its inputs alone for the backward pass if asked, which then runs it once more.

    Values, gradients and running statistics are the same either way: the second run draws the same random numbers
    and leaves batch statistics alone.

    Args:
        block: A layer of a model.
        *args: Its arguments.
        recompute: Trade the time of a second forward pass for the memory of the block's inner results.

    Returns:
        What the block returns.

    Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174.
    """
    if not recompute or not block.training or not paddle.is_grad_enabled():
        return block(*args)
    runs = 0

    def run(*inputs: Any) -> Any:
        nonlocal runs
        runs += 1
        if runs == 1:
            return block(*inputs)
        with norm_momentum(block, 1.0):
            return block(*inputs)

    # Paddle's default (reentrant) gives no gradients of the weights where the input itself wants none.
    return recompute_call(run, *args, use_reentrant=False)
