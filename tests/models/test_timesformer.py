"""TimeSformer: who sees whom, other clips, sizes, initial values, errors."""

from __future__ import annotations

import paddle
import pytest
from originals import blank, clip_of, golden, num_parameters

from paddlevideo_fast.arguments import ArgumentError
from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.transformer import nearest, nearest_grid

GOLDEN = golden("timesformer")
SMALL = {"num_classes": 5, "num_frames": 4, "crop_size": 32, "embed_dim": 48, "depth": 2, "num_heads": 3}


def small(**kwargs):
    paddle.seed(5)
    return create_model("timesformer_base_patch16", **(SMALL | kwargs))


def trained(**kwargs):
    """A small model whose zeros are filled, so that every part has a say."""
    model = small(**kwargs)
    for name, parameter in model.named_parameters():
        if "temporal_fc" in name or name == "time_embed":
            parameter.set_value(paddle.randn(parameter.shape) * 0.1)
    return model


def test_a_fresh_model_sees_single_frames():
    """Before training the step over time adds nothing, so the order of the frames does not matter."""
    clip = clip_of(1, 3, 4, 32, 32)
    for model, matters in ((small(), False), (trained(), True)):
        model.eval()
        assert ((model(clip) - model(clip.flip(2))).abs().max().item() > 1e-4) == matters


def test_who_sees_whom():
    """In one divided block a patch sees its place in all frames and, through those, nothing of other places there."""
    block = trained(depth=1).blocks[0]
    block.eval()
    x = clip_of(1, 1 + 4 * 6, 48)  # 4 frames of 6 patches
    x.stop_gradient = False
    frame, place = 2, 3
    block(x, 4)[0, 1 + frame * 6 + place].sum().backward()
    seen = x.grad[0].abs().max(axis=-1).numpy()
    assert seen[0] > 0
    # All places of its own frame, each of which has looked at its own place in the other frames.
    assert (seen[1:] > 0).all()
    block.attn.proj.weight.set_value(paddle.zeros([48, 48]))  # over time alone
    x.clear_gradient()
    block(x, 4)[0, 1 + frame * 6 + place].sum().backward()
    seen = x.grad[0, 1:].abs().max(axis=-1).numpy().reshape(4, 6) > 0
    assert seen[:, place].all() and seen.sum() == 4


@pytest.mark.parametrize("shape", [(1, 3, 2, 32, 32), (1, 3, 7, 32, 32), (2, 3, 4, 48, 32), (1, 3, 1, 16, 16)])
@pytest.mark.parametrize("attention", ["divided", "joint"])
def test_other_frames_and_sizes(attention, shape):
    assert trained(attention=attention)(clip_of(*shape)).shape == [shape[0], 5]


def test_nearest():
    assert nearest(paddle.arange(4), 0, 6).tolist() == [0, 0, 1, 2, 2, 3]
    assert nearest(paddle.arange(8), 0, 3).tolist() == [0, 2, 5]
    places = paddle.arange(4).reshape([1, 4, 1])
    assert nearest_grid(places, (2, 2), (2, 4)).flatten().tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("case", list(GOLDEN["parameters"]))
def test_published_size(case):
    attention, frames, crop = case.split()
    sizes = {"num_frames": int(frames), "crop_size": int(crop)}
    model = blank("timesformer_base_patch16", num_classes=400, attention=attention, **sizes)
    assert num_parameters(model) == GOLDEN["parameters"][case]


def test_initial_values():
    model = small(embed_dim=192)
    assert model.pos_embed.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.blocks[0].attn.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)
    zeros = [model.time_embed, model.head.bias] + [p for block in model.blocks for p in block.temporal_fc.parameters()]
    assert all(not p.numpy().any() for p in zeros)
    rates = [block.drop_path.rate for block in small(depth=3, drop_path_rate=0.4).blocks]
    assert rates == pytest.approx([0, 0.2, 0.4])


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"attention": "space"}, "space"),
        ({"crop_size": 200}, "crop_size is 200; it must be a multiple of the 16 pixels"),
        ({"num_frames": 0}, "num_frames is 0; it must be at least 1"),
        ({"num_classes": 0}, "num_classes is 0"),
        ({"num_heads": 5}, "num_heads is 5; it must divide the 48 channels"),
        ({"num_heads": 0}, "num_heads is 0; it must divide the 48 channels"),
        ({"num_heads": -3}, "num_heads is -3; it must divide the 48 channels"),
        ({"embed_dim": 0}, "embed_dim is 0; it must be at least 1"),
        ({"embed_dim": -48}, "embed_dim is -48; it must be at least 1"),
        ({"dropout": 1.5}, "dropout is 1.5; it must be from 0 to 1"),
        ({"dropout": -0.1}, "dropout is -0.1; it must be from 0 to 1"),
        ({"drop_path_rate": 1.0}, "drop_path_rate must be from 0 to below 1, given 1.0"),
        ({"impl": "quick"}, "impl is 'quick'; it must be"),
        ({"heads": 3}, "heads"),
    ],
)
def test_wrong_arguments(kwargs, match):
    with pytest.raises((ArgumentError, ValueError), match=match):
        small(**kwargs)


def test_wrong_clips():
    with pytest.raises(ValueError, match=r"expects a clip of shape \[N, 3, T, H, W\]"):
        small()(paddle.zeros([2, 4, 3, 32, 32]))
    with pytest.raises(ValueError, match="4 frames of 40x32 cannot be cut into patches"):
        small()(paddle.zeros([2, 3, 4, 40, 32]))
