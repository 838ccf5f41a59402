"""TSN and TSM: a 2D ResNet on the frames of a clip, without and with temporal shifts in its residual branches."""

from __future__ import annotations

from functools import partial

import paddle
from paddle import nn

from paddlevideo_fast.models.layers import SegmentHead, check_clip, fold_frames
from paddlevideo_fast.models.resnet import ResNet
from paddlevideo_fast.ops.norm import resolve_sync_norm
from paddlevideo_fast.ops.temporal_shift import resolve_temporal_shift


class TSN(nn.Layer):
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

    Attributes:
        fast_paths: What each accelerated operator resolved to, for the log.

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
    ) -> None:
        super().__init__()
        if num_classes < 1:
            raise ValueError(f"num_classes is {num_classes}; it must be at least 1")
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout is {dropout}; it must be from 0 to 1")
        if num_segments is not None and num_segments < 1:
            raise ValueError(f"num_segments is {num_segments}; it must be at least 1, or null for any number")
        self.num_segments = num_segments
        self.fast_paths: dict[str, str] = {"norm": resolve_sync_norm()[1]} if norm == "sync" else {}
        self.backbone = ResNet(
            depth, width=width, norm=norm, partial_bn=partial_bn, zero_init_residual=zero_init_residual
        )
        self.head = SegmentHead(self.backbone.out_channels, num_classes, dropout)

    def forward(self, clip: paddle.Tensor) -> paddle.Tensor:
        """Classify clips.

        Args:
            clip: Normalised frames, float [N, 3, T, H, W].

        Returns:
            Logits [N, num_classes].

        Raises:
            ValueError: If the shape is another.
            TypeError: If the clip is not floating point.
        """
        if paddle.in_dynamic_mode():
            check_clip(clip, type(self).__name__, self.num_segments)
        num_frames = clip.shape[2]
        features = self.backbone(fold_frames(clip), num_frames)
        return self.head(features, num_frames)


class TSM(TSN):
    """Temporal shift network: a TSN whose residual branches exchange channels with the neighbouring frames.

    The shift comes before the first convolution of a block and leaves the identity alone. Every block has one, or
    every second block of each stage if the third stage has 23 blocks or more (ResNet-101).

    Args:
        depth: 18, 34, 50 or 101.
        num_classes, num_segments, dropout, width, norm, partial_bn, zero_init_residual: As `TSN`.
        shift_div: One channel in so many is shifted forward, one backward; above 2.
        impl: "auto", "fast" (Paddle's native shift) or "reference" (composed); same parameters, same values.

    Raises:
        ValueError: If an argument is out of range, or `impl="fast"` cannot be had.

    Source: Lin et al., arXiv 1811.08383, sections 3 and 4; placement as mit-han-lab's `ops/temporal_shift.py`
    ("blockres"), direction as Paddle's operator (see `ops.temporal_shift`).
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
        shift_div: int = 8,
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
        )
        if shift_div <= 2:
            raise ValueError(f"shift_div is {shift_div}; it must be above 2: less than half the channels move each way")
        shift, self.fast_paths["temporal_shift"] = resolve_temporal_shift(impl)
        every = 2 if len(self.backbone.layer3) >= 23 else 1
        for stage in self.backbone.stages:
            for block in list(stage)[::every]:
                block.shift = partial(shift, shift_ratio=1.0 / shift_div)
