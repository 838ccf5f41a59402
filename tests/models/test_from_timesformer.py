"""Weights of TimeSformer: the authors' logits and gradients, PaddleVideo's logits, positions resized, images' start."""

from __future__ import annotations

import re

import numpy as np
import paddle
import pytest
from originals import filled, golden, named_arrays, named_clip

from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.weights import from_timesformer
from paddlevideo_fast.models.weights.load import WeightsError

GOLDEN = golden("timesformer")
PADDLEVIDEO = golden("timesformer_paddlevideo")


SMALL = {"num_classes": 5, "num_frames": 4, "crop_size": 32, "embed_dim": 48, "depth": 2, "num_heads": 3}


def small(**kwargs):
    return create_model("timesformer_base_patch16", **(SMALL | kwargs))


def logits_of(model, shape):
    with paddle.no_grad():
        return model(paddle.to_tensor(named_clip("timesformer", tuple(shape)))).numpy()


@pytest.mark.parametrize("impl", ["fast", "reference"])
@pytest.mark.parametrize("attention", ["divided", "joint"])
def test_logits_equal_the_authors(attention, impl):
    golden = GOLDEN["authors"][attention]
    model = filled(from_timesformer.convert(named_arrays(golden["shapes"]), small(attention=attention, impl=impl)))
    for output in golden["outputs"]:  # at the training size first, then other frames and crops
        np.testing.assert_allclose(logits_of(model, output["clip"]), output["logits"], rtol=1e-4, atol=1e-5)


def test_gradients_equal_the_authors():
    golden = GOLDEN["authors"]["divided"]
    model = filled(from_timesformer.convert(named_arrays(golden["shapes"]), small()))
    logits = model(paddle.to_tensor(named_clip("timesformer", tuple(golden["outputs"][0]["clip"]))))
    paddle.nn.functional.cross_entropy(logits, paddle.arange(len(logits))).backward()
    gradients = {name: p.grad.norm().item() for name, p in model.named_parameters()}
    for name, norm in golden["gradient_norms"].items():
        assert gradients[name] == pytest.approx(norm, rel=1e-4), name


@pytest.mark.parametrize("attention", ["divided", "joint"])
def test_logits_equal_paddlevideo(attention):
    golden = PADDLEVIDEO[attention]
    state = named_arrays(golden["shapes"])
    model = filled(from_timesformer.convert_paddlevideo(state, small(attention=attention)))
    for output in golden["outputs"]:
        np.testing.assert_allclose(logits_of(model, output["clip"]), output["logits"], rtol=1e-4, atol=1e-5)


def test_positions_for_another_size_give_what_the_forward_pass_would():
    state = named_arrays(GOLDEN["authors"]["divided"]["shapes"])
    model = filled(from_timesformer.convert(state, small()))
    larger = filled(from_timesformer.convert(state, small(num_frames=6, crop_size=48)))
    assert larger.time_embed.shape == [1, 6, 48] and larger.pos_embed.shape == [1, 10, 48]
    np.testing.assert_allclose(
        logits_of(larger, (1, 3, 6, 48, 48)), logits_of(model, (1, 3, 6, 48, 48)), rtol=1e-5, atol=1e-6
    )


def test_an_image_transformer_to_start_from():
    shapes = GOLDEN["authors"]["joint"]["shapes"]
    shapes = {key.removeprefix("model."): shape for key, shape in shapes.items() if "time_embed" not in key}
    state = named_arrays(shapes | {"head.weight": [9, 48], "head.bias": [9]})
    model = filled(from_timesformer.convert(state, small()))
    own = {key: value.numpy() for key, value in model.state_dict().items()}
    np.testing.assert_array_equal(own["blocks.1.temporal_attn.qkv.weight"], state["blocks.1.attn.qkv.weight"].T)
    np.testing.assert_array_equal(own["blocks.1.temporal_norm1.bias"], state["blocks.1.norm1.bias"])
    np.testing.assert_array_equal(own["blocks.0.mlp.fc1.weight"], state["blocks.0.mlp.fc1.weight"].T)
    assert not own["blocks.1.temporal_fc.weight"].any() and not own["time_embed"].any()
    assert own["head.weight"].shape == (48, 5)
    joint = filled(from_timesformer.convert(state, small(attention="joint")))
    np.testing.assert_array_equal(joint.blocks[1].attn.qkv.weight.numpy(), state["blocks.1.attn.qkv.weight"].T)


@pytest.mark.parametrize("shape", [(1, 9, 48), (5, 48), (1, 0, 48)])
def test_positions_of_no_square_are_named(shape):
    state = {"model.pos_embed": np.zeros(shape, "float32"), "model.time_embed": np.zeros([1, 4, 48], "float32")}
    words = re.escape(f"model.pos_embed -> pos_embed: {list(shape)} for [1, 5, 48]")
    with pytest.raises(WeightsError, match=words):
        from_timesformer.convert(state, small()).finish()


def test_what_does_not_fit_is_named():
    state = named_arrays(GOLDEN["authors"]["divided"]["shapes"])
    with pytest.raises(WeightsError, match="model.blocks.0.temporal_norm1.weight -> blocks.0.temporal_norm1.weight"):
        from_timesformer.convert(state, small(attention="joint")).finish()
    del state["model.norm.bias"]
    with pytest.raises(WeightsError, match=r"1 missing \(norm.bias\)"):
        from_timesformer.convert(state, small()).finish()
