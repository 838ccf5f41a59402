"""Optimisers and their parameter groups."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import nn

from paddlevideo_fast.arguments import ArgumentError, check_arguments, lookup

OPTIMIZERS = {
    "sgd": paddle.optimizer.SGD,
    "momentum": paddle.optimizer.Momentum,
    "adamw": paddle.optimizer.AdamW,
}

_DECIDED_ELSEWHERE = {
    "learning_rate": "optimizer.lr",
    "grad_clip": "optimizer.clip_norm",
    "parameters": "optimizer.groups",
    "apply_decay_param_fun": "optimizer.groups",
    "lr_ratio": "optimizer.groups",
}

_NORMS = (nn.BatchNorm1D, nn.BatchNorm2D, nn.BatchNorm3D, nn.SyncBatchNorm, nn.LayerNorm, nn.GroupNorm)


def _uniform(layer: nn.Layer, name: str) -> tuple[float, float]:
    return 1.0, 1.0


def _no_norm_decay(layer: nn.Layer, name: str) -> tuple[float, float]:
    return 1.0, 0.0 if _is_norm(layer) or name.endswith("bias") else 1.0


def _tsm(layer: nn.Layer, name: str) -> tuple[float, float]:
    if _is_norm(layer):
        return 1.0, 0.0
    multiplier = 5.0 if isinstance(layer, nn.Linear) else 1.0
    return (2 * multiplier, 0.0) if name.endswith("bias") else (multiplier, 1.0)


GROUPS = {"uniform": _uniform, "no_norm_decay": _no_norm_decay, "tsm": _tsm}
"""Rules that give each parameter its (learning rate multiplier, weight decay multiplier).

``tsm`` is the recipe of mit-han-lab's ``ops/models.py`` (get_optim_policies): convolution weights 1, their biases 2,
batch norms 1, the classifier's weight 5 and its bias 10; biases and norms without decay.
"""


def _is_norm(layer: nn.Layer) -> bool:
    return isinstance(layer, _NORMS) or hasattr(layer, "_variance")


def trainable(model: nn.Layer) -> list[paddle.Tensor]:
    """Returns the parameters that have gradients, which leaves out batch norm statistics and frozen parts."""
    return [p for p in model.parameters() if not p.stop_gradient]


def parameter_groups(model: nn.Layer, rule: str, weight_decay: float) -> list[dict[str, Any]]:
    """Sorts the trainable parameters into groups of equal learning rate multiplier and weight decay.

    Args:
        model: The model.
        rule: A name of ``GROUPS``.
        weight_decay: Decay of a parameter with multiplier 1.

    Returns:
        Paddle parameter groups; ``learning_rate`` is a multiplier of the optimiser's rate.
    """
    groups: dict[tuple[float, float], list] = {}
    seen = set()
    for layer in model.sublayers(include_self=True):
        for name, parameter in layer.named_parameters(include_sublayers=False):
            if not parameter.stop_gradient and parameter.name not in seen:  # layers may share one
                seen.add(parameter.name)
                groups.setdefault(GROUPS[rule](layer, name), []).append(parameter)
    return [
        {"params": parameters, "learning_rate": lr, "weight_decay": weight_decay * decay}
        for (lr, decay), parameters in sorted(groups.items(), key=lambda item: item[0])
    ]


def build_optimizer(model: nn.Layer, name: str, lr: float, weight_decay: float, groups: str, arguments: dict):
    """Builds an optimiser over the trainable parameters.

    Args:
        model: The model.
        name: A name of ``OPTIMIZERS``.
        lr: Learning rate; the loop sets it anew at each step.
        weight_decay: L2 decay, decoupled in AdamW.
        groups: A name of ``GROUPS``.
        arguments: Further arguments of the Paddle optimiser, such as ``momentum`` or ``beta2``.

    Raises:
        ArgumentError: For a name or argument that does not exist, or one that is decided elsewhere.
    """
    optimizer = lookup(OPTIMIZERS, name, "optimizer")
    for argument, instead in _DECIDED_ELSEWHERE.items():
        if argument in arguments:
            raise ArgumentError(f"optimizer {name}: {argument} is not given here; use {instead}.")
    arguments = check_arguments(optimizer, arguments, f"optimizer {name}")
    for argument, value in arguments.items():
        if not isinstance(value, (int, float)):
            raise ArgumentError(f"optimizer {name}: {argument} must be a number, given {value!r}.")
    parameters = parameter_groups(model, groups, weight_decay)
    return optimizer(learning_rate=lr, parameters=parameters, weight_decay=weight_decay, **arguments)
