"""The account of a conversion: every key used, dropped or left for a reason; layouts and kernels brought over."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from paddlevideo_fast.models.weights.conversion import Conversion
from paddlevideo_fast.models.weights.load import WeightsError


def net():
    return nn.Sequential(
        ("conv", nn.Conv3D(3, 4, [3, 1, 1], padding=[1, 0, 0])), ("bn", nn.BatchNorm3D(4)), ("fc", nn.Linear(4, 2))
    )


def state(**changes):
    """A state dict in PyTorch's layout that fits."""
    arrays = {
        "stem.weight": np.arange(12, dtype="float32").reshape(4, 3, 1, 1),
        "stem.bias": np.ones(4, "float32"),
        "bn.weight": np.full(4, 2, "float32"),
        "bn.bias": np.full(4, 3, "float32"),
        "bn.running_mean": np.full(4, 4, "float32"),
        "bn.running_var": np.full(4, 5, "float32"),
        "bn.num_batches_tracked": np.array(7),
        "fc.weight": np.arange(8, dtype="float32").reshape(2, 4),
        "fc.bias": np.zeros(2, "float32"),
    }
    arrays.update(changes)
    return {key: value for key, value in arrays.items() if value is not None}


RULES = [(r"stem\.(\w+)", r"conv.\1"), (r"(bn|fc)\.(\w+)", r"\1.\2"), (r"fc\.bias", "never.reached")]


def converted(arrays, model=None, rules=RULES, **how):
    conversion = Conversion(arrays, model or net(), **how)
    conversion.rename(rules)
    return conversion


def test_a_whole_state_comes_over():
    model = net()
    conversion = converted(state(), model)
    assert conversion.remaining == conversion.missing == []
    result = conversion.finish()
    assert model.set_state_dict(result) == ([], [])
    assert set(result) == set(model.state_dict())
    # y = x W^T of PyTorch is y = x W in Paddle
    np.testing.assert_array_equal(model.fc(paddle.to_tensor([[1.0, 10.0, 100.0, 1000.0]])).numpy(), [[3210.0, 7654.0]])
    assert model.bn._mean.numpy().tolist() == [4.0] * 4 and model.bn._variance.numpy().tolist() == [5.0] * 4
    assert model.bn.weight.numpy().tolist() == [2.0] * 4 and model.bn.bias.numpy().tolist() == [3.0] * 4
    assert conversion.dropped == {"bn.num_batches_tracked": "counter of batches, which Paddle does not keep"}
    assert (conversion.filled["fc.weight"].sources, conversion.filled["fc.weight"].how) == (
        ("fc.weight",),
        "transposed",
    )
    assert conversion.filled["conv.weight"].how == "inflated"


def test_inflation_by_the_mean_keeps_what_a_still_clip_gives():
    model = nn.Sequential(("conv", nn.Conv3D(3, 4, [3, 1, 1])))
    arrays = {"conv.weight": state()["stem.weight"], "conv.bias": np.zeros(4)}
    model.set_state_dict(converted(arrays, model, [("(.*)", r"\1")]).finish())
    out = model(paddle.ones([1, 3, 3, 1, 1])).flatten().numpy()
    np.testing.assert_allclose(out, [0 + 1 + 2, 3 + 4 + 5, 6 + 7 + 8, 9 + 10 + 11], rtol=1e-6)


def test_inflation_in_the_centre():
    weight = converted(state(), inflate="centre").finish()["conv.weight"]
    assert weight.shape == (4, 3, 3, 1, 1)
    np.testing.assert_array_equal(weight[:, :, 1], state()["stem.weight"])
    assert not weight[:, :, [0, 2]].any()
    with pytest.raises(ValueError, match="inflate is 'center'; it must be 'mean' or 'centre'"):
        Conversion({}, net(), inflate="center")


def test_weights_in_paddles_layout_are_not_transposed():
    weight = np.arange(8, dtype="float32").reshape(4, 2)
    result = converted(state(**{"fc.weight": weight}), paddle_layout=True).finish()
    np.testing.assert_array_equal(result["fc.weight"], weight)


