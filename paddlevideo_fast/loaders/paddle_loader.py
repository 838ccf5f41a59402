"""Clip batches through ``paddle.io.DataLoader``'s worker processes."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import wait

import numpy as np
import paddle

from paddlevideo_fast.data.dataset import ClipDataset, Sample
from paddlevideo_fast.data.samplers import EvalSampler, TrainSampler

logger = logging.getLogger("paddlevideo_fast")

PREFETCH_BATCHES = 2
_LOOK_EVERY_SECONDS = 0.5
_STOP_SECONDS = 3


class LoaderError(RuntimeError):
    """The worker processes cannot deliver; the message says why and what to change."""


class PaddleLoader:
    """Iterates over the batches of a sampler from its current position.

    Workers live from one iteration to the next, unless one is given up in the middle. They return NumPy arrays only,
    which is what keeps forking safe.

    Args:
        dataset: Reads the batches.
        sampler: Yields lists of keys; iterating again continues from where the sampler then stands.
        num_workers: Processes; 0 reads in this one, without a time limit.
        timeout: Seconds to wait for a batch before the loader gives up.
    """

    def __init__(self, dataset: ClipDataset, sampler: TrainSampler | EvalSampler, num_workers: int, timeout: int):
        self.dataset, self.sampler, self.timeout = dataset, sampler, timeout
        self.num_workers = min(num_workers, len(sampler))
        self._loader = None
        if self.num_workers:
            self._loader = paddle.io.DataLoader(
                _KeyBatches(dataset),
                batch_sampler=_OneItemBatches(sampler),
                collate_fn=_only_item,
                num_workers=self.num_workers,
                use_shared_memory=_shared_memory_suffices(sampler, self.num_workers),
                prefetch_factor=PREFETCH_BATCHES,
                persistent_workers=True,
                worker_init_fn=partial(_end_with_parent, os.getpid()),
            )

    def __iter__(self) -> Iterator[Sample]:
        if self._loader is not None:
            return self._from_workers()
        return (_to_tensors(self.dataset.read_batch(keys)) for keys in self.sampler)

    def _from_workers(self) -> Iterator[Sample]:
        watch, left = _Watch(self._loader, self.timeout), len(self.sampler)
        try:
            with watch.waiting():
                batches = iter(self._loader)
                paddle.base.core._erase_process_pids(id(batches))  # or a death raises SystemError anywhere
            while True:
                with watch.waiting():
                    batch = next(batches, None)
                if batch is None:
                    return
                if "exception" in batch:
                    raise LoaderError(f"a reader process failed:\n{batch['exception']}")
                left -= 1
                yield batch
        finally:
            watch.stop()
            if left:  # batches on their way would turn up in the next iteration
                self._stop_workers()

    def _stop_workers(self) -> None:
        iterator, self._loader._iterator = self._loader._iterator, None
        if iterator is not None:
            iterator._try_shutdown_all(_STOP_SECONDS)
            for worker in iterator._workers:
                worker.kill()


class _Watch:
    """Ends a wait for batches that will not come, and says why.

    Paddle waits for ever for a worker that hangs (its ``timeout`` only makes it look again), and reports one that was
    killed by an exception wherever the main thread happens to be, or not at all. Here a thread of its own looks at the
    worker processes.
    """

    def __init__(self, loader: paddle.io.DataLoader, timeout: int):
        self._loader, self._timeout = loader, timeout
        self._since: float | None = None
        self._cause: str | None = None
        self._stopped = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Limits the time spent inside; an error there becomes a LoaderError with the true cause."""
        self._since = time.monotonic()
        try:
            yield
        except (SystemError, RuntimeError, OSError) as error:
            cause = self._cause or f"the reader processes cannot deliver: {str(error).strip().splitlines()[0]}"
            raise LoaderError(cause) from error
        finally:
            self._since = None

    def stop(self) -> None:
        """Looks no longer; workers may then end."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            iterator = self._loader._iterator  # made by the first iter() of the loader
            if iterator is None:
                self._stopped.wait(0.01)
                continue
            ended = wait([worker.sentinel for worker in iterator._workers], _LOOK_EVERY_SECONDS)
            since = self._since
            if self._stopped.is_set():
                return
            if ended:
                self._cause = _describe_end(next(w for w in iterator._workers if w.sentinel in ended))
            elif since is not None and time.monotonic() - since > self._timeout:
                self._cause = (
                    f"no batch within {self._timeout} s (data.timeout): a file may hang its decoder, or the disk be "
                    "very slow. data.num_workers=0 reads in the main process, where a debugger shows the file"
                )
            else:
                continue
            self._give_up(iterator)
            return

    @staticmethod
    def _give_up(iterator) -> None:
        for worker in iterator._workers:
            worker.kill()  # a hanging one would be waited for when the loader goes
            worker.join(1)
        iterator._exit_thread_unexpectedly()
        iterator._resume_worker_cnt = 0  # what the start of another iteration waits for


def _end_with_parent(parent: int, worker_id: int) -> None:
    """Ends a worker whose main process was killed; Paddle's own check for that waits for a batch that never comes.

    The worker leaves the process group: Ctrl-C and the launcher's SIGTERM go to the whole group, and the main process,
    which decides what they mean, needs its workers until it has saved.
    """
    os.setpgid(0, 0)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        paddle.base.core._cleanup_mmap_fds()  # what it left in /dev/shm
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _describe_end(worker) -> str:
    worker.join(1)
    code = worker.exitcode
    how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with status {code}"
    return (
        f"reader process {worker.pid} {how}. Memory may be short (lower data.num_workers or data.batch_size), /dev/shm "
        "too small (docker: --shm-size), or a decoder crashed; data.num_workers=0 reads in the main process"
    )


class _KeyBatches(paddle.io.Dataset):
    """A dataset whose item is a whole batch, so that neighbours in it can share one decode."""

    def __init__(self, dataset: ClipDataset):
        self.dataset = dataset

    def __getitem__(self, keys):
        try:
            return self.dataset.read_batch(keys)
        except Exception:  # whatever it is, the main process reports it; Paddle would lose it in a thread
            return {"exception": traceback.format_exc(), "nothing": np.zeros(1, np.int64)}

    def __len__(self):
        return len(self.dataset)


class _OneItemBatches:
    """Presents each list of keys as a batch of one item."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        return ([keys] for keys in self.sampler)

    def __len__(self):
        return len(self.sampler)


def _only_item(items: list[Sample]) -> Sample:
    return items[0]


def _to_tensors(batch: Sample) -> Sample:
    return {
        name: _to_tensors(value)
        if isinstance(value, dict)
        else paddle.to_tensor(value)
        if isinstance(value, np.ndarray)
        else value
        for name, value in batch.items()
    }


def _shared_memory_suffices(sampler, workers: int) -> bool:
    keys = next(iter(sampler))
    clip_bytes = keys[0].frames * keys[0].crop ** 2 * 3
    needed = int(1.2 * clip_bytes * len(keys) * workers * PREFETCH_BATCHES)
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        free = 0
    if free < needed:
        logger.warning(
            "shared memory is short: the readers need about %d MB in /dev/shm and %d MB are free; batches go through "
            "pipes instead, which is slower. Start docker with --shm-size=%dm, or lower data.num_workers or "
            "data.batch_size.",
            needed >> 20,
            free >> 20,
            max(64, 2 * needed >> 20),
        )
    return free >= needed
