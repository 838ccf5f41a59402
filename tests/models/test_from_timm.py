"""timm's vision transformers: the same logits on an image, and what becomes of their keys in a model of clips."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import blank, filled, golden, named_clip, named_state

from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.weights.from_timm import convert
from paddlevideo_fast.models.weights.load import WeightsError

GOLDEN = golden("vit")
SMALL = {"num_classes": 5, "crop_size": 32, "embed_dim": 48, "depth": 2, "num_heads": 3}
IMAGE = {"num_frames": 1, "tubelet_size": 1, "pool": "cls", "pos": "learned"}


def converted(case: str, inflate: str = "mean", **kwargs):
    model = create_model("vit_base_patch16", **(SMALL | kwargs))
    conversion = convert(named_state(GOLDEN[case]["state"]), model, inflate)
    return filled(conversion), conversion


def image_of(case: str):
    """The image as a clip of one frame."""
    return paddle.to_tensor(named_clip("vit", GOLDEN[case]["image"])).unsqueeze(2)


@pytest.mark.parametrize("impl", ["fast", "reference"])
@pytest.mark.parametrize(("case", "form"), [("timm_small", {}), ("timm_clip", {"pre_norm": True})])
def test_an_image_gives_timms_logits(case, form, impl):
    model, conversion = converted(case, impl=impl, **IMAGE, **form)
    np.testing.assert_allclose(model(image_of(case)).numpy(), GOLDEN[case]["logits"], rtol=1e-4, atol=1e-6)
    assert not conversion.dropped and not conversion.left


def test_an_image_gives_timms_logits_at_real_size():
    model = blank("vit_small_patch16", num_classes=5, **IMAGE)
    filled(convert(named_state(GOLDEN["timm_real_size"]["state"]), model))
    with paddle.no_grad():
        logits = model(image_of("timm_real_size")).numpy()
    np.testing.assert_allclose(logits, GOLDEN["timm_real_size"]["logits"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inflate", ["mean", "centre"])
def test_a_still_tubelet_gives_timms_logits(inflate):
    model, _ = converted("timm_small", inflate, **(IMAGE | {"num_frames": 2, "tubelet_size": 2}))
    still = image_of("timm_small").expand([2, 3, 2, 32, 32])
    logits = GOLDEN["timm_small"]["logits"]
    np.testing.assert_allclose(model(still).numpy(), logits, rtol=1e-4, atol=1e-6)
    kernel = model.patch_embed.proj.weight.numpy()
    assert (np.abs(kernel[:, :, 0]).max() == 0) == (inflate == "centre")


def test_clips_start_without_time():
    model, conversion = converted("timm_small", **(IMAGE | {"num_frames": 4}))
    assert set(conversion.left) == {"time_embed"} and not model.time_embed.numpy().any()
    clip = paddle.randn([1, 3, 4, 32, 32])
    np.testing.assert_allclose(model(clip).numpy(), model(clip.flip(2)).numpy(), rtol=1e-4, atol=1e-6)


def test_form_of_videomae():
    model, conversion = converted("timm_small", num_frames=4)
    assert set(conversion.dropped) == {"cls_token", "pos_embed", "head.weight", "head.bias"}
    assert set(conversion.left) == {"head.weight", "head.bias"}
    state = named_state(GOLDEN["timm_small"]["state"])
    np.testing.assert_array_equal(model.fc_norm.weight.numpy(), state["norm.weight"])
    np.testing.assert_array_equal(model.blocks[1].mlp.fc1.weight.numpy(), state["blocks.1.mlp.fc1.weight"].T)
    # timm's average of the patches: the same layer under the name ours has, and the same classifier.
    model, conversion = converted("timm_mean", num_frames=4)
    assert set(conversion.dropped) == {"cls_token", "pos_embed"} and not conversion.left


def test_another_number_of_classes():
    model, conversion = converted("timm_small", num_classes=7, **IMAGE)
    assert conversion.dropped == dict.fromkeys(
        ["head.weight", "head.bias"], "classifies into 5 classes, the model into 7"
    )
    assert model(image_of("timm_small")).shape == [2, 7]


def test_another_crop():
    model, conversion = converted("timm_small", **(IMAGE | {"crop_size": 64}))
    before = named_state(GOLDEN["timm_small"]["state"])["pos_embed"]
    after = model.pos_embed.numpy()
    assert after.shape == (1, 17, 48)
    np.testing.assert_array_equal(after[:, 0], before[:, 0])
    # A mean is kept, and corners reach beyond the values they come from, as bicubic ones do.
    np.testing.assert_allclose(after[:, 1:].mean(1), before[:, 1:].mean(1), rtol=1e-4, atol=1e-6)
    model, _ = converted("timm_small", **(IMAGE | {"pool": "mean"}))
    np.testing.assert_array_equal(model.pos_embed.numpy(), before[:, 1:])
    model, _ = converted("timm_mean", **(IMAGE | {"pool": "mean"}))
    assert model.pos_embed.shape == [1, 4, 48]


def test_what_does_not_fit_is_named():
    with pytest.raises(WeightsError, match=r"missing \(norm_pre.weight, norm_pre.bias\); .*patch_embed.proj.bias"):
        converted("timm_small", **IMAGE, pre_norm=True)
    with pytest.raises(WeightsError, match="of another shape"):
        converted("timm_small", **(IMAGE | {"embed_dim": 96}))
    state = named_state(GOLDEN["timm_small"]["state"])
    state["pos_embed"] = np.zeros((1, 6, 48), "float32")
    model = create_model("vit_base_patch16", **SMALL, **IMAGE)
    with pytest.raises(WeightsError, match=r"pos_embed -> pos_embed: \[1, 6, 48\] for \[1, 5, 48\]"):
        convert(state, model).finish()