@pytest.mark.parametrize("paddle_layout", [False, True])
@pytest.mark.parametrize("ones", [(1, 1), (1, 1, 1)])
def test_linear_layers_and_1x1_kernels_stand_in_for_each_other(ones, paddle_layout):
    plain = np.arange(8, dtype="float32").reshape(2, 4)  # [out, in]
    linear = nn.Linear(4, 2, bias_attr=False)
    conversion = Conversion({"w": plain.reshape(2, 4, *ones)}, linear, paddle_layout=paddle_layout)
    conversion.move("w", "weight")
    np.testing.assert_array_equal(conversion.finish()["weight"], plain.T)
    conv = (nn.Conv2D if len(ones) == 2 else nn.Conv3D)(4, 2, 1, bias_attr=False)
    conversion = Conversion({"w": plain.T if paddle_layout else plain}, conv, paddle_layout=paddle_layout)
    conversion.move("w", "weight")
    np.testing.assert_array_equal(conversion.finish()["weight"], plain.reshape(2, 4, *ones))


def test_changes_and_joins_work_in_the_originals_layout():
    linear = nn.Linear(3, 4)
    parts = {"q": np.zeros([2, 3]), "k": np.ones([2, 3]), "b": np.arange(4.0)}
    conversion = Conversion(parts, linear)
    conversion.join("weight", ["q", "k"])
    conversion.move("b", "bias", lambda array: array[::-1])
    result = conversion.finish()
    np.testing.assert_array_equal(result["weight"], [[0, 0, 1, 1]] * 3)
    np.testing.assert_array_equal(result["bias"], [3, 2, 1, 0])
    assert {array.dtype for array in result.values()} == {np.dtype("float32")}
    assert conversion.filled["weight"].how == "joined, transposed"
    assert conversion.filled["weight"].sources == ("q", "k")
    assert conversion.filled["bias"].how == "changed"


def test_zeros_are_joined_where_there_is_nothing():
    conversion = Conversion({"q": np.ones(2), "v": np.full(2, 3.0)}, nn.Linear(1, 6))
    conversion.join("bias", ["q", None, "v"])
    assert conversion.filled["bias"].how == "joined with zeros" and conversion.remaining == []
    conversion.leave_all("weight", "fresh")
    np.testing.assert_array_equal(conversion.finish()["bias"], [1, 1, 0, 0, 3, 3])


@pytest.mark.parametrize(("classes", "fits"), [(3, True), (5, False)])
def test_an_image_networks_classifier_comes_along_if_it_fits(classes, fits):
    model = nn.Sequential(("head", nn.Linear(2, 3)))
    conversion = Conversion({"fc.weight": np.ones([classes, 2]), "fc.bias": np.ones(classes)}, model)
    conversion.place_head(r"fc\.(weight|bias)")
    assert (model.head.bias.numpy() == 0).all() and (conversion.finish()["head.bias"] == fits).all()
    assert list(conversion.dropped.values()) == ["classifies into 5 classes, the model into 3"] * 2 * (not fits)


@pytest.mark.parametrize("bias", [np.float32(1), np.ones([3, 3])])
def test_a_classifier_whose_bias_is_none_is_named(bias):
    conversion = Conversion({"fc.weight": np.ones([3, 2]), "fc.bias": bias}, nn.Sequential(("head", nn.Linear(2, 3))))
    conversion.place_head(r"fc\.(weight|bias)")
    with pytest.raises(WeightsError, match=r"of another shape \(fc.bias -> head.bias: \[.*\] for \[3\]\)"):
        conversion.finish()


def test_half_precision_is_inflated_in_single():
    third = np.full([4, 3, 1, 1], 1, "float16")
    weight = converted(state(**{"stem.weight": third})).finish()["conv.weight"]
    np.testing.assert_array_equal(weight, np.full([4, 3, 3, 1, 1], np.float32(1) / np.float32(3)))


def test_scalars_keep_their_shape():
    class Scaled(nn.Layer):
        def __init__(self):
            super().__init__()
            self.scale = self.create_parameter([])

    conversion = Conversion({"logit_scale": np.float32(4.6)}, Scaled())
    conversion.move("logit_scale", "scale")
    assert conversion.finish()["scale"].shape == ()


def test_a_key_left_keeps_the_models_value():
    model = net()
    conversion = converted(state(**{"stem.bias": None}), model)
    assert conversion.missing == ["conv.bias"]
    conversion.leave("conv.bias", "the original has none")
    np.testing.assert_array_equal(conversion.finish()["conv.bias"], model.conv.bias.numpy())
    assert conversion.left == {"conv.bias": "the original has none"}


