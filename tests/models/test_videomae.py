"""The masked auto-encoder: what it sees and predicts, other clips, sizes, initial values, errors."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import clip_of, num_parameters

from paddlevideo_fast.models import MODELS, create_model
from paddlevideo_fast.models.videomae import patchify

SMALL = {
    **{"num_frames": 4, "crop_size": 32, "embed_dim": 48, "depth": 2, "num_heads": 3},
    **{"decoder_dim": 24, "decoder_depth": 2, "decoder_heads": 3},
}
HIDDEN = [[1, 1, 0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 1, 0, 1, 1]]


def small(**kwargs):
    paddle.seed(5)
    return create_model("videomae_base", **(SMALL | kwargs))


def mask_of(rows=HIDDEN):
    return paddle.to_tensor(rows).astype("bool")


def patch_slices(number):
    """Where patch `number` lies in a clip of 4 frames of 32x32."""
    t, h, w = np.unravel_index(number, (2, 2, 2))
    return (slice(2 * t, 2 * t + 2), slice(16 * h, 16 * h + 16), slice(16 * w, 16 * w + 16))


@pytest.mark.parametrize("impl", ["fast", "reference"])
def test_only_what_is_visible_is_seen(impl):
    model, clip, mask = small(impl=impl), clip_of(2, 3, 4, 32, 32), mask_of()
    model.eval()
    before = model(clip, mask)["patches"].numpy()
    assert before.shape == (2, 6, 1536)
    changed = clip.numpy()
    for sample, row in enumerate(HIDDEN):
        for number in np.flatnonzero(row):
            changed[(sample, slice(None), *patch_slices(number))] = 7.0
    np.testing.assert_array_equal(model(paddle.to_tensor(changed), mask)["patches"].numpy(), before)
    for sample, number in ((0, 2), (1, 5)):
        changed = clip.numpy()
        changed[(sample, slice(None), *patch_slices(number))] = 7.0
        after = model(paddle.to_tensor(changed), mask)["patches"].numpy()
        assert np.abs(after[sample] - before[sample]).min(axis=-1).max() > 0
        np.testing.assert_array_equal(after[1 - sample], before[1 - sample])


def test_predictions_come_in_the_order_of_the_patches():
    """The decoder sees places alone where the encoder has nothing to say: equal places, equal predictions."""
    model, clip = small(), clip_of(1, 3, 4, 32, 32)
    model.eval()
    paddle.nn.initializer.Constant(0.0)(model.encoder_to_decoder.weight)
    for block in model.decoder.blocks:  # no exchange between tokens
        for layer in (block.attn.proj, block.mlp.fc2):
            paddle.nn.initializer.Constant(0.0)(layer.weight)
    places = model.mask_token + model.positions((2, 2, 2))
    expected = model.decoder.head(model.decoder.norm(places))[0].numpy()
    for row in HIDDEN:
        found = model(clip, mask_of([row]))["patches"][0].numpy()
        np.testing.assert_allclose(found, expected[np.flatnonzero(row)], rtol=1e-4, atol=1e-6)


def test_other_frames_and_crops():
    model = small()
    model.eval()
    for frames, height, width in ((2, 32, 32), (8, 48, 32)):
        length = frames // 2 * height // 16 * width // 16
        mask = (paddle.arange(length) % 4 > 0).unsqueeze(0).expand([2, length])
        patches = model(clip_of(2, 3, frames, height, width), mask)["patches"]
        assert patches.shape == [2, length * 3 // 4, 1536] and np.isfinite(patches.numpy()).all()


def test_patches_by_hand():
    clip = clip_of(2, 3, 4, 32, 48)
    found = patchify(clip, 2, 16).numpy()
    assert found.shape == (2, 2 * 2 * 3, 2 * 16 * 16, 3)
    array = clip.numpy()
    for t, h, w, frame, y, x in ((0, 0, 0, 0, 0, 0), (1, 1, 2, 1, 15, 15), (1, 0, 1, 0, 3, 11), (0, 1, 0, 1, 9, 2)):
        place, pixel = (t * 2 + h) * 3 + w, (frame * 16 + y) * 16 + x
        expected = array[:, :, 2 * t + frame, 16 * h + y, 16 * w + x]
        np.testing.assert_array_equal(found[:, place, pixel], expected)
    assert patchify(clip, 1, 8).shape == [2, 4 * 4 * 6, 64, 3]


def test_published_sizes():
    """MCG-NJU's networks have so many parameters, and none for the keys' bias, which ours keeps at zero."""
    for name, dim, depth, decoder_dim, decoder_depth, published in (
        ("videomae_small", 384, 12, 192, 4, 24_029_376),
        ("videomae_base", 768, 12, 384, 4, 94_210_944),
        ("videomae_large", 1024, 24, 512, 12, 342_996_992),
    ):
        arguments = MODELS[name].keywords
        assert [arguments[key] for key in ("embed_dim", "depth", "decoder_dim", "decoder_depth")] == [
            *(dim, depth, decoder_dim, decoder_depth)
        ]
        assert arguments["embed_dim"] // arguments["num_heads"] == 64
        assert arguments["decoder_dim"] // arguments["decoder_heads"] == 64
        size = size_of(dim, depth, decoder_dim, decoder_depth)
        assert size - dim * depth - decoder_dim * decoder_depth == published
    assert num_parameters(small()) == size_of(48, 2, 24, 2)


def size_of(dim, depth, decoder_dim, decoder_depth, patch=1536):
    encoder = depth * (12 * dim**2 + 13 * dim) + (patch + 1 + 2) * dim
    decoder = decoder_depth * (12 * decoder_dim**2 + 13 * decoder_dim) + 2 * decoder_dim + patch * (decoder_dim + 1)
    return encoder + decoder + dim * decoder_dim + decoder_dim


def test_initial_values():
    model = small(embed_dim=192, num_heads=3, decoder_dim=96)
    for layer, fans in (
        (model.encoder.blocks[0].attn.qkv, 4 * 192),
        (model.decoder.blocks[1].mlp.fc1, 5 * 96),
        (model.decoder.head, 96 + 1536),
    ):
        bound = (6 / fans) ** 0.5
        assert 0.98 * bound < layer.weight.abs().max().item() <= bound * 1.0001
        assert not layer.bias.numpy().any()
    assert 0.9 * 192**-0.5 < model.encoder_to_decoder.weight.abs().max().item() <= 192**-0.5
    assert model.encoder_to_decoder.bias is None
    assert 0.015 < model.mask_token.abs().max().item() <= 0.02


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1, 1, 0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 1, 1, 1, 1]], r"\[6, 7\] of 8 patches are masked; .* as many in each"),
        ([[1] * 8] * 2, r"\[8, 8\] of 8 patches are masked; .* not all"),
        ([[0] * 8] * 2, r"\[0, 0\] of 8 patches are masked; .* not none"),
        ([[1, 0, 1, 1]] * 2, r"the mask has shape \[2, 4\]; it must be \[2, 8\]"),
        ([[1, 0, 1, 1, 0, 0, 0, 0]], r"the mask has shape \[1, 8\]; it must be \[2, 8\]"),
    ],
)
def test_wrong_masks(rows, message):
    with pytest.raises(ValueError, match=message):
        small()(clip_of(2, 3, 4, 32, 32), mask_of(rows))


def test_static_graph():
    model = small()
    model.eval()
    clip, mask = clip_of(2, 3, 4, 32, 32), mask_of()
    expected = model(clip, mask)["patches"].numpy()
    specs = [paddle.static.InputSpec([None, 3, 4, 32, 32], "float32"), paddle.static.InputSpec([None, 8], "bool")]
    traced = paddle.jit.to_static(model, input_spec=specs, full_graph=True)
    np.testing.assert_allclose(traced(clip, mask)["patches"].numpy(), expected, rtol=1e-4, atol=1e-6)


def test_wrong_types_and_arguments():
    model = small()
    with pytest.raises(TypeError, match="the mask is of dtype paddle.int64; it must be bool"):
        model(clip_of(2, 3, 4, 32, 32), paddle.to_tensor(HIDDEN))
    with pytest.raises(ValueError, match="videomae_base expects a clip"):
        model(clip_of(2, 4, 3, 32, 32), mask_of())
    with pytest.raises(ValueError, match="a clip of 3 frames of 32x32 cannot be cut"):
        model(clip_of(2, 3, 3, 32, 32), mask_of())
    with pytest.raises(ValueError, match=r"\[\] of 8 patches are masked"):
        model(clip_of(0, 3, 4, 32, 32), mask_of()[:0])
    for kwargs, message in (
        ({"decoder_depth": 0}, "decoder_depth is 0; it must be at least 1"),
        ({"depth": -1}, "depth is -1"),
        ({"embed_dim": 0}, "embed_dim is 0; it must be at least 1"),
        ({"decoder_dim": -24}, "decoder_dim is -24"),
        ({"decoder_heads": 0}, "decoder_heads is 0; it must divide the 24 channels"),
        ({"decoder_heads": 5}, "decoder_heads is 5; it must divide the 24 channels"),
        ({"num_frames": 3}, "num_frames is 3; it must be a positive multiple of tubelet_size, 2"),
        ({"impl": "flash"}, "impl is 'flash'"),
        ({"num_classes": 5}, "unknown argument 'num_classes'"),
    ):
        with pytest.raises(ValueError, match=message):
            small(**kwargs)
