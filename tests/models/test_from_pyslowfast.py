"""Weights of PySlowFast, PaddleVideo and torchvision for 3D ResNets: every key accounted for, values, errors.

That PySlowFast's weights give PySlowFast's outputs is in test_resnet3d.py and test_slowfast.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from originals import filled, golden, logits_of, named_tree_state

from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.weights.from_pyslowfast import convert, convert_paddlevideo, convert_torchvision
from paddlevideo_fast.models.weights.load import WeightsError


def slowfast(**kwargs):
    return create_model("slowfast_resnet50", **({"num_classes": 7, "num_frames": 16, "width": 0.25} | kwargs))


@pytest.mark.parametrize("case", ["training_crop", "larger_crop"])
def test_paddlevideo_gives_its_outputs(case):
    expected = golden("slowfast_paddlevideo")
    model = slowfast(alpha=8, beta_inv=4, fusion_kernel=5, head="convolutional", crop_size=64)
    filled(convert_paddlevideo(named_tree_state(expected["keys"]), model))
    np.testing.assert_allclose(
        np.exp(logits_of(model, expected[case])), expected[case]["probabilities"], rtol=1e-4, atol=1e-7
    )


def test_every_key_is_accounted_for():
    state = named_tree_state(golden("slowfast")["8x8"]["keys"])
    model = slowfast()
    conversion = convert(state, model)
    assert conversion.remaining == [] and conversion.missing == []
    assert {key.rpartition(".")[2] for key in conversion.dropped} == {"num_batches_tracked"}
    assert len(conversion.filled) + len(conversion.dropped) == len(state)
    arrays = conversion.finish()
    np.testing.assert_array_equal(arrays["fusions.2.conv.weight"], state["s3_fuse.conv_f2s.weight"])
    np.testing.assert_array_equal(
        arrays["fast.layer4.1.bn2._mean"], state["s5.pathway1_res1.branch2.b_bn.running_mean"]
    )
    np.testing.assert_array_equal(arrays["slow.layer2.0.downsample.0.weight"], state["s3.pathway0_res0.branch1.weight"])
    np.testing.assert_array_equal(arrays["head.fc.weight"], state["head.projection.weight"].T)


def test_missing_and_unknown_keys():
    state = named_tree_state(golden("slowfast")["8x8"]["keys"])
    state["s6.pathway0_res0.branch2.a.weight"] = state.pop("s2_fuse.conv_f2s.weight")
    with pytest.raises(WeightsError, match=r"1 not accounted for \(s6.pathway0.*1 missing \(fusions.1.conv.weight\)"):
        convert(state, slowfast()).finish()


def test_other_sizes():
    state = named_tree_state(golden("slowfast")["8x8"]["keys"])
    with pytest.raises(WeightsError, match=r"4 of another shape \(s1_fuse.conv_f2s.weight -> fusions.0.conv.weight"):
        convert(state, slowfast(fusion_kernel=5)).finish()


def test_other_architectures():
    tsn = create_model("tsn_resnet18", num_classes=7, width=0.125)
    for function in (convert, convert_paddlevideo):
        with pytest.raises(WeightsError, match="fit an I3D, Slow or SlowFast network, not tsn_resnet18"):
            function({}, tsn)
    with pytest.raises(WeightsError, match="slowfast_resnet50 cannot start from an image network"):
        convert_torchvision({}, slowfast())


def image_state(width: int = 16, num_classes: int = 3) -> dict[str, np.ndarray]:
    """What torchvision's ResNet-50 would have at a quarter of its width."""
    network = create_model("tsn_resnet50", num_classes=num_classes, width=width / 64)
    rng = np.random.default_rng(0)
    state = {}
    for key, value in network.state_dict().items():
        name = key.removeprefix("backbone.").removeprefix("head.")
        name = name.replace("._mean", ".running_mean").replace("._variance", ".running_var")
        shape = value.shape[::-1] if name == "fc.weight" else value.shape
        state[name] = rng.uniform(0.2, 0.3, shape).astype("float32")
    return state | {"bn1.num_batches_tracked": np.zeros((), "int64")}


def test_torchvision_is_inflated():
    state = image_state()
    model = create_model("i3d_nl_resnet50", num_classes=7, width=0.25)
    before = {key: value.numpy() for key, value in model.state_dict().items()}
    conversion = convert_torchvision(state, model)
    arrays = conversion.finish()
    assert set(arrays) == set(before)
    stem = arrays["backbone.conv1.weight"]
    assert stem.shape == (16, 3, 5, 7, 7)
    for slice_ in range(5):
        np.testing.assert_allclose(stem[:, :, slice_], state["conv1.weight"] / 5, rtol=1e-6)
    kernel = arrays["backbone.layer1.0.conv1.weight"]
    np.testing.assert_allclose(kernel.sum(2), state["layer1.0.conv1.weight"], rtol=1e-6)
    variance = arrays["backbone.layer2.0.downsample.1._variance"]
    np.testing.assert_array_equal(variance, state["layer2.0.downsample.1.running_var"])
    # The classifier of other classes and the non-local blocks stay, with a reason on both sides.
    assert conversion.dropped["fc.weight"] == "classifies into 3 classes, the model into 7"
    left = {key.split(".nonlocal_block")[0] for key in conversion.left}
    blocks = ("layer2.1", "layer2.3", "layer3.1", "layer3.3", "layer3.5")
    assert left == {"head.fc.weight", "head.fc.bias", *(f"backbone.{block}" for block in blocks)}
    for key in conversion.left:
        np.testing.assert_array_equal(arrays[key], before[key])


def test_torchvision_classifier_of_as_many_classes_comes_along():
    state = image_state(num_classes=7)
    model = create_model("slow_resnet50", num_classes=7, width=0.25)
    conversion = convert_torchvision(state, model)
    np.testing.assert_array_equal(conversion.finish()["head.fc.weight"], state["fc.weight"].T)
    assert not conversion.left


def test_image_network_under_pyslowfast_names_is_inflated():
    state = named_tree_state(golden("resnet3d")["slow"]["keys"])
    weight = state["s4.pathway0_res1.branch2.a.weight"]
    for key, value in state.items():
        if value.ndim == 5:
            state[key] = value.mean(2)  # as PySlowFast's image networks have them
    model = create_model("slow_resnet50", num_classes=7, width=0.25)
    inflated = convert(state, model).finish()["backbone.layer3.1.conv1.weight"]
    assert inflated.shape == weight.shape == (64, 256, 3, 1, 1)
    for slice_ in range(3):
        np.testing.assert_allclose(inflated[:, :, slice_], weight.mean(2) / 3, rtol=1e-5)
    other = convert(state, create_model("slow_resnet50", num_classes=5, width=0.25))
    other.finish()
    assert set(other.left) == {"head.fc.weight", "head.fc.bias"}


def test_classifier_of_a_video_network_has_to_fit():
    state = named_tree_state(golden("resnet3d")["slow"]["keys"])
    with pytest.raises(WeightsError, match=r"2 of another shape \(head.projection.weight -> head.fc.weight"):
        convert(state, create_model("slow_resnet50", num_classes=5, width=0.25)).finish()
