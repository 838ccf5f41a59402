"""Dual encoder: a tower for clips and one for sentences that end in one space of features, as in CLIP and AVION."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import paddle
from paddle import nn
from paddle.nn import functional as F

from paddlevideo_fast.models.layers import check_choice, check_clip, check_positive, run_block
from paddlevideo_fast.models.transformer import Block, check_heads
from paddlevideo_fast.models.vit import ClipEncoder

SIZES = {
    "base_patch16": {
        "patch_size": 16, "video_width": 768, "video_depth": 12, "video_num_heads": 12,
        "text_width": 512, "text_depth": 12, "text_num_heads": 8,
    },
    "large_patch14": {
        "patch_size": 14, "video_width": 1024, "video_depth": 24, "video_num_heads": 16,
        "text_width": 768, "text_depth": 12, "text_num_heads": 12,
    },
}  # fmt: skip


def quick_gelu(x: paddle.Tensor) -> paddle.Tensor:
    """Return x * sigmoid(1.702 x), an approximation of GELU (Hendrycks and Gimpel, arXiv 1606.08415, section 2)."""
    return x * F.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[paddle.Tensor], paddle.Tensor]] = {"gelu": F.gelu, "quick_gelu": quick_gelu}


class TextTransformer(nn.Layer):
    """Turns token numbers into features with a transformer in which each token sees itself and those before it.

    The features are those at the token with the greatest number, which ends a sentence.

    Args:
        width: Channels of a token.
        depth: Number of blocks.
        num_heads: Heads of attention.
        context_length: Tokens that a sentence may have.
        vocab_size: Token numbers that exist.
        activation: Of the feed-forward parts.
        impl: See `ops.attention.resolve_attention`.
        recompute: Recompute the blocks in the backward pass instead of keeping their results.

    Source: Radford et al., arXiv 2103.00020, section 2.4; `clip/model.py` of openai/CLIP, its initialisation too.
    """

    def __init__(
        self,
        *,
        width: int,
        depth: int,
        num_heads: int,
        context_length: int,
        vocab_size: int,
        activation: Callable[[paddle.Tensor], paddle.Tensor],
        impl: str,
        recompute: bool,
    ) -> None:
        super().__init__()
        self.context_length, self.recompute = context_length, recompute
        self.token_embed = nn.Embedding(vocab_size, width)
        self.pos_embed = self.create_parameter(
            [1, context_length, width], default_initializer=nn.initializer.Normal(0.0, 0.01)
        )
        self.blocks = nn.LayerList(
            Block(width, num_heads, norm_eps=1e-5, activation=activation, impl=impl) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, epsilon=1e-5)
        nn.initializer.Normal(0.0, 0.02)(self.token_embed.weight)
        for block in self.blocks:
            attention, residual = width**-0.5, width**-0.5 * (2 * depth) ** -0.5
            for layer, std in (
                (block.attn.qkv, attention),
                (block.attn.proj, residual),
                (block.mlp.fc1, (2 * width) ** -0.5),
                (block.mlp.fc2, residual),
            ):
                nn.initializer.Normal(0.0, std)(layer.weight)

    def forward(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Return features [N, width] of tokens, int64 [N, L], L at most `context_length`."""
        x = self.token_embed(tokens)
        x = x + self.pos_embed[:, : x.shape[1]].astype(x.dtype)
        for block in self.blocks:
            x = run_block(block, x, None, True, recompute=self.recompute)
        end = tokens.argmax(axis=1, keepdim=True).unsqueeze(2)  # [N, 1, 1]
        return self.norm(paddle.take_along_axis(x, end, axis=1).squeeze(1))


