"""Write tests/golden/torchvision.json: names and logits of torchvision's ResNets and MobileNetV2 under named weights.

Needs torch and torchvision:

    python tests/parity/make_golden_torchvision.py
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torchvision
from named_states import describe, named_state
from named_weights import named_clip

CLASSES = 7
MOBILENET_GAIN = 1.7
CASES = {
    "resnet18": ({}, (1, 3, 2, 64, 48)),
    "resnet50": ({}, (1, 3, 2, 64, 48)),
    "mobilenet_v2": ({}, (1, 3, 2, 64, 48)),
    "mobilenet_v2_quarter": ({"width_mult": 0.25}, (1, 3, 2, 48, 64)),
}


def run(name: str, kwargs: dict, shape: tuple[int, ...]) -> dict[str, object]:
    model = getattr(torchvision.models, name.removesuffix("_quarter"))(num_classes=CLASSES, **kwargs)
    keys = describe({key: value.shape for key, value in model.state_dict().items()})
    gain = MOBILENET_GAIN if name.startswith("mobilenet") else 1.0
    model.load_state_dict({key: torch.from_numpy(value) for key, value in named_state(keys, gain).items()})
    model.eval()
    clip = torch.from_numpy(named_clip(name, shape))
    with torch.no_grad():
        logits = model(clip.transpose(1, 2).flatten(0, 1)).reshape(shape[0], shape[2], CLASSES).mean(1)
    return {"shape": shape, "gain": gain, "logits": logits.tolist(), "keys": keys}


def main() -> None:
    golden = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    golden |= {name: run(name, *case) for name, case in CASES.items()}
    path = Path(__file__).parents[1] / "golden" / "torchvision.json"
    path.write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
