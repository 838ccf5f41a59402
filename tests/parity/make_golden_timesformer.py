"""Writes tests/golden/timesformer.json: logits and gradients of TimeSformer, from the authors' code and transformers'.

    python tests/parity/make_golden_timesformer.py TIMESFORMER

TIMESFORMER is a checkout of facebookresearch/TimeSformer. Needs PyTorch, einops and transformers.
"""

from __future__ import annotations

import json
import sys
import types
from collections import abc
from functools import partial
from pathlib import Path

import torch
import transformers
from named_weights import named_clip, named_weight

CLASSES, GRADIENTS = 5, ("time_embed", "pos_embed", "blocks.0.temporal_attn.qkv.weight", "blocks.1.attn.qkv.weight")


def import_authors(checkout: str):
    """Import their vit.py alone: the package wants other libraries, and vit_utils a module that PyTorch has removed."""
    for name in ("timesformer", "timesformer.models"):
        package = types.ModuleType(name)
        package.__path__ = [str(Path(checkout, *name.split(".")))]
        sys.modules[name] = package
    build = types.ModuleType("timesformer.models.build")
    build.MODEL_REGISTRY = types.SimpleNamespace(register=lambda: lambda model: model)
    six = types.ModuleType("torch._six")
    six.container_abcs = abc
    helpers = types.ModuleType("timesformer.models.helpers")
    helpers.load_pretrained = None
    sys.modules |= {"timesformer.models.build": build, "torch._six": six, "timesformer.models.helpers": helpers}
    from timesformer.models.vit import VisionTransformer

    return VisionTransformer


def fill(model: torch.nn.Module, prefix: str = "") -> dict[str, list[int]]:
    """Fill a model by its names and return their shapes."""
    shapes = {prefix + key: list(value.shape) for key, value in model.state_dict().items()}
    state = {key.removeprefix(prefix): named_weight(key, tuple(shape)) for key, shape in shapes.items()}
    model.load_state_dict({key: torch.as_tensor(value) for key, value in state.items()})
    model.eval()
    return shapes


def authors_case(build, attention: str, clips: list[tuple[int, ...]], gradients: bool) -> dict[str, object]:
    model = build(
        img_size=32, num_classes=CLASSES, embed_dim=48, depth=2, num_heads=3, qkv_bias=True, num_frames=4,
        norm_layer=partial(torch.nn.LayerNorm, eps=1e-6), attention_type=attention,
    )  # fmt: skip
    shapes = fill(model, "model.")
    outputs = [{"clip": clip, "logits": run(model, clip).tolist()} for clip in clips]
    case: dict[str, object] = {"shapes": shapes, "outputs": outputs}
    if gradients:
        logits = run(model, clips[0])
        torch.nn.functional.cross_entropy(logits, torch.arange(len(logits))).backward()
        named = dict(model.named_parameters())
        case["gradient_norms"] = {key: named[key].grad.norm().item() for key in GRADIENTS}
    return case


def run(model: torch.nn.Module, shape: tuple[int, ...]) -> torch.Tensor:
    return model(torch.from_numpy(named_clip("timesformer", shape)))


def transformers_case(attention: str, clip: tuple[int, ...]) -> dict[str, object]:
    config = transformers.TimesformerConfig(
        image_size=32, num_frames=4, hidden_size=48, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=192, num_labels=CLASSES, attention_type=attention,
    )  # fmt: skip
    model = transformers.TimesformerForVideoClassification(config)
    shapes = fill(model)
    with torch.no_grad():
        logits = model(torch.from_numpy(named_clip("timesformer", clip)).transpose(1, 2)).logits
    return {"shapes": shapes, "outputs": [{"clip": clip, "logits": logits.tolist()}]}


def main() -> None:
    build = import_authors(sys.argv[1])
    same, other = (2, 3, 4, 32, 32), [(1, 3, 6, 32, 32), (1, 3, 4, 48, 48), (1, 3, 3, 64, 48)]
    golden = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "authors": {
            "divided": authors_case(build, "divided_space_time", [same, *other], gradients=True),
            "joint": authors_case(build, "joint_space_time", [same, other[0]], gradients=False),
        },
        "transformers_models": {
            "divided": transformers_case("divided_space_time", same),
            "joint": transformers_case("joint_space_time", same),
        },
        "parameters": count_parameters(build),
    }
    path = Path(__file__).parents[1] / "golden" / "timesformer.json"
    path.write_text(json.dumps(golden, indent=None, separators=(",", ":")).replace('},"', '},\n"') + "\n")
    print(path, path.stat().st_size)


def count_parameters(build) -> dict[str, int]:
    """Parameters of the published models, by attention, frames and crop."""
    counts = {}
    for attention, frames, crop in (("divided", 8, 224), ("divided", 96, 224), ("divided", 16, 448), ("joint", 8, 224)):
        model = build(
            img_size=crop, num_classes=400, qkv_bias=True, num_frames=frames, attention_type=f"{attention}_space_time"
        )
        counts[f"{attention} {frames} {crop}"] = sum(p.numel() for p in model.parameters())
    return counts


if __name__ == "__main__":
    main()
