"""Which parameter gets which rate and decay, and that Paddle's optimisers really apply them: updates by hand."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from paddlevideo_fast.arguments import ArgumentError
from paddlevideo_fast.engine.optim import GROUPS, build_optimizer, parameter_groups, trainable
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
    "tsm": {
        "conv.weight": (1, 1), "conv.bias": (2, 0), "bn.weight": (1, 0), "bn.bias": (1, 0),
        "norm.weight": (1, 0), "norm.bias": (1, 0), "fc.weight": (5, 1), "fc.bias": (10, 0),
    },
}  # fmt: skip


def found_groups(model, rule, decay):
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        names[id(parameter)]: (group["learning_rate"], group["weight_decay"] / decay)
        for group in parameter_groups(model, rule, decay)
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
