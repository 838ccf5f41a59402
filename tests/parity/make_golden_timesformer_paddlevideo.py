"""Writes tests/golden/timesformer_paddlevideo.json: logits of PaddleVideo's TimeSformer.

    python tests/parity/make_golden_timesformer_paddlevideo.py PADDLEVIDEO

PADDLEVIDEO is a checkout of PaddlePaddle/PaddleVideo. Needs Paddle alone.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import paddle
from named_weights import named_clip, named_weight


def import_backbone(checkout: str):
    """Import their vit.py alone: the package wants other libraries."""
    folder = Path(checkout, "paddlevideo", "modeling")
    for name, path in {
        "paddlevideo": folder.parent,
        "paddlevideo.modeling": folder,
        "paddlevideo.modeling.backbones": folder / "backbones",
    }.items():
        package = types.ModuleType(name)
        package.__path__ = [str(path)]
        sys.modules[name] = package
    for name, contents in {
        "paddlevideo.utils": {"load_ckpt": None},
        "paddlevideo.modeling.registry": {"BACKBONES": types.SimpleNamespace(register=lambda: lambda model: model)},
        "paddlevideo.modeling.weight_init": {"trunc_normal_": None},
    }.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(contents)
    from paddlevideo.modeling.backbones.vit import VisionTransformer

    return VisionTransformer


class Recogniser(paddle.nn.Layer):
    """Their backbone and head, as the keys of their files have them."""

    def __init__(self, backbone: paddle.nn.Layer, num_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = paddle.nn.Sequential(("fc", paddle.nn.Linear(backbone.embed_dim, num_classes)))

    def forward(self, clip: paddle.Tensor) -> paddle.Tensor:
        return self.head(self.backbone(clip))


def case(build, attention: str) -> dict[str, object]:
    backbone = build(
        img_size=32, embed_dim=48, depth=2, num_heads=3, qkv_bias=True, epsilon=1e-6, num_seg=4,
        attention_type=f"{attention}_space_time",
    )  # fmt: skip
    model = Recogniser(backbone, 5)
    shapes = {key: list(value.shape) for key, value in model.state_dict().items()}
    model.set_state_dict({key: named_weight(key, tuple(shape)) for key, shape in shapes.items()})
    model.eval()
    clip = (2, 3, 4, 32, 32)
    with paddle.no_grad():
        logits = model(paddle.to_tensor(named_clip("timesformer", clip))).tolist()
    return {"shapes": shapes, "outputs": [{"clip": clip, "logits": logits}]}


def main() -> None:
    build = import_backbone(sys.argv[1])
    golden = {"paddle": paddle.__version__} | {attention: case(build, attention) for attention in ("divided", "joint")}
    path = Path(__file__).parents[1] / "golden" / "timesformer_paddlevideo.json"
    path.write_text(json.dumps(golden, separators=(",", ":")).replace('},"', '},\n"') + "\n")
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
