"""Writes tests/golden/clip.json: features of CLIP, from OpenAI's code and transformers'.

    python tests/parity/make_golden_clip.py CLIP

CLIP is a checkout of openai/CLIP. Needs PyTorch and transformers.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import torch
import transformers
from named_weights import named_clip, named_weight

VOCABULARY, CONTEXT, EMBED = 50, 9, 24
IMAGES = (3, 3, 32, 32)
# The greatest number ends a sentence; what comes after it must not matter.
TOKENS = [[48, 3, 17, 49, 0, 0, 0, 0, 0], [48, 5, 5, 9, 31, 2, 40, 12, 49], [48, 49, 0, 0, 0, 0, 0, 0, 0]]


def fill(model: torch.nn.Module) -> dict[str, list[int]]:
    """Fill a model by its names and return their shapes."""
    shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
    model.load_state_dict({key: torch.as_tensor(named_weight(key, tuple(shape))) for key, shape in shapes.items()})
    model.eval()
    return shapes


def openai_case(checkout: str) -> dict[str, object]:
    spec = importlib.util.spec_from_file_location("clip_model", Path(checkout, "clip", "model.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.CLIP(EMBED, 32, 2, 128, 16, CONTEXT, VOCABULARY, 64, 4, 2)
    shapes = fill(model)
    images, tokens = torch.from_numpy(named_clip("clip", IMAGES)), torch.tensor(TOKENS)
    with torch.no_grad():
        video, text = model.encode_image(images).tolist(), model.encode_text(tokens).tolist()
        logits = model(images, tokens)[0].tolist()
    return {"shapes": shapes, "images": IMAGES, "tokens": TOKENS, "video": video, "text": text, "logits": logits}


def transformers_case() -> dict[str, object]:
    text = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256,
        "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "bos_token_id": 48, "eos_token_id": 49,
    }  # fmt: skip
    vision = {
        "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512,
        "image_size": 32, "patch_size": 16,
    }  # fmt: skip
    config = transformers.CLIPConfig(projection_dim=EMBED, text_config=text, vision_config=vision)
    model = transformers.CLIPModel(config)
    shapes = fill(model)
    images, tokens = torch.from_numpy(named_clip("clip", IMAGES)), torch.tensor(TOKENS)
    with torch.no_grad():
        out = model(input_ids=tokens, pixel_values=images)
    return {
        "shapes": shapes, "images": IMAGES, "tokens": TOKENS,
        "video_normalised": out.image_embeds.tolist(), "text_normalised": out.text_embeds.tolist(),
        "logits": out.logits_per_image.tolist(),
    }  # fmt: skip


def main() -> None:
    golden = {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "openai": openai_case(sys.argv[1]),
        "transformers_model": transformers_case(),
    }
    path = Path(__file__).parents[1] / "golden" / "clip.json"
    path.write_text(json.dumps(golden, separators=(",", ":")).replace('],"', '],\n"') + "\n")
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
