"""Batch norm statistics as the true average over training batches, in the place of the running one."""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator

import paddle

from paddlevideo_fast.engine.distributed import Ranks
from paddlevideo_fast.engine.log import duration
from paddlevideo_fast.engine.tasks import Classification
from paddlevideo_fast.loaders.dali_loader import DaliLoader
from paddlevideo_fast.loaders.thread_loader import ThreadLoader
from paddlevideo_fast.ops.augment import DeviceAugment
from paddlevideo_fast.ops.norm import aggregate_splits, norm_momentum, running_statistics

logger = logging.getLogger("paddlevideo_fast")


class PreciseStatistics:
    """Recomputes the running means and variances of a model whose weights stand still.

    The mean and the variance of each batch are averaged alike, over the batches of all ranks. As in training the
    variance of a batch is the biased one; fvcore averages PyTorch's unbiased ones, larger by the factor n / (n - 1)
    of the n values of a channel. Clips are augmented as in training, but not mixed.

    Args:
        loader: Batches of the training list in an order of their own, so that training's is not disturbed.
        num_batches: Batches of each rank, or as many as an epoch has.
        task: Makes the model's inputs.
        augment: Augments the batches.
        ranks: The processes.

    Source: fvcore ``nn/precise_bn.py``, update_bn_stats, as PySlowFast uses it before it evaluates or saves.
    """

    def __init__(
        self,
        loader: ThreadLoader | DaliLoader,
        num_batches: int,
        task: Classification,
        augment: DeviceAugment,
        ranks: Ranks,
    ):
        self.loader, self.num_batches = loader, num_batches
        self.task, self.augment, self.ranks = task, augment, ranks

    @paddle.no_grad()
    def update(self, model: paddle.nn.Layer, forward: Callable, epoch: int) -> None:
        """Puts the averages in the place of a model's statistics; every rank must call it.

        Args:
            model: Its weights stay as they are.
            forward: Calls the model, in the precision wanted.
            epoch: Decides the shape of the clips, and together with the sampler's seed which ones are taken.
        """
        start, count = time.perf_counter(), 0
        statistics = running_statistics(model)
        sums = [paddle.zeros_like(statistic) for statistic in statistics]
        self.loader.sampler.seek(epoch)
        with _of_single_batches(model), contextlib.closing(iter(self.loader)) as batches:
            for batch in itertools.islice(batches, self.num_batches):
                clips = self.augment({name: batch[name] for name in ("clip", "aug")})
                forward(*self.task.inputs(clips))
                count += 1
                sums = [total + statistic for total, statistic in zip(sums, statistics)]
        for statistic, total in zip(statistics, sums):
            statistic.set_value(total / count)
        self.ranks.average(statistics)
        aggregate_splits(model)
        logger.info("batch norm statistics of %d batches in %s", count, duration(time.perf_counter() - start))


@contextlib.contextmanager
def _of_single_batches(model: paddle.nn.Layer) -> Iterator[None]:
    """Has the batch norms of a model in training keep the statistics of the last batch alone."""
    was_training = model.training
    model.train()
    try:
        with norm_momentum(model, 0.0):
            yield
    finally:
        if not was_training:
            model.eval()
