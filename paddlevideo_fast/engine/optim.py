"""Optimisers and their parameter groups."""

from __future__ import annotations

import re
from collections.abc import Iterable
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


def _uniform(layer: nn.Layer, name: str, parameter: paddle.Tensor) -> tuple[float, float]:
    return 1.0, 1.0


def _no_norm_decay(layer: nn.Layer, name: str, parameter: paddle.Tensor) -> tuple[float, float]:
    return 1.0, 0.0 if _is_norm(layer) or name.endswith("bias") else 1.0


def _tsm(layer: nn.Layer, name: str, parameter: paddle.Tensor) -> tuple[float, float]:
    if _is_norm(layer):
        return 1.0, 0.0
    multiplier = 5.0 if isinstance(layer, nn.Linear) else 1.0
    return (2 * multiplier, 0.0) if name.endswith("bias") else (multiplier, 1.0)


def _vit(layer: nn.Layer, name: str, parameter: paddle.Tensor) -> tuple[float, float]:
    decays = parameter.ndim > 1 and not name.endswith("bias") and not _TOKENS & set(name.split("."))
    return 1.0, 1.0 if decays else 0.0


_TOKENS = {"cls_token", "pos_embed", "time_embed", "mask_token"}

GROUPS = {"uniform": _uniform, "no_norm_decay": _no_norm_decay, "tsm": _tsm, "vit": _vit}
"""Rules that give each parameter its (learning rate multiplier, weight decay multiplier).

``tsm`` is the recipe of mit-han-lab's ``ops/models.py`` (get_optim_policies): convolution weights 1, their biases 2,
batch norms 1, the classifier's weight 5 and its bias 10; biases and norms without decay. ``vit`` is that of VideoMAE
(``optim_factory.py``, get_parameter_groups): vectors, biases, tokens and embeddings of positions without decay.
"""


def layer_numbers(names: Iterable[str]) -> tuple[dict[str, int], int]:
    """Numbers the layers of a transformer from its input to its output.

    Args:
        names: Names of its parameters; those of block i hold ``blocks.i.``.

    Returns:
        The number of each name's layer: 0 for the embeddings (``patch_embed``, tokens, positions), i + 1 for block i,
        L + 1 for all else, as the last norm and the head; and L + 1, where L is the number of blocks.

    Raises:
        ValueError: No name is that of a block, or there are several stacks of blocks.

    Source: VideoMAE's ``optim_factory.py``, get_num_layer_for_vit.
    """
    names = list(names)
    blocks = {name: found for name in names if (found := re.match(r"(|.*\.)blocks\.(\d+)\.", name))}
    stacks = sorted({found[1] for found in blocks.values()})
    if len(stacks) != 1:
        found = f"several: {', '.join(f'{stack}blocks' for stack in stacks)}" if stacks else "no parameter blocks.N"
        raise ValueError(f"layer_decay is for models of one stack of blocks; this one has {found}")
    last = 1 + max(int(found[2]) + 1 for found in blocks.values())
    embeddings = _TOKENS | {"patch_embed"}
    numbers = {name: 0 if embeddings & set(name.split(".")) else last for name in names}
    return numbers | {name: int(found[2]) + 1 for name, found in blocks.items()}, last


def _is_norm(layer: nn.Layer) -> bool:
    return isinstance(layer, _NORMS) or hasattr(layer, "_variance")


def trainable(model: nn.Layer) -> list[paddle.Tensor]:
    """Returns the parameters that have gradients, which leaves out batch norm statistics and frozen parts."""
    return [p for p in model.parameters() if not p.stop_gradient]


def parameter_groups(
    model: nn.Layer, rule: str, weight_decay: float, layer_decay: float | None = None
) -> list[dict[str, Any]]:
    """Sorts the trainable parameters into groups of equal learning rate multiplier and weight decay.

    Args:
        model: The model.
        rule: A name of ``GROUPS``.
        weight_decay: Decay of a parameter with multiplier 1.
        layer_decay: The rate of layer i of L + 1 (see ``layer_numbers``) is multiplied by
            ``layer_decay ** (L + 1 - i)``; None for one rate.

    Returns:
        Paddle parameter groups; ``learning_rate`` is a multiplier of the optimiser's rate.

    Raises:
        ValueError: ``layer_decay`` is given for a model without blocks.
    """
    owned = [
        (layer, f"{path}.{name}".lstrip("."), parameter)
        for path, layer in model.named_sublayers(include_self=True)
        for name, parameter in layer.named_parameters(include_sublayers=False)
    ]
    numbers, last = ({}, 0) if layer_decay is None else layer_numbers(name for _, name, _ in owned)
    groups: dict[tuple[float, float], list] = {}
    seen = set()
    for layer, name, parameter in owned:
        if not parameter.stop_gradient and parameter.name not in seen:  # layers may share one
            seen.add(parameter.name)
            rate, decay = GROUPS[rule](layer, name, parameter)
            if layer_decay is not None:
                rate *= layer_decay ** (last - numbers[name])
            groups.setdefault((rate, decay), []).append(parameter)
    return [
        {"params": parameters, "learning_rate": rate, "weight_decay": weight_decay * decay}
        for (rate, decay), parameters in sorted(groups.items(), key=lambda item: item[0])
    ]


def build_optimizer(
    model: nn.Layer,
    name: str,
    lr: float,
    weight_decay: float,
    groups: str,
    arguments: dict,
    layer_decay: float | None = None,
):
    """Builds an optimiser over the trainable parameters.

    Args:
        model: The model.
        name: A name of ``OPTIMIZERS``.
        lr: Learning rate; the loop sets it anew at each step.
        weight_decay: L2 decay, decoupled in AdamW.
        groups: A name of ``GROUPS``.
        arguments: Further arguments of the Paddle optimiser, such as ``momentum`` or ``beta2``.
        layer_decay: See ``parameter_groups``.

    Raises:
        ArgumentError: For a name or argument that does not exist, or one that is decided elsewhere.
        ValueError: As ``parameter_groups``.
    """
    optimizer = lookup(OPTIMIZERS, name, "optimizer")
    for argument, instead in _DECIDED_ELSEWHERE.items():
        if argument in arguments:
            raise ArgumentError(f"optimizer {name}: {argument} is not given here; use {instead}.")
    arguments = check_arguments(optimizer, arguments, f"optimizer {name}")
    for argument, value in arguments.items():
        if not isinstance(value, (int, float)):
            raise ArgumentError(f"optimizer {name}: {argument} must be a number, given {value!r}.")
    parameters = parameter_groups(model, groups, weight_decay, layer_decay)
    return optimizer(learning_rate=lr, parameters=parameters, weight_decay=weight_decay, **arguments)
