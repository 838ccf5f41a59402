"""3D ResNet-50 and 101: one pathway over space and time, and the I3D and Slow networks made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import paddle
from paddle import nn
from paddle.nn import functional as F

from paddlevideo_fast.arguments import lookup
from paddlevideo_fast.models.heads import PathwayHead
from paddlevideo_fast.models.layers import check_clip, init_conv, model_name, norm_path, run_block, scale_width
from paddlevideo_fast.models.nonlocal_block import NonLocalBlock
from paddlevideo_fast.models.resnet import DEPTHS as DEPTHS_2D
from paddlevideo_fast.ops.norm import build_norm

DEPTHS = {depth: DEPTHS_2D[depth][1] for depth in (50, 101)}  # blocks of the stages
EXPANSION = 4  # of a bottleneck


@dataclass(frozen=True)
class Design:
    """What makes a 3D network of a ResNet over space.

    Attributes:
        stem: Temporal length of the first kernel of the network.
        stages: For each stage the temporal lengths of its blocks' kernels, repeated over the blocks.
        kernel: Which kernel of a block is meant: "1x1", the first, or "3x3", the second.
        temporal_pool: Halve the number of frames after the first stage (maximum of pairs).
        nonlocal_blocks: Index of a stage to the blocks of it that a non-local block follows.
        instantiation: Of the non-local blocks; see `NonLocalBlock`.
        impl: Of their attention.
    """

    stem: int
    stages: tuple[tuple[int, ...], ...]
    kernel: str = "1x1"
    temporal_pool: bool = False
    nonlocal_blocks: Mapping[int, Sequence[int]] = field(default_factory=dict)
    instantiation: str = "softmax"
    impl: str = "auto"

    def lengths(self, stage: int, block: int) -> tuple[int, int]:
        """The temporal lengths of the first and the second kernel of a block."""
        pattern = self.stages[stage]
        length = pattern[block % len(pattern)]
        return (length, 1) if self.kernel == "1x1" else (1, length)


# "pyslowfast" is its _TEMPORAL_KERNEL_BASIS in `video_model_builder.py`, which inflates every second block after the
# first stage, as Wang et al. do (arXiv 1711.07971, section 4, where both kinds of kernel stand); "3x1x1" and "3x3x3"
# inflate every block.
INFLATIONS = {
    "pyslowfast": Design(5, ((3,), (3, 1), (3, 1), (1, 3)), temporal_pool=True),
    "3x1x1": Design(5, ((3,), (3,), (3,), (3,)), temporal_pool=True),
    "3x3x3": Design(5, ((3,), (3,), (3,), (3,)), kernel="3x3", temporal_pool=True),
}
SLOW = Design(1, ((1,), (1,), (3,), (3,)))

# Blocks of the second and the third stage: PySlowFast, `I3D_NLN_8x8_R50.yaml` and `SLOWFAST_NLN_8x8_R50.yaml`.
NONLOCAL_BLOCKS = {1: (1, 3), 2: (1, 3, 5)}


def conv3d(in_channels: int, out_channels: int, kernel: tuple[int, int], stride: int = 1) -> nn.Conv3D:
    """Return a convolution without bias, He-initialised.

    Args:
        in_channels, out_channels: Channels.
        kernel: Temporal length and spatial side; both odd, so that padding keeps the size at stride 1.
        stride: Over space; there is none over time.
    """
    length, side = kernel
    conv = nn.Conv3D(
        in_channels,
        out_channels,
        [length, side, side],
        stride=[1, stride, stride],
        padding=[length // 2, side // 2, side // 2],
        bias_attr=False,
    )
    init_conv(conv)
    return conv


class Bottleneck3D(nn.Layer):
    """Residual block of 1x1, 3x3 and 1x1 convolutions, the first or the second inflated over time.

    Args:
        in_channels: Channels of the input.
        channels: Channels inside; four times as many come out.
        stride: Spatial stride; it sits in the 3x3.
        lengths: Temporal lengths of the first and the second kernel.
        norm: Kind of batch normalisation.

    Attributes:
        nonlocal_block: What follows the block, or None.

    Source: Wang et al., arXiv 1711.07971, section 4; PySlowFast's `resnet_helper.py`. Names are torchvision's.
    """

    def __init__(self, in_channels: int, channels: int, stride: int, lengths: tuple[int, int], norm: str) -> None:
        super().__init__()
        out_channels = channels * EXPANSION
        self.conv1 = conv3d(in_channels, channels, (lengths[0], 1))
        self.bn1 = build_norm(norm, channels, ndim=3)
        self.conv2 = conv3d(channels, channels, (lengths[1], 3), stride)
        self.bn2 = build_norm(norm, channels, ndim=3)
        self.conv3 = conv3d(channels, out_channels, (1, 1))
        self.bn3 = build_norm(norm, out_channels, ndim=3)
        self.downsample: nn.Layer | None = None
        if stride != 1 or in_channels != out_channels:
            projection = conv3d(in_channels, out_channels, (1, 1), stride)
            self.downsample = nn.Sequential(projection, build_norm(norm, out_channels, ndim=3))
        self.nonlocal_block: nn.Layer | None = None

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return [N, 4 * channels, T, H / stride, W / stride] of x [N, in_channels, T, H, W]."""
        identity = x if self.downsample is None else self.downsample(x)
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = F.relu(self.bn3(self.conv3(out)) + identity)
        return out if self.nonlocal_block is None else self.nonlocal_block(out)


