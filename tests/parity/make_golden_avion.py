"""Writes tests/golden/avion.json: features, logits and gradients of AVION's models.

    python tests/parity/make_golden_avion.py AVION

AVION is a checkout of zhaoyue-zephyrus/AVION. Needs PyTorch, timm and einops. FlashAttention's modules, which want a
GPU, are replaced by ones of the same parameters that compute plain attention.
"""

from __future__ import annotations

import json
import sys
import types
import warnings
from functools import partial
from pathlib import Path

import torch
from named_weights import named_clip, named_weight
from torch import nn

VOCABULARY, CONTEXT, EMBED, CLASSES = 50, 9, 24, 5
CLIP = (2, 3, 4, 32, 32)
TOKENS = [[48, 3, 17, 49, 0, 0, 0, 0, 0], [48, 5, 5, 9, 31, 2, 40, 12, 49]]
GRADIENTS = (
    "visual.temporal_embedding",
    "visual.positional_embedding",
    "visual.transformer.resblocks.0.ln_1.weight",
    "visual.image_projection",
    "textual.token_embedding.weight",
    "textual.transformer.resblocks.1.attn.in_proj_weight",
    "logit_scale",
)


class PlainMHA(nn.Module):
    """Parameters of `flash_attn.modules.mha.MHA` and plain attention."""

    def __init__(self, dim, num_heads, cross_attn=False, bias=True, dropout=0.0, use_flash_attn=False):
        super().__init__()
        self.num_heads = num_heads
        self.Wqkv = nn.Linear(dim, 3 * dim, bias=bias)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x):
        n, length, dim = x.shape
        qkv = self.Wqkv(x).reshape(n, length, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        weights = (qkv[0] @ qkv[1].transpose(-1, -2) * (dim // self.num_heads) ** -0.5).softmax(-1)
        return self.out_proj((weights @ qkv[2]).transpose(1, 2).reshape(n, length, dim))


class PlainMlp(nn.Module):
    """Parameters of `flash_attn.modules.mlp.Mlp` and plain layers."""

    def __init__(self, dim, hidden_features, activation):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden_features), nn.Linear(hidden_features, dim)
        self.activation = activation

    def forward(self, x):
        return self.fc2(self.activation(self.fc1(x)))


def import_authors(checkout: str) -> tuple[types.ModuleType, ...]:
    """Import their models with stand-ins for FlashAttention and for OpenAI's package, which only loads files."""
    contents = {"flash_attn.modules.mha": {"MHA": PlainMHA}, "flash_attn.modules.mlp": {"Mlp": PlainMlp}}
    for name in ("flash_attn", "flash_attn.modules", *contents, "clip"):
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(contents.get(name, {}))
    sys.path.insert(0, checkout)
    from avion.models import model_clip, model_videomae, transformer

    return model_clip, model_videomae, transformer


def fill(model: nn.Module, prefix: str = "module.") -> dict[str, list[int]]:
    """Fill a model by its names and return their shapes."""
    shapes = {prefix + key: list(value.shape) for key, value in model.state_dict().items()}
    state = {key.removeprefix(prefix): named_weight(key, tuple(shape)) for key, shape in shapes.items()}
    model.load_state_dict({key: torch.as_tensor(value) for key, value in state.items()})
    model.eval()
    return shapes


def dual_encoder(model_clip, transformer, flash: bool) -> nn.Module:
    visual = transformer.VisionTransformer(
        32, 16, 48, 2, 3, 4, num_frames=4, output_dim=EMBED, use_fast_conv1=flash, use_flash_attn=flash
    )
    textual = transformer.TextTransformer(
        context_length=CONTEXT, vocab_size=VOCABULARY, width=32, heads=2, layers=2, output_dim=EMBED
    )
    return model_clip.CLIP(embed_dim=EMBED, vision_model=visual, text_model=textual)


def pretrained_case(model_clip, transformer, flash: bool) -> dict[str, object]:
    model = dual_encoder(model_clip, transformer, flash)
    shapes = fill(model)
    video, text, scale = model(torch.from_numpy(named_clip("avion", CLIP)), torch.tensor(TOKENS))
    logits = scale * video @ text.T
    labels = torch.arange(len(logits))
    loss = (nn.functional.cross_entropy(logits, labels) + nn.functional.cross_entropy(logits.T, labels)) / 2
    loss.backward()
    named = dict(model.named_parameters())
    return {
        "shapes": shapes, "clip": CLIP, "tokens": TOKENS,
        "video": video.tolist(), "text": text.tolist(), "scale": scale.item(), "loss": loss.item(),
        "gradient_norms": {key: named[key].grad.norm().item() for key in GRADIENTS},
    }  # fmt: skip


def classifier_case(model_clip, transformer, flash: bool) -> dict[str, object]:
    model = model_clip.VideoClassifier(dual_encoder(model_clip, transformer, flash).visual, 0.5, CLASSES)
    shapes = fill(model)
    with torch.no_grad():
        logits = model(torch.from_numpy(named_clip("avion", CLIP))).tolist()
    return {"shapes": shapes, "clip": CLIP, "logits": logits}


def masked_case(model_videomae) -> dict[str, object]:
    """Their VideoMAE as released: flash attention in both parts, patch embedding as a linear layer."""
    model = model_videomae.PretrainVisionTransformer(
        img_size=32, encoder_embed_dim=48, encoder_depth=2, encoder_num_heads=3, decoder_embed_dim=24, decoder_depth=1,
        decoder_num_heads=2, qkv_bias=True, norm_layer=partial(nn.LayerNorm, eps=1e-6), channel_last=True,
        use_flash_attn_at_encoder=True, use_flash_attn_at_decoder=True,
    )  # fmt: skip
    shapes = fill(model)
    clip = (2, 3, 16, 32, 32)
    hidden = [[(i * 7 + n) % 4 != 0 for i in range(32)] for n in range(2)]  # a quarter visible
    with torch.no_grad():
        out = model(torch.from_numpy(named_clip("avion", clip)), torch.tensor(hidden))
    return {"shapes": shapes, "clip": clip, "hidden": hidden, "every_311th": out.flatten()[::311].tolist()}


def finetuned_case(model_videomae) -> dict[str, object]:
    model = model_videomae.VisionTransformer(
        img_size=32, num_classes=CLASSES, embed_dim=48, depth=2, num_heads=3, qkv_bias=True, all_frames=16,
        norm_layer=partial(nn.LayerNorm, eps=1e-6), use_flash_attn=True, channel_last=True,
    )  # fmt: skip
    shapes = fill(model)
    clip = (2, 3, 16, 32, 32)
    with torch.no_grad():
        logits = model(torch.from_numpy(named_clip("avion", clip))).tolist()
    return {"shapes": shapes, "clip": clip, "logits": logits}


def main() -> None:
    warnings.simplefilter("ignore", FutureWarning)
    model_clip, model_videomae, transformer = import_authors(sys.argv[1])
    golden: dict[str, object] = {"torch": torch.__version__}
    for name, flash in (("flash", True), ("plain", False)):
        golden[f"pretrained_{name}"] = pretrained_case(model_clip, transformer, flash)
        golden[f"classifier_{name}"] = classifier_case(model_clip, transformer, flash)
    golden["masked"], golden["finetuned"] = masked_case(model_videomae), finetuned_case(model_videomae)
    path = Path(__file__).parents[1] / "golden" / "avion.json"
    path.write_text(json.dumps(golden, separators=(",", ":")).replace('],"', '],\n"') + "\n")
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
