"""When a training state is written, and writing it."""

from __future__ import annotations

import logging
import time

from paddlevideo_fast.engine.log import RunLog
from paddlevideo_fast.engine.nonfinite import NonFiniteLossError, broken_arrays
from paddlevideo_fast.engine.run import Training
from paddlevideo_fast.engine.state import facts, training_state
from paddlevideo_fast.engine.stop import StoppedOnRequestError, StopRequest
from paddlevideo_fast.ops.norm import aggregate_splits, running_statistics

logger = logging.getLogger("paddlevideo_fast")


class Saver:
    """Decides when the training state is written, and writes it.

    Args:
        run: The run.
        log: Its numbers; a line is due whenever a state is written, so that no sum is in flight.
        stop: Whether a stop was asked for.
    """

    def __init__(self, run: Training, log: RunLog, stop: StopRequest):
        self.run, self.log, self.stop = run, log, stop
        self._written = time.monotonic()

    def is_due(self) -> bool:
        """Tells whether this step ends in a line and possibly a state; the same on every rank."""
        every = self.run.config.checkpoint.every_steps
        stops = self.stop.signal_number and self.run.ranks.size == 1
        return bool(stops) or (every is not None and self.run.progress.step % every == 0)

    def after_line(self) -> None:
        """Writes the state if it is time; every rank must call it after a line.

        Raises:
            StoppedOnRequestError: A stop was asked for on any rank; the state is written.
        """
        checkpoint, step = self.run.config.checkpoint, self.run.progress.step
        minutes = (time.monotonic() - self._written) / 60
        late = checkpoint.every_minutes is not None and minutes >= checkpoint.every_minutes
        due = late or (checkpoint.every_steps is not None and step % checkpoint.every_steps == 0)
        self._write_if(due, agree=True)

    def is_due_after_epoch(self, last: bool) -> bool:
        """Tells whether the epoch ends with a state, as the last of a phase does; the same on every rank."""
        every = self.run.config.checkpoint.every_epochs
        return last or self.run.ends_phase or self.run.progress.epoch % every == 0

    def after_epoch(self, last: bool) -> None:
        """Writes the state if the epoch ends with one; every rank must call it, the ranks' statistics being equal.

        Raises:
            StoppedOnRequestError: As in :meth:`after_line`.
        """
        self._write_if(self.is_due_after_epoch(last), agree=False)

    def _write_if(self, due: bool, agree: bool) -> None:
        votes = self.run.ranks.gather((self.stop.signal_number, due))
        number, due = max(number for number, _ in votes), votes[0][1]  # the first rank's clock decides
        if number or due:
            if agree:
                agree_on_statistics(self.run)
            save(self.run, self.log)
            self._written = time.monotonic()
        if number:
            raise StoppedOnRequestError(number)


def save(run: Training, log: RunLog) -> None:
    """Writes the training state and the last weights, from the first rank.

    Raises:
        NonFiniteLossError: A weight or a batch norm statistic is not finite; nothing is written.
    """
    broken = broken_arrays(run.model)
    if broken:
        raise NonFiniteLossError(
            f"{len(broken)} arrays of the model are not finite by step {run.progress.step}, the first {broken[0]}; the "
            "last checkpoint is as it was. A lower optimizer.lr or optimizer.clip_norm may help"
        )
    if run.ranks.is_first:
        path = run.checkpoints.save_state(run.progress.step, training_state(run, log.position()))
        run.checkpoints.save_weights("last", run.evaluated_model.state_dict(), facts(run))
        logger.info("saved %s", path)
    run.ranks.barrier()


def agree_on_statistics(run: Training) -> None:
    """Makes one model, to be evaluated and saved, of what the ranks and the parts of their batches have.

    Every rank takes the mean of the ranks' batch norm statistics, which local norms keep of their own clips; those of
    parts of a batch are aggregated.
    """
    run.ranks.average(running_statistics(run.model))
    aggregate_splits(run.model)
    if run.ema:
        run.ema.copy_statistics()
