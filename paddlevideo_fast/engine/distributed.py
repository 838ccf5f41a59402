"""Ranks: starting them, wrapping model and optimiser, and the few collectives the loop needs."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import paddle
import paddle.distributed as dist
from paddle.distributed import fleet

from paddlevideo_fast.engine import rendezvous


@dataclass(frozen=True)
class Ranks:
    """This process among the processes of a run.

    Attributes:
        rank: 0-based number of this process.
        size: Number of processes; 1 without the launcher.
    """

    rank: int
    size: int

    @property
    def is_first(self) -> bool:
        """True on the one process that writes files and prints."""
        return self.rank == 0

    def wrap_model(self, model: paddle.nn.Layer) -> paddle.nn.Layer:
        """Returns the model to call in training: gradients are averaged over the ranks."""
        return fleet.distributed_model(model) if self.size > 1 else model

    def wrap_optimizer(self, optimizer: paddle.optimizer.Optimizer):
        """Returns the optimiser to step in training."""
        return fleet.distributed_optimizer(optimizer) if self.size > 1 else optimizer

    def no_sync(self, model: paddle.nn.Layer):
        """A context in which backward adds to local gradients without exchanging them."""
        return model.no_sync() if self.size > 1 else contextlib.nullcontext()

    def sum(self, values: paddle.Tensor) -> paddle.Tensor:
        """Returns the element-wise sum over all ranks."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
        return values

    def average(self, tensors: list[paddle.Tensor]) -> None:
        """Puts the mean over all ranks in the place of each tensor; they travel together, as float32."""
        if self.size == 1 or not tensors:
            return
        joined = self.sum(paddle.concat([tensor.flatten().astype("float32") for tensor in tensors])) / self.size
        for tensor, mean in zip(tensors, joined.split([tensor.size for tensor in tensors])):
            tensor.set_value(mean.reshape(tensor.shape).astype(tensor.dtype))

    def gather(self, value: Any) -> list[Any]:
        """Returns every rank's picklable object, in rank order, on every rank."""
        if self.size == 1:
            return [value]
        gathered: list[Any] = []
        dist.all_gather_object(gathered, value)
        return gathered

    def barrier(self) -> None:
        """Waits for all ranks."""
        if self.size > 1:
            dist.barrier()


def start_ranks() -> Ranks:
    """Joins the run the launcher started, or stands alone.

    Raises:
        RendezvousError: A rank is missing, or cannot be reached.
    """
    env = dist.ParallelEnv()
    if env.world_size > 1 and not dist.is_initialized():
        host, port = rendezvous.meeting_point()
        rendezvous.meet(env.rank, env.world_size, host, port, env.trainer_endpoints, rendezvous.WAIT_SECONDS)
        fleet.init(is_collective=True, strategy=fleet.DistributedStrategy())
    return Ranks(env.rank, env.world_size)
