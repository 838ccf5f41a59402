"""Weights of AVION: its features, loss and gradients, with FlashAttention's names and without; classifier, VideoMAE."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import filled, golden, input_of, named_arrays
from paddle.nn import functional as F

from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.weights import from_avion
from paddlevideo_fast.models.weights.load import WeightsError

GOLDEN = golden("avion")
SMALL = {
    "embed_dim": 24, "num_frames": 4, "crop_size": 32, "video_width": 48, "video_depth": 2, "video_num_heads": 3,
    "text_width": 32, "text_depth": 2, "text_num_heads": 2, "context_length": 9, "vocab_size": 50,
}  # fmt: skip
# What AVION calls the parameters whose gradients are known.
OURS = {
    "visual.temporal_embedding": "visual.time_embed",
    "visual.transformer.resblocks.0.ln_1.weight": "visual.blocks.0.norm1.weight",
    "visual.image_projection": "visual_projection.weight",
    "textual.token_embedding.weight": "textual.token_embed.weight",
    "textual.transformer.resblocks.1.attn.in_proj_weight": "textual.blocks.1.attn.qkv.weight",
    "visual.positional_embedding": "visual.pos_embed",
    "logit_scale": "logit_scale",
}


def dual_encoder(**kwargs):
    paddle.seed(5)
    return create_model("dual_encoder_base_patch16", **(SMALL | kwargs))


def vit(**kwargs):
    paddle.seed(5)
    small = {"num_classes": 5, "crop_size": 32, "embed_dim": 48, "depth": 2, "num_heads": 3}
    return create_model("vit_base_patch16", **(small | kwargs))


def classifier(**kwargs):
    form = {"num_frames": 4, "tubelet_size": 1, "pos": "learned", "pool": "cls", "pre_norm": True}
    return vit(**(form | kwargs))


def named_state(name):
    return named_arrays(GOLDEN[name]["shapes"])


def clip_for(name):
    return input_of("avion", GOLDEN[name]["clip"])


@pytest.mark.parametrize("impl", ["fast", "reference"])
@pytest.mark.parametrize("name", ["pretrained_flash", "pretrained_plain"])
def test_dual_encoder(name, impl):
    golden = GOLDEN[name]
    model = filled(from_avion.convert(named_state(name), dual_encoder(impl=impl)))
    out = model(clip_for(name), paddle.to_tensor(golden["tokens"]))
    np.testing.assert_allclose(out["video"].numpy(), golden["video"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out["text"].numpy(), golden["text"], rtol=1e-4, atol=1e-5)
    assert out["logit_scale"].item() == pytest.approx(golden["scale"], rel=1e-5)
    logits = out["logit_scale"] * out["video"] @ out["text"].t()
    loss = (F.cross_entropy(logits, paddle.arange(2)) + F.cross_entropy(logits.t(), paddle.arange(2))) / 2
    assert loss.item() == pytest.approx(golden["loss"], rel=1e-4)
    loss.backward()
    gradients = {key: p.grad.norm().item() for key, p in model.named_parameters()}
    for key, norm in golden["gradient_norms"].items():
        assert gradients[OURS[key]] == pytest.approx(norm, rel=1e-3), key


@pytest.mark.parametrize("name", ["classifier_flash", "classifier_plain"])
def test_classifier(name):
    model = filled(from_avion.convert(named_state(name), classifier()))
    np.testing.assert_allclose(model(clip_for(name)).numpy(), GOLDEN[name]["logits"], rtol=1e-4, atol=1e-5)


def test_a_classifier_starts_from_the_dual_encoder():
    state = named_state("pretrained_flash")
    model = classifier(num_classes=7)
    head = model.head.weight.numpy().copy()
    conversion = from_avion.convert(state, model)
    assert "logit_scale" in conversion.dropped and "visual.image_projection" in conversion.dropped
    filled(conversion)
    np.testing.assert_array_equal(model.head.weight.numpy(), head)
    np.testing.assert_array_equal(model.time_embed.numpy()[0], state["visual.temporal_embedding"])


def test_more_frames_interpolate_positions_in_time():
    """PyTorch's bilinear interpolation of two rows to four: the outer ones stay, the inner ones are mixed 3 to 1."""
    state = named_state("pretrained_flash")
    state["visual.temporal_embedding"] = state["visual.temporal_embedding"][:2]
    first, second = state["visual.temporal_embedding"]
    expected = np.stack([first, 0.75 * first + 0.25 * second, 0.25 * first + 0.75 * second, second])
    model = filled(from_avion.convert(state, dual_encoder()))
    np.testing.assert_allclose(model.visual.time_embed.numpy()[0], expected, rtol=1e-5, atol=1e-6)


def test_masked_autoencoder():
    golden = GOLDEN["masked"]
    model = create_model(
        "videomae_base", crop_size=32, embed_dim=48, depth=2, num_heads=3, decoder_dim=24, decoder_depth=1,
        decoder_heads=2,
    )  # fmt: skip
    filled(from_avion.convert(named_state("masked"), model))
    with paddle.no_grad():
        patches = model(clip_for("masked"), paddle.to_tensor(golden["hidden"]))["patches"]
    np.testing.assert_allclose(patches.flatten()[::311].numpy(), golden["every_311th"], rtol=1e-4, atol=2e-5)


def test_classifier_of_the_masked_autoencoder():
    model = filled(from_avion.convert(named_state("finetuned"), vit()))
    logits = model(clip_for("finetuned")).numpy()
    np.testing.assert_allclose(logits, GOLDEN["finetuned"]["logits"], rtol=1e-4, atol=1e-5)
    started = filled(from_avion.convert(named_state("masked"), vit()))
    weight = named_state("masked")["encoder.blocks.1.attn.Wqkv.weight"]
    np.testing.assert_array_equal(started.blocks[1].attn.qkv.weight.numpy(), weight.T)


def test_weights_of_another_kind_of_model_are_called_so():
    masked, towers = {"encoder.patch_embed.proj.weight": np.ones([4, 4])}, {"visual.conv1.weight": np.ones(2)}
    with pytest.raises(WeightsError, match="the weights are VideoMAE's or another model's, not the dual encoder's"):
        from_avion.convert(masked, dual_encoder())
    with pytest.raises(WeightsError, match="the weights are the dual encoder's or another model's, not VideoMAE's"):
        from_avion.convert(towers, create_model("videomae_small", depth=1, decoder_depth=1))


def test_what_does_not_fit_is_named():
    state = named_state("pretrained_flash")
    with pytest.raises(WeightsError, match="visual.temporal_embedding -> visual.time_embed"):
        from_avion.convert(state, dual_encoder(num_frames=1)).finish()
    with pytest.raises(WeightsError, match="visual.image_projection -> visual_projection.weight"):
        from_avion.convert(state, dual_encoder(embed_dim=16)).finish()
    del state["textual.ln_final.bias"]
    with pytest.raises(WeightsError, match=r"1 missing \(textual.norm.bias\)"):
        from_avion.convert(state, dual_encoder()).finish()
    smaller = create_model("dual_encoder_large_patch14", **(SMALL | {"crop_size": 28}))
    with pytest.raises(WeightsError, match=r"visual.conv1.weight -> visual.patch_embed.proj.weight: \[48, 768\]"):
        from_avion.convert(named_state("pretrained_flash"), smaller).finish()