def test_one_array_may_go_to_two_keys():
    model = nn.Sequential(nn.Linear(2, 2, bias_attr=False), nn.Linear(2, 2, bias_attr=False))
    conversion = Conversion({"shared": np.eye(2)}, model)
    conversion.move("shared", "0.weight")
    conversion.move("shared", "1.weight")
    assert conversion.finish().keys() == {"0.weight", "1.weight"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head.weight": np.zeros(2)}, r"the 10 arrays do not fill Sequential: 1 not accounted for \(head.weight\)$"),
        ({"fc.bias": None}, r"1 missing \(fc.bias\)$"),
        ({"fc.extra": np.zeros(2)}, r"1 unknown to the model \(fc.extra -> fc.extra\)$"),
        ({"fc.weight": np.zeros([3, 4])}, r"1 of another shape \(fc.weight -> fc.weight: \[4, 3\] for \[4, 2\]\)$"),
        ({"stem.weight": np.zeros([4, 3, 3, 3])}, r"stem.weight -> conv.weight: \[4, 3, 3, 3, 3\] for \[4, 3, 3, 1,"),
        ({"fc.bias": np.array([0, np.nan])}, r"1 with values that are no finite numbers \(fc.bias -> fc.bias\)$"),
        ({"bn.running_var": np.full(4, np.inf)}, r"no finite numbers \(bn.running_var -> bn._variance\)$"),
        ({"fc.bias": None, "other": np.zeros(1)}, r"1 not accounted for \(other\); 1 missing \(fc.bias\)$"),
    ],
)
def test_what_does_not_add_up_is_named(changes, message):
    with pytest.raises(WeightsError, match=message):
        converted(state(**changes)).finish()


def test_a_dropped_array_may_hold_anything():
    conversion = converted(state(mask=np.full([2, 2], -np.inf)))
    conversion.drop("mask", "the model makes its own")
    assert "mask" not in conversion.finish()


def test_a_classifier_of_other_classes_is_left_to_reset_head():
    model = nn.Sequential(("body", nn.Linear(2, 2, bias_attr=False)), ("head", nn.Linear(2, 3)))
    arrays = {"body.weight": np.eye(2), "head.weight": np.zeros([5, 2]), "head.bias": np.zeros(5)}
    advice = r"\[5\] for \[3\]\). Only the classifier differs: leave num_classes to the file, and train with reset_head"
    with pytest.raises(WeightsError, match=advice):
        converted(arrays, model, [("(.*)", r"\1")]).finish()
    with pytest.raises(WeightsError, match=r"body.weight: \[3, 3\] for \[2, 2\], .*\)$"):
        converted(arrays | {"body.weight": np.eye(3)}, model, [("(.*)", r"\1")]).finish()


def test_weights_of_this_project_need_no_conversion():
    own = {key: value.numpy() for key, value in net().state_dict().items()}
    with pytest.raises(WeightsError, match="These are weights of this project already, which -w takes as they are$"):
        converted(own, rules=[(r"stem\.(\w+)", r"conv.\1")]).finish()


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda c: c.move("fc.bias", "fc.bias", lambda x: x.shape[3]), r"fc.bias \[2\] cannot become fc.bias$"),
        (lambda c: c.move("fc.w", "fc.weight"), "the weights have no fc.w, which Sequential needs"),
        (lambda c: c.join("fc.weight", ["fc.weight", "k"]), "the weights have no k"),
        (
            lambda c: c.join("fc.weight", ["fc.weight", "fc.bias"]),
            r"fc.weight \[2, 4\] \+ fc.bias \[2\] cannot become",
        ),
        (lambda c: c.drop("fc.w", "unused"), "the weights have no fc.w"),
        (lambda c: c.leave("fc.w", "starts at zero"), "fc.w cannot be left: Sequential has no such key"),
        (lambda c: [c.move("fc.bias", "fc.bias") for _ in "12"], "fc.bias has an array already, from fc.bias"),
        (lambda c: (c.leave("fc.bias", "x"), c.move("fc.bias", "fc.bias")), "fc.bias was left at its initial value"),
        (lambda c: (c.move("fc.bias", "fc.bias"), c.leave("fc.bias", "x")), "fc.bias has an array already"),
        (lambda c: (c.move("fc.bias", "fc.bias"), c.drop("fc.bias", "x")), "fc.bias cannot be dropped: it is in use"),
        (lambda c: (c.drop("fc.bias", "why"), c.move("fc.bias", "fc.bias")), r"fc.bias cannot be used: .* \(why\)"),
    ],
)
def test_contradictions_are_refused(act, message):
    with pytest.raises(WeightsError, match=message):
        act(Conversion(state(), net()))
