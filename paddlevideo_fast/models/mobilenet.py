"""MobileNetV2 over folded frames, with torchvision's architecture and parameter names."""

from __future__ import annotations

from collections.abc import Callable

import paddle
from paddle import nn

from paddlevideo_fast.models.layers import conv2d, run_block
from paddlevideo_fast.ops.norm import build_norm

# expansion, channels, blocks, stride of the first
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
STEM_CHANNELS, LAST_CHANNELS = 32, 1280


def round_channels(channels: float) -> int:
    """Return the multiple of 8 nearest to a number of channels, but not less than 90 % of it.

    Source: torchvision's `models/_utils.py`, `_make_divisible`.
    """
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def conv_norm(
    in_channels: int, out_channels: int, kernel: int, stride: int, norm: str, *, groups: int = 1
) -> tuple[nn.Conv2D, nn.Layer]:
    """Return a convolution without bias, He-initialised, and its normalisation."""
    return conv2d(in_channels, out_channels, kernel, stride, groups), build_norm(norm, out_channels, ndim=2)


class InvertedResidual(nn.Layer):
    """Expand with 1x1, filter each channel with 3x3, project with 1x1 without activation; add where shapes agree.

    Attributes:
        residual: Whether the input is added.
        expands: Whether there is an expansion at all.
        shift: Mixes the frames of the branch before the expansion, as `shift(x [N * T, C, H, W], num_frames)`; None
            for an image network.

    Source: Sandler et al., arXiv 1801.04381, figure 4.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int, norm: str) -> None:
        super().__init__()
        hidden = in_channels * expansion
        self.in_channels = in_channels
        self.residual = stride == 1 and in_channels == out_channels
        self.expands = expansion != 1
        layers: list[nn.Layer] = []
        if self.expands:
            layers.append(nn.Sequential(*conv_norm(in_channels, hidden, 1, 1, norm), nn.ReLU6()))
        layers.append(nn.Sequential(*conv_norm(hidden, hidden, 3, stride, norm, groups=hidden), nn.ReLU6()))
        layers.extend(conv_norm(hidden, out_channels, 1, 1, norm))
        self.conv = nn.Sequential(*layers)
        self.shift: Callable[[paddle.Tensor, int], paddle.Tensor] | None = None

    def forward(self, x: paddle.Tensor, num_frames: int) -> paddle.Tensor:
        """Return [N * T, out_channels, H / stride, W / stride] of x [N * T, in_channels, H, W]."""
        out = self.conv(x if self.shift is None else self.shift(x, num_frames))
        return x + out if self.residual else out


class MobileNetV2(nn.Layer):
    """MobileNetV2 without its classifier: frames in, feature maps of a 32nd of the size out.

    Args:
        width: Multiplier of all channels, which are then rounded to multiples of 8; the last layer has at least 1280.
        norm: Kind of batch normalisation, a name of `ops.norm.NORMS`.
        partial_bn: Freeze every batch normalisation except the first.
        recompute: Run every block a second time in the backward pass instead of keeping its inner results.

    Attributes:
        out_channels: Channels of the feature map.
        blocks: The inverted residual blocks from fine to coarse.

    Raises:
        ValueError: If the width is not above 0.

    Source: Sandler et al., arXiv 1801.04381, table 2; names, rounding and initialisation as torchvision's
    `models/mobilenetv2.py`.
    """

    def __init__(
        self, *, width: float = 1.0, norm: str = "local", partial_bn: bool = False, recompute: bool = False
    ) -> None:
        super().__init__()
        if width <= 0:
            raise ValueError(f"width is {width}; it must be above 0")
        later = "frozen" if partial_bn else norm
        in_channels = round_channels(STEM_CHANNELS * width)
        features: list[nn.Layer] = [nn.Sequential(*conv_norm(3, in_channels, 3, 2, norm), nn.ReLU6())]
        for expansion, channels, count, first_stride in STAGES:
            out_channels = round_channels(channels * width)
            for index in range(count):
                stride = first_stride if index == 0 else 1
                features.append(InvertedResidual(in_channels, out_channels, stride, expansion, later))
                in_channels = out_channels
        self.out_channels, self.recompute = round_channels(LAST_CHANNELS * max(1.0, width)), recompute
        features.append(nn.Sequential(*conv_norm(in_channels, self.out_channels, 1, 1, later), nn.ReLU6()))
        self.features = nn.Sequential(*features)

    @property
    def blocks(self) -> list[InvertedResidual]:
        """The inverted residual blocks."""
        return [layer for layer in self.features if isinstance(layer, InvertedResidual)]

    def forward(self, frames: paddle.Tensor, num_frames: int = 1) -> paddle.Tensor:
        """Compute feature maps.

        Args:
            frames: [N * num_frames, 3, H, W], the frames of a clip next to one another.
            num_frames: Frames of a clip, for blocks that mix them.

        Returns:
            [N * num_frames, out_channels, H / 32, W / 32], rounded up.
        """
        x = self.features[0](frames)
        for block in self.blocks:
            x = run_block(block, x, num_frames, recompute=self.recompute)
        return self.features[-1](x)
