"""Weights of the models in Hugging Face's transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from paddle import nn

from paddlevideo_fast.models.dual_encoder import DualEncoder
from paddlevideo_fast.models.timesformer import TimeSformer
from paddlevideo_fast.models.weights import from_videomae
from paddlevideo_fast.models.weights.conversion import Conversion, resize_places
from paddlevideo_fast.models.weights.from_timesformer import move_positions

TIMESFORMER_LAYERS = {
    r"attention\.attention\.qkv": "attn.qkv",
    r"attention\.output\.dense": "attn.proj",
    r"intermediate\.dense": "mlp.fc1",
    r"output\.dense": "mlp.fc2",
    r"layernorm_before": "norm1",
    r"layernorm_after": "norm2",
    r"temporal_layernorm": "temporal_norm1",
    r"temporal_attention\.attention\.qkv": "temporal_attn.qkv",
    r"temporal_attention\.output\.dense": "temporal_attn.proj",
    r"temporal_dense": "temporal_fc",
}
CLIP_RULES = [
    (r"text_model\.embeddings\.token_embedding\.weight", "textual.token_embed.weight"),
    (r"text_model\.final_layer_norm\.(.*)", r"textual.norm.\1"),
    (r"vision_model\.embeddings\.patch_embedding\.weight", "visual.patch_embed.proj.weight"),
    (r"vision_model\.pre_layrnorm\.(.*)", r"visual.norm_pre.\1"),  # spelt so there
    (r"vision_model\.post_layernorm\.(.*)", r"visual.norm.\1"),
    (r"((?:visual|text)_projection\.weight|logit_scale)", r"\1"),
]
CLIP_LAYERS = {"layer_norm": "norm", r"self_attn\.out_proj": "attn.proj", "mlp": "mlp"}
CLIP_TOWERS = {"text_model": "textual", "vision_model": "visual"}


def convert(state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Gives a model the weights of its counterpart in transformers.

    Args:
        state: State dict of TimesformerForVideoClassification for a TimeSformer, of CLIPModel for a dual encoder, of
            the VideoMAE classes for what `from_videomae.convert_huggingface` takes.
        model: What the weights are for.

    Returns:
        The conversion, ready to `finish`.
    """
    if isinstance(model, TimeSformer):
        return _convert_timesformer(Conversion(state, model))
    if isinstance(model, DualEncoder):
        return _convert_clip(Conversion(state, model))
    return from_videomae.convert_huggingface(state, model)


def _convert_timesformer(conversion: Conversion) -> Conversion:
    embeddings = "timesformer.embeddings."
    move_positions(conversion, f"{embeddings}position_embeddings", "pos_embed")
    move_positions(conversion, f"{embeddings}time_embeddings", "time_embed")
    conversion.move(f"{embeddings}cls_token", "cls_token")
    conversion.rename(
        [
            (r"timesformer\.embeddings\.patch_embeddings\.projection\.(.*)", r"patch_embed.proj.\1"),
            (r"timesformer\.layernorm\.(.*)", r"norm.\1"),
            (r"classifier\.(.*)", r"head.\1"),
        ]
        + [
            (rf"timesformer\.encoder\.layer\.(\d+)\.{layer}\.(weight|bias)", rf"blocks.\1.{name}.\2")
            for layer, name in TIMESFORMER_LAYERS.items()
        ]
    )
    return conversion


def _convert_clip(conversion: Conversion) -> Conversion:
    model = conversion.model
    conversion.drop_all(r".*position_ids", "numbers of positions, which are counted")
    vision = "vision_model.embeddings."
    conversion.move(f"{vision}class_embedding", "visual.cls_token", lambda x: x[None, None])
    grid = model.visual.grid[1:]
    conversion.move(f"{vision}position_embedding.weight", "visual.pos_embed", lambda x: resize_places(x[None], grid))
    conversion.leave_all(r"visual\.time_embed", "starts at zero")
    conversion.move("text_model.embeddings.position_embedding.weight", "textual.pos_embed", lambda x: x[None])
    conversion.rename(CLIP_RULES)
    for source, target in CLIP_TOWERS.items():
        layers = f"{source}.encoder.layers."
        conversion.rename(
            [
                (rf"{re.escape(layers)}(\d+)\.{layer}(.*)", rf"{target}.blocks.\1.{name}\2")
                for layer, name in CLIP_LAYERS.items()
            ]
        )
        for i in range(len(getattr(model, target).blocks)):
            for kind in ("weight", "bias"):
                parts = [f"{layers}{i}.self_attn.{part}_proj.{kind}" for part in "qkv"]
                if all(part in conversion.state for part in parts):  # if not, `finish` names the target
                    conversion.join(f"{target}.blocks.{i}.attn.qkv.{kind}", parts)
    return conversion
