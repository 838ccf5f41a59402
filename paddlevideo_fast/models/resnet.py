"""2D ResNet over folded frames: torchvision's, and the "D" variant; parameter names of torchvision and timm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import paddle
from paddle import nn
from paddle.nn import functional as F

from paddlevideo_fast.arguments import lookup
from paddlevideo_fast.models.layers import check_choice, conv2d, run_block, scale_width
from paddlevideo_fast.models.nonlocal_block import NonLocalBlock
from paddlevideo_fast.ops.norm import build_norm

Activation = Callable[[paddle.Tensor], paddle.Tensor]


def downsample(in_channels: int, out_channels: int, stride: int, norm: str) -> nn.Sequential | None:
    """Return the projection of the identity branch, or None where the identity fits as it is."""
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(conv2d(in_channels, out_channels, 1, stride), build_norm(norm, out_channels, ndim=2))


def pooled_downsample(in_channels: int, out_channels: int, stride: int, norm: str) -> nn.Sequential | None:
    """Return a projection that averages before it, instead of leaving three of four positions out, or None.

    Source: He et al., arXiv 1812.01187, section 4.2 ("ResNet-D").
    """
    if stride == 1 and in_channels == out_channels:
        return None
    pool = nn.Identity() if stride == 1 else nn.AvgPool2D(2, stride, ceil_mode=True)
    return nn.Sequential(pool, conv2d(in_channels, out_channels, 1), build_norm(norm, out_channels, ndim=2))


class Activate(nn.Layer):
    """An activation as a layer of a sequence."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return the activation of x."""
        return self.activation(x)


def deep_stem(channels: int, norm: str, activation: Activation) -> nn.Sequential:
    """Return three 3x3 convolutions in place of one of 7x7, the last without its normalisation.

    Source: He et al., arXiv 1812.01187, section 4.2 ("ResNet-C").
    """
    half = channels // 2
    return nn.Sequential(
        conv2d(3, half, 3, stride=2),
        build_norm(norm, half, ndim=2),
        Activate(activation),
        conv2d(half, half, 3),
        build_norm(norm, half, ndim=2),
        Activate(activation),
        conv2d(half, channels, 3),
    )


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
        self.in_channels = in_channels
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
        nl: Lets all positions of a clip see one another after the block; None for most.

    Source: He et al., arXiv 1512.03385, figure 5 right.
    """

    expansion = 4

    def __init__(
        self,
        in_channels: int,
        channels: int,
        stride: int,
        norm: str,
        *,
        make_downsample: Callable[[int, int, int, str], nn.Sequential | None] = downsample,
        activation: Activation = F.relu,
    ) -> None:
        super().__init__()
        out_channels = channels * self.expansion
        self.in_channels = in_channels
        self.conv1 = conv2d(in_channels, channels, 1)
        self.bn1 = build_norm(norm, channels, ndim=2)
        self.conv2 = conv2d(channels, channels, 3, stride)
        self.bn2 = build_norm(norm, channels, ndim=2)
        self.conv3 = conv2d(channels, out_channels, 1)
        self.bn3 = build_norm(norm, out_channels, ndim=2)
        self.downsample = make_downsample(in_channels, out_channels, stride, norm)
        self.activation = activation
        self.shift: Callable[[paddle.Tensor, int], paddle.Tensor] | None = None
        self.nl: NonLocalBlock | None = None

    @property
    def last_norm(self) -> nn.Layer:
        """The normalisation that closes the residual branch."""
        return self.bn3

    def forward(self, x: paddle.Tensor, num_frames: int) -> paddle.Tensor:
        """Return [N * T, 4 * channels, H / stride, W / stride] of x [N * T, in_channels, H, W]."""
        identity = x if self.downsample is None else self.downsample(x)
        out = x if self.shift is None else self.shift(x, num_frames)
        out = self.activation(self.bn1(self.conv1(out)))
        out = self.activation(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out = self.activation(out + identity)
        return out if self.nl is None else _on_clips(self.nl, out, num_frames)


def _on_clips(layer: nn.Layer, x: paddle.Tensor, num_frames: int) -> paddle.Tensor:
    """Run a layer that takes [N, C, T, H, W] on frames [N * T, C, H, W]."""
    clips = paddle.unflatten(x, 0, [-1, num_frames]).transpose([0, 2, 1, 3, 4])
    return layer(clips).transpose([0, 2, 1, 3, 4]).flatten(0, 1)


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
        partial_bn: Freeze every batch normalisation except the stem's.
        zero_init_residual: Start the last normalisation of each residual branch at gamma 0, so that every block
            starts as the identity (Goyal et al., arXiv 1706.02677, section 5.1, for large batches).
        recompute: Run every block a second time in the backward pass instead of keeping its inner results.
        variant: "B" (torchvision's), or "D" for a stem of three 3x3 convolutions and averaging before the projection
            of the identity; from depth 50 on.
        activation: Of the D variant; follows every normalisation but the last of a branch, and the sum.

    Attributes:
        out_channels: Channels of the feature map.
        stages: The four stages, each a sequence of blocks.

    Source: He et al., arXiv 1512.03385; names and strides as torchvision's `models/resnet.py` (v1.5). Variant D: He et
    al., "Bag of Tricks", arXiv 1812.01187, section 4.2; names as timm's `resnet50d`.
    """

    def __init__(
        self,
        depth: int,
        *,
        width: float = 1.0,
        norm: str = "local",
        partial_bn: bool = False,
        zero_init_residual: bool = False,
        recompute: bool = False,
        variant: str = "B",
        activation: Activation = F.relu,
    ) -> None:
        super().__init__()
        block, num_blocks = lookup(DEPTHS, depth, "ResNet depth")
        check_choice("variant", variant, ("B", "D"))
        if variant == "D":
            if block is not Bottleneck:
                raise ValueError(f"depth is {depth}; variant D exists from depth 50 on")
            block = partial(Bottleneck, make_downsample=pooled_downsample, activation=activation)
        channels = [scale_width(64 * 2**stage, width) for stage in range(4)]
        expansion = DEPTHS[depth][0].expansion
        self.conv1 = conv2d(3, channels[0], 7, stride=2) if variant == "B" else deep_stem(channels[0], norm, activation)
        self.bn1 = build_norm(norm, channels[0], ndim=2)
        in_channels = channels[0]
        for stage, (out, count) in enumerate(zip(channels, num_blocks, strict=True)):
            blocks = []
            for index in range(count):
                stride = 2 if stage > 0 and index == 0 else 1
                blocks.append(block(in_channels, out, stride, "frozen" if partial_bn else norm))
                in_channels = out * expansion
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.out_channels, self.recompute = in_channels, recompute
        self.variant, self.activation = variant, activation
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
        x = self.activation(self.bn1(self.conv1(frames)))
        x = F.max_pool2d(x, kernel_size=3, stride=2, padding=1)
        for stage in self.stages:
            for block in stage:
                x = run_block(block, x, num_frames, recompute=self.recompute)
        return x
