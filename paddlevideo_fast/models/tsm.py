"""TSN and TSM: a 2D network on the frames of a clip, without and with temporal shifts in its residual branches."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import paddle
from paddle import nn
from paddle.nn import functional as F

from paddlevideo_fast.models.heads import SegmentHead
from paddlevideo_fast.models.layers import check_clip, fold_frames, init_fan_in, norm_path
from paddlevideo_fast.models.mobilenet import MobileNetV2
from paddlevideo_fast.models.nonlocal_block import NonLocalBlock
from paddlevideo_fast.models.resnet import ResNet
from paddlevideo_fast.ops.temporal_shift import resolve_temporal_shift

# Blocks of the second and the third stage: mit-han-lab's `make_non_local`, for depth 50.
NONLOCAL_BLOCKS = {1: (0, 2), 2: (0, 2, 4)}


class FrameClassifier(nn.Layer):
    """A 2D backbone on every frame of a clip, and the logits of the frames averaged.

    Args:
        backbone: Takes (frames [N * T, 3, H, W], num_frames) and returns [N * T, out_channels, h, w].
        num_classes: Number of logits.
        num_segments: Frames that a clip must have; None takes what comes, for training whose clip length changes.
        dropout: Probability of dropping a pooled feature in training.
        norm: The backbone's kind of batch normalisation, for the log.
        head_std: Standard deviation that the classifier's weight starts with.

    Attributes:
        fast_paths: What each accelerated operator resolved to, for the log.

    Raises:
        ValueError: If an argument is out of range.
    """

    def __init__(
        self,
        backbone: nn.Layer,
        *,
        num_classes: int,
        num_segments: int | None,
        dropout: float,
        norm: str,
        head_std: float = 0.001,
    ) -> None:
        super().__init__()
        if num_segments is not None and num_segments < 1:
            raise ValueError(f"num_segments is {num_segments}; it must be at least 1, or null for any number")
        self.num_segments = num_segments
        self.fast_paths = norm_path(norm)
        self.backbone = backbone
        self.head = SegmentHead(backbone.out_channels, num_classes, dropout, head_std)

    def forward(self, clip: paddle.Tensor) -> paddle.Tensor:
        """Return logits [N, num_classes] of normalised clips, float [N, 3, T, H, W]; raises as `check_clip`."""
        check_clip(clip, self, self.num_segments, "num_segments")
        num_frames = clip.shape[2]
        features = self.backbone(fold_frames(clip), num_frames)
        return self.head(features, num_frames)


class TSN(FrameClassifier):
    """Temporal segment network: every frame through one ResNet, logits averaged.

    Args:
        depth: 18, 34, 50 or 101.
        num_classes: Number of logits.
        num_segments: Frames that a clip must have; None takes what comes, for training whose clip length changes.
        dropout: Probability of dropping a pooled feature in training.
        width: Multiplier of all channels.
        norm: Kind of batch normalisation, a name of `ops.norm.NORMS`.
        partial_bn: Freeze all batch normalisations but the first: running statistics, gamma and beta stay as they
            are whatever mode the model is in.
        zero_init_residual: Start every residual branch at zero.
        recompute: Trade time for memory: run every block a second time in the backward pass.

    Raises:
        ValueError: If an argument is out of range.

    Source: Wang et al., arXiv 1608.00859; partial BN as section 3.3 there.
    """

    def __init__(
        self,
        depth: int,
        *,
        num_classes: int,
        num_segments: int | None = 8,
        dropout: float = 0.5,
        width: float = 1.0,
        norm: str = "local",
        partial_bn: bool = False,
        zero_init_residual: bool = False,
        recompute: bool = False,
    ) -> None:
        backbone = ResNet(
            depth,
            width=width,
            norm=norm,
            partial_bn=partial_bn,
            zero_init_residual=zero_init_residual,
            recompute=recompute,
        )
        super().__init__(backbone, num_classes=num_classes, num_segments=num_segments, dropout=dropout, norm=norm)


class TSM(TSN):
    """Temporal shift network: a TSN whose residual branches exchange channels with the neighbouring frames.

    The shift comes before the first convolution of a block and leaves the identity alone. With `non_local`, positions
    of a whole clip see one another after blocks 0 and 2 of the second stage and 0, 2 and 4 of the third.

    Args:
        depth: 18, 34, 50 or 101.
        num_classes, num_segments, dropout, width, norm, partial_bn, zero_init_residual, recompute: As `TSN`.
        shift_div: One channel in so many is shifted forward, one backward; above 2, and at most the channels of every
            block that shifts. 8 in the paper; PaddleVideo trained with as many as there are frames.
        shift_every: Shift in every n-th block of each stage, from the first on; None for all of them, or every
            second one if the third stage has 23 blocks or more (ResNet-101), as the authors have it. PaddleVideo's
            ResNet-101 shifts in all: 1.
        non_local: Add non-local blocks (embedded Gaussian) to depth 50.
        impl: "auto", "fast" (Paddle's native shift) or "reference" (composed); same parameters, same values.

    Raises:
        ValueError: If an argument is out of range, or `impl="fast"` cannot be had.

    Source: Lin et al., arXiv 1811.08383, sections 3 and 4; placement as mit-han-lab's `ops/temporal_shift.py`
    ("blockres") and `ops/non_local.py`, direction as Paddle's operator (see `ops.temporal_shift`).
    """

    def __init__(
        self,
        depth: int,
        *,
        num_classes: int,
        num_segments: int | None = 8,
        dropout: float = 0.5,
        width: float = 1.0,
        norm: str = "local",
        partial_bn: bool = False,
        zero_init_residual: bool = False,
        recompute: bool = False,
        shift_div: int = 8,
        shift_every: int | None = None,
        non_local: bool = False,
        impl: str = "auto",
    ) -> None:
        super().__init__(
            depth,
            num_classes=num_classes,
            num_segments=num_segments,
            dropout=dropout,
            width=width,
            norm=norm,
            partial_bn=partial_bn,
            zero_init_residual=zero_init_residual,
            recompute=recompute,
        )
        if shift_every is None:
            shift_every = 2 if len(self.backbone.layer3) >= 23 else 1
        if shift_every < 1:
            raise ValueError(f"shift_every is {shift_every}; it must be at least 1, or null for the authors' choice")
        self.shift_div, self.shift_every = shift_div, shift_every
        shifted = [block for stage in self.backbone.stages for block in list(stage)[::shift_every]]
        self.fast_paths["temporal_shift"] = insert_shift(shifted, shift_div, impl)
        if non_local:
            if depth != 50:
                raise ValueError(f"non_local=true needs depth 50, for which the authors placed the blocks, not {depth}")
            self.fast_paths["non_local"] = insert_non_local(self.backbone, norm, impl)


class TSMMobileNetV2(FrameClassifier):
    """Temporal shift network on MobileNetV2: every residual block shifts before its expansion.

    Args:
        num_classes, num_segments, dropout, norm, partial_bn, recompute: As `TSN`.
        width: Multiplier of all channels, which are rounded to multiples of 8.
        shift_div, impl: As `TSM`.

    Raises:
        ValueError: If an argument is out of range, or `impl="fast"` cannot be had.

    Source: Lin et al., arXiv 1811.08383; placement as mit-han-lab's `ops/models.py`; direction as Paddle's operator.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        num_segments: int | None = 8,
        dropout: float = 0.5,
        width: float = 1.0,
        norm: str = "local",
        partial_bn: bool = False,
        recompute: bool = False,
        shift_div: int = 8,
        impl: str = "auto",
    ) -> None:
        backbone = MobileNetV2(width=width, norm=norm, partial_bn=partial_bn, recompute=recompute)
        super().__init__(backbone, num_classes=num_classes, num_segments=num_segments, dropout=dropout, norm=norm)
        self.shift_div = shift_div
        shifted = [block for block in backbone.blocks if block.residual and block.expands]
        self.fast_paths["temporal_shift"] = insert_shift(shifted, shift_div, impl)


