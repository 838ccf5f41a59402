"""Batch normalisation by name: of one process, across processes, of parts of the batch, frozen.

Every kind holds the parameters `weight`, `bias`, `_mean` and `_variance` of `nn.BatchNorm2D`, so weights move between
kinds as they are. Like Paddle's, the running variance is the biased one (divided by the count, not count - 1), and
momentum 0.9 is what PyTorch calls 0.1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import paddle
import paddle.distributed as dist
from paddle import nn
from paddle.autograd import PyLayer
from paddle.nn import functional as F

from paddlevideo_fast.arguments import lookup

BATCH_NORMS = {2: nn.BatchNorm2D, 3: nn.BatchNorm3D}  # by the number of spatial (and temporal) dimensions


class _Normalise(PyLayer):
    """Normalise by the mean and variance over a group of processes, each weighted by the number of its values."""

    @staticmethod
    def forward(ctx, x, weight, bias, epsilon, sync_ranks):
        axes = [axis for axis in range(x.ndim) if axis != 1]
        count = paddle.full([1], x.size // x.shape[1], dtype="float64")
        # Counts travel with the sums: ranks may hold batches of different size. Float64 keeps them exact.
        totals = paddle.concat([x.sum(axes).astype("float64"), count])
        totals = _sum_over_group(totals, sync_ranks)
        total = totals[-1:]
        mean = totals[:-1] / total
        centred = x - _per_channel(mean, x)
        squares = (centred * centred).sum(axes).astype("float64")
        variance = _sum_over_group(squares, sync_ranks) / total
        inverse_std = paddle.rsqrt(variance + epsilon)
        normalised = centred * _per_channel(inverse_std, x)
        ctx.save_for_backward(normalised, weight, inverse_std, total)
        ctx.sync_ranks = sync_ranks
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
        # The statistics depend on the values of every rank of the group, so the gradient's two sums run over all.
        sums = paddle.stack([grad_bias, grad_weight]).astype("float64")
        mean_grad, mean_product = _sum_over_group(sums, ctx.sync_ranks) / total
        grad_x = grad - _per_channel(mean_grad, grad) - normalised * _per_channel(mean_product, grad)
        grad_x = grad_x * _per_channel(weight.astype("float64") * inverse_std, grad)
        grads = (grad_x, grad_weight, grad_bias)
        return tuple(grad if wanted else None for grad, wanted in zip(grads, ctx.wanted, strict=True))


def _sum_over_group(values: paddle.Tensor, sync_ranks: int) -> paddle.Tensor:
    """Add up a vector over groups of neighbouring ranks; every rank must call it."""
    world = dist.get_world_size()
    if sync_ranks == world:
        dist.all_reduce(values)
        return values
    # A row for each group, through the group of all: making groups of a few ranks fails now and then on gloo.
    number = dist.get_rank() // sync_ranks
    rows = paddle.zeros([world // sync_ranks, *values.shape], values.dtype)
    rows[number] = values
    dist.all_reduce(rows)
    return rows[number]


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
            return _local(self, x)
        return _across(self, x, dist.get_world_size())


def _local(layer: nn.SyncBatchNorm, x: paddle.Tensor) -> paddle.Tensor:
    """Normalise by the statistics of this process's batch, or by the running ones in evaluation."""
    return F.batch_norm(
        x,
        layer._mean,
        layer._variance,
        layer.weight,
        layer.bias,
        training=layer.training,
        momentum=layer._momentum,
        epsilon=layer._epsilon,
    )


def _across(layer: nn.SyncBatchNorm, x: paddle.Tensor, sync_ranks: int) -> paddle.Tensor:
    """Normalise by the statistics of a group of processes, and move the running ones."""
    wide = x.astype(layer.weight.dtype)  # sums of half precision would overflow
    out, mean, variance = _Normalise.apply(wide, layer.weight, layer.bias, layer._epsilon, sync_ranks)
    with paddle.no_grad():
        layer._mean.set_value(layer._momentum * layer._mean + (1 - layer._momentum) * mean)
        layer._variance.set_value(layer._momentum * layer._variance + (1 - layer._momentum) * variance)
    return out.astype(x.dtype)


