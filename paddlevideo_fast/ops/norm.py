"""Batch normalisation by name: of one process, across processes, frozen.

Every kind holds the parameters `weight`, `bias`, `_mean` and `_variance` of `nn.BatchNorm2D`, so weights move between
kinds as they are. Like Paddle's, the running variance is the biased one (divided by the count, not count - 1), and
momentum 0.9 is what PyTorch calls 0.1.
"""

from __future__ import annotations

from collections.abc import Callable

import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.autograd import PyLayer
from paddle.nn import functional as F

from paddlevideo_fast.arguments import lookup

BATCH_NORMS = {2: nn.BatchNorm2D, 3: nn.BatchNorm3D}  # by the number of spatial (and temporal) dimensions


class _Normalise(PyLayer):
    """Normalise by the mean and variance over all processes, each weighted by the number of its values."""

    @staticmethod
    def forward(ctx, x, weight, bias, epsilon):
        axes = [axis for axis in range(x.ndim) if axis != 1]
        count = paddle.full([1], x.size // x.shape[1], dtype="float64")
        # Counts travel with the sums: ranks may hold batches of different size. Float64 keeps them exact.
        totals = paddle.concat([x.sum(axes).astype("float64"), count])
        dist.all_reduce(totals)
        total = totals[-1:]
        mean = totals[:-1] / total
        centred = x - _per_channel(mean, x)
        squares = (centred * centred).sum(axes).astype("float64")
        dist.all_reduce(squares)
        variance = squares / total
        inverse_std = paddle.rsqrt(variance + epsilon)
        normalised = centred * _per_channel(inverse_std, x)
        ctx.save_for_backward(normalised, weight, inverse_std, total)
        ctx.wanted = [not tensor.stop_gradient for tensor in (x, weight, bias)]
        out = normalised * _per_channel(weight, x) + _per_channel(bias, x)
        mean, variance = mean.astype(weight.dtype), variance.astype(weight.dtype)
        ctx.mark_non_differentiable(mean, variance)
        return out, mean, variance

    @staticmethod
    def backward(ctx, grad, *_):
        normalised, weight, inverse_std, total = ctx.saved_tensor()
        axes = [axis for axis in range(grad.ndim) if axis != 1]
        grad_bias = grad.sum(axes)
        grad_weight = (grad * normalised).sum(axes)
        # The statistics depend on the values of every rank, so the gradient's two sums run over all of them.
        sums = paddle.stack([grad_bias, grad_weight]).astype("float64")
        dist.all_reduce(sums)
        mean_grad, mean_product = sums / total
        grad_x = grad - _per_channel(mean_grad, grad) - normalised * _per_channel(mean_product, grad)
        grad_x = grad_x * _per_channel(weight.astype("float64") * inverse_std, grad)
        grads = (grad_x, grad_weight, grad_bias)
        return tuple(grad if wanted else None for grad, wanted in zip(grads, ctx.wanted, strict=True))


def _per_channel(vector: paddle.Tensor, like: paddle.Tensor) -> paddle.Tensor:
    return vector.astype(like.dtype).reshape([1, -1] + [1] * (like.ndim - 2))


class AllReduceBatchNorm(nn.SyncBatchNorm):
    """Batch normalisation across processes out of plain all-reduces, for devices without a kernel for it.

    Statistics of training are those of the batches of all ranks together, also where their sizes differ; with one
    process, and in evaluation, it is the ordinary batch normalisation.

    Args:
        num_features: Channels, the second dimension of the input.
        **kwargs: As `paddle.nn.SyncBatchNorm` (momentum 0.9, epsilon 1e-5).

    Source: Ioffe and Szegedy, arXiv 1502.03167, section 3, over the batches of all ranks.
    """

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return x [N, C, ...] normalised."""
        if not self.training or dist.get_world_size() == 1:
            return F.batch_norm(
                x,
                self._mean,
                self._variance,
                self.weight,
                self.bias,
                training=self.training,
                momentum=self._momentum,
                epsilon=self._epsilon,
            )
        out, mean, variance = _Normalise.apply(x, self.weight, self.bias, self._epsilon)
        with paddle.no_grad():
            self._mean.set_value(self._momentum * self._mean + (1 - self._momentum) * mean)
            self._variance.set_value(self._momentum * self._variance + (1 - self._momentum) * variance)
        return out


def resolve_sync_norm() -> tuple[type[nn.Layer], str]:
    """Choose the batch normalisation across processes for the current device.

    How Paddle's own layer weights ranks whose batches differ in size depends on its version: older kernels average
    the ranks' means alike. `AllReduceBatchNorm` weights them by their counts.

    Returns:
        The layer's class, and a line for the log that names it.
    """
    device = paddle.get_device().partition(":")[0]
    if device == "gpu":
        return nn.SyncBatchNorm, "native (paddle.nn.SyncBatchNorm)"
    return (AllReduceBatchNorm, f"reference (all-reduce): paddle.nn.SyncBatchNorm has no kernel on {device!r}")


def local_norm(num_channels: int, ndim: int) -> nn.Layer:
    """Return a batch normalisation over the batch of one process."""
    return BATCH_NORMS[ndim](num_channels)


def sync_norm(num_channels: int, ndim: int) -> nn.Layer:
    """Return a batch normalisation over the batches of all processes."""
    return resolve_sync_norm()[0](num_channels)


def frozen_norm(num_channels: int, ndim: int) -> nn.Layer:
    """Return a batch normalisation that keeps its running statistics, gamma and beta in training too.

    It does not hang on `training`, which a wrapper such as `paddle.DataParallel` sets on every layer beneath it
    without asking the layers in between.
    """
    layer = BATCH_NORMS[ndim](num_channels, use_global_stats=True)
    layer.weight.trainable = False
    layer.bias.trainable = False
    return layer


NORMS: dict[str, Callable[[int, int], nn.Layer]] = {"local": local_norm, "sync": sync_norm, "frozen": frozen_norm}


def build_norm(norm: str, num_channels: int, *, ndim: int) -> nn.Layer:
    """Build a batch normalisation by name.

    Args:
        norm: A key of `NORMS`.
        num_channels: Channels of the feature map, its second dimension.
        ndim: Dimensions after the channels: 2 for [N, C, H, W], 3 for [N, C, T, H, W].

    Returns:
        The layer, gamma 1 and beta 0.

    Raises:
        ArgumentError: If there is no such kind.
    """
    return lookup(NORMS, norm, "norm")(num_channels, ndim)
