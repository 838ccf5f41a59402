"""Weights of VideoMAE: the authors' files, and the same networks in Hugging Face's transformers."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from paddle import nn

from paddlevideo_fast.models.videomae import VideoMAE
from paddlevideo_fast.models.weights.conversion import Conversion

DECODER = r"decoder\..*|encoder_to_decoder\..*|mask_token"
TRANSFORMERS_NAMES = [
    (r"videomae\.encoder\.layer\.", "encoder.blocks."),
    (r"videomae\.embeddings\.patch_embeddings\.projection\.", "encoder.patch_embed.proj."),
    (r"videomae\.layernorm\.", "encoder.norm."),
    (r"decoder\.decoder_layers\.", "decoder.blocks."),
    (r"classifier\.", "head."),
]
TRANSFORMERS_BLOCK_NAMES = [
    (r"(.*\.\d+)\.attention\.attention\.([qv])_bias", r"\1.attn.\2_bias"),
    (r"(.*\.\d+)\.attention\.attention\.([qkv])\w+\.(weight|bias)", r"\1.attn.\2_\3"),
    (r"(.*\.\d+)\.attention\.output\.dense\.(.*)", r"\1.attn.proj.\2"),
    (r"(.*\.\d+)\.intermediate\.dense\.(.*)", r"\1.mlp.fc1.\2"),
    (r"(.*\.\d+)\.output\.dense\.(.*)", r"\1.mlp.fc2.\2"),
    (r"(.*\.\d+)\.layernorm_before\.(.*)", r"\1.norm1.\2"),
    (r"(.*\.\d+)\.layernorm_after\.(.*)", r"\1.norm2.\2"),
]


def convert(state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Gives a model the weights of a file of MCG-NJU/VideoMAE, pre-trained or fine-tuned.

    The biases of queries and values become one bias with zeros for the keys, which the original has none for. For a
    classifier, a pre-trained file's decoder and last normalisation are left out, as the original's fine-tuning does.

    Args:
        state: `model` or `module` (written by DeepSpeed) of the file, keys as they are.
        model: `models.videomae.VideoMAE`; or `models.vit.VisionTransformer` with `pos="sinusoid", pool="mean"` and
            `tubelet_size=2`.

    Returns:
        The conversion, ready to `finish`.

    Source: `run_class_finetuning.py` of MCG-NJU/VideoMAE, for what fine-tuning takes over.
    """
    conversion = Conversion(state, model)
    names = {key: key.removeprefix("backbone.") for key in conversion.remaining}
    return _move_all(conversion, names)


def convert_huggingface(state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Gives a model the weights of `VideoMAEForPreTraining` or `VideoMAEForVideoClassification` of transformers.

    Args:
        state: The state dict, keys as they are in any version (`q_bias` or `query.bias`).
        model: As `convert`.

    Returns:
        The conversion, ready to `finish`.
    """
    conversion = Conversion(state, model)
    names = {}
    for key in conversion.remaining:
        name = key
        for pattern, replacement in TRANSFORMERS_NAMES:
            name = re.sub(f"^{pattern}", replacement, name)
        for pattern, replacement in TRANSFORMERS_BLOCK_NAMES:
            name = re.sub(f"^{pattern}$", replacement, name)
        names[key] = name
    return _move_all(conversion, names)


def _move_all(conversion: Conversion, names: dict[str, str]) -> Conversion:
    """Moves arrays whose keys stand for names that the authors use, queries, keys and values together or apart."""
    pretrained = any(re.fullmatch(DECODER, name) for name in names.values())
    whole = isinstance(conversion.model, VideoMAE)
    joined: dict[str, dict[str, str]] = {}
    for key, name in names.items():
        name = name if whole else name.removeprefix("encoder.")
        if not whole and re.fullmatch(DECODER, name):
            conversion.drop(key, "decoder of the pre-training")
        elif not whole and pretrained and name.startswith("norm."):
            conversion.drop(key, "last normalisation of the pre-training; a classifier starts a new one")
        elif match := re.fullmatch(r"(.*\.attn)\.([qkv])_(weight|bias)", name):
            joined.setdefault(f"{match[1]}.qkv.{match[3]}", {})[match[2]] = key
        else:
            conversion.move(key, name)
    for target, parts in joined.items():
        optional = {"k"} if target.endswith("bias") else set()
        if parts.keys() | optional == set("qkv"):  # if not, `finish` names the target
            conversion.join(target, [parts.get(part) for part in "qkv"])
    if pretrained and not whole:
        conversion.leave_all(r"(fc_norm|head)\..*", "the pre-training has no classifier")
    return conversion
