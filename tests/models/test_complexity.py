"""Parameters and multiply-adds: by hand for single layers, against published figures for whole models."""

from __future__ import annotations

import paddle
import pytest
from originals import blank
from paddle import nn

from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.complexity import count_flops, count_parameters
from paddlevideo_fast.models.transformer import SelfAttention


class Layers(nn.Layer):
    """A grouped and a plain convolution, a normalisation and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2D(4, 4, 3, padding=1, groups=4, bias_attr=False)
        self.plain = nn.Conv2D(4, 6, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2D(6)
        self.fc = nn.Linear(6, 5)

    def forward(self, x):
        """Return [N, 5] of x [N, 4, H, W]."""
        return self.fc(self.norm(self.plain(self.depthwise(x))).mean([2, 3]))


def test_convolutions_and_products_by_hand():
    model = Layers()
    depthwise, plain, linear = 8 * 10 * 4 * 9, 4 * 5 * 6 * 4 * 9, 6 * 5
    assert count_flops(model, ([2, 4, 8, 10], "float32")) == 2 * (depthwise + plain + linear)
    assert count_parameters(model) == 4 * 9 + (6 * 4 * 9 + 6) + 2 * 6 + (6 * 5 + 5)  # no running statistics


def test_attention_by_hand():
    model = SelfAttention(12, 3, impl="reference")
    projections, products = 10 * 12 * 36 + 10 * 12 * 12, 2 * 10 * 10 * 12
    assert count_flops(model, ([1, 10, 12], "float32")) == projections + products


@pytest.mark.parametrize(
    ("name", "arguments", "clip", "parameters", "flops"),
    [
        ("slow_resnet50", {"num_classes": 400}, (8, 256), 32.45, 54.52),  # pytorchvideo, docs/source/model_zoo.md
        # arXiv 2203.12602
        ("vit_small_patch16", {"num_classes": 400, "num_frames": 16, "impl": "reference"}, (16, 224), 22, 57),
    ],
)
def test_published(name, arguments, clip, parameters, flops):
    model, (frames, side) = blank(name, **arguments), clip
    assert count_parameters(model) / 1e6 == pytest.approx(parameters, rel=2e-3)
    assert count_flops(model, ([1, 3, frames, side, side], "float32")) / 1e9 == pytest.approx(flops, rel=3e-3)


def test_the_model_is_left_as_it_was():
    model = create_model("tsm_resnet18", num_classes=3, width=0.125)
    clip = paddle.ones([1, 3, 8, 32, 32])
    model.eval()
    before = model(clip).numpy()
    model.train()
    count_flops(model, ([1, 3, 8, 32, 32], "float32"))
    assert model.training and not isinstance(model.forward, paddle.jit.dy2static.program_translator.StaticFunction)
    model.eval()
    assert (model(clip).numpy() == before).all()


def test_sizes_that_hang_on_values_are_refused():
    model = create_model("videomae_small", embed_dim=24, depth=1, num_heads=2, num_frames=4, crop_size=32)
    with pytest.raises(ValueError, match="hangs on the values of the input"):
        count_flops(model, ([1, 3, 4, 32, 32], "float32"), ([1, 8], "bool"))
