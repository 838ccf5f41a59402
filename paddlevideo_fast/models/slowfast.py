"""SlowFast: a pathway of few frames and many channels beside one of many frames and few channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

from paddlevideo_fast.models.heads import PathwayHead
from paddlevideo_fast.models.layers import check_clip, check_positive, init_conv, norm_path, scale_width
from paddlevideo_fast.models.resnet3d import DEPTHS, EXPANSION, NONLOCAL_BLOCKS, SLOW, Design, ResNet3D
from paddlevideo_fast.ops.norm import build_norm

FAST = Design(5, ((3,), (3,), (3,), (3,)))
FUSION_RATIO = 2  # channels that a fusion gives the slow pathway, by those of the fast one


def slow_indices(num_frames: int, alpha: int) -> list[int]:
    """Return which frames of a clip the slow pathway sees.

    Args:
        num_frames: Frames of the clip, a multiple of `alpha`.
        alpha: Frames of the fast pathway for each of the slow one.

    Returns:
        num_frames // alpha indices, evenly from the first frame to the last, truncated to integers.

    Source: PySlowFast, `datasets/utils.py`, pack_pathway_output; `torch.linspace` there works in single precision and
    from both ends, which at some lengths (160 frames, alpha 4) decides an index.
    """
    count = num_frames // alpha
    if count == 1:
        return [0]
    last = np.float32(num_frames - 1)
    step = last / np.float32(count - 1)
    upper = [int(last - step * np.float32(count - 1 - i)) for i in range(count // 2, count)]
    return [int(step * np.float32(i)) for i in range(count // 2)] + upper


class Fusion(nn.Layer):
    """Brings features of the fast pathway to the slow one: a convolution with a stride over time.

    Args:
        in_channels: Channels of the fast pathway; twice as many come out.
        kernel: Temporal length, odd.
        alpha: Stride over time.
        norm: Kind of batch normalisation.

    Source: Feichtenhofer et al., arXiv 1812.03982, section 3.4, "time-strided convolution".
    """

    def __init__(self, in_channels: int, kernel: int, alpha: int, norm: str) -> None:
        super().__init__()
        out_channels = in_channels * FUSION_RATIO
        self.conv = nn.Conv3D(
            in_channels,
            out_channels,
            [kernel, 1, 1],
            stride=[alpha, 1, 1],
            padding=[kernel // 2, 0, 0],
            bias_attr=False,
        )
        init_conv(self.conv)
        self.bn = build_norm(norm, out_channels, ndim=3)

    def forward(self, slow: paddle.Tensor, fast: paddle.Tensor) -> paddle.Tensor:
        """Return [N, C_slow + 2 * C_fast, T / alpha, h, w] of [N, C_slow, T / alpha, h, w] and [N, C_fast, T, h, w]."""
        return paddle.concat([slow, F.relu(self.bn(self.conv(fast)))], axis=1)


class SlowFast(nn.Layer):
    """Two pathways over one clip, joined after the stem and the first three stages, and a classifier.

    Args:
        depth: 50 or 101.
        non_local: Whether five non-local blocks (dot product) sit in the second and third stage of the slow pathway.
        num_classes: Number of logits.
        num_frames: Frames that a clip must have, a multiple of `alpha`; None takes any multiple, for training whose
            clip length changes.
        crop_size: Side of the training crop in pixels, which a convolutional head's kernel follows from.
        alpha: Frames of the fast pathway for each of the slow one.
        beta_inv: Channels of the slow pathway for each of the fast one; must divide the channels of the stem.
        fusion_kernel: Temporal length of the fusions, odd.
        temporal_blocks: Blocks of the third stage whose kernels extend over time, in the slow and the fast pathway;
            None for all. (6, 6) makes the "R101_50_50" of a depth of 101.
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

    Source: Feichtenhofer et al., arXiv 1812.03982; PySlowFast's `video_model_builder.py`. 8x8 is alpha 4 with
    fusions of 7 (`SLOWFAST_8x8_R50.yaml`; of 5 for a depth of 101 and with non-local blocks), 4x16 is alpha 8 with
    fusions of 5 (`SLOWFAST_4x16_R50.yaml`).
    """

    def __init__(
        self,
        depth: int,
        non_local: bool,
        *,
        num_classes: int,
        num_frames: int | None = 32,
        crop_size: int = 224,
        alpha: int = 4,
        beta_inv: int = 8,
        fusion_kernel: int = 7,
        temporal_blocks: Sequence[int] | None = None,
        head: str = "adaptive",
        dropout: float = 0.5,
        width: float = 1.0,
        norm: str = "local",
        zero_init_residual: bool = True,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        check_positive(alpha=alpha)
        if num_frames is not None:
            _check_length(num_frames, alpha, f"num_frames is {num_frames}")
        if fusion_kernel < 1 or fusion_kernel % 2 == 0:
            raise ValueError(f"fusion_kernel is {fusion_kernel}; it must be odd, to be centred on a frame")
        slow_channels = scale_width(64, width)
        if beta_inv < 1 or slow_channels % beta_inv:
            raise ValueError(
                f"beta_inv is {beta_inv}; it must divide the {slow_channels} channels of the slow stem (64 at width "
                f"1, here {width}), so that the fast pathway has a whole number of channels, at least 1"
            )
        fast_channels = slow_channels // beta_inv
        slow, fast = _designs(depth, non_local, temporal_blocks)
        # The fast pathway after its stem and first three stages: there the fusions are.
        fused = [fast_channels, *(fast_channels * EXPANSION * 2**stage for stage in range(3))]
        common = {"norm": norm, "zero_init_residual": zero_init_residual, "recompute": recompute}
        self.num_frames, self.alpha = num_frames, alpha
        self.slow = ResNet3D(
            depth, slow_channels, slow, fused_channels=[FUSION_RATIO * channels for channels in fused], **common
        )
        self.fast = ResNet3D(depth, fast_channels, fast, **common)
        self.fusions = nn.LayerList([Fusion(channels, fusion_kernel, alpha, norm) for channels in fused])
        self.fast_paths = norm_path(norm) | self.slow.fast_paths
        self.head = PathwayHead(
            [self.slow.out_channels, self.fast.out_channels],
            num_classes,
            dropout=dropout,
            head=head,
            lengths=[num_frames and num_frames // alpha, num_frames],
            crop_size=crop_size,
        )

    def forward(self, clip: paddle.Tensor) -> paddle.Tensor:
        """Return logits [N, num_classes] of normalised clips, float [N, 3, T, H, W], T a multiple of `alpha`.

        The slow pathway takes its own frames out of them. Raises as `check_clip`.
        """
        check_clip(clip, self, self.num_frames)
        if paddle.in_dynamic_mode():
            _check_length(clip.shape[2], self.alpha, f"the clip has {clip.shape[2]} frames")
        indices = slow_indices(self.num_frames or clip.shape[2], self.alpha)
        slow = self.slow.stem(paddle.index_select(clip, paddle.to_tensor(indices), axis=2))
        fast = self.fast.stem(clip)
        for stage in range(4):
            slow = self.slow.run_stage(stage, self.fusions[stage](slow, fast))
            fast = self.fast.run_stage(stage, fast)
        return self.head([slow, fast])


def _check_length(num_frames: int, alpha: int, found: str) -> None:
    if num_frames < alpha or num_frames % alpha:
        raise ValueError(
            f"{found}, and alpha is {alpha}: the fast pathway has alpha frames for each of the slow one, "
            f"so a clip must have a multiple of {alpha}"
        )


def _designs(depth: int, non_local: bool, temporal_blocks: Sequence[int] | None) -> list[Design]:
    """Return the designs of the slow and the fast pathway."""
    slow = replace(SLOW, nonlocal_blocks=NONLOCAL_BLOCKS, instantiation="dot_product") if non_local else SLOW
    if temporal_blocks is None:
        return [slow, FAST]
    num_blocks = DEPTHS[depth][2]
    if len(temporal_blocks) != 2 or not all(0 <= count <= num_blocks for count in temporal_blocks):
        raise ValueError(
            f"temporal_blocks is {list(temporal_blocks)}; it must be two numbers from 0 to {num_blocks}, "
            f"the blocks of the third stage"
        )
    third = [(3,) * count + (1,) * (num_blocks - count) for count in temporal_blocks]
    return [
        replace(design, stages=(*design.stages[:2], pattern, design.stages[3]))
        for design, pattern in zip((slow, FAST), third, strict=True)
    ]
