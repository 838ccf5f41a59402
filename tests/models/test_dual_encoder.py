"""Dual encoder: its two towers, who sees whom, other clips, sizes, initial values, errors."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import blank, clip_of, num_parameters

from paddlevideo_fast.arguments import ArgumentError
from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.dual_encoder import quick_gelu

SMALL = {
    "embed_dim": 24, "num_frames": 4, "video_width": 48, "video_depth": 2, "video_num_heads": 3,
    "text_width": 32, "text_depth": 2, "text_num_heads": 2, "context_length": 9, "vocab_size": 50,
}  # fmt: skip
SENTENCES = [[48, 3, 17, 49, 0, 0, 0, 0, 0], [48, 5, 5, 9, 31, 2, 40, 12, 49]]


def small(**kwargs):
    paddle.seed(5)
    return create_model("dual_encoder_base_patch16", **({"crop_size": 32} | SMALL | kwargs))


def test_features_have_length_one_and_towers_are_apart():
    model = small()
    model.eval()
    clip, tokens = clip_of(2, 3, 4, 32, 32), paddle.to_tensor(SENTENCES)
    out = model(clip, tokens)
    np.testing.assert_allclose(out["video"].norm(axis=1).numpy(), [1, 1], rtol=1e-5)
    np.testing.assert_allclose(out["text"].norm(axis=1).numpy(), [1, 1], rtol=1e-5)
    assert out["logit_scale"].item() == pytest.approx(1 / 0.07)
    for key, features in (("video", model.encode_video(clip)), ("text", model.encode_text(tokens))):
        assert features.shape == [2, 24]
        unit = features / features.norm(axis=1, keepdim=True)
        np.testing.assert_allclose(unit.numpy(), out[key].numpy(), rtol=1e-5, atol=1e-6)
    assert model(clip[:1], tokens)["text"].shape == [2, 24]


def test_what_follows_the_end_of_a_sentence_does_not_matter():
    model = small()
    model.eval()
    tokens = paddle.to_tensor([[48, 3, 17, 49, 0, 0, 0, 0, 0], [48, 3, 17, 49, 7, 8, 9, 10, 11]])
    features = model.encode_text(tokens).numpy()
    np.testing.assert_allclose(features[0], features[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(model.encode_text(tokens[:, :4]).numpy(), features, rtol=1e-4, atol=1e-5)
    earlier = model.encode_text(paddle.to_tensor([[48, 4, 17, 49, 0, 0, 0, 0, 0]])).numpy()
    assert np.abs(earlier - features[:1]).max() > 1e-3


@pytest.mark.parametrize("shape", [(1, 3, 1, 32, 32), (2, 3, 7, 32, 32), (1, 3, 4, 48, 64)])
def test_other_frames_and_sizes(shape):
    assert small().encode_video(clip_of(*shape)).shape == [shape[0], 24]


def test_order_matters_only_once_positions_in_time_are_learned():
    model = small()
    model.eval()
    clip = clip_of(1, 3, 4, 32, 32)
    for learned in (False, True):
        if learned:
            model.visual.time_embed.set_value(paddle.randn(model.visual.time_embed.shape))
        difference = (model.encode_video(clip) - model.encode_video(clip.flip(2))).abs().max().item()
        assert (difference > 1e-4) == learned


def test_activations_and_epsilon():
    x = paddle.to_tensor([-2.0, 0.5, 3.0])
    np.testing.assert_allclose(quick_gelu(x).numpy(), [-0.064341, 0.350388, 2.981855], rtol=1e-4)
    clip = clip_of(2, 3, 4, 32, 32)
    outputs = [small(**kwargs).encode_video(clip).numpy() for kwargs in ({}, {"activation": "quick_gelu"})]
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-5
    norms = [layer for layer in small(norm_eps=1e-5).sublayers() if isinstance(layer, paddle.nn.LayerNorm)]
    assert len(norms) == 2 * 2 + 2 + 2 * 2 + 1 and {layer._epsilon for layer in norms} == {1e-5}
    assert {layer._epsilon for layer in small().visual.sublayers() if isinstance(layer, paddle.nn.LayerNorm)} == {1e-6}


def test_a_frozen_temperature_stays():
    model = small(freeze_temperature=True)
    out = model(clip_of(2, 3, 4, 32, 32), paddle.to_tensor(SENTENCES))
    (out["logit_scale"] * out["video"] @ out["text"].t()).sum().backward()
    assert model.logit_scale.grad is None
    paddle.optimizer.AdamW(0.1, parameters=model.parameters()).step()
    assert model.logit_scale.exp().item() == pytest.approx(1 / 0.07)


@pytest.mark.parametrize(
    ("name", "kwargs", "size"),
    [
        ("dual_encoder_base_patch16", {"embed_dim": 512}, 149_620_737),  # CLIP's ViT-B/16
        ("dual_encoder_large_patch14", {"embed_dim": 768}, 427_616_513),  # CLIP's ViT-L/14
        ("dual_encoder_large_patch14", {"embed_dim": 768, "crop_size": 336}, 427_944_193),  # CLIP's ViT-L/14@336px
    ],
)
def test_published_size(name, kwargs, size):
    assert num_parameters(blank(name, num_frames=1, **kwargs)) == size


def test_initial_values():
    model = small(text_width=256, text_num_heads=4, vocab_size=300)
    assert model.textual.token_embed.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert model.textual.pos_embed.std().item() == pytest.approx(0.01, rel=0.1)
    block = model.textual.blocks[1]
    for layer, std in (
        (block.attn.qkv, 1 / 16),
        (block.attn.proj, 1 / 32),  # residual branches: over the root of twice the depth
        (block.mlp.fc1, 1 / 16 / 2**0.5),
        (block.mlp.fc2, 1 / 32),
        (model.text_projection, 1 / 16),
        (model.visual_projection, 48**-0.5),
    ):
        assert layer.weight.std().item() == pytest.approx(std, rel=0.07)
    assert not model.visual.time_embed.numpy().any()


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"activation": "relu"}, "relu"),
        ({"embed_dim": 0}, "embed_dim is 0; it must be at least 1"),
        ({"text_depth": 0}, "text_depth is 0"),
        ({"vocab_size": 0}, "vocab_size is 0; it must be at least 1"),
        ({"text_width": 0}, "text_width is 0; it must be at least 1"),
        ({"text_num_heads": 0}, "text_num_heads is 0; it must divide the 32 channels"),
        ({"norm_eps": 0.0}, "norm_eps is 0.0; it must be above 0"),
        ({"text_num_heads": 5}, "text_num_heads is 5; it must divide the 32 channels"),
        ({"video_num_heads": 5}, "video_num_heads is 5; it must divide the 48 channels"),
        ({"video_width": 0}, "video_width is 0; it must be at least 1"),
        ({"video_depth": 0}, "video_depth is 0; it must be at least 1"),
        ({"crop_size": 40}, "crop_size is 40; it must be a positive multiple of patch_size, 16"),
        ({"num_classes": 5}, "num_classes"),
    ],
)
def test_wrong_arguments(kwargs, match):
    with pytest.raises((ArgumentError, ValueError), match=match):
        small(**kwargs)


def test_wrong_inputs():
    model = small()
    with pytest.raises(ValueError, match=r"expects a clip of shape \[N, 3, T, H, W\]"):
        model(paddle.zeros([2, 3, 32, 32]), paddle.to_tensor(SENTENCES))
    with pytest.raises(ValueError, match=r"expected tokens of shape \[N, at most 9\], got \[2, 10\]"):
        model.encode_text(paddle.zeros([2, 10], dtype="int64"))
    with pytest.raises(ValueError, match=r"got \[9\]"):
        model.encode_text(paddle.zeros([9], dtype="int64"))
