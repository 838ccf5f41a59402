"""TimeSformer: a vision transformer whose blocks attend over time and over space in turn, or over both at once."""

from __future__ import annotations

from typing import Literal

import paddle
from paddle import nn

from paddlevideo_fast.models.layers import check_choice, check_clip, check_dropout, check_positive, run_block
from paddlevideo_fast.models.transformer import (
    NORM_EPS,
    Block,
    PatchEmbed,
    SelfAttention,
    drop_path_rates,
    init_linear,
    nearest,
    nearest_grid,
)


class DividedBlock(Block):
    """Residual block: every patch attends to its place in the other frames, then to its own frame, then feeds forward.

    The class token takes no part in time. In space it stands at the head of every frame, and what it gains there is
    averaged over the frames.

    Args:
        dim: Channels of a token.
        num_heads: Heads of both attentions.
        dropout, drop_path_rate, impl: As `transformer.Block`; a whole place is left out of a step over time, a whole
            frame of a step over space.

    Source: Bertasius et al., "Is Space-Time Attention All You Need for Video Understanding?", arXiv 2102.05095,
    equations 4 to 9; details as `timesformer/models/vit.py` of facebookresearch/TimeSformer.
    """

    def __init__(self, dim: int, num_heads: int, *, dropout: float, drop_path_rate: float, impl: str) -> None:
        super().__init__(dim, num_heads, dropout=dropout, drop_path_rate=drop_path_rate, impl=impl)
        self.temporal_norm1 = nn.LayerNorm(dim, epsilon=NORM_EPS)
        self.temporal_attn = SelfAttention(dim, num_heads, dropout=dropout, impl=impl)
        self.temporal_fc = nn.Linear(dim, dim)
        # A fresh block is the image's block: the step over time adds nothing.
        for parameter in self.temporal_fc.parameters():
            nn.initializer.Constant(0.0)(parameter)

    def forward(self, x: paddle.Tensor, num_frames: int) -> paddle.Tensor:
        """Return tokens [N, 1 + T * L, dim] of x: the class token, then L patches of each of the T frames."""
        token, patches = x[:, :1], x[:, 1:]
        length, dim = patches.shape[1] // num_frames, patches.shape[2]
        places = patches.reshape([-1, num_frames, length, dim]).transpose([0, 2, 1, 3]).flatten(0, 1)  # [N * L, T, dim]
        step = self.temporal_fc(self.drop_path(self.temporal_attn(self.temporal_norm1(places))))
        patches = patches + step.reshape([-1, length, num_frames, dim]).transpose([0, 2, 1, 3]).flatten(1, 2)

        tokens = token.unsqueeze(1).expand([-1, num_frames, -1, -1])  # [N, T, 1, dim]
        frames = paddle.concat([tokens, patches.reshape([-1, num_frames, length, dim])], axis=2).flatten(0, 1)
        step = self.drop_path(self.attn(self.norm1(frames))).reshape([-1, num_frames, 1 + length, dim])
        token = token + step[:, :, 0].mean(axis=1, keepdim=True)
        x = paddle.concat([token, patches + step[:, :, 1:].flatten(1, 2)], axis=1)
        return x + self.drop_path(self.mlp(self.norm2(x)))


class TimeSformer(nn.Layer):
    """Classifies clips by the class token of a transformer over the patches of all frames.

    Args:
        num_classes: Number of logits.
        attention: "divided" (over time, then over space) or "joint" (over both at once).
        num_frames: Frames that the learned positions in time are for; clips of other lengths take the nearest ones.
        crop_size: Side of the frames in pixels that the learned positions in space are for, a multiple of 16; frames
            of other sizes take the nearest ones.
        dropout: Probability of dropping a value of the embedded patches and after every layer in training.
        drop_path_rate: Probability of leaving out a residual branch of the last block in training; the blocks before
            have proportionally less, the first none.
        impl: Attention and patch embedding, "auto" | "fast" | "reference"; same parameters, same values.
        recompute: Recompute the blocks in the backward pass instead of keeping their results.
        embed_dim, depth, num_heads: Channels of a token, number of blocks, heads of attention.

    Attributes:
        fast_paths: What each accelerated operator resolved to, for the log.

    Raises:
        ValueError: If an argument is out of range.

    Source: Bertasius et al., arXiv 2102.05095; initialisation as `timesformer/models/vit.py` of
    facebookresearch/TimeSformer: normal with standard deviation 0.02, positions in time zero.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        attention: Literal["divided", "joint"] = "divided",
        num_frames: int = 8,
        crop_size: int = 224,
        dropout: float = 0.0,
        drop_path_rate: float = 0.1,
        impl: str = "auto",
        recompute: bool = False,
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
    ) -> None:
        super().__init__()
        check_choice("attention", attention, ("divided", "joint"))
        check_positive(num_classes=num_classes, num_frames=num_frames, depth=depth)
        check_dropout(dropout)
        if crop_size < 16 or crop_size % 16:
            raise ValueError(f"crop_size is {crop_size}; it must be a multiple of the 16 pixels of a patch")
        self.attention, self.recompute, self.side = attention, recompute, crop_size // 16
        self.patch_embed = PatchEmbed(embed_dim, patch_size=16, impl=impl)
        small, zero = nn.initializer.TruncatedNormal(std=0.02), nn.initializer.Constant(0.0)
        self.cls_token = self.create_parameter([1, 1, embed_dim], default_initializer=small)
        self.pos_embed = self.create_parameter([1, 1 + self.side**2, embed_dim], default_initializer=small)
        self.time_embed = self.create_parameter([1, num_frames, embed_dim], default_initializer=zero)
        self.dropout = nn.Dropout(dropout)
        kind = DividedBlock if attention == "divided" else Block
        self.blocks = nn.LayerList(
            kind(embed_dim, num_heads, dropout=dropout, drop_path_rate=rate, impl=impl)
            for rate in drop_path_rates(drop_path_rate, depth)
        )
        self.norm = nn.LayerNorm(embed_dim, epsilon=NORM_EPS)
        self.head = nn.Linear(embed_dim, num_classes)
        init_linear(self.head)
        self.fast_paths = {"attention": self.blocks[0].attn.resolved, "patch_embed": self.patch_embed.resolved}

    def forward(self, clip: paddle.Tensor) -> paddle.Tensor:
        """Return logits [N, num_classes] of normalised clips, float [N, 3, T, H, W], H and W multiples of 16.

        Raises as `check_clip`.
        """
        check_clip(clip, self)
        patches = self.patch_embed(clip)  # [N, T, h, w, dim]
        num_frames, *grid = patches.shape[1:4]
        places = nearest_grid(self.pos_embed[:, 1:], (self.side, self.side), grid)
        patches = patches + places.reshape([1, 1, *grid, -1])
        patches = patches + nearest(self.time_embed, 1, num_frames).unsqueeze([2, 3])
        patches = patches.flatten(1, 3)
        token = (self.cls_token + self.pos_embed[:, :1]).expand_as(patches[:, :1])
        x = self.dropout(paddle.concat([token, patches], axis=1))
        extra = (num_frames,) if self.attention == "divided" else ()
        for block in self.blocks:
            x = run_block(block, x, *extra, recompute=self.recompute)
        return self.head(self.norm(x)[:, 0])
