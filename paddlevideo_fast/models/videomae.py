"""VideoMAE: a transformer that sees a tenth of a clip's patches and, with a narrow decoder, predicts the others."""

from __future__ import annotations

import math

import paddle
from paddle import nn

from paddlevideo_fast.models.layers import check_clip, check_positive, init_fan_in, run_block
from paddlevideo_fast.models.transformer import (
    NORM_EPS,
    Block,
    PatchEmbed,
    SinusoidPositions,
    check_heads,
    patch_grid,
)

DECODERS = {
    "small": {"decoder_dim": 192, "decoder_heads": 3, "decoder_depth": 4},
    "base": {"decoder_dim": 384, "decoder_heads": 6, "decoder_depth": 4},
    "large": {"decoder_dim": 512, "decoder_heads": 8, "decoder_depth": 12},
}


class MaskedEncoder(nn.Layer):
    """Patch embedding and blocks over the visible patches of a clip; parameters named as `vit.ClipEncoder`'s.

    Args:
        grid: Patches in time, height and width that the positions are counted over.
        tubelet_size, patch_size, embed_dim, depth, num_heads, impl, recompute: As `vit.ClipEncoder`.
    """

    def __init__(
        self,
        grid: tuple[int, int, int],
        *,
        tubelet_size: int,
        patch_size: int,
        embed_dim: int,
        depth: int,
        num_heads: int,
        impl: str,
        recompute: bool,
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.patch_embed = PatchEmbed(
            embed_dim,
            patch_size=patch_size,
            tubelet_size=tubelet_size,
            impl="fast" if impl == "auto" else impl,  # which alone can leave out what is masked
        )
        self.positions = SinusoidPositions(grid, embed_dim)
        self.blocks = nn.LayerList(Block(embed_dim, num_heads, impl=impl) for _ in range(depth))
        self.norm = nn.LayerNorm(embed_dim, epsilon=NORM_EPS)

    def forward(self, clip: paddle.Tensor, visible: paddle.Tensor) -> paddle.Tensor:
        """Return [N, num_visible, embed_dim].

        Args:
            clip: [N, 3, T, H, W].
            visible: Which patches are seen, indices into all patches of the batch, int64 [N * num_visible].
        """
        grid = self.patch_embed.grid(clip)
        if self.patch_embed.as_product:
            x = self.patch_embed.project(self.patch_embed.cut(clip).flatten(0, 3).gather(visible))
        else:
            x = self.patch_embed(clip).flatten(0, 3).gather(visible)
        x = x + self.positions(grid)[0].gather(visible % math.prod(grid)).astype(x.dtype)
        x = x.reshape([clip.shape[0], -1, x.shape[-1]])
        for block in self.blocks:
            x = run_block(block, x, recompute=self.recompute)
        return self.norm(x)


class MaskedDecoder(nn.Layer):
    """Blocks over all tokens, and a linear layer to the pixels of the masked ones.

    Args:
        dim: Channels of a token.
        out_dim: Values of a patch.
        depth, num_heads, impl, recompute: As `vit.ClipEncoder`.
    """

    def __init__(self, dim: int, out_dim: int, *, depth: int, num_heads: int, impl: str, recompute: bool) -> None:
        super().__init__()
        self.recompute = recompute
        self.blocks = nn.LayerList(Block(dim, num_heads, impl=impl) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, epsilon=NORM_EPS)
        self.head = nn.Linear(dim, out_dim)

    def forward(self, x: paddle.Tensor, num_visible: int) -> paddle.Tensor:
        """Return [N, L - num_visible, out_dim] of tokens [N, L, dim], of which the visible are the first."""
        for block in self.blocks:
            x = run_block(block, x, recompute=self.recompute)
        return self.head(self.norm(x[:, num_visible:]))


class VideoMAE(nn.Layer):
    """Masked auto-encoder of clips, for pre-training.

    Its encoder has the parameters of a `vit.VisionTransformer` with `pos="sinusoid"` under `encoder.`, but for the
    last normalisation and the classifier.

    Args:
        num_frames, crop_size, tubelet_size, patch_size, embed_dim, depth, num_heads, impl, recompute: As
            `vit.ClipEncoder`.
        decoder_dim: Channels of the decoder's tokens.
        decoder_depth: Its blocks.
        decoder_heads: Its heads of attention.

    Attributes:
        fast_paths: What each accelerated operator resolved to, for the log.

    Raises:
        ValueError: If an argument is out of range.

    Source: Tong et al., arXiv 2203.12602, section 3; sizes and initialisation as MCG-NJU's `modeling_pretrain.py`
    and pre-training scripts: linear layers of the blocks uniform (Glorot), the mask token normal of deviation 0.02
    cut at one.
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
        decoder_dim: int = 384,
        decoder_depth: int = 4,
        decoder_heads: int = 6,
        impl: str = "auto",
        recompute: bool = False,
    ) -> None:
        super().__init__()
        check_positive(embed_dim=embed_dim, depth=depth, decoder_dim=decoder_dim, decoder_depth=decoder_depth)
        check_heads(decoder_dim, decoder_heads, "decoder_heads")
        grid = patch_grid(num_frames, crop_size, tubelet_size, patch_size)
        self.encoder = MaskedEncoder(
            grid,
            tubelet_size=tubelet_size,
            patch_size=patch_size,
            embed_dim=embed_dim,
            depth=depth,
            num_heads=num_heads,
            impl=impl,
            recompute=recompute,
        )
        values = 3 * tubelet_size * patch_size**2
        self.decoder = MaskedDecoder(
            decoder_dim, values, depth=decoder_depth, num_heads=decoder_heads, impl=impl, recompute=recompute
        )
        for layer in (*self.encoder.blocks.sublayers(), *self.decoder.sublayers()):
            if isinstance(layer, nn.Linear):
                nn.initializer.XavierUniform()(layer.weight)
                nn.initializer.Constant(0.0)(layer.bias)
        self.encoder_to_decoder = nn.Linear(embed_dim, decoder_dim, bias_attr=False)
        init_fan_in(self.encoder_to_decoder)  # which the original leaves as PyTorch has it
        cut = nn.initializer.TruncatedNormal(0.0, 0.02, a=-0.02, b=0.02)
        self.mask_token = self.create_parameter([1, 1, decoder_dim], default_initializer=cut)
        self.positions = SinusoidPositions(grid, decoder_dim)
        resolved = self.encoder.blocks[0].attn.resolved
        self.fast_paths = {"attention": resolved, "patch_embed": self.encoder.patch_embed.resolved}

    def forward(self, clip: paddle.Tensor, mask: paddle.Tensor) -> dict[str, paddle.Tensor]:
        """Predict the patches of a clip that are masked from those that are not.

        Args:
            clip: Normalised frames, float [N, 3, T, H, W]; multiples of the patch, in time too.
            mask: Bool [N, L], True where a patch is hidden; patches are counted through time, height and width. As
                many are hidden in every clip.

        Returns:
            `patches` [N, num_masked, tubelet_size * patch_size * patch_size * 3]: predictions for the masked patches
            in that count, their values laid out as `patchify` does.

        Raises:
            ValueError: If a shape is another, or clips differ in the number of masked patches.
            TypeError: If the clip is not floating point, or the mask not bool.
        """
        check_clip(clip, self)
        if paddle.in_dynamic_mode():
            check_mask(mask, clip.shape[0], math.prod(self.encoder.patch_embed.grid(clip)))
        grid = self.encoder.patch_embed.grid(clip)
        visible, masked = (paddle.nonzero(which.flatten()).flatten() for which in (~mask, mask))
        x = self.encoder_to_decoder(self.encoder(clip, visible))
        positions = self.positions(grid)[0].astype(x.dtype)
        seen, hidden = (
            positions.gather(which % math.prod(grid)).reshape([clip.shape[0], -1, x.shape[-1]])
            for which in (visible, masked)
        )
        num_visible = x.shape[1]
        x = paddle.concat([x + seen, self.mask_token.astype(x.dtype) + hidden], axis=1)
        return {"patches": self.decoder(x, num_visible)}


def check_mask(mask: paddle.Tensor, num_clips: int, length: int) -> None:
    """Check that a mask is bool [num_clips, length] and hides as many patches in every clip."""
    if mask.dtype != paddle.bool:
        raise TypeError(f"the mask is of dtype {mask.dtype}; it must be bool, True where a patch is hidden")
    if list(mask.shape) != [num_clips, length]:
        raise ValueError(
            f"the mask has shape {list(mask.shape)}; it must be [{num_clips}, {length}]: a value for each patch"
        )
    counts = mask.sum(axis=1).tolist()
    if len(set(counts)) != 1 or not 0 < counts[0] < length:
        raise ValueError(f"{counts} of {length} patches are masked; it must be as many in each clip, not none, not all")


def patchify(clip: paddle.Tensor, tubelet_size: int = 2, patch_size: int = 16) -> paddle.Tensor:
    """Cut clips into the patches that a masked auto-encoder predicts.

    Args:
        clip: [N, C, T, H, W].
        tubelet_size: Frames of a patch.
        patch_size: Pixels of a patch's side.

    Returns:
        [N, L, tubelet_size * patch_size * patch_size, C]: patches counted through time, height and width, and in each
        the pixels likewise.
    """
    channels, t, h, w = clip.shape[1:]
    kernel = (tubelet_size, patch_size, patch_size)
    folded = [size for pair in zip((t, h, w), kernel, strict=True) for size in (pair[0] // pair[1], pair[1])]
    return clip.reshape([-1, channels, *folded]).transpose([0, 2, 4, 6, 3, 5, 7, 1]).flatten(4, 6).flatten(1, 3)
