"""Clip batches decoded by DALI: on the GPU where there is one.

Plans, and what happens to files that cannot be read, are those of :class:`ClipDataset`; decoding, cutting and scaling
are DALI's, for a whole batch at once. What comes out is the same batch dict, its clips already on the device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

import numpy as np
import paddle

from paddlevideo_fast.data.dataset import ClipDataset, Sample
from paddlevideo_fast.data.samplers import EvalSampler, SampleKey, TrainSampler
from paddlevideo_fast.data.video import InexactReaderError, VideoError
from paddlevideo_fast.loaders.dali_pipeline import DaliDecoder, Pieces
from paddlevideo_fast.loaders.dali_reader import (
    CPU_CODECS,
    DaliReader,
    EncodedClip,
    load,
    load_dali,
    needs_gpu,
    recolouring,
)
from paddlevideo_fast.loaders.thread_loader import LoaderError, ThreadLoader

Group = tuple[SampleKey, ...]
DecodedClip = tuple[Pieces, np.ndarray | None]  # and what corrects its colours


class DaliLoader:
    """Iterates over the batches of a sampler from its current position, as :class:`ThreadLoader` does.

    Each thread plans a batch, loads its files and has DALI decode it, while the batches before it are computed on.

    Args:
        dataset: Its records, recipe and targets make the batches; its reader takes the files that DALI does not.
        reader: Examines the sources.
        sampler: Yields lists of keys; iterating again continues from where the sampler then stands.
        num_workers: Threads, each with pipelines of its own; 0 reads in the calling thread, without a time limit.
        timeout: Seconds to wait for a batch before the loader gives up.

    Raises:
        ImportError: DALI is not installed.
    """

    def __init__(
        self,
        dataset: ClipDataset,
        reader: DaliReader,
        sampler: TrainSampler | EvalSampler,
        num_workers: int,
        timeout: int,
    ):
        load_dali()
        self.dataset, self.sampler = dataset, sampler
        self._loader = ThreadLoader(DaliBatches(dataset, reader), sampler, num_workers, timeout)

    def __iter__(self) -> Iterator[Sample]:
        """Yields the batches of the sampler; see :meth:`read`."""
        return self.read(self.sampler)

    def read(self, batches: Iterable[list[SampleKey]]) -> Iterator[Sample]:
        """Yields batch dicts of tensors, one for each list of keys.

        Raises:
            LoaderError: A video needs a GPU, a batch did not come in time, or reading it raised what is not a matter
                of its files.
        """
        try:
            yield from self._loader.read(batches)
        except LoaderError as error:
            if isinstance(error.__cause__, LoaderError):  # a sentence of its own, which needs no traceback
                raise error.__cause__ from None
            raise


class DaliBatches:
    """Reads batches as :meth:`ClipDataset.read_batch` does, for any thread that asks.

    Args:
        dataset: See ``DaliLoader``.
        reader: See ``DaliLoader``.
    """

    def __init__(self, dataset: ClipDataset, reader: DaliReader):
        self.dataset, self.reader = dataset, reader
        self.device = paddle.get_device()
        self._own = threading.local()

    def describe(self, keys: Sequence[SampleKey]) -> str:
        return self.dataset.describe(keys)

    def read_batch(self, keys: Sequence[SampleKey]) -> Sample:
        """Returns the batch dict, ``clip`` a uint8 tensor [N, T, H, W, 3] on the device, the rest arrays.

        Raises:
            LoaderError: A video needs a GPU.
        """
        planned = {group: self._attempt(self._plan, group) for group in _groups(keys)}
        samples = [sample for outcome in planned.values() if isinstance(outcome, list) for sample in outcome]
        encoded = [sample["clip"] for sample in samples if isinstance(sample["clip"], EncodedClip)]
        decoder = self._decoder()
        decoded = dict(zip(encoded, decoder.decode(encoded)))
        clips: list[DecodedClip] = []
        outcomes = {group: self._collect(group, outcome, decoded, clips) for group, outcome in planned.items()}
        batch = _DecodedDataset(self.dataset, outcomes).read_batch(keys)
        if batch["clip"].ndim == 1:  # else not one row is good, and the clips are black ones
            batch["clip"] = self._join([clips[number] for number in batch["clip"]])
        return batch

    def _plan(self, group: Group) -> list[Sample]:
        """Returns the samples of keys of one record, each ``clip`` an EncodedClip, or an array from another reader."""
        record = self.dataset.records[group[0].index]
        try:
            facts = self.reader.examine(record.source)
        except InexactReaderError as error:
            self.reader.note_refusal(error)
            return self.dataset.read(group)
        if facts.damage:
            return self.dataset.read(group)
        if not facts.pictures and self.device == "cpu" and facts.codec not in CPU_CODECS:
            raise LoaderError(needs_gpu(record.source, facts.codec))
        plans = [self.dataset.recipe.make_plan(record, facts.info, key) for key in group]
        clips = load(record.source, facts, [plan.view for plan in plans], plans[0].size)
        return [
            {
                "clip": clip,
                "target": self.dataset.make_target(plan.record, plan.view.flip),
                "index": np.int64(key.index),
                "view": np.int64(key.view),
                "weight": np.float32(1),
                "aug": plan.aug,
            }
            for key, plan, clip in zip(group, plans, clips)
        ]

    def _attempt(self, read: Callable[[Group], list[Sample]], group: Group) -> list[Sample] | VideoError:
        try:
            return read(group)
        except VideoError as error:
            return self._rescue(group, error) if read == self._plan else error

    def _rescue(self, group: Group, error: VideoError) -> list[Sample] | VideoError:
        """Reads what decodes of a damaged file, if that is wanted, with the dataset's own reader."""
        return self._attempt(self.dataset.read, group) if self.dataset.use_what_decodes else error

    def _collect(
        self,
        group: Group,
        outcome: list[Sample] | VideoError,
        decoded: dict[EncodedClip, Pieces | VideoError],
        clips: list[DecodedClip],
    ) -> list[Sample] | VideoError:
        """Appends the clips of a record to ``clips`` and returns its samples with their numbers in the place of them.

        A clip that DALI could not decode makes an error of the whole record.
        """
        if isinstance(outcome, VideoError):
            return outcome
        first = len(clips)
        for clip in [sample["clip"] for sample in outcome]:
            pieces = decoded[clip] if isinstance(clip, EncodedClip) else [paddle.to_tensor(clip)]
            if isinstance(pieces, VideoError):
                return self._collect(group, self._rescue(group, pieces), {}, clips)
            clips.append((pieces, recolouring(clip.colours) if isinstance(clip, EncodedClip) else None))
        return [{**sample, "clip": np.int64(first + place)} for place, sample in enumerate(outcome)]

    def _join(self, clips: list[DecodedClip]) -> paddle.Tensor:
        """Copies clips out of DALI's memory into one tensor [N, T, H, W, 3], their colours corrected."""
        pieces = [piece for clip, _ in clips for piece in clip]
        batch = paddle.concat(pieces).reshape([len(clips), -1, *pieces[0].shape[1:]])
        if any(colours is not None for _, colours in clips):
            rows = [batch[row : row + 1] for row in range(len(clips))]
            batch = paddle.concat([row if c is None else _recolour(row, c) for row, (_, c) in zip(rows, clips)])
        if self.device != "cpu":  # DALI may use its memory again as soon as the pieces are gone
            paddle.device.current_stream().synchronize()
        return batch

    def _decoder(self) -> DaliDecoder:
        if not hasattr(self._own, "decoder"):
            paddle.set_device(self.device)  # which a new thread does not inherit
            self._own.decoder = DaliDecoder(self.device, self.reader.threads)
        return self._own.decoder