class DualEncoder(nn.Layer):
    """Encodes clips and sentences into one space, in which those that belong together lie near one another.

    The tower for clips is AVION's joint space-time transformer; with `num_frames=1`, `activation="quick_gelu"` and
    `norm_eps=1e-5` it is the one of OpenAI's CLIP, for images.

    Args:
        embed_dim: Features of the common space; 256 in AVION, 512 (base) and 768 (large) in CLIP.
        num_frames: Frames that the learned positions in time are for; clips of other lengths interpolate them.
        crop_size: Side of the frames in pixels that the learned positions in space are for; 336 is CLIP's larger one.
        activation: "gelu" (exact, AVION) or "quick_gelu" (OpenAI's CLIP), in both towers.
        norm_eps: Epsilon of the normalisations in the tower for clips; 1e-6 in AVION, 1e-5 in CLIP.
        drop_path_rate: Probability of leaving out a sample's residual branch in training, in the tower for clips.
        freeze_temperature: Keep `logit_scale` as it is in training.
        impl: Attention of both towers and patch embedding, "auto" | "fast" | "reference".
        recompute: Recompute the blocks of both towers in the backward pass instead of keeping their results.
        patch_size, video_width, video_depth, video_num_heads: Pixels of a patch's side, channels of a token, blocks and
            heads of the tower for clips.
        text_width, text_depth, text_num_heads, context_length, vocab_size: As `TextTransformer`.

    Attributes:
        logit_scale: Logarithm of what similarities are multiplied by, a parameter that starts at ln(1 / 0.07).
        fast_paths: What each accelerated operator resolved to, for the log.

    Raises:
        ValueError: If an argument is out of range.

    Source: Radford et al., arXiv 2103.00020; Zhao and Krähenbühl, arXiv 2309.16669, `avion/models/model_clip.py`.
    """

    def __init__(
        self,
        *,
        embed_dim: int = 256,
        num_frames: int = 4,
        crop_size: int = 224,
        activation: Literal["gelu", "quick_gelu"] = "gelu",
        norm_eps: float = 1e-6,
        drop_path_rate: float = 0.0,
        freeze_temperature: bool = False,
        impl: str = "auto",
        recompute: bool = False,
        patch_size: int = 16,
        video_width: int = 768,
        video_depth: int = 12,
        video_num_heads: int = 12,
        text_width: int = 512,
        text_depth: int = 12,
        text_num_heads: int = 8,
        context_length: int = 77,
        vocab_size: int = 49408,
    ) -> None:
        super().__init__()
        check_choice("activation", activation, tuple(ACTIVATIONS))
        check_positive(embed_dim=embed_dim, context_length=context_length, vocab_size=vocab_size)
        check_positive(video_width=video_width, video_depth=video_depth, text_width=text_width, text_depth=text_depth)
        check_heads(video_width, video_num_heads, "video_num_heads")
        check_heads(text_width, text_num_heads, "text_num_heads")
        if norm_eps <= 0:
            raise ValueError(f"norm_eps is {norm_eps}; it must be above 0")
        self.visual = ClipEncoder(
            num_frames=num_frames,
            crop_size=crop_size,
            tubelet_size=1,
            patch_size=patch_size,
            embed_dim=video_width,
            depth=video_depth,
            num_heads=video_num_heads,
            pool="cls",
            pos="learned",
            pre_norm=True,
            drop_path_rate=drop_path_rate,
            drop_path_schedule="constant",
            activation=ACTIVATIONS[activation],
            norm_eps=norm_eps,
            impl=impl,
            recompute=recompute,
        )
        self.textual = TextTransformer(
            width=text_width,
            depth=text_depth,
            num_heads=text_num_heads,
            context_length=context_length,
            vocab_size=vocab_size,
            activation=ACTIVATIONS[activation],
            impl=impl,
            recompute=recompute,
        )
        self.visual_projection = nn.Linear(video_width, embed_dim, bias_attr=False)
        self.text_projection = nn.Linear(text_width, embed_dim, bias_attr=False)
        nn.initializer.Normal(0.0, video_width**-0.5)(self.visual_projection.weight)
        nn.initializer.Normal(0.0, text_width**-0.5)(self.text_projection.weight)
        self.logit_scale = self.create_parameter([], default_initializer=nn.initializer.Constant(math.log(1 / 0.07)))
        self.logit_scale.stop_gradient = freeze_temperature
        self.fast_paths = self.visual.fast_paths | {"text_attention": self.textual.blocks[0].attn.resolved}

    def forward(self, clip: paddle.Tensor, tokens: paddle.Tensor) -> dict[str, paddle.Tensor]:
        """Encode clips and sentences.

        Args:
            clip: Normalised frames, float [N, 3, T, H, W]; H and W multiples of the patch.
            tokens: Numbers of the sentences' tokens, int64 [M, L], L at most `context_length`; the greatest ends one.

        Returns:
            `video` [N, embed_dim] and `text` [M, embed_dim], of length 1, and `logit_scale`, the number that their
            products are multiplied by.

        Raises:
            ValueError: If a shape is another.
            TypeError: If the clip is not floating point.
        """
        return {
            "video": F.normalize(self.encode_video(clip), axis=-1),
            "text": F.normalize(self.encode_text(tokens), axis=-1),
            "logit_scale": self.logit_scale.exp(),
        }

    def encode_video(self, clip: paddle.Tensor) -> paddle.Tensor:
        """Return features [N, embed_dim] of clips [N, 3, T, H, W], of any length."""
        check_clip(clip, self)
        return self.visual_projection(self.visual(clip))

    def encode_text(self, tokens: paddle.Tensor) -> paddle.Tensor:
        """Return features [M, embed_dim] of tokens [M, L], of any length."""
        context = self.textual.context_length
        if paddle.in_dynamic_mode() and (tokens.ndim != 2 or tokens.shape[1] > context):
            raise ValueError(f"expected tokens of shape [N, at most {context}], got {list(tokens.shape)}")
        return self.text_projection(self.textual(tokens))