class PPTSM(FrameClassifier):
    """PaddleVideo's ppTSM: every block of a ResNet-D with leaky ReLUs shifts.

    Args:
        depth: 50 or 101.
        num_classes, num_segments, dropout, width, norm, recompute: As `TSN`.
        shift_div, impl: As `TSM`; PaddleVideo has as many as a clip has frames: 8 for its weights of 8 segments, 16
            for those of 16.

    Raises:
        ValueError: If an argument is out of range, or `impl="fast"` cannot be had.

    Source: PaddleVideo's `backbones/resnet_tweaks_tsm.py` and `heads/pptsm_head.py` (architecture, initialisation),
    `configs/recognition/pptsm/pptsm_k400_frames_uniform.yaml` (dropout 0.5, standard deviation 0.01).
    """

    def __init__(
        self,
        depth: int,
        *,
        num_classes: int,
        num_segments: int | None = 8,
        dropout: float = 0.5,
        width: float = 1.0,
        norm: str = "local",
        recompute: bool = False,
        shift_div: int = 8,
        impl: str = "auto",
    ) -> None:
        backbone = ResNet(depth, width=width, norm=norm, recompute=recompute, variant="D", activation=F.leaky_relu)
        super().__init__(
            backbone, num_classes=num_classes, num_segments=num_segments, dropout=dropout, norm=norm, head_std=0.01
        )
        self.shift_div = shift_div
        for layer in backbone.sublayers():
            if isinstance(layer, nn.Conv2D):
                nn.initializer.KaimingNormal()(layer.weight)  # over the fan-in, unlike torchvision's
        self.fast_paths["temporal_shift"] = insert_shift(
            [block for stage in backbone.stages for block in stage], shift_div, impl
        )


