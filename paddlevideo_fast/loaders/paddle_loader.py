"""Clip batches through ``paddle.io.DataLoader``'s worker processes."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator

import paddle

from paddlevideo_fast.data.dataset import ClipDataset, Sample
from paddlevideo_fast.data.samplers import EvalSampler, TrainSampler

logger = logging.getLogger("paddlevideo_fast")

PREFETCH_BATCHES = 2


class LoaderError(RuntimeError):
    """The worker processes cannot deliver; the message says why and what to change."""


class PaddleLoader:
    """Iterates over the batches of a sampler from its current position.

    Workers live as long as the loader. They return NumPy arrays only, which is what keeps forking safe.

    Args:
        dataset: Reads the batches.
        sampler: Yields lists of keys; iterating again continues from where the sampler then stands.
        num_workers: Processes; 0 reads in this one.
        timeout: Seconds to wait for a batch before the loader gives up.
    """

    def __init__(self, dataset: ClipDataset, sampler: TrainSampler | EvalSampler, num_workers: int, timeout: int):
        self.sampler, self.num_workers, self.timeout = sampler, num_workers, timeout
        workers = min(num_workers, len(sampler))
        self._loader = paddle.io.DataLoader(
            _KeyBatches(dataset),
            batch_sampler=_OneItemBatches(sampler),
            collate_fn=_only_item,
            num_workers=workers,
            use_shared_memory=workers > 0 and _shared_memory_suffices(sampler, workers),
            prefetch_factor=PREFETCH_BATCHES,
            timeout=timeout if workers else 0,
            persistent_workers=workers > 0,
        )

    def __iter__(self) -> Iterator[Sample]:
        batches = iter(self._loader)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                return
            except (SystemError, RuntimeError) as error:
                raise LoaderError(
                    f"no batch from the {self.num_workers} reader processes within {self.timeout} s, or one of them "
                    "died (the lines above may say why). A file may hang its decoder, memory may be short, or /dev/shm "
                    "too small (docker: --shm-size). data.num_workers=0 reads in the main process and names the file; "
                    f"data.timeout sets the limit. First cause: {str(error).strip().splitlines()[0]}"
                ) from error
            yield batch


class _KeyBatches(paddle.io.Dataset):
    """A dataset whose item is a whole batch, so that neighbours in it can share one decode."""

    def __init__(self, dataset: ClipDataset):
        self.dataset = dataset

    def __getitem__(self, keys):
        return self.dataset.read_batch(keys)

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
