"""Write tests/golden/tsm.json: names and logits of the authors' TSM under named weights, clips running forward.

Needs torch, torchvision and a checkout of https://github.com/mit-han-lab/temporal-shift-module:

    python tests/parity/make_golden_tsm.py CHECKOUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torchvision
from named_states import describe, named_state
from named_weights import named_clip

CLASSES = 7
MOBILENET_GAIN = 1.7
CASES = {
    "tsn_resnet18": {"base_model": "resnet18", "is_shift": False},
    "tsm_resnet18": {"base_model": "resnet18"},
    "tsm_resnet101": {"base_model": "resnet101"},
    "tsm_nl_resnet50": {"base_model": "resnet50", "non_local": True},
    "tsm_mobilenetv2": {"base_model": "mobilenetv2"},
}
SHAPE = (1, 3, 4, 64, 64)


def run(name: str, kwargs: dict) -> dict[str, object]:
    from ops.models import TSN

    TSN.print_spec = False  # read where MobileNetV2 is built, and set nowhere
    kwargs = {"is_shift": True, "shift_div": 8, "shift_place": "blockres"} | kwargs
    model = TSN(CLASSES, SHAPE[2], "RGB", pretrain="", partial_bn=False, print_spec=False, **kwargs)
    # As DataParallel saves it, which the authors' main.py does.
    keys = describe({f"module.{key}": value.shape for key, value in model.state_dict().items()})
    gain = MOBILENET_GAIN if name == "tsm_mobilenetv2" else 1.0
    state = {key.removeprefix("module."): torch.from_numpy(value) for key, value in named_state(keys, gain).items()}
    model.load_state_dict(state)
    model.eval()  # the authors' class returns nothing here
    clip = torch.from_numpy(named_clip(name, SHAPE))
    with torch.no_grad():
        logits = model(clip.transpose(1, 2).flatten(1, 2))
    return {"shape": SHAPE, "gain": gain, "logits": logits.tolist(), "keys": keys}


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    golden = {"torch": torch.__version__, "torchvision": torchvision.__version__}
    golden |= {name: run(name, kwargs) for name, kwargs in CASES.items()}
    path = Path(__file__).parents[1] / "golden" / "tsm.json"
    path.write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
