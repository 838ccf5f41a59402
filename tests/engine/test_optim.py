"""Which parameter gets which rate and decay, and that Paddle's optimisers really apply them: updates by hand."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from paddlevideo_fast.arguments import ArgumentError
from paddlevideo_fast.engine.optim import GROUPS, build_optimizer, layer_numbers, parameter_groups, trainable
from paddlevideo_fast.models import create_model


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2D(3, 4, 3)
        self.bn = nn.BatchNorm2D(4)
        self.norm = nn.LayerNorm(4)
        self.fc = nn.Linear(4, 2)


# (rate multiplier, decay multiplier), written down from mit-han-lab's ops/models.py get_optim_policies for "tsm"
EXPECTED = {
    "uniform": dict.fromkeys(
        ("conv.weight", "conv.bias", "bn.weight", "bn.bias", "norm.weight", "norm.bias", "fc.weight", "fc.bias"), (1, 1)
    ),
    "no_norm_decay": {
        "conv.weight": (1, 1), "conv.bias": (1, 0), "bn.weight": (1, 0), "bn.bias": (1, 0),
        "norm.weight": (1, 0), "norm.bias": (1, 0), "fc.weight": (1, 1), "fc.bias": (1, 0),
    },
    "vit": {
        "conv.weight": (1, 1), "conv.bias": (1, 0), "bn.weight": (1, 0), "bn.bias": (1, 0),
        "norm.weight": (1, 0), "norm.bias": (1, 0), "fc.weight": (1, 1), "fc.bias": (1, 0),
    },
    "tsm": {
        "conv.weight": (1, 1), "conv.bias": (2, 0), "bn.weight": (1, 0), "bn.bias": (1, 0),
        "norm.weight": (1, 0), "norm.bias": (1, 0), "fc.weight": (5, 1), "fc.bias": (10, 0),
    },
}  # fmt: skip


def found_groups(model, rule, decay, layer_decay=None):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group["learning_rate"], group["weight_decay"] / decay)
        for group in parameter_groups(model, rule, decay, layer_decay)
        for parameter in group["params"]
    }


@pytest.mark.parametrize("rule", GROUPS)
def test_every_parameter_is_in_its_group(rule):
    assert found_groups(Net(), rule, 0.1) == EXPECTED[rule]


def test_groups_of_a_whole_network():
    model = create_model("tsm_resnet50", num_classes=5, width=0.125, partial_bn=True)
    found = found_groups(model, "tsm", 0.1)
    assert len(found) == 53 + 2 + 2  # convolutions, the one norm that is not frozen, the classifier
    assert sorted(set(found.values())) == [(1, 0), (1, 1), (5, 1), (10, 0)]
    assert {name for name, group in found.items() if group == (1, 0)} == {"backbone.bn1.weight", "backbone.bn1.bias"}
    assert len(trainable(model)) == 57
    assert all(np.isfinite(p.numpy()).all() for p in trainable(model))


def test_a_shared_parameter_is_taken_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    assert sum(len(group["params"]) for group in parameter_groups(model, "uniform", 0.1)) == 3


class Transformer(nn.Layer):
    """The parameters of a vision transformer of two blocks, by the names that all ours have."""

    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Sequential(("proj", nn.Conv3D(3, 4, (1, 2, 2))))
        self.cls_token = self.create_parameter([1, 1, 4])
        self.pos_embed = self.create_parameter([1, 5, 4])
        self.time_embed = self.create_parameter([1, 2, 4])
        self.blocks = nn.LayerList([nn.Sequential(("norm1", nn.LayerNorm(4)), ("qkv", nn.Linear(4, 12))) for _ in "ab"])
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 3)


# (rate multiplier, decay multiplier) for layer_decay 0.75: 0.75 ** 3 for the embeddings up to 1 for norm and head,
# worked out from VideoMAE's optim_factory.py and its values layer_decay ** (num_layers + 1 - i)
LAYERWISE = {
    "patch_embed.proj.weight": (0.421875, 1), "patch_embed.proj.bias": (0.421875, 0),
    "cls_token": (0.421875, 0), "pos_embed": (0.421875, 0), "time_embed": (0.421875, 0),
    "blocks.0.norm1.weight": (0.5625, 0), "blocks.0.norm1.bias": (0.5625, 0),
    "blocks.0.qkv.weight": (0.5625, 1), "blocks.0.qkv.bias": (0.5625, 0),
    "blocks.1.norm1.weight": (0.75, 0), "blocks.1.norm1.bias": (0.75, 0),
    "blocks.1.qkv.weight": (0.75, 1), "blocks.1.qkv.bias": (0.75, 0),
    "norm.weight": (1, 0), "norm.bias": (1, 0), "head.weight": (1, 1), "head.bias": (1, 0),
}  # fmt: skip


def test_layer_decay_of_a_transformer():
    assert found_groups(Transformer(), "vit", 0.1, 0.75) == LAYERWISE


def test_layer_decay_of_twelve_blocks():
    names = ["patch_embed.proj.weight", *(f"blocks.{i}.mlp.fc1.weight" for i in range(12)), "fc_norm.weight"]
    numbers, last = layer_numbers(names)
    assert [numbers[name] for name in names] == list(range(14)) and last == 13


def test_layer_decay_multiplies_the_rates_of_the_rule():
    model = nn.LayerDict({"blocks": nn.LayerList([nn.Linear(2, 2)]), "fc": nn.Linear(2, 2)})
    assert found_groups(model, "tsm", 0.1, 0.5) == {
        "blocks.0.weight": (2.5, 1), "blocks.0.bias": (5, 0), "fc.weight": (5, 1), "fc.bias": (10, 0)
    }  # fmt: skip


def test_layer_decay_reaches_the_updates():
    model = Transformer()
    start = {name: p.numpy().astype(np.float64) for name, p in model.named_parameters()}
    optimizer = build_optimizer(model, "adamw", 1.0, 0.05, "vit", {"beta1": 0.9, "beta2": 0.999}, 0.75)
    two_steps(model, optimizer, (0.01,))
    for name, value in start.items():
        multiplier, decay = LAYERWISE[name]
        rate, gradient = 0.01 * multiplier, value + 1  # at the first step Adam moves by the sign of the gradient
        expected = value * (1 - rate * 0.05 * decay) - rate * gradient / (np.abs(gradient) + 1e-8)
        np.testing.assert_allclose(
            dict(model.named_parameters())[name].numpy(), expected, rtol=2e-5, atol=2e-6, err_msg=name
        )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Net, "layer_decay is for models of one stack of blocks; this one has no parameter blocks.N"),
        (
            lambda: nn.LayerDict({name: Transformer() for name in ("decoder", "encoder")}),
            "this one has several: decoder.blocks, encoder.blocks",
        ),
    ],
)
def test_layer_decay_without_one_stack_of_blocks(model, message):
    with pytest.raises(ValueError, match=message):
        build_optimizer(model(), "adamw", 1.0, 0.0, "vit", {}, 0.75)


def two_steps(model, optimizer, rates):
    """Sets the gradient of every parameter to step * (its values + 1), and steps at the given rates."""
    for step, rate in enumerate(rates, 1):
        optimizer.set_lr(rate)
        loss = sum((step * (p.detach() + 1) * p).sum() for p in trainable(model))
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()


@pytest.mark.parametrize("rule", GROUPS)
def test_momentum_by_hand(rule):
    model = Net()
    start = {name: p.numpy().astype(np.float64) for name, p in model.named_parameters() if not p.stop_gradient}
    optimizer = build_optimizer(model, "momentum", 1.0, 0.01, rule, {"momentum": 0.8})
    two_steps(model, optimizer, (0.1, 0.05))
    for name, value in start.items():
        multiplier, decay = EXPECTED[rule][name]
        velocity = 0.0
        for step, rate in enumerate((0.1, 0.05), 1):
            gradient = step * (value + 1) + 0.01 * decay * value
            velocity = 0.8 * velocity + gradient
            value = value - rate * multiplier * velocity
        np.testing.assert_allclose(
            dict(model.named_parameters())[name].numpy(), value, rtol=2e-5, atol=1e-6, err_msg=name
        )


def test_nesterov_by_hand():
    """As torch.optim.SGD(nesterov=True): the step is along the gradient plus the new velocity's share."""
    model = Net()
    start = {name: p.numpy().astype(np.float64) for name, p in model.named_parameters() if not p.stop_gradient}
    arguments = {"momentum": 0.9, "use_nesterov": True}
    optimizer = build_optimizer(model, "momentum", 1.0, 1e-4, "no_norm_decay", arguments)
    two_steps(model, optimizer, (0.1, 0.05))
    for name, value in start.items():
        velocity = 0.0
        for step, rate in enumerate((0.1, 0.05), 1):
            gradient = step * (value + 1) + 1e-4 * EXPECTED["no_norm_decay"][name][1] * value
            velocity = 0.9 * velocity + gradient
            value = value - rate * (gradient + 0.9 * velocity)
        np.testing.assert_allclose(
            dict(model.named_parameters())[name].numpy(), value, rtol=2e-5, atol=1e-6, err_msg=name
        )


