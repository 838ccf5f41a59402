"""Pieces that several models share: the look at the input, folding of frames, initialisation, heads, recomputation."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import paddle
from paddle import nn
from paddle.distributed.fleet.utils import recompute as recompute_call


def check_clip(clip: paddle.Tensor, model: str, num_frames: int | None, argument: str = "num_frames") -> None:
    """Check that a batch of clips has the layout that models take.

    Args:
        clip: What was handed to the model.
        model: Name of the model, for the error.
        num_frames: Frames that a clip must have; None takes any number.
        argument: What the model calls that number, for the error.

    Raises:
        ValueError: If the shape is not [N, 3, num_frames, H, W].
        TypeError: If the values are not floating point.
    """
    shape = list(clip.shape)
    expected = f"[N, 3, {num_frames or 'T'}, H, W]"
    if clip.ndim != 5 or shape[1] != 3 or num_frames not in (None, shape[2]):
        raise ValueError(
            f"{model} expects a clip of shape {expected}, got {shape}{_shape_hint(shape, num_frames, argument)}"
        )
    if not paddle.is_floating_point(clip):
        raise TypeError(f"{model} expects a normalised floating-point clip {expected}, got dtype {clip.dtype}")


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


class SegmentHead(nn.Layer):
    """Classify every frame by itself and average the logits over the frames of a clip.

    Args:
        in_channels: Channels of the feature map.
        num_classes: Number of logits.
        dropout: Probability of dropping a pooled feature in training.
        std: Standard deviation that the weight starts with; the bias starts at 0.

    Source: Wang et al., "Temporal Segment Networks", arXiv 1608.00859 (consensus by averaging); initialisation as
    mit-han-lab's `ops/models.py`. Heads that average the features of the frames, after dropout, and classify once
    (PaddleVideo's ppTSM) are the same function, since the classifier is linear.
    """

    def __init__(self, in_channels: int, num_classes: int, dropout: float, std: float = 0.001) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(
            in_channels,
            num_classes,
            weight_attr=paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, std)),
            bias_attr=paddle.ParamAttr(initializer=nn.initializer.Constant(0.0)),
        )

    def forward(self, features: paddle.Tensor, num_frames: int) -> paddle.Tensor:
        """Return logits [N, num_classes] of features [N * num_frames, C, h, w]."""
        pooled = features.mean(axis=[2, 3])  # [N * T, C]
        logits = self.fc(self.dropout(pooled))
        return logits.reshape([-1, num_frames, logits.shape[-1]]).mean(axis=1)


class DropPath(nn.Layer):
    """Leaves the residual branch of a sample out in training, and scales those that stay.

    Args:
        rate: Probability of leaving a branch out.

    Source: Huang et al., "Deep Networks with Stochastic Depth", arXiv 1603.09382, with the scale in training.
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"the drop path rate is {rate}; it must be from 0 to below 1")
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
        with _statistics_kept(block):
            return block(*inputs)

    # Paddle's default (reentrant) gives no gradients of the weights where the input itself wants none.
    return recompute_call(run, *args, use_reentrant=False)


@contextlib.contextmanager
def _statistics_kept(block: nn.Layer) -> Iterator[None]:
    norms = [layer for layer in block.sublayers(include_self=True) if hasattr(layer, "_momentum")]
    momenta = [layer._momentum for layer in norms]
    try:
        for layer in norms:
            layer._momentum = 1.0
        yield
    finally:
        for layer, momentum in zip(norms, momenta, strict=True):
            layer._momentum = momentum
