"""Clip batches read ahead by threads of this process.

Decoders and scalers run outside the interpreter lock, so threads read at the same time; they start at once, share what
is known of the files, and hand their arrays on without a copy.
"""

from __future__ import annotations

import threading
import traceback
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from queue import SimpleQueue

import numpy as np
import paddle

from paddlevideo_fast.data.dataset import ClipDataset, Sample
from paddlevideo_fast.data.samplers import EvalSampler, SampleKey, TrainSampler

PREFETCH_BATCHES = 2  # that each thread reads ahead
_END_SECONDS = 5  # for a thread to finish its batch; one that hangs is left behind


class LoaderError(RuntimeError):
    """The readers cannot deliver; the message says why and what to change."""


class ThreadLoader:
    """Iterates over the batches of a sampler from its current position, or over others.

    The threads live as long as the loader. Each reads whole batches, in which neighbours may share one decode, and
    copies them to the device, beside what the main thread computes there. Batches come in the order of the sampler.

    Args:
        dataset: Reads the batches.
        sampler: Yields lists of keys; iterating again continues from where the sampler then stands.
        num_workers: Threads; 0 reads in the calling thread, without a time limit.
        timeout: Seconds to wait for a batch before the loader gives up.
    """

    def __init__(self, dataset: ClipDataset, sampler: TrainSampler | EvalSampler, num_workers: int, timeout: int):
        self.dataset, self.sampler, self.timeout = dataset, sampler, timeout
        self.num_workers = min(num_workers, len(sampler))
        self._tasks: SimpleQueue[tuple[Future, list[SampleKey]] | None] = SimpleQueue()
        device = paddle.get_device()  # which a new thread does not inherit
        stopped, threads = threading.Event(), []
        for number in range(self.num_workers):
            # A daemon: one that hangs in a decoder must not keep the process from ending.
            arguments = (self._tasks, dataset, device, stopped)
            threads.append(threading.Thread(target=_serve, args=arguments, name=f"reader {number}", daemon=True))
            threads[-1].start()
        weakref.finalize(self, _end, self._tasks, threads, stopped)  # with the loader, or before the interpreter ends

    def __iter__(self) -> Iterator[Sample]:
        """Yields the batches of the sampler; see :meth:`read`."""
        return self.read(self.sampler)

    def read(self, batches: Iterable[list[SampleKey]]) -> Iterator[Sample]:
        """Yields batch dicts of tensors, one for each list of keys.

        Raises:
            LoaderError: A batch did not come in time, or reading it raised what is not a matter of its files.
        """
        if not self.num_workers:
            for keys in batches:
                yield _to_tensors(self.dataset.read_batch(keys), paddle.get_device())
            return
        ahead: deque[tuple[Future, list[SampleKey]]] = deque()
        try:
            for keys in batches:
                ahead.append((Future(), keys))
                self._tasks.put(ahead[-1])
                if len(ahead) == self.num_workers * PREFETCH_BATCHES:
                    yield self._wait(*ahead.popleft())
            while ahead:
                yield self._wait(*ahead.popleft())
        finally:
            for future, _ in ahead:
                future.cancel()

    def _wait(self, future: Future, keys: list[SampleKey]) -> Sample:
        try:
            return future.result(self.timeout)
        except TimeoutError as error:
            raise LoaderError(
                f"no batch within {self.timeout} s (data.timeout): a file may hang its decoder, or the disk be very "
                f"slow. data.read_timeout limits each file and names it; the batch holds {self.dataset.describe(keys)}"
            ) from error
        except Exception as error:
            raise LoaderError(f"a reader thread failed:\n{''.join(traceback.format_exception(error))}") from error


def _serve(tasks: SimpleQueue, dataset: ClipDataset, device: str, stopped: threading.Event) -> None:
    while (task := tasks.get()) is not None and not stopped.is_set():
        future, keys = task
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(_to_tensors(dataset.read_batch(keys), device))
        except BaseException as error:  # whatever it is, the main thread reports it
            future.set_exception(error)
        del task, future, keys  # while it waits for the next task, a thread holds no batch


def _end(tasks: SimpleQueue, threads: list[threading.Thread], stopped: threading.Event) -> None:
    """Ends the threads: one that still runs native code while the interpreter goes down could abort the process."""
    stopped.set()
    for _ in threads:
        tasks.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(_END_SECONDS)


def _to_tensors(batch: Sample, device: str) -> Sample:
    return {
        name: _to_tensors(value, device)
        if isinstance(value, dict)
        else paddle.to_tensor(value, place=device)
        if isinstance(value, np.ndarray)
        else value
        for name, value in batch.items()
    }