def insert_shift(blocks: Iterable[nn.Layer], shift_div: int, impl: str) -> str:
    """Let blocks shift channels in time.

    Args:
        blocks: Layers of `in_channels` that call their attribute `shift`.
        shift_div: One channel in so many is shifted forward, one backward; above 2, and no more than the channels.
        impl: See `ops.temporal_shift.resolve_temporal_shift`.

    Returns:
        What the operator resolved to, for the log.

    Raises:
        ValueError: If `shift_div` is out of range, or `impl="fast"` cannot be had.
    """
    if shift_div <= 2:
        raise ValueError(f"shift_div is {shift_div}; it must be above 2: less than half the channels move each way")
    blocks = list(blocks)
    channels = min(block.in_channels for block in blocks)
    if shift_div > channels:
        raise ValueError(f"shift_div is {shift_div}; a block that shifts has {channels} channels, so at most that")
    shift, resolved = resolve_temporal_shift(impl)
    for block in blocks:
        block.shift = partial(shift, shift_ratio=1.0 / shift_div)
    return resolved


def insert_non_local(backbone: ResNet, norm: str, impl: str) -> str:
    """Add non-local blocks behind the blocks `NONLOCAL_BLOCKS` of a ResNet-50.

    Args:
        backbone: Made of bottlenecks.
        norm: Kind of batch normalisation.
        impl: See `ops.attention.resolve_attention`.

    Returns:
        What the attention resolved to, for the log.

    Source: mit-han-lab's `ops/non_local.py`: half the channels, unscaled products, pooling behind the projections,
    PyTorch's initialisation of convolutions (uniform over the fan-in), gamma 0.
    """
    resolved: list[str] = []
    for stage, places in NONLOCAL_BLOCKS.items():
        for place in places:
            block = backbone.stages[stage][place]
            channels = block.conv3.weight.shape[0]
            block.nl = NonLocalBlock(channels, channels // 2, pool_first=False, scaled=False, norm=norm, impl=impl)
            for conv in (block.nl.conv_theta, block.nl.conv_phi, block.nl.conv_g, block.nl.conv_out):
                init_fan_in(conv)
            resolved.append(block.nl.resolved)
    return "; ".join(dict.fromkeys(resolved))