@pytest.mark.parametrize("rule", GROUPS)
def test_adamw_by_hand(rule):
    model = Net()
    start = {name: p.numpy().astype(np.float64) for name, p in model.named_parameters() if not p.stop_gradient}
    optimizer = build_optimizer(model, "adamw", 1.0, 0.1, rule, {"beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6})
    two_steps(model, optimizer, (0.01, 0.005))
    for name, value in start.items():
        multiplier, decay = EXPECTED[rule][name]
        first = second = 0.0
        for step, rate in enumerate((0.01, 0.005), 1):
            rate, gradient = rate * multiplier, step * (value + 1)
            first, second = 0.8 * first + 0.2 * gradient, 0.95 * second + 0.05 * gradient**2
            value = value * (1 - rate * 0.1 * decay)
            value = value - rate * (first / (1 - 0.8**step)) / (np.sqrt(second / (1 - 0.95**step)) + 1e-6)
        np.testing.assert_allclose(
            dict(model.named_parameters())[name].numpy(), value, rtol=2e-5, atol=2e-6, err_msg=name
        )


def test_plain_descent_by_hand():
    model = Net()
    start = model.fc.bias.numpy().copy()
    optimizer = build_optimizer(model, "sgd", 1.0, 0.5, "tsm", {})
    two_steps(model, optimizer, (0.1,))
    np.testing.assert_allclose(model.fc.bias.numpy(), start - 0.1 * 10 * (start + 1), rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("adamv", {}, "unknown optimizer 'adamv'; did you mean 'adamw'"),
        ("momentum", {"momentun": 0.9}, "unknown argument 'momentun'; did you mean 'momentum'"),
        ("momentum", {"learning_rate": 1.0}, "learning_rate is not given here; use optimizer.lr"),
        ("adamw", {"grad_clip": 1.0}, "grad_clip is not given here; use optimizer.clip_norm"),
    ],
)
def test_arguments_nobody_offers(name, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        build_optimizer(Net(), name, 1.0, 0.0, "uniform", arguments)


def test_the_rate_can_be_set_from_outside():
    optimizer = build_optimizer(Net(), "momentum", 0.3, 0.0, "uniform", {})
    assert optimizer.get_lr() == pytest.approx(0.3)
    optimizer.set_lr(0.2)
    assert optimizer.get_lr() == pytest.approx(0.2)
    assert isinstance(optimizer, paddle.optimizer.Momentum)
