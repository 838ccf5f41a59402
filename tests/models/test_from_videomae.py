"""VideoMAE's weights, from its authors' files and from transformers: the same outputs, and an account of every key."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import blank, filled, golden, input_of, named_state

from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.weights.from_videomae import convert, convert_huggingface
from paddlevideo_fast.models.weights.load import WeightsError

GOLDEN = golden("vit")
SMALL = {"num_frames": 4, "crop_size": 32, "embed_dim": 48, "depth": 2, "num_heads": 3}
DECODER = {"decoder_dim": 24, "decoder_depth": 1, "decoder_heads": 3}


def classifier(**kwargs):
    return create_model("vit_base_patch16", **({"num_classes": 5} | SMALL | kwargs))


def auto_encoder(**kwargs):
    return create_model("videomae_base", **(SMALL | DECODER | kwargs))


def clip_of(golden):
    return input_of("vit", golden["clip"])


def assert_gradients(model, golden, names):
    """Norms of gradients by the authors' names; `names` says which of our arrays, and which rows, a name stands for."""
    gradients = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    for key, norm in golden["gradient_norms"].items():
        name, rows = names.get(key, (key, slice(None)))
        assert np.linalg.norm(gradients[name][rows]) == pytest.approx(norm, rel=1e-4), key


@pytest.mark.parametrize("impl", ["fast", "reference"])
def test_fine_tuned_equals_the_authors(impl):
    golden = GOLDEN["authors_finetuned"]
    model = classifier(impl=impl)
    filled(convert(named_state(golden["state"]), model))
    logits = model(clip_of(golden))
    np.testing.assert_allclose(logits.numpy(), golden["logits"], rtol=1e-4, atol=1e-6)
    paddle.nn.functional.cross_entropy(logits, paddle.arange(2)).backward()
    assert_gradients(model, golden, {"blocks.0.attn.q_bias": ("blocks.0.attn.qkv.bias", slice(0, 48))})
    # A key's bias adds the same to every score of a query: it has no gradient, and stays at zero.
    bias = model.blocks[0].attn.qkv.bias
    assert not bias[48:96].numpy().any() and bias.grad[48:96].abs().max() < 1e-7 < bias.grad[:48].abs().max()


def test_positions_are_counted_anew_for_another_size():
    golden = GOLDEN["authors_finetuned_other"]
    model = classifier(num_frames=8, crop_size=48)
    filled(convert(named_state(golden["state"]), model))
    np.testing.assert_allclose(model(clip_of(golden)).numpy(), golden["logits"], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("impl", ["fast", "reference"])
def test_pre_trained_equals_the_authors(impl):
    golden = GOLDEN["authors_pretrained"]
    model = auto_encoder(impl=impl)
    filled(convert(named_state(golden["state"]), model))
    patches = model(clip_of(golden), paddle.to_tensor(golden["mask"]).astype("bool"))["patches"]
    assert patches.shape == [2, 6, 3 * 2 * 16 * 16]
    np.testing.assert_allclose(patches[:, :, ::100].numpy(), golden["patches"], rtol=1e-4, atol=1e-5)
    patches.square().mean().backward()
    assert_gradients(model, golden, {"decoder.blocks.0.attn.v_bias": ("decoder.blocks.0.attn.qkv.bias", slice(48, 72))})


def test_pre_trained_equals_the_authors_at_real_size():
    golden = GOLDEN["authors_real_size"]
    model = blank("videomae_small")
    filled(convert(named_state(golden["state"]), model))
    mask = paddle.arange(1568).unsqueeze(0) % 196 >= 20
    with paddle.no_grad():
        patches = model(clip_of(golden), mask)["patches"]
    assert patches.shape == [1, 8 * 176, 1536]
    np.testing.assert_allclose(patches[:, ::300, ::300].numpy(), golden["patches"], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("version", ["transformers", "transformers_old"])
def test_both_equal_transformers(version):
    golden = GOLDEN[f"{version}_finetuned"]
    model = classifier()
    filled(convert_huggingface(named_state(golden["state"]), model))
    np.testing.assert_allclose(model(clip_of(golden)).numpy(), golden["logits"], rtol=1e-4, atol=1e-6)
    golden = GOLDEN[f"{version}_pretrained"]
    model = auto_encoder()
    filled(convert_huggingface(named_state(golden["state"]), model))
    patches = model(clip_of(golden), paddle.to_tensor(golden["mask"]).astype("bool"))["patches"]
    np.testing.assert_allclose(patches[:, :, ::100].numpy(), golden["patches"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("source", ["authors", "transformers", "transformers_old"])
def test_a_classifier_starts_from_the_pre_training(source):
    state = named_state(GOLDEN[f"{source}_pretrained"]["state"])
    change = convert if source == "authors" else convert_huggingface
    whole, model = auto_encoder(), classifier()
    filled(change(state, whole))
    conversion = change(state, model)
    filled(conversion)
    ours, theirs = model.state_dict(), whole.state_dict()
    shared = [key for key in ours if not key.startswith(("head.", "fc_norm."))]
    assert len(shared) == 2 + 2 * 12
    for key in shared:
        np.testing.assert_array_equal(ours[key].numpy(), theirs[f"encoder.{key}"].numpy(), err_msg=key)
    assert set(conversion.left) == {"fc_norm.weight", "fc_norm.bias", "head.weight", "head.bias"}
    last = {key for key in state if key in ("encoder.norm.weight", "videomae.layernorm.weight")}
    assert last and last < set(conversion.dropped)
    assert all("pre-training" in reason for reason in conversion.dropped.values())


def test_what_does_not_fit_is_named():
    state = named_state(GOLDEN["authors_finetuned"]["state"])
    with pytest.raises(WeightsError, match="missing .*mask_token"):
        convert(state, auto_encoder()).finish()
    with pytest.raises(WeightsError, match=r"head.weight: \[48, 5\] for \[48, 7\]"):
        convert(state, classifier(num_classes=7)).finish()
    with pytest.raises(WeightsError, match=r"3 missing \(cls_token, norm.weight, norm.bias\); .* unknown .*fc_norm"):
        convert(state, classifier(pool="cls")).finish()
    with pytest.raises(WeightsError, match=r"patch_embed.proj.weight: \[48, 3, 2, 16, 16\] for \[48, 3, 1, 16, 16\]"):
        convert(state, classifier(tubelet_size=1)).finish()
    key = "blocks.0.attn.q_bias"
    with pytest.raises(WeightsError, match=r"not accounted for \(blocks.0.attn.v_bias\); 1 missing \(.*qkv.bias\)"):
        convert({name: value for name, value in state.items() if name != key}, classifier()).finish()
    with pytest.raises(WeightsError, match=r"q_bias \[\] \+ blocks.0.attn.v_bias \[48\] cannot become blocks.0"):
        convert(state | {key: np.float32(0)}, classifier())
    with pytest.raises(WeightsError, match=r"blocks.0.gamma_1"):
        convert(state | {"blocks.0.gamma_1": np.ones(48)}, classifier()).finish()
