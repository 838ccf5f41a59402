"""Weights of AVION: its dual encoder, the classifier fine-tuned from that, and its VideoMAE."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from paddle import nn

from paddlevideo_fast.models.dual_encoder import DualEncoder
from paddlevideo_fast.models.videomae import VideoMAE
from paddlevideo_fast.models.vit import VisionTransformer
from paddlevideo_fast.models.weights import from_videomae
from paddlevideo_fast.models.weights.conversion import Conversion
from paddlevideo_fast.models.weights.from_clip import as_kernel, move_textual, move_visual
from paddlevideo_fast.models.weights.load import WeightsError


def convert(state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Gives a model the weights of a file of AVION, made with FlashAttention or without.

    Positions for another number of frames are interpolated linearly (AVION interpolates to more and cuts to fewer),
    those for another crop bicubically.

    Args:
        state: `state_dict` of the file (`model` or `module` of VideoMAE's), keys as they are.
        model: `dual_encoder.DualEncoder` for the dual encoder; `vit.VisionTransformer` in AVION's form for its tower
            for clips or for the classifier; `videomae.VideoMAE`, or `vit.VisionTransformer` in VideoMAE's form, for
            VideoMAE.

    Returns:
        The conversion, ready to `finish`.

    Raises:
        WeightsError: If the weights are of another kind of model.

    Source: `avion/models/model_clip.py`, `transformer.py`, `model_videomae.py` and `utils.py`
    (`inflate_positional_embeds`) of zhaoyue-zephyrus/AVION.
    """
    masked = any("patch_embed.proj." in key for key in state)
    if not isinstance(model, VisionTransformer) and masked != isinstance(model, VideoMAE):
        kinds = ("VideoMAE's", "the dual encoder's")
        raise WeightsError(f"the weights are {kinds[not masked]} or another model's, not {kinds[masked]}")
    if masked:
        return _convert_masked(state, model)
    conversion = Conversion(state, model)
    if isinstance(model, DualEncoder):
        return _convert_dual_encoder(conversion)
    return _convert_classifier(conversion)


def _convert_dual_encoder(conversion: Conversion) -> Conversion:
    move_visual(conversion, "visual.")
    move_textual(conversion, "textual.")
    # Kept as [in, out], unlike linear layers.
    conversion.move("visual.image_projection", "visual_projection.weight", np.transpose)
    conversion.move("textual.text_projection", "text_projection.weight", np.transpose)
    conversion.move("logit_scale", "logit_scale")
    return conversion


def _convert_classifier(conversion: Conversion) -> Conversion:
    conversion.rename([(r"fc_cls\.(weight|bias)", r"head.\1")])
    if "head.weight" in conversion.missing:
        conversion.leave_all(r"head\..*", "the weights have no classifier")
    conversion.drop_all(r"(?!visual\.).*|visual\.image_projection", "not of the tower for clips")
    move_visual(conversion, "")
    return conversion


def _convert_masked(state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Converts as VideoMAE's own, from which FlashAttention's names and the linear patch embedding differ."""
    encoder, renamed = model.encoder if isinstance(model, VideoMAE) else model, {}
    for key, value in state.items():
        if key.endswith("patch_embed.proj.weight"):
            value = as_kernel(value, encoder.patch_embed.kernel)
        renamed[key.replace(".attn.Wqkv.", ".attn.qkv.").replace(".attn.out_proj.", ".attn.proj.")] = value
    return from_videomae.convert(renamed, model)
