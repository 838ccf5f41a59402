"""TSN, TSM and ppTSM: the authors' logits and gradients, both shifts alike, placement, partial BN, errors."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from originals import blank, golden, load_into_paddle, named_clip, num_parameters

from paddlevideo_fast.arguments import ArgumentError, check_arguments, lookup
from paddlevideo_fast.models import MODELS, create_model
from paddlevideo_fast.models.tsm import TSM
from paddlevideo_fast.ops.norm import AllReduceBatchNorm
from paddlevideo_fast.ops.temporal_shift import temporal_shift_native, temporal_shift_reference

GOLDEN = golden("resnet")


def small(name: str = "tsm_resnet18", **kwargs):
    paddle.seed(5)
    return create_model(name, **({"num_classes": 5, "num_segments": 4, "width": 0.125, "dropout": 0.0} | kwargs))


def shifted_blocks(model) -> list[list[int]]:
    return [[i for i, block in enumerate(stage) if block.shift is not None] for stage in model.backbone.stages]


@pytest.mark.parametrize("depth", ["18", "34", "50", pytest.param("101", marks=pytest.mark.slow)])
def test_logits_equal_the_authors(depth):
    golden = GOLDEN["tsm"][depth]
    model = blank(f"tsm_resnet{depth}", num_classes=7)
    load_into_paddle(model)
    model.eval()
    clip = paddle.to_tensor(named_clip(f"tsm{depth}", golden["shape"]))
    with paddle.no_grad():
        logits = model(clip).numpy()
        backwards = model(clip.flip(2)).numpy()
    np.testing.assert_allclose(logits, golden["logits"], rtol=1e-4, atol=2e-5)
    assert np.abs(backwards - golden["logits"]).max() > 1e-3  # the direction shows at this precision


def test_training_equals_the_authors():
    golden = GOLDEN["tsm_training"]["18"]
    model = blank("tsm_resnet18", num_classes=7, dropout=0.0)
    load_into_paddle(model)
    model.train()
    logits = model(paddle.to_tensor(named_clip("tsm18", golden["shape"])))
    paddle.nn.functional.cross_entropy(logits, paddle.arange(2)).backward()
    np.testing.assert_allclose(logits.numpy(), golden["logits"], rtol=1e-3, atol=1e-4)
    gradients = {name.removeprefix("backbone.").removeprefix("head."): p.grad for name, p in model.named_parameters()}
    for name, norm in golden["gradient_norms"].items():
        assert gradients[name].norm().item() == pytest.approx(norm, rel=1e-3), name


@pytest.mark.parametrize("name", ["tsm_resnet18", "tsm_nl_resnet50", "tsm_mobilenetv2", "pptsm_resnet50"])
def test_which_shift_is_taken(name):
    for impl, function, line in (
        ("fast", temporal_shift_native, "native (paddle.nn.functional.temporal_shift)"),
        ("reference", temporal_shift_reference, "reference (padding, slices, concatenation), as asked"),
    ):
        model = small(name, impl=impl)
        shifts = [block.shift for block in model.sublayers() if getattr(block, "shift", None)]
        assert shifts and {shift.func for shift in shifts} == {function}
        assert model.fast_paths["temporal_shift"] == line
        assert list(model.fast_paths) == ["temporal_shift", "non_local"][: 1 + ("_nl_" in name)]


def test_placement():
    assert shifted_blocks(small("tsm_resnet18")) == [[0, 1]] * 4
    assert shifted_blocks(small("tsm_resnet50")) == [[0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5], [0, 1, 2]]
    assert shifted_blocks(small("tsm_resnet101")) == [[0, 2], [0, 2], list(range(0, 23, 2)), [0, 2]]
    assert shifted_blocks(small("tsm_resnet101", shift_every=1))[2] == list(range(23))
    assert shifted_blocks(small("pptsm_resnet101")) == [list(range(count)) for count in (3, 4, 23, 3)]
    assert shifted_blocks(small("tsn_resnet18")) == [[]] * 4
    # The first block of every stage changes the number of channels, so it has no identity to leave alone.
    features = list(enumerate(small("tsm_mobilenetv2", width=1.0).backbone.features))
    assert [i for i, layer in features if getattr(layer, "shift", None)] == [3, 5, 6, 8, 9, 10, 12, 13, 15, 16]
    nl = small("tsm_nl_resnet50")
    assert shifted_blocks(nl) == shifted_blocks(small("tsm_resnet50"))
    placed = [[i for i, block in enumerate(stage) if block.nl is not None] for stage in nl.backbone.stages]
    assert placed == [[], [0, 2], [0, 2, 4], []]
    assert small(shift_div=4).backbone.layer1[0].shift.keywords == {"shift_ratio": 0.25}


def test_non_local_blocks_start_as_the_identity():
    with_blocks, without = small("tsm_nl_resnet50"), small("tsm_resnet50")
    added = [key for key in with_blocks.state_dict() if key not in without.state_dict()]
    assert len(added) == 5 * 12 and all(".nl." in key for key in added)
    with_blocks.set_state_dict({**with_blocks.state_dict(), **without.state_dict()})
    for model in (with_blocks, without):
        model.eval()
    clip = paddle.randn([1, 3, 4, 32, 32])
    np.testing.assert_array_equal(with_blocks(clip).numpy(), without(clip).numpy())
    bias = np.concatenate([block.nl.conv_phi.bias.numpy() for block in with_blocks.backbone.layer3[::2]])
    assert 0.8 < np.abs(bias).max() * 128**0.5 <= 1  # uniform over the fan-in of 128 channels


def test_pptsm_starts_as_the_original():
    model = small("pptsm_resnet50", num_classes=400)
    weight = model.backbone.layer2[0].conv2.weight.numpy()  # 3x3, from 16 channels
    assert weight.std() == pytest.approx((2 / (16 * 9)) ** 0.5, rel=0.05)
    assert model.head.fc.weight.numpy().std() == pytest.approx(0.01, rel=0.02)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("tsm_mobilenetv2", 2.736),  # mmaction2's table, 400 classes
        # mmaction2's table has 31.68, without the biases of its five last convolutions, 4,096 values.
        ("tsm_nl_resnet50", 31.682 + 0.004),
        ("tsm_resnet50", 24.327_632),  # mmaction2: 24.33, and 23.87 with the 174 classes of Something-Something
    ],
)
def test_published_sizes(name, millions):
    assert num_parameters(blank(name, num_classes=400)) / 1e6 == pytest.approx(millions, abs=6e-4)


def test_size_of_pptsm():
    # A ResNet-50 whose stem of 7x7 gives way to three of 3x3 with two more normalisations.
    expected = 24_327_632 - 64 * 3 * 49 + 9 * (3 * 32 + 32 * 32 + 32 * 64) + 2 * (32 + 32)
    assert num_parameters(blank("pptsm_resnet50", num_classes=400)) == expected


def test_frames_mix_in_tsm_only():
    clip = paddle.randn([1, 3, 4, 32, 32])
    order = paddle.to_tensor([2, 0, 3, 1])
    for name, mixes in (("tsn_resnet18", False), ("tsm_resnet18", True)):
        model = small(name)
        model.eval()
        difference = (model(clip) - model(clip.index_select(order, axis=2))).abs().max().item()
        assert (difference > 1e-6) == mixes


def test_clips_do_not_depend_on_one_another():
    model = small()
    model.eval()
    clip = paddle.randn([3, 3, 4, 32, 32])
    alone = paddle.concat([model(clip[i : i + 1]) for i in range(3)])
    np.testing.assert_allclose(model(clip).numpy(), alone.numpy(), rtol=1e-4, atol=1e-7)


def test_number_of_frames():
    for frames in (1, 3, 8):
        assert small(num_segments=None)(paddle.zeros([2, 3, frames, 32, 32])).shape == [2, 5]
    with pytest.raises(
        ValueError, match=r"shape \[N, 3, 4, H, W\], got \[2, 3, 8, 32, 32\]; 8 frames need num_segments=8"
    ):
        small()(paddle.zeros([2, 3, 8, 32, 32]))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([8, 3, 32, 32], r"got \[8, 3, 32, 32\]; frames are not folded into the batch"),
        (
            [2, 4, 3, 32, 32],
            r"got \[2, 4, 3, 32, 32\]; time comes after the channels: clip.transpose\(\[0, 2, 1, 3, 4\]\)",
        ),
        ([2, 4, 32, 32, 3], r"got \[2, 4, 32, 32, 3\]; channels come first: clip.transpose\(\[0, 4, 1, 2, 3\]\)"),
        ([2, 1, 4, 32, 32], r"tsm_resnet18 expects a clip of shape \[N, 3, 4, H, W\], got \[2, 1, 4, 32, 32\]$"),
    ],
)
def test_wrong_shapes(shape, message):
    with pytest.raises(ValueError, match=message):
        small()(paddle.zeros(shape))


def test_wrong_dtype():
    with pytest.raises(TypeError, match="normalised floating-point clip .*, got paddle.uint8"):
        small()(paddle.zeros([2, 3, 4, 32, 32], dtype="uint8"))


def test_partial_bn():
    model = small(partial_bn=True)
    wrapper = paddle.nn.Sequential(model)
    wrapper.train()  # sets `training` on every layer beneath, past any method of the model
    before = {key: value.numpy().copy() for key, value in model.state_dict().items()}
    wrapper(paddle.randn([2, 3, 4, 32, 32])).sum().backward()
    after = {key: value.numpy() for key, value in model.state_dict().items()}
    moved = [key for key in before if not np.array_equal(before[key], after[key])]
    assert moved == ["backbone.bn1._mean", "backbone.bn1._variance"]
    learns = {key for key, p in model.named_parameters() if not p.stop_gradient}
    assert {key for key in learns if "bn" in key or "downsample.1" in key} == {
        "backbone.bn1.weight",
        "backbone.bn1.bias",
    }
    assert all(p.grad is not None for key, p in model.named_parameters() if key in learns)
    assert all(p.grad is None for key, p in model.named_parameters() if key not in learns)
    assert list(model.state_dict()) == list(small().state_dict())


def test_sync_norm_everywhere():
    model = small(norm="sync")
    kinds = {type(layer) for name, layer in model.named_sublayers() if "bn" in name or name.endswith("downsample.1")}
    if paddle.get_device() == "cpu":
        assert kinds == {AllReduceBatchNorm}
        assert model.fast_paths["norm"].startswith("reference (all-reduce)")
    assert list(model.state_dict()) == list(small().state_dict())


def test_dropout_sits_before_the_classifier():
    model = small(dropout=1.0)
    clip = paddle.randn([2, 3, 4, 32, 32])
    model.head.fc.bias.set_value(paddle.arange(5).astype("float32"))
    np.testing.assert_array_equal(model(clip).numpy(), [[0, 1, 2, 3, 4]] * 2)
    model.eval()
    assert np.abs(model(clip).numpy() - np.arange(5)).max() > 0


def test_wrong_names_and_arguments():
    with pytest.raises(ArgumentError, match="unknown model 'tsm_resnt50'; did you mean 'tsm_resnet50'"):
        create_model("tsm_resnt50", num_classes=2)
    with pytest.raises(
        ArgumentError,
        match="model tsm_resnet18: unknown argument 'num_segment'; did you mean 'num_segments'.*shift_div=8",
    ):
        create_model("tsm_resnet18", num_classes=2, num_segment=8)
    with pytest.raises(ArgumentError, match="model tsn_resnet18: unknown argument 'shift_div'"):
        create_model("tsn_resnet18", num_classes=2, shift_div=8)
    with pytest.raises(ArgumentError, match="model tsm_resnet18: argument 'num_classes' is missing"):
        create_model("tsm_resnet18")
    with pytest.raises(ArgumentError, match="unknown norm 'batch'. Valid names: frozen, local, sub, sync"):
        small(norm="batch")
    for kwargs, message in (
        ({"shift_div": 2}, "shift_div is 2; it must be above 2"),
        ({"shift_div": 9}, "shift_div is 9; a block that shifts has 8 channels, so at most that"),
        ({"impl": "native"}, "impl is 'native'"),
        ({"num_classes": 0}, "num_classes is 0; it must be at least 1"),
        ({"num_segments": 0}, "num_segments is 0; it must be at least 1"),
        ({"shift_every": 0}, "shift_every is 0; it must be at least 1"),
        ({"non_local": True}, "non_local=true needs depth 50, .* not 18"),
    ):
        with pytest.raises(ValueError, match=message):
            small(**kwargs)


def test_argument_checks_of_plain_functions():
    def build(size, *, scale=1.0): ...

    def build_any(size, **options): ...

    check_arguments(build, {"size": 3}, "crop build")
    check_arguments(build_any, {"size": 3, "else": 1}, "crop build")
    with pytest.raises(
        ArgumentError, match="crop build: unknown argument 'sale'; did you mean 'scale'.*size, scale=1.0"
    ):
        check_arguments(build, {"size": 3, "sale": 2}, "crop build")
    with pytest.raises(ArgumentError, match="crop build: argument 'size' is missing"):
        check_arguments(build_any, {"else": 1}, "crop build")
    assert lookup({"a": 1}, "a", "letter") == 1
    with pytest.raises(ArgumentError, match="unknown letter 'zz'. Valid names: a"):
        lookup({"a": 1}, "zz", "letter")


def test_table():
    assert {f"{family}_resnet{depth}" for family in ("tsn", "tsm") for depth in (18, 34, 50, 101)} <= set(MODELS)
    assert {"tsm_nl_resnet50", "tsm_mobilenetv2", "pptsm_resnet50", "pptsm_resnet101"} <= set(MODELS)
    model = create_model("tsm_resnet34", num_classes=2, width=0.125)
    assert isinstance(model, TSM) and model.num_segments == 8
