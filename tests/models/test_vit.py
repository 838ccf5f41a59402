"""The vision transformer: names, sizes, other clips, positions, initial values, export, errors."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import blank, clip_of, golden, num_parameters

from paddlevideo_fast.arguments import ArgumentError
from paddlevideo_fast.models import MODELS, create_model
from paddlevideo_fast.models.transformer import resize_grid, sinusoid_table
from paddlevideo_fast.models.vit import ClipEncoder

GOLDEN = golden("vit")
SIZES = {"num_frames": 4, "crop_size": 32, "embed_dim": 48, "depth": 2, "num_heads": 3}
SMALL = {"num_classes": 5, "head_init_scale": 1.0} | SIZES
AVION = {"tubelet_size": 1, "pool": "cls", "pos": "learned", "pre_norm": True, "drop_path_schedule": "constant"}
FORMS = {
    "videomae": {},
    "avion": AVION,
    "learned mean": {"pos": "learned"},
    "sinusoid token": {"pool": "cls"},
    "image": {"num_frames": 1, "tubelet_size": 1, "pool": "cls", "pos": "learned"},
}


def small(**kwargs):
    paddle.seed(5)
    return create_model("vit_base_patch16", **(SMALL | kwargs))


def test_names_of_parameters():
    block = ["norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"]
    block = [f"blocks.0.{name}.{kind}" for name in block for kind in ("weight", "bias")]
    patch, head = ["patch_embed.proj.weight", "patch_embed.proj.bias"], ["head.weight", "head.bias"]
    for form, names in {
        "videomae": [*patch, *block, "fc_norm.weight", "fc_norm.bias", *head],
        "image": ["cls_token", "pos_embed", *patch, *block, "norm.weight", "norm.bias", *head],
        "avion": [
            *("cls_token", "pos_embed", "time_embed", patch[0], "norm_pre.weight", "norm_pre.bias"),
            *(*block, "norm.weight", "norm.bias", *head),
        ],
    }.items():
        assert list(small(**(FORMS[form] | {"depth": 1})).state_dict()) == names
    assert "blocks.0.attn.qkv.bias" not in small(qkv_bias=False).state_dict()


def size_of(dim, depth, num_classes, patch=3 * 2 * 16 * 16, positions=0):
    """A block has 12 dim^2 + 13 dim parameters; the last normalisation 2 dim."""
    return depth * (12 * dim**2 + 13 * dim) + (patch + 1 + 2 + positions) * dim + num_classes * (dim + 1)


def test_published_sizes():
    assert (
        num_parameters(blank("vit_small_patch16", num_classes=400))
        == size_of(384, 12, 400)
        == pytest.approx(22e6, rel=2e-3)
    )
    assert num_parameters(small()) == size_of(48, 2, 5)
    assert num_parameters(small(**FORMS["image"])) == size_of(48, 2, 5, 3 * 16 * 16, 1 + 4 + 1)
    for name, dim, depth, num_heads, patch, image, clips in (
        ("vit_small_patch16", 384, 12, 6, 16, 22_050_664, 22e6),
        ("vit_base_patch16", 768, 12, 12, 16, 86_567_656, 87e6),
        ("vit_large_patch16", 1024, 24, 16, 16, 304_326_632, 304e6),
        ("vit_large_patch14", 1024, 24, 16, 14, 304_203_752, 304e6),
    ):
        arguments = {"patch_size": 16} | MODELS[name].keywords
        assert arguments == {"embed_dim": dim, "depth": depth, "num_heads": num_heads, "patch_size": patch}
        # timm's vit_*_patch16_224; VideoMAE's model zoo and paper, in millions
        places = (224 // patch) ** 2
        assert size_of(dim, depth, 1000, 3 * patch**2, 1 + places + 1) == image
        assert size_of(dim, depth, 400, 6 * patch**2) == pytest.approx(clips, rel=6e-3)


@pytest.mark.parametrize("form", FORMS)
def test_other_frames_and_crops(form):
    model = small(**FORMS[form])
    model.eval()
    for frames, height, width in ((2, 32, 32), (8, 32, 32), (4, 48, 16), (6, 64, 48)):
        logits = model(clip_of(2, 3, frames, height, width))
        assert logits.shape == [2, 5] and np.isfinite(logits.numpy()).all()
    model(clip_of(2, 3, 2, 48, 48)).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_positions_of_another_clip():
    grid, dim = (2, 2, 2), 48
    sinusoid = small().positions(grid).numpy()
    np.testing.assert_array_equal(sinusoid.reshape(8, dim), sinusoid_table(8, dim))
    model = small(**AVION)
    model.time_embed.set_value(paddle.randn(model.time_embed.shape))
    places, times = model.pos_embed[0, 1:], model.time_embed[0]
    found = model.positions((4, 2, 2))
    for t in range(4):
        expected = places + times[t]
        np.testing.assert_allclose(found[0, t].numpy().reshape(4, dim), expected.numpy(), rtol=1e-6)
    found = model.positions((8, 3, 3))
    places, times = resize_grid(places, (2, 2), (3, 3)), resize_grid(times, (4, 1, 1), (8, 1, 1))
    np.testing.assert_allclose(found[0, 5].numpy().reshape(9, dim), (places + times[5]).numpy(), rtol=1e-5, atol=1e-6)


def test_the_class_token_has_no_time():
    model = small(**AVION)
    model.norm_pre = None
    before = model.embed(clip_of(1, 3, 4, 32, 32))
    model.time_embed.set_value(paddle.ones(model.time_embed.shape))
    after = model.embed(clip_of(1, 3, 4, 32, 32))
    np.testing.assert_array_equal(after[:, 0].numpy(), before[:, 0].numpy())
    np.testing.assert_allclose(after[:, 1:].numpy(), before[:, 1:].numpy() + 1, rtol=1e-5, atol=1e-6)


def test_initial_values():
    model = small(embed_dim=192, depth=1, **AVION)
    assert not model.time_embed.numpy().any()
    for parameter in (model.pos_embed, model.blocks[0].attn.qkv.weight, model.head.weight):
        assert parameter.std().item() == pytest.approx(0.02, rel=0.1)
    default = create_model("vit_base_patch16", num_classes=5, **SIZES)
    assert default.head.weight.std().item() == pytest.approx(2e-5, rel=0.2)


def test_drop_path_schedule():
    rates = [block.drop_path.rate for block in small(depth=4, drop_path_rate=0.3).blocks]
    np.testing.assert_allclose(rates, [0.0, 0.1, 0.2, 0.3])
    constant = small(depth=4, drop_path_rate=0.3, drop_path_schedule="constant")
    assert [block.drop_path.rate for block in constant.blocks] == [0.3] * 4


def test_dropout_is_for_training_alone():
    model, clip = small(dropout=0.5, drop_path_rate=0.5), clip_of(2, 3, 4, 32, 32)
    assert not np.array_equal(model(clip).numpy(), model(clip).numpy())
    model.eval()
    np.testing.assert_array_equal(model(clip).numpy(), model(clip).numpy())


def test_features_are_what_the_head_sees():
    model = small()
    model.eval()
    encoder = ClipEncoder(**SIZES)
    state = {key: value for key, value in model.state_dict().items() if not key.startswith("head.")}
    assert encoder.set_state_dict(state) == ([], [])
    clip = clip_of(2, 3, 4, 32, 32)
    np.testing.assert_allclose(model.head(encoder(clip)).numpy(), model(clip).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"pool": "max"}, "pool must be .*'cls'.*'mean'.* given 'max'"),
        ({"pos": "fixed"}, "pos must be .*'learned'.*'sinusoid'.* given 'fixed'"),
        ({"drop_path_schedule": "cosine"}, "drop_path_schedule must be"),
        ({"num_frames": 5}, "num_frames is 5; it must be a positive multiple of tubelet_size, 2"),
        ({"crop_size": 40}, "crop_size is 40; it must be a positive multiple of patch_size, 16"),
        ({"tubelet_size": 0}, "tubelet_size is 0; it must be at least 1"),
        ({"num_heads": 5}, "num_heads is 5; it must divide the 48 channels"),
        ({"depth": 0}, "depth is 0; it must be at least 1"),
        ({"num_classes": 0}, "num_classes is 0; it must be at least 1"),
        ({"dropout": 1.5}, "dropout is 1.5; it must be from 0 to 1"),
        ({"drop_path_rate": 1.0}, "drop_path_rate must be from 0 to below 1"),
        ({"impl": "flash"}, "impl is 'flash'"),
        ({"num_segments": 8}, "unknown argument 'num_segments'"),
    ],
)
def test_wrong_arguments(kwargs, message):
    with pytest.raises(ValueError, match=message):
        small(**kwargs)


def test_wrong_arguments_of_the_class():
    with pytest.raises(ValueError, match="pool is 'max'; it must be 'cls' or 'mean'"):
        ClipEncoder(pool="max")
    with pytest.raises(ArgumentError, match="argument 'num_classes' is missing"):
        create_model("vit_base_patch16")


def test_wrong_clips():
    model = small()
    with pytest.raises(ValueError, match=r"vit_base_patch16 expects a clip of shape \[N, 3, T, H, W\]"):
        model(paddle.zeros([2, 4, 3, 32, 32]))
    with pytest.raises(ValueError, match="a clip of 3 frames of 32x32 cannot be cut"):
        model(paddle.zeros([2, 3, 3, 32, 32]))
    with pytest.raises(TypeError, match="got paddle.uint8"):
        model(paddle.zeros([2, 3, 4, 32, 32], dtype="uint8"))


@pytest.mark.parametrize("form", ["videomae", "avion"])
def test_exported_model_takes_any_number_of_clips(form, tmp_path):
    model = small(**FORMS[form])
    model.eval()
    clips = clip_of(3, 3, 4, 32, 32)
    expected = model(clips).numpy()
    spec = paddle.static.InputSpec([None, 3, 4, 32, 32], "float32", name="clip")
    paddle.jit.save(paddle.jit.to_static(model, input_spec=[spec], full_graph=True), str(tmp_path / "model"))
    loaded = paddle.jit.load(str(tmp_path / "model"))
    loaded.eval()
    for count in (3, 1):
        np.testing.assert_allclose(loaded(clips[:count]).numpy(), expected[:count], rtol=1e-4, atol=1e-5)
