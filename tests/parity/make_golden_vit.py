"""Writes tests/golden/vit.json: outputs of VideoMAE's, AVION's, timm's and transformers' vision transformers.

    python tests/parity/make_golden_vit.py VIDEOMAE AVION

VIDEOMAE and AVION are checkouts of MCG-NJU/VideoMAE and zhaoyue-zephyrus/AVION. Needs PyTorch, timm, einops and
transformers; run it once more with a transformers before 5 and `--old`, which adds its own names of the same networks.
"""

from __future__ import annotations

import json
import sys
import types
from functools import partial
from pathlib import Path

import torch
from named_states import describe
from named_weights import named_clip, named_weight

GOLDEN = Path(__file__).parents[1] / "golden" / "vit.json"
CLASSES, CLIP, OTHER = 5, (2, 3, 4, 32, 32), (1, 3, 8, 48, 48)
HIDDEN = [[1, 1, 0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 1, 0, 1, 1]]
SIZE = {"embed_dim": 48, "depth": 2, "num_heads": 3}


def fill(model: torch.nn.Module) -> list[str]:
    """Fill a model by its names; return the lines that describe its state."""
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    model.load_state_dict({key: torch.as_tensor(named_weight(key, shape)) for key, shape in shapes.items()})
    model.eval()
    return describe(shapes)


