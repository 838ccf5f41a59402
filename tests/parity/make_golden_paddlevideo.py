"""Write tests/golden/paddlevideo.json: names and logits of PaddleVideo's TSN, TSM and ppTSM under named weights.

Needs Paddle and a checkout of https://github.com/PaddlePaddle/PaddleVideo:

    python tests/parity/make_golden_paddlevideo.py CHECKOUT

Only the files of the backbones and heads are run; what they import besides (registry, losses, downloads) plays no
part in a forward pass and is replaced.
"""

from __future__ import annotations

import importlib
import json
import sys
import types
from pathlib import Path

import paddle
from named_states import describe, named_state
from named_weights import named_clip

CLASSES = 7
CASES = {  # our name: file and class of the backbone, of the head, arguments
    "tsn_resnet50": ("resnet.ResNet", "tsn_head.TSNHead", {"depth": 50}),
    "tsm_resnet50": ("resnet_tsm.ResNetTSM", "tsm_head.TSMHead", {"depth": 50, "num_seg": 8}),
    "tsm_resnet101": ("resnet_tsm.ResNetTSM", "tsm_head.TSMHead", {"depth": 101, "num_seg": 8}),
    "pptsm_resnet50": ("resnet_tweaks_tsm.ResNetTweaksTSM", "pptsm_head.ppTSMHead", {"depth": 50, "num_seg": 8}),
    "pptsm_resnet50_16": ("resnet_tweaks_tsm.ResNetTweaksTSM", "pptsm_head.ppTSMHead", {"depth": 50, "num_seg": 16}),
}


class Registry:
    def register(self):
        return lambda cls: cls


class BaseHead(paddle.nn.Layer):
    def __init__(self, num_classes, in_channels, loss_cfg=None, **_):
        super().__init__()
        self.num_classes, self.in_channels = num_classes, in_channels


def prepare(checkout: Path) -> None:
    """Make `paddlevideo.modeling.{backbones,heads}` importable without running the packages' own __init__."""
    for package in ("", ".modeling", ".modeling.backbones", ".modeling.heads", ".utils"):
        module = types.ModuleType(f"paddlevideo{package}")
        module.__path__ = [str(checkout / "paddlevideo" / package.replace(".", "/").lstrip("/"))]
        sys.modules[module.__name__] = module
    replaced = {
        "paddlevideo.modeling.registry": {"BACKBONES": Registry(), "HEADS": Registry()},
        "paddlevideo.modeling.weight_init": {"weight_init_": None},
        "paddlevideo.modeling.heads.base": {"BaseHead": BaseHead},
        "paddlevideo.utils.save_load": {"load_ckpt": None},
    }
    for name, contents in replaced.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(contents)
    sys.modules["paddlevideo.utils"].load_ckpt = None


class Recognizer(paddle.nn.Layer):
    """The forward pass of their `Recognizer2D`."""

    def __init__(self, backbone, head):
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, imgs):
        num_segs = imgs.shape[1]
        return self.head(self.backbone(imgs.reshape([-1, *imgs.shape[2:]])), num_segs)


def find(folder: str, name: str) -> type:
    file, _, cls = name.partition(".")
    return getattr(importlib.import_module(f"paddlevideo.modeling.{folder}.{file}"), cls)


def run(name: str, backbone: str, head: str, kwargs: dict) -> dict[str, object]:
    with paddle.utils.unique_name.guard():
        model = Recognizer(
            find("backbones", backbone)(**kwargs), find("heads", head)(num_classes=CLASSES, in_channels=2048)
        )
    keys = describe({key: value.shape for key, value in model.state_dict().items()})
    missing, unexpected = model.set_state_dict(named_state(keys))
    assert not missing and not unexpected
    model.eval()
    shape = (1, 3, kwargs.get("num_seg", 2), 64, 64)
    clip = paddle.to_tensor(named_clip(name, shape))
    with paddle.no_grad():
        logits = model(clip.transpose([0, 2, 1, 3, 4]))
    return {"shape": shape, "logits": logits.tolist(), "keys": keys}


def main() -> None:
    prepare(Path(sys.argv[1]))
    golden = {"paddle": paddle.__version__, **{name: run(name, *case) for name, case in CASES.items()}}
    for name, same in (("tsn_resnet50", "tsm_resnet50"), ("pptsm_resnet50_16", "pptsm_resnet50")):
        assert golden[name]["keys"] == golden[same]["keys"]
        golden[name]["keys"] = same  # keeps the file small
    path = Path(__file__).parents[1] / "golden" / "paddlevideo.json"
    path.write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
