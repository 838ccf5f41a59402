"""Pieces that several models share: the look at the input, folding of frames, initialisation, the segment head."""

from __future__ import annotations

import math

import paddle
from paddle import nn


def check_clip(clip: paddle.Tensor, model: str, num_frames: int | None) -> None:
    """Check that a batch of clips has the layout that models take.

    Args:
        clip: What was handed to the model.
        model: Name of the model, for the error.
        num_frames: Frames that a clip must have; None takes any number.

    Raises:
        ValueError: If the shape is not [N, 3, num_frames, H, W].
        TypeError: If the values are not floating point.
    """
    shape = list(clip.shape)
    expected = f"[N, 3, {num_frames or 'T'}, H, W]"
    if clip.ndim != 5 or shape[1] != 3 or num_frames not in (None, shape[2]):
        raise ValueError(f"{model} expects a clip of shape {expected}, got {shape}{_shape_hint(shape, num_frames)}")
    if not paddle.is_floating_point(clip):
        raise TypeError(f"{model} expects a normalised floating-point clip {expected}, got dtype {clip.dtype}")


def _shape_hint(shape: list[int], num_frames: int | None) -> str:
    if len(shape) == 4 and shape[1] == 3:
        return "; frames are not folded into the batch: keep time as the third dimension"
    if len(shape) == 5 and shape[2] == 3 and shape[1] != 3:
        return "; time comes after the channels: clip.transpose([0, 2, 1, 3, 4])"
    if len(shape) == 5 and shape[4] == 3:
        return "; channels come first: clip.transpose([0, 4, 1, 2, 3])"
    if len(shape) == 5 and shape[1] == 3 and num_frames is not None:
        return f"; {shape[2]} frames need num_segments={shape[2]} (or null, for any number)"
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

    Source: Wang et al., "Temporal Segment Networks", arXiv 1608.00859 (consensus by averaging); initialisation as
    mit-han-lab's `ops/models.py`: normal with standard deviation 0.001, bias 0.
    """

    def __init__(self, in_channels: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(
            in_channels,
            num_classes,
            weight_attr=paddle.ParamAttr(initializer=nn.initializer.Normal(0.0, 0.001)),
            bias_attr=paddle.ParamAttr(initializer=nn.initializer.Constant(0.0)),
        )

    def forward(self, features: paddle.Tensor, num_frames: int) -> paddle.Tensor:
        """Return logits [N, num_classes] of features [N * num_frames, C, h, w]."""
        pooled = features.mean(axis=[2, 3])  # [N * T, C]
        logits = self.fc(self.dropout(pooled))
        return logits.reshape([-1, num_frames, logits.shape[-1]]).mean(axis=1)