def clip_of(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(named_clip("vit", shape))


def gradient_norms(model: torch.nn.Module, keys: list[str]) -> dict[str, float]:
    named = dict(model.named_parameters())
    return {key: named[key].grad.norm().item() for key in keys}


def authors_finetuned(frames: int, crop: int, clip: tuple[int, ...]) -> dict[str, object]:
    from modeling_finetune import VisionTransformer

    model = VisionTransformer(
        img_size=crop, all_frames=frames, num_classes=CLASSES, qkv_bias=True, init_scale=1.0,
        norm_layer=partial(torch.nn.LayerNorm, eps=1e-6), **SIZE,
    )  # fmt: skip
    case = {"state": fill(model), "clip": clip}
    logits = model(clip_of(clip))
    torch.nn.functional.cross_entropy(logits, torch.arange(clip[0])).backward()
    keys = ["patch_embed.proj.weight", "blocks.0.attn.q_bias", "blocks.1.mlp.fc2.weight", "fc_norm.weight", "head.bias"]
    return case | {"logits": logits.tolist(), "gradient_norms": gradient_norms(model, keys)}


def authors_pretrained() -> dict[str, object]:
    from modeling_pretrain import PretrainVisionTransformer

    model = PretrainVisionTransformer(
        img_size=32, encoder_embed_dim=48, encoder_depth=2, encoder_num_heads=3, decoder_embed_dim=24,
        decoder_depth=1, decoder_num_heads=3, qkv_bias=True, norm_layer=partial(torch.nn.LayerNorm, eps=1e-6),
    )  # fmt: skip
    # Their pre-training always has 16 frames: positions for fewer are the first of the same table.
    model.encoder.pos_embed, model.pos_embed = model.encoder.pos_embed[:, :8], model.pos_embed[:, :8]
    case = {"state": fill(model), "clip": CLIP, "mask": HIDDEN}
    patches = model(clip_of(CLIP), torch.tensor(HIDDEN).bool())
    patches.square().mean().backward()
    keys = [
        "mask_token",
        "encoder_to_decoder.weight",
        "encoder.patch_embed.proj.weight",
        "decoder.blocks.0.attn.v_bias",
    ]
    case["gradient_norms"] = gradient_norms(model, keys)
    return case | {"patches": patches[:, :, ::100].tolist()}


def authors_real_size() -> dict[str, object]:
    """The small network at its real size: 160 of 1568 patches visible."""
    from modeling_pretrain import pretrain_videomae_small_patch16_224

    model = pretrain_videomae_small_patch16_224(decoder_depth=4)
    case = {"state": fill(model), "clip": (1, 3, 16, 224, 224)}
    with torch.no_grad():
        patches = model(clip_of(case["clip"]), torch.arange(1568)[None] % 196 >= 20)
    return case | {"patches": patches[:, ::300, ::300].tolist()}


def avion(checkout: str, frames: int) -> dict[str, object]:
    for name, member in (("flash_attn.modules.mha", "MHA"), ("flash_attn.modules.mlp", "Mlp")):
        sys.modules[name] = types.ModuleType(name)
        setattr(sys.modules[name], member, None)
    sys.path.insert(0, checkout)
    from avion.models.transformer import VisionTransformer

    tower = VisionTransformer(32, 16, width=48, layers=2, heads=3, mlp_ratio=4.0, num_frames=frames)
    model = torch.nn.Module()
    model.visual, model.fc_cls = tower, torch.nn.Linear(48, CLASSES)
    case = {"state": fill(model), "clip": (2, 3, frames, 32, 32)}
    with torch.no_grad():
        return case | {"logits": model.fc_cls(model.visual(clip_of(case["clip"]))).tolist()}


def timm_case(name: str, image: tuple[int, ...], **size) -> dict[str, object]:
    import timm

    model = timm.create_model(name, num_classes=CLASSES, **size)
    case = {"state": fill(model), "image": image}
    with torch.no_grad():
        return case | {"logits": model(clip_of(image)).tolist()}


def transformers_models(prefix: str) -> dict[str, object]:
    import transformers

    config = transformers.VideoMAEConfig(
        image_size=32, num_frames=4, hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=192,
        decoder_hidden_size=24, decoder_num_hidden_layers=1, decoder_num_attention_heads=3,
        decoder_intermediate_size=96, num_labels=CLASSES, norm_pix_loss=False,
    )  # fmt: skip
    frames = clip_of(CLIP).transpose(1, 2)
    classifier = transformers.VideoMAEForVideoClassification(config)
    finetuned = {"state": fill(classifier), "clip": CLIP}
    config.use_mean_pooling = False  # as in the published files of the pre-training
    auto_encoder = transformers.VideoMAEForPreTraining(config)
    pretrained = {"state": fill(auto_encoder), "clip": CLIP, "mask": HIDDEN}
    with torch.no_grad():
        finetuned["logits"] = classifier(frames).logits.tolist()
        # The loss it computes as well wants colours in the usual range of the dataset, which does not touch the logits.
        patches = auto_encoder(frames, bool_masked_pos=torch.tensor(HIDDEN).bool()).logits
    pretrained["patches"] = patches[:, :, ::100].tolist()
    return {f"{prefix}_finetuned": finetuned, f"{prefix}_pretrained": pretrained, prefix: transformers.__version__}


def main() -> None:
    if sys.argv[1:] == ["--old"]:
        golden = json.loads(GOLDEN.read_text()) | transformers_models("transformers_old")
    else:
        import timm

        sys.path.insert(0, sys.argv[1])
        norm = partial(torch.nn.LayerNorm, eps=1e-6)  # where timm's CLIP has 1e-5
        golden = {
            "torch": torch.__version__,
            "timm": timm.__version__,
            # First: the authors' code registers networks under timm's names.
            "timm_small": timm_case("vit_small_patch16_224", (2, 3, 32, 32), img_size=32, **SIZE),
            "timm_real_size": timm_case("vit_small_patch16_224", (1, 3, 224, 224)),
            "timm_mean": timm_case("vit_small_patch16_224", (2, 3, 32, 32), img_size=32, global_pool="avg", **SIZE),
            "timm_clip": timm_case("vit_base_patch16_clip_224", (2, 3, 32, 32), img_size=32, norm_layer=norm, **SIZE),
            "authors_finetuned": authors_finetuned(4, 32, CLIP),
            "authors_finetuned_other": authors_finetuned(8, 48, OTHER),
            "authors_pretrained": authors_pretrained(),
            "authors_real_size": authors_real_size(),
            "avion_4": avion(sys.argv[2], 4),
            **transformers_models("transformers"),
        }
    GOLDEN.write_text(json.dumps(golden, separators=(",", ":")).replace('},"', '},\n"') + "\n")
    print(GOLDEN, GOLDEN.stat().st_size)


if __name__ == "__main__":
    main()