class ResNet3D(nn.Layer):
    """One pathway: a ResNet over space whose kernels extend over time, without its classifier.

    Args:
        depth: 50 or 101.
        channels: Channels of the stem and inside the first stage's blocks; the stages double them.
        design: What extends over time, and how.
        fused_channels: Channels that join the input of each of the four stages from another pathway.
        norm: Kind of batch normalisation, a name of `ops.norm.NORMS`.
        zero_init_residual: Start the last normalisation of every residual branch at gamma 0.
        recompute: Keep the blocks' inputs alone for the backward pass; see `run_block`.

    Attributes:
        out_channels: Channels of the feature map.
        stages: The four stages, each a sequence of blocks.
        fast_paths: What the attention of the non-local blocks resolved to.

    Source: PySlowFast's `video_model_builder.py` and `stem_helper.py`; names are torchvision's.
    """

    def __init__(
        self,
        depth: int,
        channels: int,
        design: Design,
        *,
        fused_channels: Sequence[int] = (0, 0, 0, 0),
        norm: str = "local",
        zero_init_residual: bool = True,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.temporal_pool, self.recompute = design.temporal_pool, recompute
        self.fast_paths: dict[str, str] = {}
        self.conv1 = conv3d(3, channels, (design.stem, 7), stride=2)
        self.bn1 = build_norm(norm, channels, ndim=3)
        in_channels = channels
        for stage, num_blocks in enumerate(lookup(DEPTHS, depth, "3D ResNet depth")):
            in_channels += fused_channels[stage]
            blocks = []
            for index in range(num_blocks):
                stride = 2 if stage > 0 and index == 0 else 1
                block = Bottleneck3D(in_channels, channels * 2**stage, stride, design.lengths(stage, index), norm)
                in_channels = channels * 2**stage * EXPANSION
                if zero_init_residual:
                    nn.initializer.Constant(0.0)(block.bn3.weight)
                if index in design.nonlocal_blocks.get(stage, ()):
                    block.nonlocal_block = self._nonlocal_block(in_channels, design, norm, zero_init_residual)
                blocks.append(block)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.out_channels = in_channels

    def _nonlocal_block(self, channels: int, design: Design, norm: str, zero_init: bool) -> NonLocalBlock:
        block = NonLocalBlock(
            channels,
            channels // 2,
            instantiation=design.instantiation,
            zero_init=zero_init,
            norm=norm,
            impl=design.impl,
        )
        self.fast_paths[f"non_local_{channels // 2}"] = block.resolved
        return block

    @property
    def stages(self) -> tuple[nn.Sequential, ...]:
        """The four stages from fine to coarse."""
        return self.layer1, self.layer2, self.layer3, self.layer4

    def stem(self, clip: paddle.Tensor) -> paddle.Tensor:
        """Return [N, channels, T, H / 4, W / 4] of a clip [N, 3, T, H, W]."""
        x = F.relu(self.bn1(self.conv1(clip)))
        return F.max_pool3d(x, kernel_size=[1, 3, 3], stride=[1, 2, 2], padding=[0, 1, 1])

    def run_stage(self, stage: int, x: paddle.Tensor) -> paddle.Tensor:
        """Return what a stage, 0 to 3, makes of its input."""
        for block in self.stages[stage]:
            x = run_block(block, x, recompute=self.recompute)
        if stage == 0 and self.temporal_pool:
            x = F.max_pool3d(x, kernel_size=[2, 1, 1], stride=[2, 1, 1])
        return x

    def forward(self, clip: paddle.Tensor) -> paddle.Tensor:
        """Return [N, out_channels, T', H / 32, W / 32], rounded up, of a clip [N, 3, T, H, W]."""
        x = self.stem(clip)
        for stage in range(4):
            x = self.run_stage(stage, x)
        return x


class VideoResNet(nn.Layer):
    """One 3D pathway and a classifier: the Slow network, or another design.

    Args:
        depth: 50 or 101.
        design: What extends over time, and how.
        num_classes: Number of logits.
        num_frames: Frames that a clip must have; None takes what comes, for training whose clip length changes.
        crop_size: Side of the training crop in pixels, which a convolutional head's kernel follows from.
        head: "adaptive" pools everything; "convolutional" and, for several labels a clip, "convolutional_sigmoid"
            evaluate as PySlowFast does: see `PathwayHead`.
        dropout: Probability of dropping a pooled feature in training.
        width: Multiplier of all channels.
        norm: Kind of batch normalisation, a name of `ops.norm.NORMS`.
        zero_init_residual: Start every residual branch at zero.
        recompute: Keep the blocks' inputs alone for the backward pass: less memory, more time.

    Attributes:
        fast_paths: What each accelerated operator resolved to, for the log.

    Raises:
        ValueError: If an argument is out of range.

    Source: Feichtenhofer et al., arXiv 1812.03982, section 3.1; PySlowFast's `SLOW_8x8_R50.yaml`.
    """

    def __init__(
        self,
        depth: int,
        design: Design,
        *,
        num_classes: int,
        num_frames: int | None = 8,
        crop_size: int = 224,
        head: str = "adaptive",
        dropout: float = 0.5,
        width: float = 1.0,
        norm: str = "local",
        zero_init_residual: bool = True,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.num_frames, self.least_frames = num_frames, 2 if design.temporal_pool else 1
        if num_frames is not None and num_frames < self.least_frames:
            raise ValueError(
                f"num_frames is {num_frames}; it must be at least {self.least_frames}, or null for any number"
            )
        self.backbone = ResNet3D(
            depth,
            scale_width(64, width),
            design,
            norm=norm,
            zero_init_residual=zero_init_residual,
            recompute=recompute,
        )
        self.fast_paths = norm_path(norm) | self.backbone.fast_paths
        self.head = PathwayHead(
            [self.backbone.out_channels],
            num_classes,
            dropout=dropout,
            head=head,
            lengths=[num_frames and num_frames // self.least_frames],
            crop_size=crop_size,
        )

    def forward(self, clip: paddle.Tensor) -> paddle.Tensor:
        """Return logits [N, num_classes] of normalised clips, float [N, 3, T, H, W]; raises as `check_clip`."""
        check_clip(clip, self, self.num_frames)
        if paddle.in_dynamic_mode() and clip.shape[2] < self.least_frames:
            raise ValueError(f"the clip has 1 frame; {model_name(self)} pools pairs of frames: at least 2")
        return self.head([self.backbone(clip)])


class I3D(VideoResNet):
    """Inflated 3D ResNet, with or without non-local blocks.

    Args:
        depth: 50 or 101.
        non_local: Whether five non-local blocks (embedded Gaussian) sit in the second and the third stage.
        num_classes, num_frames, crop_size, head, dropout, width, norm, zero_init_residual, recompute: As
            `VideoResNet`; at least 2 frames, which are halved after the first stage.
        inflate: "pyslowfast" (first kernels of every second block), "3x1x1" (first kernels of every block) or "3x3x3"
            (second kernels of every block).
        impl: Of the non-local blocks' attention: "auto", "fast" or "reference".

    Raises:
        ValueError: If an argument is out of range.

    Source: Carreira and Zisserman, arXiv 1705.07750; Wang et al., arXiv 1711.07971, section 4; PySlowFast's
    `I3D_8x8_R50.yaml` and `I3D_NLN_8x8_R50.yaml`.
    """

    def __init__(
        self,
        depth: int,
        non_local: bool,
        *,
        num_classes: int,
        num_frames: int | None = 8,
        crop_size: int = 224,
        head: str = "adaptive",
        dropout: float = 0.5,
        width: float = 1.0,
        norm: str = "local",
        zero_init_residual: bool = True,
        recompute: bool = False,
        inflate: str = "pyslowfast",
        impl: str = "auto",
    ) -> None:
        if not non_local and impl != "auto":
            raise ValueError(f"impl is {impl!r}, but this network has no non-local block whose attention could be it")
        design = lookup(INFLATIONS, inflate, "inflation of I3D")
        if non_local:
            design = replace(design, nonlocal_blocks=NONLOCAL_BLOCKS, impl=impl)
        super().__init__(
            depth,
            design,
            num_classes=num_classes,
            num_frames=num_frames,
            crop_size=crop_size,
            head=head,
            dropout=dropout,
            width=width,
            norm=norm,
            zero_init_residual=zero_init_residual,
            recompute=recompute,
        )
