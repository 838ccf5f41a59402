"""Weights of OpenAI's CLIP, for the dual encoder and for vision transformers in AVION's form."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.models.dual_encoder import DualEncoder
from paddlevideo_fast.models.transformer import resize_grid
from paddlevideo_fast.models.weights.conversion import Conversion, resize_places

# What the keys of a residual block begin with, as CLIP has them and as FlashAttention's modules do.
LAYERS = {
    r"ln_1\.": "norm1.",
    r"ln_2\.": "norm2.",
    r"attn\.in_proj_": "attn.qkv.",
    r"attn\.Wqkv\.": "attn.qkv.",
    r"attn\.out_proj\.": "attn.proj.",
    r"mlp\.(?:c_fc|fc1)\.": "mlp.fc1.",
    r"mlp\.(?:c_proj|fc2)\.": "mlp.fc2.",
}
PROJECTIONS = {"visual.proj": "visual_projection.weight", "text_projection": "text_projection.weight"}


def convert(state: Mapping[str, np.ndarray], model: nn.Layer) -> Conversion:
    """Gives a model the weights of OpenAI's CLIP, of the Transformer kind (ViT-B/16, ViT-L/14 ...).

    Positions in time start at zero, so that a clip of one frame is encoded as CLIP encodes the image. Positions in
    space are interpolated to another crop. A common space of another size than CLIP's leaves both projections and the
    temperature fresh. A classifier takes the tower for images alone.

    Args:
        state: State dict of `clip.load(...)`, or what its TorchScript archive holds.
        model: `dual_encoder.DualEncoder`, or `vit.VisionTransformer` in AVION's form (see there).

    Returns:
        The conversion, ready to `finish`.

    Source: `clip/model.py` of openai/CLIP; what AVION takes of it, `avion/models/utils.py`
    (`remap_keys_from_open_clip_to_vit`).
    """
    conversion = Conversion(state, model)
    dual = isinstance(model, DualEncoder)
    conversion.drop_all("input_resolution|context_length|vocab_size", "a size, no weight")
    conversion.drop_all(r".*attn_mask", "the causal mask, which is computed")
    if not dual:
        conversion.drop_all(r"(?!visual\.).*|visual\.proj", "not of the tower for images")
    move_visual(conversion, "visual." if dual else "")
    conversion.leave_all(r"(visual\.)?time_embed", "starts at zero")
    if not dual:
        conversion.leave_all(r"head\..*", "the weights have no classifier")
        return conversion
    move_textual(conversion, "")
    _move_projections(conversion)
    return conversion


def move_visual(conversion: Conversion, target: str) -> None:
    """Moves the tower for images or clips, all but its projection.

    Args:
        conversion: Of a state with CLIP's or AVION's names, which begin with `visual.` there.
        target: What the keys of the `vit.ClipEncoder` begin with, in the conversion's model.
    """
    encoder = conversion.model.visual if target else conversion.model
    patch = encoder.patch_embed.kernel[1:]
    changes = {
        "class_embedding": ("cls_token", lambda x: x[None, None]),
        "positional_embedding": ("pos_embed", lambda x: resize_places(x[None], encoder.grid[1:])),
        "temporal_embedding": ("time_embed", lambda x: resize_times(x, encoder.grid[0])),
        "conv1.weight": ("patch_embed.proj.weight", lambda x: as_kernel(x, patch)),
    }
    for source, (name, change) in changes.items():
        if f"visual.{source}" in conversion.remaining:  # if not, `finish` names the target
            conversion.move(f"visual.{source}", f"{target}{name}", change)
    conversion.rename(
        [
            (r"visual\.ln_pre\.(.*)", rf"{target}norm_pre.\1"),
            (r"visual\.ln_post\.(.*)", rf"{target}norm.\1"),
            *layer_rules(r"visual\.", f"{target}blocks."),
        ]
    )


def move_textual(conversion: Conversion, source: str) -> None:
    """Moves the tower for sentences, all but its projection; its keys begin with `source`."""
    conversion.move(f"{source}positional_embedding", "textual.pos_embed", lambda x: x[None])
    source = re.escape(source)
    conversion.rename(
        [
            (rf"{source}token_embedding\.weight", "textual.token_embed.weight"),
            (rf"{source}ln_final\.(.*)", r"textual.norm.\1"),
            *layer_rules(source, "textual.blocks."),
        ]
    )


def layer_rules(source: str, target: str) -> list[tuple[str, str]]:
    """Returns rules for `Conversion.rename` that move the residual blocks of a tower whose keys begin with `source`."""
    blocks = rf"{source}transformer\.resblocks\."
    return [(rf"{blocks}(\d+)\.{layer}(weight|bias)", rf"{target}\1.{name}\2") for layer, name in LAYERS.items()]


def as_kernel(weight: np.ndarray, patch: Sequence[int]) -> np.ndarray:
    """Returns a linear layer's weight [dim, 3 * prod(patch)] as a kernel [dim, 3, *patch]; any other as it is."""
    linear = weight.ndim == 2 and weight.shape[1] == 3 * math.prod(patch)
    return weight.reshape([len(weight), 3, *patch]) if linear else weight


def resize_times(positions: np.ndarray, num_frames: int) -> np.ndarray:
    """Returns positions [1, num_frames, dim] of those [T, dim] for another number of frames, interpolated linearly."""
    times = paddle.to_tensor(positions[None].astype(np.float32))
    return resize_grid(times, (len(positions), 1, 1), (num_frames, 1, 1)).numpy()


def _move_projections(conversion: Conversion) -> None:
    wanted = conversion.model.visual_projection.weight.shape[1]
    found = {np.shape(conversion.state[key])[-1:] for key in PROJECTIONS if key in conversion.state}
    if found == {(wanted,)}:
        for source, target in PROJECTIONS.items():
            conversion.move(source, target, np.transpose)  # kept as [in, out], unlike linear layers
        conversion.move("logit_scale", "logit_scale")
        return
    for source, target in {**PROJECTIONS, "logit_scale": "logit_scale"}.items():
        conversion.drop(source, f"into a space of {found} features, where the model has {wanted}")
        conversion.leave(target, "the common space is another")