class SubBatchNorm(nn.SyncBatchNorm):
    """Batch normalisation whose statistics are those of equal parts of the batch, each taken by itself.

    Clip i of a batch belongs to part i mod `splits`. gamma and beta are the same for all parts; the running statistics
    are not: with more than one part they are in buffers of their own, and `_mean` and `_variance` are what
    `aggregate_splits` made of them last. Evaluation does so itself where training has gone on since. With one part,
    as it begins, the layer is the ordinary one, or, where `set_splits` says so, normalises over a group of ranks.

    A batch that does not divide is dealt out the same way: the parts differ by one clip, and where there are fewer
    clips than parts the last parts stay as they are.

    Args:
        num_features: Channels, the second dimension of the input.
        frames_folded: The first dimension is frames of clips next to one another, not clips. A part has whole clips:
            frames dealt out singly would spread each clip over the parts.
        **kwargs: As `paddle.nn.SyncBatchNorm` (momentum 0.9, epsilon 1e-5).

    Source: Wu et al., arXiv 1912.00998 (multigrid training); PySlowFast's SubBatchNorm3d, which stops at a batch that
    does not divide (`slowfast/models/batchnorm_helper.py`).
    """

    def __init__(self, num_features: int, *, frames_folded: bool = False, **kwargs) -> None:
        super().__init__(num_features, **kwargs)
        self.frames_folded, self.rows_per_clip = frames_folded, 1
        self.splits = self.sync_ranks = 1
        self._stale = False
        # Not in the state dict: weights are those of an ordinary batch norm.
        self.register_buffer("_split_mean", None, persistable=False)
        self.register_buffer("_split_variance", None, persistable=False)

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return x [N, C, ...] normalised."""
        if not self.training:
            self.aggregate()
            return _local(self, x)
        if self.splits == 1:
            return _local(self, x) if self.sync_ranks == 1 else _across(self, x, self.sync_ranks)
        self._stale = True
        if x.shape[0] % self.rows_per_clip:
            raise ValueError(f"{x.shape[0]} frames are not whole clips of {self.rows_per_clip}; see set_splits")
        if self.rows_per_clip == 1 and x.shape[0] % self.splits == 0:
            return self._side_by_side(x)
        return self._part_by_part(x)

    def _side_by_side(self, x: paddle.Tensor) -> paddle.Tensor:
        """Normalise all parts at once, as channels of their own; moves nothing in memory."""
        weight, bias = self.weight.tile([self.splits]), self.bias.tile([self.splits])
        parts = x.reshape([-1, self.splits * self._num_features, *x.shape[2:]])
        return self._normalise(parts, *self._split_buffers, weight, bias).reshape(x.shape)

    def _part_by_part(self, x: paddle.Tensor) -> paddle.Tensor:
        """Normalise one part after the other, whatever the number of clips and rows; copies each clip twice."""
        clips = x.reshape([-1, self.rows_per_clip, *x.shape[1:]]).unbind()
        means, variances = (self._of_splits(buffer).clone().unbind() for buffer in self._split_buffers)
        parts = []
        for number in range(min(self.splits, len(clips))):
            part = paddle.concat(clips[number :: self.splits])
            out = self._normalise(part, means[number], variances[number], self.weight, self.bias)
            parts.append(out.reshape([-1, self.rows_per_clip, *x.shape[1:]]).unbind())
        self._split_mean.set_value(paddle.concat(means))
        self._split_variance.set_value(paddle.concat(variances))
        return paddle.concat([parts[i % self.splits][i // self.splits] for i in range(len(clips))])

    def _normalise(self, x, mean, variance, weight, bias) -> paddle.Tensor:
        return F.batch_norm(
            x, mean, variance, weight, bias, training=True, momentum=self._momentum, epsilon=self._epsilon
        )

    @property
    def _split_buffers(self) -> tuple[paddle.Tensor, paddle.Tensor]:
        return self._split_mean, self._split_variance

    def _of_splits(self, buffer: paddle.Tensor) -> paddle.Tensor:
        return buffer.reshape([-1, self._num_features])  # [splits, C]

    def running_statistics(self) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Return the running means and variances that training moves, [splits * C] each."""
        return (self._mean, self._variance) if self.splits == 1 else self._split_buffers

    @paddle.no_grad()
    def aggregate(self) -> None:
        """Make one mean and variance of those of the parts, if training has moved these since the last time."""
        if self._stale:
            self._aggregate(*self._split_buffers)
            self._stale = False

    def _aggregate(self, means: paddle.Tensor, variances: paddle.Tensor) -> None:
        means, variances = self._of_splits(means), self._of_splits(variances)
        mean = means.mean(0)
        self._mean.set_value(mean)
        self._variance.set_value(variances.mean(0) + (means - mean).square().mean(0))

    @paddle.no_grad()
    def split(self, splits: int) -> None:
        """Set the number of parts; each begins with the statistics of all."""
        self.aggregate()
        self.splits = splits
        self._split_mean = self._mean.detach().tile([splits]) if splits > 1 else None
        self._split_variance = self._variance.detach().tile([splits]) if splits > 1 else None


def sub_batch_norms(model: nn.Layer) -> Iterator[tuple[str, SubBatchNorm]]:
    """Yield the names and layers of a model that normalise parts of the batch."""
    return ((name, layer) for name, layer in model.named_sublayers() if isinstance(layer, SubBatchNorm))


