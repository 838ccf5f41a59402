"""Every model of the zoo at a small size: a step learns, recomputation changes nothing, the fast operators neither."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import numpy as np
import paddle
import pytest

from paddlevideo_fast.models import MODELS, create_model

TRANSFORMER = {"embed_dim": 24, "depth": 2, "num_heads": 2, "num_frames": 4, "crop_size": 32}
TOWERS = {
    "embed_dim": 8,
    "num_frames": 2,
    "crop_size": 32,
    **{"video_width": 24, "video_depth": 2, "video_num_heads": 2},
    **{"text_width": 16, "text_depth": 2, "text_num_heads": 2, "context_length": 6, "vocab_size": 20},
}
# What makes a model small, by how its name begins.
SMALL: dict[str, dict[str, Any]] = {
    **{f"{family}_": {"num_classes": 3, "width": 0.125, "num_segments": 4} for family in ("tsn", "tsm", "pptsm")},
    **{f"{family}_": {"num_classes": 3, "width": 0.125, "num_frames": 4} for family in ("i3d", "slow")},
    "slowfast_": {"num_classes": 3, "width": 0.125, "num_frames": 4, "alpha": 2},
    "timesformer_": {"num_classes": 3, **TRANSFORMER},
    "vit_": {"num_classes": 3, **TRANSFORMER},
    "vit_large_patch14": {"num_classes": 3, **TRANSFORMER, "crop_size": 28},
    "videomae_": {**TRANSFORMER, "decoder_dim": 16, "decoder_depth": 1, "decoder_heads": 2},
    "dual_encoder_": TOWERS,
    "dual_encoder_large_patch14": {**TOWERS, "crop_size": 28},
}

JOINT = {"attention": "joint"}
AVION = {"tubelet_size": 1, "pool": "cls", "pos": "learned", "pre_norm": True, "drop_path_schedule": "constant"}
# Every model as it comes, and forms of some whose layers are others.
CASES = [
    *((name, {}) for name in MODELS),
    ("timesformer_base_patch16", JOINT),
    ("vit_base_patch16", AVION),
    ("i3d_resnet50", {"inflate": "3x3x3"}),
    ("dual_encoder_base_patch16", {"activation": "quick_gelu"}),
]


def form_name(value: str | dict[str, Any]) -> str:
    """Return what pytest calls a model, or a form of it."""
    return value if isinstance(value, str) else "_".join(map(str, value.values())) or "as_it_comes"


def parameters_of(name: str) -> Iterable[str]:
    return inspect.signature(MODELS[name]).parameters


def small(name: str, **more: Any) -> tuple[paddle.nn.Layer, tuple[paddle.Tensor, ...]]:
    """Return a small model with the weights of seed 0, and what its forward takes.

    What starts at zero, and would hide whatever is before it, has values too.
    """
    arguments = {**SMALL[max((start for start in SMALL if name.startswith(start)), key=len)], **more}
    if "dropout" in parameters_of(name):
        arguments = {"dropout": 0.0} | arguments
    paddle.seed(0)
    model = create_model(name, **arguments)
    for parameter in model.parameters():
        if not parameter.stop_gradient and not parameter.numpy().any():
            paddle.nn.initializer.Normal(0.0, 0.2)(parameter)
    frames, side = arguments.get("num_frames", 4), arguments.get("crop_size", 32)
    rng = np.random.default_rng(0)
    clip = paddle.to_tensor(rng.standard_normal((2, 3, frames, side, side), dtype="float32"))
    if name.startswith("videomae"):
        hidden = np.tile([True, False, True, True], (2, frames // 2 * (side // 16) ** 2 // 4))  # of tubelets of 2x16x16
        return model, (clip, paddle.to_tensor(hidden))
    if name.startswith("dual"):
        return model, (clip, paddle.to_tensor([[18, 3, 19, 0, 0, 0], [18, 7, 5, 19, 0, 0]]))
    return model, (clip,)


def loss_of(outputs: paddle.Tensor | dict[str, paddle.Tensor]) -> paddle.Tensor:
    """Return a number that every floating-point output takes part in, and that can be made smaller."""
    outputs = outputs if isinstance(outputs, dict) else {"logits": outputs}
    return sum(((value.astype("float32") - 0.3) ** 2).mean() for value in outputs.values())


def gradients(model: paddle.nn.Layer, inputs: tuple[paddle.Tensor, ...]) -> tuple[float, dict[str, np.ndarray]]:
    """Return the loss of a training step, and the gradients of the parameters."""
    paddle.seed(1)
    loss = loss_of(model(*inputs))
    loss.backward()
    found = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    model.clear_gradients()
    return loss.item(), found


@pytest.mark.parametrize(("name", "form"), CASES, ids=form_name)
def test_a_step_makes_the_loss_smaller(name, form):
    model, inputs = small(name, **form)
    parameters = [p for p in model.parameters() if not p.stop_gradient]
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=parameters)
    losses = []
    for _ in range(3):
        loss = loss_of(model(*inputs))
        loss.backward()
        assert all(p.grad is not None for p in parameters)
        optimizer.step()
        optimizer.clear_grad()
        losses.append(loss.item())
    assert np.isfinite(losses).all() and losses[2] < losses[0]


@pytest.mark.parametrize(("name", "form"), CASES, ids=form_name)
def test_recomputation_changes_nothing(name, form):
    form = form | {rate: 0.3 for rate in ("dropout", "drop_path_rate") if rate in parameters_of(name)}
    plain, inputs = small(name, **form)
    again, _ = small(name, **form, recompute=True)
    loss, found = gradients(plain, inputs)
    other_loss, other = gradients(again, inputs)
    assert other_loss == loss and other.keys() == found.keys()
    for key, value in found.items():
        np.testing.assert_allclose(other[key], value, rtol=1e-5, atol=1e-7, err_msg=key)
    for (key, value), other_value in zip(plain.state_dict().items(), again.state_dict().values(), strict=True):
        np.testing.assert_array_equal(other_value.numpy(), value.numpy(), err_msg=key)  # running statistics


# An I3D takes `impl` for its non-local blocks, and refuses it where there are none.
TWO_WAYS = [case for case in CASES if "impl" in parameters_of(case[0]) and case[0] != "i3d_resnet50"]


@pytest.mark.parametrize(("name", "form"), TWO_WAYS, ids=form_name)
def test_fast_operators_change_nothing_but_rounding(name, form):
    fast, inputs = small(name, **form, impl="fast")
    reference, _ = small(name, **form, impl="reference")
    assert fast.fast_paths.keys() == reference.fast_paths.keys() and fast.fast_paths != reference.fast_paths
    assert all("as asked" in line for line in reference.fast_paths.values())
    states = fast.state_dict(), reference.state_dict()
    assert list(states[0]) == list(states[1])
    assert all((states[0][key].numpy() == states[1][key].numpy()).all() for key in states[0])
    loss, found = gradients(fast, inputs)
    other_loss, other = gradients(reference, inputs)
    assert abs(other_loss - loss) < 1e-5 * max(1, abs(loss))
    largest = max(np.abs(value).max() for value in found.values())
    for key, value in found.items():
        np.testing.assert_allclose(other[key], value, rtol=2e-3, atol=2e-4 * largest, err_msg=key)


def test_what_was_resolved_is_said():
    model, _ = small("vit_small_patch16")
    assert "reference (matrix products)" in model.fast_paths["attention"]
    assert small("dual_encoder_base_patch16")[0].fast_paths.keys() == {"attention", "text_attention", "patch_embed"}
    assert small("videomae_base", impl="fast")[0].fast_paths["patch_embed"] == "product of flattened patches"
    assert not small("slowfast_resnet50")[0].fast_paths


@pytest.mark.parametrize("name", ["tsn_resnet18", "slow_resnet50", "slowfast_nl_resnet50", "vit_small_patch16"])
def test_errors_name_the_model_as_it_was_asked_for(name):
    model, (clip,) = small(name)
    with pytest.raises(ValueError, match=rf"^{name} expects a clip of shape"):
        model(clip[0])