class _DecodedDataset(ClipDataset):
    """Applies the dataset's rules for a batch to samples that are there already, or errors in their place."""

    def __init__(self, dataset: ClipDataset, outcomes: dict[Group, list[Sample] | VideoError]):
        super().__init__(dataset.records, dataset.recipe, dataset.reader, dataset.make_target)
        self._outcomes = outcomes

    def read(self, keys: Sequence[SampleKey]) -> list[Sample]:
        outcome = self._outcomes[tuple(keys)]
        if isinstance(outcome, VideoError):
            raise outcome
        return outcome


def _recolour(clip: paddle.Tensor, colours: np.ndarray) -> paddle.Tensor:
    """Multiplies the pixels of uint8 [..., 3] with float32 [3, 3] and rounds."""
    pixels = paddle.matmul(clip.astype("float32"), paddle.to_tensor(colours, place=clip.place))
    return paddle.clip(paddle.round(pixels), 0.0, 255.0).astype("uint8")


def _groups(keys: Sequence[SampleKey]) -> Iterator[Group]:
    """Yields the keys that ``ClipDataset.read_batch`` will ask for together: neighbours of the same record."""
    for index, group in groupby(keys, key=lambda key: key.index):
        yield tuple(key._replace(index=max(index, ~index)) for key in group)
