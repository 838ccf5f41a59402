"""What a model costs: parameters, and multiply-adds counted on the graph of one forward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

import paddle
from paddle import nn
from paddle.static import InputSpec

_CONVOLUTIONS = ("conv2d", "conv3d", "depthwise_conv2d")
_PRODUCTS = ("matmul", "bmm")


def count_parameters(model: nn.Layer) -> int:
    """Return the number of learned values; running statistics of batch normalisations are none."""
    statistics = {
        id(tensor)
        for layer in model.sublayers(include_self=True)
        for name in ("_mean", "_variance")
        if (tensor := getattr(layer, name, None)) is not None
    }
    return sum(math.prod(p.shape) for p in model.parameters() if id(p) not in statistics)


def count_flops(model: nn.Layer, *inputs: tuple[Sequence[int], str]) -> int:
    """Count the multiply-adds of one forward pass in evaluation mode, which papers on video call FLOPs.

    Convolutions and matrix products count, those of attention too; normalisations, activations, pooling and sums do
    not. Nothing is computed: the operators are read from the traced graph.

    Args:
        model: Built with `impl="reference"`: FlashAttention is one operator, whose inside cannot be seen.
        *inputs: Shape and dtype of each argument of `forward`, such as `([1, 3, 8, 224, 224], "float32")`.

    Returns:
        Multiply-adds for the whole batch.

    Raises:
        ValueError: If the graph has an attention operator that cannot be counted, or sizes that hang on the values of
            the input, such as a mask.

    Source: the convention of fvcore's `FlopCountAnalysis`, with which PySlowFast's model zoo counts.
    """
    was_training = model.training
    model.eval()
    try:
        static = paddle.jit.to_static(
            model, input_spec=[InputSpec(list(shape), dtype) for shape, dtype in inputs], full_graph=True
        )
        operators = static.forward.concrete_program.main_program.global_block().ops
        return sum(_multiply_adds(operator) for operator in operators)
    finally:
        if isinstance(model.forward, paddle.jit.dy2static.program_translator.StaticFunction):
            model.forward.rollback()
        if was_training:
            model.train()


def _multiply_adds(operator) -> int:
    name = operator.name().removeprefix("pd_op.")
    if name in (*_CONVOLUTIONS, *_PRODUCTS) and min(operator.result(0).shape) < 0:
        raise ValueError(f"the size of a {name} hangs on the values of the input: {list(operator.result(0).shape)}")
    if name in _CONVOLUTIONS:
        weight = operator.operand_source(1).shape  # [out, in / groups, *kernel]
        return math.prod(operator.result(0).shape) * math.prod(weight[1:])
    if name in _PRODUCTS:
        inner = -2 if operator.attrs().get("transpose_x") else -1
        return math.prod(operator.result(0).shape) * operator.operand_source(0).shape[inner]
    if "attn" in name or "attention" in name:
        raise ValueError(f"{name} is one operator whose multiply-adds are not known; build with impl='reference'")
    return 0
