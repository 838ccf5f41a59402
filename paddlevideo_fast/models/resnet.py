"""2D ResNet over folded frames, with torchvision's architecture and parameter names."""

from __future__ import annotations

from collections.abc import Callable

import paddle
from paddle import nn
from paddle.nn import functional as F

from paddlevideo_fast.arguments import lookup
from paddlevideo_fast.models.layers import init_conv, scale_width
from paddlevideo_fast.ops.norm import build_norm


def conv2d(in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> nn.Conv2D:
    """Return a convolution without bias that keeps the size at stride 1, He-initialised."""
    conv = nn.Conv2D(in_channels, out_channels, kernel, stride=stride, padding=kernel // 2, bias_attr=False)
    init_conv(conv)
    return conv


def downsample(in_channels: int, out_channels: int, stride: int, norm: str) -> nn.Sequential | None:
    """Return the projection of the identity branch, or None where the identity fits as it is."""
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(conv2d(in_channels, out_channels, 1, stride), build_norm(norm, out_channels, ndim=2))


class BasicBlock(nn.Layer):
    """Residual block of two 3x3 convolutions.

    Attributes:
        shift: Mixes the frames of the residual branch before its first convolution, as
            `shift(x [N * T, C, H, W], num_frames)`; None for an image network.

    Source: He et al., arXiv 1512.03385, figure 5 left.
    """

    expansion = 1

    def __init__(self, in_channels: int, channels: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv1 = conv2d(in_channels, channels, 3, stride)
        self.bn1 = build_norm(norm, channels, ndim=2)
        self.conv2 = conv2d(channels, channels, 3)
        self.bn2 = build_norm(norm, channels, ndim=2)
        self.downsample = downsample(in_channels, channels, stride, norm)
        self.shift: Callable[[paddle.Tensor, int], paddle.Tensor] | None = None

    @property
    def last_norm(self) -> nn.Layer:
        """The normalisation that closes the residual branch."""
        return self.bn2

    def forward(self, x: paddle.Tensor, num_frames: int) -> paddle.Tensor:
        """Return [N * T, channels, H / stride, W / stride] of x [N * T, in_channels, H, W]."""
        identity = x if self.downsample is None else self.downsample(x)
        out = x if self.shift is None else self.shift(x, num_frames)
        out = F.relu(self.bn1(self.conv1(out)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + identity)


class Bottleneck(nn.Layer):
    """Residual block of 1x1, 3x3 and 1x1 convolutions; the stride sits in the 3x3, as in torchvision.

    Attributes:
        shift: As in `BasicBlock`.

    Source: He et al., arXiv 1512.03385, figure 5 right.
    """

    expansion = 4

    def __init__(self, in_channels: int, channels: int, stride: int, norm: str) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        self.conv1 = conv2d(in_channels, channels, 1)
        self.bn1 = build_norm(norm, channels, ndim=2)
        self.conv2 = conv2d(channels, channels, 3, stride)
        self.bn2 = build_norm(norm, channels, ndim=2)
        self.conv3 = conv2d(channels, out_channels, 1)
        self.bn3 = build_norm(norm, out_channels, ndim=2)
        self.downsample = downsample(in_channels, out_channels, stride, norm)
        self.shift: Callable[[paddle.Tensor, int], paddle.Tensor] | None = None

    @property
    def last_norm(self) -> nn.Layer:
        """The normalisation that closes the residual branch."""
        return self.bn3

    def forward(self, x: paddle.Tensor, num_frames: int) -> paddle.Tensor:
        """Return [N * T, 4 * channels, H / stride, W / stride] of x [N * T, in_channels, H, W]."""
        identity = x if self.downsample is None else self.downsample(x)
        out = x if self.shift is None else self.shift(x, num_frames)
        out = F.relu(self.bn1(self.conv1(out)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return F.relu(out + identity)


DEPTHS = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
    101: (Bottleneck, (3, 4, 23, 3)),
}


class ResNet(nn.Layer):
    """ResNet without its classifier: frames in, feature maps of a 32nd of the size out.

    Args:
        depth: 18, 34, 50 or 101.
        width: Multiplier of all channels; 0.25 makes a ResNet-18 of 16, 32, 64 and 128.
        norm: Kind of batch normalisation, a name of `ops.norm.NORMS`.
        partial_bn: Freeze every batch normalisation except the first.
        zero_init_residual: Start the last normalisation of each residual branch at gamma 0, so that every block
            starts as the identity (Goyal et al., arXiv 1706.02677, section 5.1, for large batches).

    Attributes:
        out_channels: Channels of the feature map.
        stages: The four stages, each a sequence of blocks.

    Source: He et al., arXiv 1512.03385; names and strides as torchvision's `models/resnet.py` (v1.5).
    """

    def __init__(
        self,
        depth: int,
        *,
        width: float = 1.0,
        norm: str = "local",
        partial_bn: bool = False,
        zero_init_residual: bool = False,
    ) -> None:
        super().__init__()
        block, num_blocks = lookup(DEPTHS, depth, "ResNet depth")
        channels = [scale_width(64 * 2**stage, width) for stage in range(4)]
        self.conv1 = conv2d(3, channels[0], 7, stride=2)
        self.bn1 = build_norm(norm, channels[0], ndim=2)
        in_channels = channels[0]
        for stage, (out, count) in enumerate(zip(channels, num_blocks, strict=True)):
            blocks = []
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(in_channels, out, stride, "frozen" if partial_bn else norm))
                in_channels = out * block.expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.out_channels = in_channels
        if zero_init_residual:
            for stage in self.stages:
                for residual in stage:
                    nn.initializer.Constant(0.0)(residual.last_norm.weight)

    @property
    def stages(self) -> tuple[nn.Sequential, ...]:
        """The four stages from fine to coarse."""
        return self.layer1, self.layer2, self.layer3, self.layer4

    def forward(self, frames: paddle.Tensor, num_frames: int = 1) -> paddle.Tensor:
        """Compute feature maps.

        Args:
            frames: [N * num_frames, 3, H, W], the frames of a clip next to one another.
            num_frames: Frames of a clip, for blocks that mix them.

        Returns:
            [N * num_frames, out_channels, H / 32, W / 32], rounded up.
        """
        x = F.relu(self.bn1(self.conv1(frames)))
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
        for stage in self.stages:
            for block in stage:
                x = block(x, num_frames)
        return x
