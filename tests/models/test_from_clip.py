"""Weights of OpenAI's CLIP: its features, half precision, other spaces and crops, a classifier to start from."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import filled, golden, named_arrays, named_clip

from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.weights import from_clip
from paddlevideo_fast.models.weights.load import WeightsError

GOLDEN = golden("clip")["openai"]
SMALL = {
    "embed_dim": 24, "num_frames": 1, "crop_size": 32, "video_width": 128, "video_depth": 2, "video_num_heads": 2,
    "text_width": 64, "text_depth": 2, "text_num_heads": 4, "context_length": 9, "vocab_size": 50,
    "activation": "quick_gelu", "norm_eps": 1e-5,
}  # fmt: skip


def small(**kwargs):
    paddle.seed(5)
    return create_model("dual_encoder_base_patch16", **(SMALL | kwargs))


def named_state():
    return named_arrays(GOLDEN["shapes"])


def images():
    return paddle.to_tensor(named_clip("clip", tuple(GOLDEN["images"]))[:, :, None])


def test_features_equal_openai():
    model = filled(from_clip.convert(named_state(), small()))
    tokens = paddle.to_tensor(GOLDEN["tokens"])
    with paddle.no_grad():
        video, text, out = model.encode_video(images()), model.encode_text(tokens), model(images(), tokens)
    np.testing.assert_allclose(video.numpy(), GOLDEN["video"], rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(text.numpy(), GOLDEN["text"], rtol=1e-4, atol=2e-5)
    logits = out["logit_scale"] * out["video"] @ out["text"].t()
    np.testing.assert_allclose(logits.numpy(), GOLDEN["logits"], rtol=1e-4, atol=1e-5)


def test_gelu_and_epsilon_show_at_this_precision():
    for kwargs in ({"activation": "gelu"}, {"norm_eps": 1e-3}):
        model = filled(from_clip.convert(named_state(), small(**kwargs)))
        assert np.abs(model.encode_video(images()).numpy() - GOLDEN["video"]).max() > 1e-3


def test_what_an_archive_holds():
    """Half precision, three sizes and, where it was traced, masks."""
    state = {key: value.astype(np.float16) for key, value in named_state().items()}
    sizes = {"input_resolution": np.array(32), "context_length": np.array(9), "vocab_size": np.array(50)}
    mask = {"transformer.resblocks.0.attn_mask": np.zeros([9, 9], np.float32)}
    conversion = from_clip.convert(state | sizes | mask, small())
    assert set(conversion.dropped) == set(sizes) | set(mask)
    model = filled(conversion)
    assert model.visual_projection.weight.dtype == paddle.float32
    np.testing.assert_allclose(model.encode_video(images()).numpy(), GOLDEN["video"], rtol=0.02, atol=0.02)


def test_a_model_for_clips_starts_from_images():
    """It sees a clip of one frame as CLIP sees the image."""
    conversion = from_clip.convert(named_state(), small(num_frames=4))
    assert list(conversion.left) == ["visual.time_embed"]
    model = filled(conversion)
    np.testing.assert_allclose(model.encode_video(images()).numpy(), GOLDEN["video"], rtol=1e-4, atol=2e-5)


def test_another_common_space_starts_fresh():
    model = small(embed_dim=16)
    fresh = model.visual_projection.weight.numpy().copy()
    conversion = from_clip.convert(named_state(), model)
    assert set(conversion.dropped) == {"visual.proj", "text_projection", "logit_scale"}
    filled(conversion)
    np.testing.assert_array_equal(model.visual_projection.weight.numpy(), fresh)
    assert model.logit_scale.exp().item() == pytest.approx(1 / 0.07)


def test_another_crop():
    model, larger = (filled(from_clip.convert(named_state(), small(crop_size=size))) for size in (32, 64))
    assert larger.visual.pos_embed.shape == [1, 17, 128]
    clip = paddle.to_tensor(named_clip("larger", (1, 3, 1, 64, 64)))
    np.testing.assert_allclose(
        larger.encode_video(clip).numpy(), model.encode_video(clip).numpy(), rtol=1e-4, atol=1e-5
    )


def test_a_classifier_takes_the_tower_for_images():
    paddle.seed(5)
    model = create_model(
        "vit_base_patch16", num_classes=5, num_frames=4, crop_size=32, embed_dim=128, depth=2, num_heads=2,
        tubelet_size=1, pos="learned", pool="cls", pre_norm=True,
    )  # fmt: skip
    head = model.head.weight.numpy().copy()
    filled(from_clip.convert(named_state(), model))
    np.testing.assert_array_equal(model.head.weight.numpy(), head)
    state = named_state()
    np.testing.assert_array_equal(
        model.blocks[1].mlp.fc2.weight.numpy(), state["visual.transformer.resblocks.1.mlp.c_proj.weight"].T
    )
    np.testing.assert_array_equal(model.norm.bias.numpy(), state["visual.ln_post.bias"])


def test_what_does_not_fit_is_named():
    state = named_state()
    resnet = {"visual.layer1.0.conv1.weight": np.zeros([8, 8, 1, 1], np.float32)}
    with pytest.raises(WeightsError, match=r"1 not accounted for \(visual.layer1.0.conv1.weight\)"):
        from_clip.convert(state | resnet, small()).finish()
    del state["ln_final.bias"]
    with pytest.raises(WeightsError, match=r"1 missing \(textual.norm.bias\)"):
        from_clip.convert(state, small()).finish()
    with pytest.raises(WeightsError, match=r"of another shape \(token_embedding.weight -> textual.token_embed.weight"):
        from_clip.convert(named_state(), small(vocab_size=60)).finish()
    smaller = create_model("dual_encoder_large_patch14", **(SMALL | {"crop_size": 28}))
    with pytest.raises(
        WeightsError, match=r"visual.patch_embed.proj.weight: \[128, 3, 1, 16, 16\] for \[128, 3, 1, 14"
    ):
        from_clip.convert(named_state(), smaller).finish()
