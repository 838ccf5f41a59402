"""Weights of transformers' TimeSformer and CLIP: its logits and features."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import filled, golden, named_arrays, named_clip

from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.weights import from_huggingface
from paddlevideo_fast.models.weights.load import WeightsError

TIMESFORMER = golden("timesformer")["transformers_models"]
CLIP = golden("clip")["transformers_model"]


def timesformer(**kwargs):
    small = {"num_classes": 5, "num_frames": 4, "crop_size": 32, "embed_dim": 48, "depth": 2, "num_heads": 3}
    return create_model("timesformer_base_patch16", **(small | kwargs))


def dual_encoder(**kwargs):
    small = {
        "embed_dim": 24, "num_frames": 1, "crop_size": 32, "video_width": 128, "video_depth": 2, "video_num_heads": 2,
        "text_width": 64, "text_depth": 2, "text_num_heads": 4, "context_length": 9, "vocab_size": 50,
        "activation": "quick_gelu", "norm_eps": 1e-5,
    }  # fmt: skip
    return create_model("dual_encoder_base_patch16", **(small | kwargs))


@pytest.mark.parametrize("attention", ["divided", "joint"])
def test_timesformer(attention):
    golden = TIMESFORMER[attention]
    model = filled(from_huggingface.convert(named_arrays(golden["shapes"]), timesformer(attention=attention)))
    for output in golden["outputs"]:
        clip = paddle.to_tensor(named_clip("timesformer", tuple(output["clip"])))
        np.testing.assert_allclose(model(clip).numpy(), output["logits"], rtol=1e-4, atol=1e-5)


def test_timesformer_of_another_length():
    state = named_arrays(TIMESFORMER["divided"]["shapes"])
    model, longer = (filled(from_huggingface.convert(state, timesformer(num_frames=n))) for n in (4, 8))
    clip = paddle.to_tensor(named_clip("longer", (1, 3, 8, 32, 32)))
    np.testing.assert_allclose(longer(clip).numpy(), model(clip).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_frames", [1, 4])
def test_clip(num_frames):
    model = filled(from_huggingface.convert(named_arrays(CLIP["shapes"]), dual_encoder(num_frames=num_frames)))
    images = paddle.to_tensor(named_clip("clip", tuple(CLIP["images"]))[:, :, None])
    out = model(images, paddle.to_tensor(CLIP["tokens"]))
    np.testing.assert_allclose(out["video"].numpy(), CLIP["video_normalised"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out["text"].numpy(), CLIP["text_normalised"], rtol=1e-4, atol=1e-5)
    logits = out["logit_scale"] * out["video"] @ out["text"].t()
    np.testing.assert_allclose(logits.numpy(), CLIP["logits"], rtol=1e-4, atol=1e-5)


def test_what_older_versions_keep_is_dropped():
    state = named_arrays(CLIP["shapes"]) | {"text_model.embeddings.position_ids": np.arange(9)[None]}
    conversion = from_huggingface.convert(state, dual_encoder())
    assert list(conversion.dropped) == ["text_model.embeddings.position_ids"]
    conversion.finish()


def test_weights_of_another_model_are_called_so():
    with pytest.raises(
        WeightsError, match="the weights have no timesformer.embeddings.position_embeddings, which timesformer_base"
    ):
        from_huggingface.convert({"conv1.weight": np.ones([2, 2])}, timesformer())


def test_what_does_not_fit_is_named():
    state = named_arrays(CLIP["shapes"])
    del state["text_model.encoder.layers.1.self_attn.k_proj.bias"]
    with pytest.raises(WeightsError, match=r"1 missing \(textual.blocks.1.attn.qkv.bias\)"):
        from_huggingface.convert(state, dual_encoder()).finish()
    with pytest.raises(WeightsError, match="encoder.layer.0.temporal_layernorm.bias -> blocks.0.temporal_norm1.bias"):
        from_huggingface.convert(
            named_arrays(TIMESFORMER["divided"]["shapes"]), timesformer(attention="joint")
        ).finish()
