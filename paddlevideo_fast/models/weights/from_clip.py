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
from paddlevideo_fast.models.weights.conversion import Conversion

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
    """Give a model the weights of OpenAI's CLIP, of the Transformer kind (ViT-B/16, ViT-L/14 ...).

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
    for key in conversion.remaining:
        if key in ("input_resolution", "context_length", "vocab_size"):
            conversion.drop(key, "a size, no weight")
        elif key.endswith("attn_mask"):
            conversion.drop(key, "the causal mask, which is computed")
        elif not dual and (not key.startswith("visual.") or key in PROJECTIONS):
            conversion.drop(key, "not of the tower for images")
    tower = "visual." if dual else ""
    move_visual(conversion, r"visual\.", tower)
    if f"{tower}time_embed" in conversion.missing:
        conversion.leave(f"{tower}time_embed", "starts at zero")
    if not dual:
        leave_head(conversion)
        return conversion
    move_textual(conversion, "")
    _move_projections(conversion)
    return conversion


def leave_head(conversion: Conversion) -> None:
    """Leave the classifier as it was initialised: the weights have none."""
    for name in ("head.weight", "head.bias"):
        conversion.leave(name, "the weights have no classifier")


def move_visual(conversion: Conversion, source: str, target: str) -> None:
    """Move the tower for images or clips, all but its projection.

    Args:
        conversion: Of a state with CLIP's or AVION's names.
        source: Regular expression for what the tower's keys begin with.
        target: What the keys of the `vit.ClipEncoder` begin with, in the conversion's model.
    """
    encoder = conversion.model.visual if target else conversion.model
    patch = encoder.patch_embed.kernel[1:]
    for key in conversion.remaining:
        name = re.sub(f"^{source}", "", key)
        if name == key:
            continue
        if name == "class_embedding":
            conversion.move(key, f"{target}cls_token", lambda x: x[None, None])
        elif name == "positional_embedding":
            conversion.move(key, f"{target}pos_embed", lambda x: places_for(x, encoder.grid[1:]))
        elif name == "temporal_embedding":
            conversion.move(key, f"{target}time_embed", lambda x: times_for(x, encoder.grid[0]))
        elif name == "conv1.weight":
            conversion.move(key, f"{target}patch_embed.proj.weight", lambda x: as_kernel(x, patch))
    conversion.rename(
        [(rf"{source}ln_pre\.(.*)", rf"{target}norm_pre.\1"), (rf"{source}ln_post\.(.*)", rf"{target}norm.\1")]
        + layer_rules(rf"{source}transformer\.resblocks\.", rf"{target}blocks.")
    )


def move_textual(conversion: Conversion, source: str) -> None:
    """Move the tower for sentences, all but its projection; `source` matches what its keys begin with."""
    for key in conversion.remaining:
        if re.fullmatch(rf"{source}positional_embedding", key):
            conversion.move(key, "textual.pos_embed", lambda x: x[None])
    conversion.rename(
        [
            (rf"{source}token_embedding\.weight", r"textual.token_embed.weight"),
            (rf"{source}ln_final\.(.*)", r"textual.norm.\1"),
        ]
        + layer_rules(rf"{source}transformer\.resblocks\.", r"textual.blocks.")
    )


def layer_rules(source: str, target: str) -> list[tuple[str, str]]:
    """Return rules for `Conversion.rename` that move the residual blocks, whose keys begin with `source`, a number."""
    return [(rf"{source}(\d+)\.{layer}(weight|bias)", rf"{target}\1.{name}\2") for layer, name in LAYERS.items()]


def as_kernel(weight: np.ndarray, patch: Sequence[int]) -> np.ndarray:
    """Return a convolution's weight [dim, 3, *patch] of a linear layer's [dim, 3 * prod(patch)]; others as they are."""
    linear = weight.ndim == 2 and weight.shape[1] == 3 * math.prod(patch)
    return weight.reshape([len(weight), 3, *patch]) if linear else weight


def places_for(positions: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """Return positions [1, 1 + h * w, dim] for a grid of patches (h, w) of those [1 + side * side, dim] of a square."""
    side = round((len(positions) - 1) ** 0.5)
    if side**2 != len(positions) - 1 or (side, side) == tuple(grid):
        return positions[None]
    places = paddle.to_tensor(positions[None, 1:].astype(np.float32))
    return np.concatenate([positions[None, :1], resize_grid(places, (side, side), grid).numpy()], axis=1)


def times_for(positions: np.ndarray, num_frames: int) -> np.ndarray:
    """Return positions [1, num_frames, dim] of those [T, dim] for another number of frames, interpolated linearly."""
    times = paddle.to_tensor(positions[None].astype(np.float32))
    return resize_grid(times, (len(positions), 1, 1), (num_frames, 1, 1)).numpy()


def _move_projections(conversion: Conversion) -> None:
    wanted = conversion.model.visual_projection.weight.shape[1]
    found = {conversion.state[key].shape[-1] for key in PROJECTIONS if key in conversion.state}
    if found == {wanted}:
        for source, target in PROJECTIONS.items():
            conversion.move(source, target, np.transpose)  # kept as [in, out], unlike linear layers
        conversion.move("logit_scale", "logit_scale")
        return
    for source, target in {**PROJECTIONS, "logit_scale": "logit_scale"}.items():
        conversion.drop(source, f"into a space of {found} features, where the model has {wanted}")
        conversion.leave(target, "the common space is another")