def set_splits(model: nn.Layer, splits: int, num_frames: int, sync_ranks: int = 1) -> None:
    """Set how the layers of a model divide their batches, between two steps, on every rank alike.

    Args:
        model: Its `SubBatchNorm` layers change, others do not.
        splits: Parts of the batch of a rank. Where the number changes, each part begins with the statistics of all.
        num_frames: Frames of a clip, which layers of folded frames have to know.
        sync_ranks: Ranks whose batches are normalised together, neighbours; a divisor of the number of ranks.

    Raises:
        ValueError: Both parts of batches and groups of ranks are asked for, or the groups do not come out even.
    """
    if splits < 1 or sync_ranks < 1 or (splits > 1 and sync_ranks > 1):
        raise ValueError(f"splits and sync_ranks must be at least 1, and one of them 1; got {splits} and {sync_ranks}")
    if dist.get_world_size() % sync_ranks:
        raise ValueError(f"{dist.get_world_size()} ranks do not divide into groups of {sync_ranks}")
    for _, layer in sub_batch_norms(model):
        layer.rows_per_clip, layer.sync_ranks = num_frames if layer.frames_folded else 1, sync_ranks
        if layer.splits != splits:
            layer.split(splits)


def aggregate_splits(model: nn.Layer) -> None:
    """Bring `_mean` and `_variance` of a model up to date, before its weights are saved, averaged or copied.

    The mean is that of the parts' means; the variance is the mean of theirs plus the variance of their means.
    """
    for _, layer in sub_batch_norms(model):
        layer.aggregate()


def running_statistics(model: nn.Layer) -> list[paddle.Tensor]:
    """Return the running means and variances that training moves, of every batch norm; until `set_splits`."""
    norms = [layer for layer in model.sublayers() if hasattr(layer, "_variance") and not layer._use_global_stats]
    return [
        statistic
        for norm in norms
        for statistic in (norm.running_statistics() if isinstance(norm, SubBatchNorm) else (norm._mean, norm._variance))
    ]


@contextlib.contextmanager
def norm_momentum(model: nn.Layer, momentum: float) -> Iterator[None]:
    """Has every batch norm of a model keep this share of its running statistics at each step, for a while.

    Args:
        model: A model or a part of one; a batch norm itself too.
        momentum: 1 leaves the statistics alone, 0 keeps those of the last batch.
    """
    norms = [layer for layer in model.sublayers(include_self=True) if hasattr(layer, "_momentum")]
    before = [norm._momentum for norm in norms]
    try:
        for norm in norms:
            norm._momentum = momentum
        yield
    finally:
        for norm, kept in zip(norms, before, strict=True):
            norm._momentum = kept


def split_state(model: nn.Layer) -> dict[str, paddle.Tensor]:
    """Return the statistics of parts that a state dict does not hold, [splits * C] each; empty without parts."""
    return {
        f"{name}.{kind}": statistic
        for name, layer in sub_batch_norms(model)
        if layer.splits > 1
        for kind, statistic in zip(("mean", "variance"), layer.running_statistics())
    }


@paddle.no_grad()
def load_split_state(model: nn.Layer, state: Mapping[str, paddle.Tensor | np.ndarray]) -> None:
    """Put statistics of parts back, after the state dict and `set_splits`.

    Where the number of parts is another one now, as with another number of ranks, they are aggregated first.

    Args:
        model: A model as the one that the state is of.
        state: What `split_state` returned, as tensors or arrays; where it is empty, each part begins with the
            statistics of all.

    Raises:
        ValueError: The state is of another model.
    """
    layers = dict(sub_batch_norms(model))
    wanted = {f"{name}.{kind}" for name in layers for kind in ("mean", "variance")}
    if state and set(state) != wanted:
        name = sorted(set(state) ^ wanted)[0]
        raise ValueError(f"the statistics of parts are of another model: {name} is in only one of the two")
    for name, layer in layers.items():
        layer._stale = False
        if not state:
            layer.split(layer.splits)
            continue
        saved = [paddle.to_tensor(np.asarray(state[f"{name}.{kind}"])) for kind in ("mean", "variance")]
        layer._aggregate(*saved)
        layer.split(layer.splits)
        if layer.splits > 1 and saved[0].shape == layer._split_mean.shape:
            for buffer, value in zip(layer._split_buffers, saved):
                buffer.set_value(value)


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


def sub_norm(num_channels: int, ndim: int) -> nn.Layer:
    """Return a batch normalisation over parts of the batch; its 2D kind sees the frames of clips as a batch."""
    return SubBatchNorm(num_channels, frames_folded=ndim == 2)


def frozen_norm(num_channels: int, ndim: int) -> nn.Layer:
    """Return a batch normalisation that keeps its running statistics, gamma and beta in training too.

    It does not hang on `training`, which a wrapper such as `paddle.DataParallel` sets on every layer beneath it
    without asking the layers in between.
    """
    layer = BATCH_NORMS[ndim](num_channels, use_global_stats=True)
    layer.weight.trainable = False
    layer.bias.trainable = False
    return layer


NORMS: dict[str, Callable[[int, int], nn.Layer]] = {
    "local": local_norm,
    "sync": sync_norm,
    "sub": sub_norm,
    "frozen": frozen_norm,
}


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
