"""Vision transformer over all patches of a clip at once: the networks of VideoMAE, AVION and, for one frame, timm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import paddle
from paddle import nn
from paddle.nn import functional as F

from paddlevideo_fast.models.layers import check_choice, check_clip, check_dropout, check_positive, run_block
from paddlevideo_fast.models.transformer import (
    NORM_EPS,
    Block,
    PatchEmbed,
    SinusoidPositions,
    drop_path_rates,
    init_linear,
    patch_grid,
    resize_grid,
)

SIZES = {
    "small": {"embed_dim": 384, "depth": 12, "num_heads": 6},
    "base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
}


class ClipEncoder(nn.Layer):
    """Turns a clip into features with a transformer whose tokens, patches of the clip, all attend to one another.

    Clips of other frames or another size than the positions were made for take interpolated positions.

    Args:
        num_frames: Frames that the positions are made for.
        crop_size: Pixels of a side that the positions are made for.
        tubelet_size: Frames of a patch.
        patch_size: Pixels of a patch's side.
        embed_dim: Channels of a token.
        depth: Number of blocks.
        num_heads: Heads of attention.
        pool: "cls" gives the features of a token of its own, "mean" the average of all patches.
        pos: "learned" positions of a frame's patches, the same in all frames, plus learned positions in time that
            start at zero; or "sinusoid", fixed and different for every patch of the clip.
        pre_norm: Normalise the tokens before the first block; the patch embedding then has no bias.
        qkv_bias: Whether the projection to queries, keys and values has a bias.
        drop_path_rate: Probability of leaving out a sample's residual branch in training, of the last block.
        drop_path_schedule: "linear" rises to that rate from 0 at the first block, "constant" has it in every block.
        activation: Of the feed-forward parts; exact GELU by default.
        norm_eps: Epsilon of the layer normalisations.
        impl: "auto", "fast" or "reference", of attention and patch embedding; same parameters, same values.
        recompute: Keep the inputs of blocks alone for the backward pass, and compute the blocks again there.

    Attributes:
        fast_paths: What each accelerated operator resolved to, for the log.

    Raises:
        ValueError: If an argument is out of range.

    Source: Dosovitskiy et al., arXiv 2010.11929; VideoMAE (Tong et al., arXiv 2203.12602), `modeling_finetune.py`;
    AVION (Zhao and Krähenbühl, arXiv 2309.16669), `transformer.py`. Names and initialisation as timm's
    `vision_transformer.py`: weights and positions of deviation 0.02, biases zero.
    """

    def __init__(
        self,
        *,
        num_frames: int = 16,
        crop_size: int = 224,
        tubelet_size: int = 2,
        patch_size: int = 16,
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        pool: Literal["cls", "mean"] = "mean",
        pos: Literal["learned", "sinusoid"] = "sinusoid",
        pre_norm: bool = False,
        qkv_bias: bool = True,
        drop_path_rate: float = 0.0,
        drop_path_schedule: Literal["linear", "constant"] = "linear",
        activation: Callable[[paddle.Tensor], paddle.Tensor] = F.gelu,
        norm_eps: float = NORM_EPS,
        impl: str = "auto",
        recompute: bool = False,
    ) -> None:
        super().__init__()
        check_choice("pool", pool, ("cls", "mean"))
        check_choice("pos", pos, ("learned", "sinusoid"))
        check_choice("drop_path_schedule", drop_path_schedule, ("linear", "constant"))
        check_positive(depth=depth)
        self.grid = patch_grid(num_frames, crop_size, tubelet_size, patch_size)
        self.embed_dim, self.recompute = embed_dim, recompute
        self.patch_embed = PatchEmbed(
            embed_dim, patch_size=patch_size, tubelet_size=tubelet_size, bias=not pre_norm, impl=impl
        )
        small, zero = nn.initializer.Normal(0.0, 0.02), nn.initializer.Constant(0.0)
        self.cls_token = self.pos_embed = self.time_embed = self.sinusoid = None
        if pool == "cls":
            self.cls_token = self.create_parameter([1, 1, embed_dim], default_initializer=small)
        if pos == "sinusoid":
            self.sinusoid = SinusoidPositions(self.grid, embed_dim)
        else:
            places = self.grid[1] * self.grid[2] + (pool == "cls")  # the class token's comes first
            self.pos_embed = self.create_parameter([1, places, embed_dim], default_initializer=small)
        if pos == "learned" and self.grid[0] > 1:
            self.time_embed = self.create_parameter([1, self.grid[0], embed_dim], default_initializer=zero)
        self.norm_pre = nn.LayerNorm(embed_dim, epsilon=norm_eps) if pre_norm else None
        constant = drop_path_schedule == "constant"
        rates = [drop_path_rate] * depth if constant else drop_path_rates(drop_path_rate, depth)
        self.blocks = nn.LayerList(
            Block(
                embed_dim,
                num_heads,
                qkv_bias=qkv_bias,
                drop_path_rate=rate,
                norm_eps=norm_eps,
                activation=activation,
                impl=impl,
            )
            for rate in rates
        )
        # Named as timm does: the normalisation of a mean is another layer than that of the class token.
        setattr(self, "norm" if pool == "cls" else "fc_norm", nn.LayerNorm(embed_dim, epsilon=norm_eps))
        self.fast_paths = {"attention": self.blocks[0].attn.resolved, "patch_embed": self.patch_embed.resolved}

    def forward(self, clip: paddle.Tensor) -> paddle.Tensor:
        """Return features [N, embed_dim] of a clip [N, 3, T, H, W]; raises as `PatchEmbed.forward`."""
        x = self.embed(clip)
        for block in self.blocks:
            x = run_block(block, x, recompute=self.recompute)
        return self.fc_norm(x.mean(axis=1)) if self.cls_token is None else self.norm(x[:, 0])

    def embed(self, clip: paddle.Tensor) -> paddle.Tensor:
        """Return the tokens that enter the first block, [N, L, embed_dim], the class token first if there is one."""
        x = self.patch_embed(clip)  # [N, t, h, w, dim]
        x = (x + self.positions(x.shape[1:4]).astype(x.dtype)).flatten(1, 3)
        if self.cls_token is not None:
            token = self.cls_token if self.pos_embed is None else self.cls_token + self.pos_embed[:, :1]
            x = paddle.concat([paddle.zeros_like(x[:, :1]) + token.astype(x.dtype), x], axis=1)
        return x if self.norm_pre is None else self.norm_pre(x)

    def positions(self, grid: Sequence[int]) -> paddle.Tensor:
        """Return what is added to patches of the grid (t, h, w): [1, t or 1, h, w, embed_dim]."""
        t, h, w = grid
        if self.sinusoid is not None:
            return self.sinusoid(grid).reshape([1, t, h, w, self.embed_dim])
        places = self.pos_embed if self.cls_token is None else self.pos_embed[:, 1:]
        places = resize_grid(places, self.grid[1:], (h, w)).reshape([1, 1, h, w, self.embed_dim])
        if self.time_embed is None:
            return places
        times = resize_grid(self.time_embed, (self.grid[0], 1, 1), (t, 1, 1))
        return places + times.unsqueeze([2, 3])


class VisionTransformer(ClipEncoder):
    """Classifies clips by the features of a `ClipEncoder`.

    Three forms of it are known elsewhere:

    - VideoMAE: `tubelet_size=2, pos="sinusoid", pool="mean"`, the defaults;
    - AVION: `tubelet_size=1, pos="learned", pool="cls", pre_norm=True, drop_path_schedule="constant"`;
    - timm, for images: `num_frames=1, tubelet_size=1, pos="learned", pool="cls"`.

    Args:
        num_classes: Number of logits.
        dropout: Probability of dropping a feature before the classifier in training.
        head_init_scale: Multiplies the classifier's initial weights, whose standard deviation is 0.02.
        num_frames, crop_size, tubelet_size, patch_size, embed_dim, depth, num_heads, pool, pos, pre_norm, qkv_bias,
            drop_path_rate, drop_path_schedule, impl, recompute: As `ClipEncoder`.

    Raises:
        ValueError: If an argument is out of range.

    Source: VideoMAE, `modeling_finetune.py`, whose fine-tuning has 0.001 as `head_init_scale`; AVION has the
    classifier's deviation at 0.01.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        num_frames: int = 16,
        crop_size: int = 224,
        tubelet_size: int = 2,
        patch_size: int = 16,
        embed_dim: int = 768,
        depth: int = 12,
        num_heads: int = 12,
        pool: Literal["cls", "mean"] = "mean",
        pos: Literal["learned", "sinusoid"] = "sinusoid",
        pre_norm: bool = False,
        qkv_bias: bool = True,
        drop_path_rate: float = 0.0,
        drop_path_schedule: Literal["linear", "constant"] = "linear",
        dropout: float = 0.0,
        head_init_scale: float = 0.001,
        impl: str = "auto",
        recompute: bool = False,
    ) -> None:
        super().__init__(
            num_frames=num_frames,
            crop_size=crop_size,
            tubelet_size=tubelet_size,
            patch_size=patch_size,
            embed_dim=embed_dim,
            depth=depth,
            num_heads=num_heads,
            pool=pool,
            pos=pos,
            pre_norm=pre_norm,
            qkv_bias=qkv_bias,
            drop_path_rate=drop_path_rate,
            drop_path_schedule=drop_path_schedule,
            impl=impl,
            recompute=recompute,
        )
        check_positive(num_classes=num_classes)
        check_dropout(dropout)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(embed_dim, num_classes)
        init_linear(self.head, 0.02 * head_init_scale)

    def forward(self, clip: paddle.Tensor) -> paddle.Tensor:
        """Return logits [N, num_classes] of normalised clips, float [N, 3, T, H, W], multiples of the patch.

        Raises as `check_clip`.
        """
        check_clip(clip, self)
        return self.head(self.dropout(super().forward(clip)))
