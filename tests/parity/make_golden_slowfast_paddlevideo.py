"""Write tests/golden/slowfast_paddlevideo.json: outputs of PaddleVideo's SlowFast.

Needs Paddle and a checkout of https://github.com/PaddlePaddle/PaddleVideo:

    python tests/parity/make_golden_slowfast_paddlevideo.py CHECKOUT
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np
import paddle
from named_trees import describe, weight
from named_weights import named_clip

SIZES = {"alpha": 8, "beta": 4, "width_per_group": 16}
HEAD = {"num_classes": 7, "num_frames": 16, "crop_size": 64, "dropout_rate": 0.5}


def module(name: str, **contents: object) -> None:
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(contents)


def load(checkout: str) -> tuple[type, type]:
    """Their two files alone; the package wants other libraries."""
    folder = Path(checkout, "paddlevideo", "modeling")
    registry = types.SimpleNamespace(register=lambda: lambda layer: layer)
    for name in ("paddlevideo", "paddlevideo.modeling", "paddlevideo.modeling.backbones", "paddlevideo.modeling.heads"):
        module(name, __path__=[str(folder.parent.parent / name.replace(".", "/"))])
    module("paddlevideo.modeling.registry", BACKBONES=registry, HEADS=registry)
    module("paddlevideo.modeling.weight_init", weight_init_=None)
    module("paddlevideo.utils", __path__=[])
    module("paddlevideo.utils.multigrid", get_norm=lambda kind, splits: paddle.nn.BatchNorm3D)

    class Head(paddle.nn.Layer):
        def __init__(self, num_classes: int, loss: dict) -> None:
            super().__init__()

    module("paddlevideo.modeling.heads.base", BaseHead=Head)
    from paddlevideo.modeling.backbones.resnet_slowfast import ResNetSlowFast
    from paddlevideo.modeling.heads.slowfast_head import SlowFastHead

    return ResNetSlowFast, SlowFastHead


class Recogniser(paddle.nn.Layer):
    """Their backbone and head, as the keys of their files have them."""

    def __init__(self, backbone: paddle.nn.Layer, head: paddle.nn.Layer) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, clip: paddle.Tensor) -> paddle.Tensor:
        count = clip.shape[2] // SIZES["alpha"]
        indices = np.linspace(0, clip.shape[2] - 1, count).astype("int64")  # their PackOutput
        return self.head(self.backbone([paddle.index_select(clip, paddle.to_tensor(indices), 2), clip]))


def main() -> None:
    backbone, head = load(sys.argv[1])
    model = Recogniser(
        backbone(fusion_kernel_sz=5, **SIZES),
        head(alpha=SIZES["alpha"], beta=SIZES["beta"], width_per_group=16, **HEAD),
    )
    shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
    state = {key: weight(key, tuple(shape)) for key, shape in shapes.items()}
    missing, unexpected = model.set_state_dict(state)
    assert not missing and not unexpected
    model.eval()
    golden = {"paddle": paddle.__version__, "keys": describe(shapes)}
    for name, shape in {"training_crop": [2, 3, 16, 64, 64], "larger_crop": [1, 3, 16, 96, 64]}.items():
        with paddle.no_grad():
            probabilities = model(paddle.to_tensor(named_clip(name, shape))).tolist()
        golden[name] = {"clip": name, "shape": shape, "probabilities": probabilities}
        print(golden[name])
    text = json.dumps(golden, separators=(",", ":")).replace('"_mean', '\n"_mean')
    (Path(__file__).parents[1] / "golden" / "slowfast_paddlevideo.json").write_text(text + "\n")
    print(len(text), "bytes")


if __name__ == "__main__":
    main()
