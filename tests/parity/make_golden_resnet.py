"""Write tests/golden/resnet.json: logits of torchvision's ResNets and of the authors' TSM under named weights.

Needs torch, torchvision and a checkout of https://github.com/mit-han-lab/temporal-shift-module:

    python tests/parity/make_golden_resnet.py CHECKOUT

The authors' shift runs the other way in time than Paddle's operator, so their model sees the clip backwards.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torchvision
from named_weights import named_clip, named_weight

CLASSES = 7
GRADIENTS = (
    "conv1.weight",
    "layer2.0.conv1.weight",
    "layer3.1.bn1.weight",
    "layer4.0.downsample.0.weight",
    "fc.weight",
)


def fill(model: torch.nn.Module) -> torch.nn.Module:
    state = model.state_dict()
    for key, value in state.items():
        if not key.endswith("num_batches_tracked"):
            state[key] = torch.from_numpy(named_weight(canonical(key), tuple(value.shape)))
    model.load_state_dict(state)
    model.eval()  # the authors' class returns nothing here
    return model


def canonical(key: str) -> str:
    return key.removeprefix("base_model.").replace(".net.", ".").replace("new_fc.", "fc.")


def tsn_logits(depth: int, shape: tuple[int, ...]) -> list[float]:
    model = fill(getattr(torchvision.models, f"resnet{depth}")(num_classes=CLASSES))
    clip = torch.from_numpy(named_clip(f"tsn{depth}", shape))
    frames = clip.transpose(1, 2).flatten(0, 1)
    with torch.no_grad():
        return model(frames).reshape(shape[0], shape[2], CLASSES).mean(1).tolist()


def authors_tsm(depth: int, num_segments: int) -> torch.nn.Module:
    from ops.models import TSN

    model = TSN(
        CLASSES,
        num_segments,
        "RGB",
        base_model=f"resnet{depth}",
        dropout=0.5,
        pretrain="",
        partial_bn=False,
        print_spec=False,
        is_shift=True,
        shift_div=8,
        shift_place="blockres",
    )
    return fill(model)


def backwards(clip: torch.Tensor) -> torch.Tensor:
    """Return [N, T * 3, H, W], last frame first."""
    return clip.flip(2).transpose(1, 2).flatten(1, 2)


def tsm_logits(depth: int, shape: tuple[int, ...]) -> list[float]:
    model = authors_tsm(depth, shape[2])
    clip = torch.from_numpy(named_clip(f"tsm{depth}", shape))
    with torch.no_grad():
        return model(backwards(clip)).tolist()


def tsm_training(depth: int, shape: tuple[int, ...]) -> dict[str, object]:
    """Logits and gradients in training mode (statistics of the batch), without dropout."""
    model = authors_tsm(depth, shape[2])
    model.train()
    model.base_model.fc.p = 0.0
    clip = torch.from_numpy(named_clip(f"tsm{depth}", shape))
    logits = model(backwards(clip))
    torch.nn.functional.cross_entropy(logits, torch.arange(shape[0])).backward()
    norms = {canonical(key): p.grad.norm().item() for key, p in model.named_parameters()}
    return {"shape": shape, "logits": logits.tolist(), "gradient_norms": {key: norms[key] for key in GRADIENTS}}


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    small, clip = (2, 3, 2, 72, 56), (1, 3, 8, 64, 64)
    golden = {
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "tsn": {depth: {"shape": small, "logits": tsn_logits(depth, small)} for depth in (18, 50)},
        "tsm": {depth: {"shape": clip, "logits": tsm_logits(depth, clip)} for depth in (18, 34, 50, 101)},
        "tsm_training": {18: tsm_training(18, (2, 3, 8, 64, 64))},
    }
    path = Path(__file__).parents[1] / "golden" / "resnet.json"
    path.write_text(json.dumps(golden, indent=1) + "\n")
    print(path.read_text())


if __name__ == "__main__":
    main()
