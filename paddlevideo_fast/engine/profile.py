"""Measures where the time of a training goes.

The one training loop runs as it is; stop-watches are put around what it calls (the loader, the reader, augmentation,
model, optimiser) for the length of the measurement. Stretches of watched and of plain steps take turns, so that what
the watching costs can be seen: on a GPU it waits for the device around every part.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import paddle
from paddle.distributed.fleet.utils.hybrid_parallel_util import fused_allreduce_gradients

from paddlevideo_fast.data import dataset
from paddlevideo_fast.data.readers import Reader, Video, mp4, packets, pictures, pyav
from paddlevideo_fast.data.readers.isolated import IsolatedVideo
from paddlevideo_fast.data.samplers import SampleKey
from paddlevideo_fast.engine.build import Training
from paddlevideo_fast.engine.failures import Failures
from paddlevideo_fast.engine.log import RunLog
from paddlevideo_fast.engine.optim import trainable
from paddlevideo_fast.engine.stopwatch import Watch, put, put_everywhere, subclasses
from paddlevideo_fast.engine.train import train_one_epoch
from paddlevideo_fast.loaders import dali_loader, dali_pipeline, dali_reader, thread_loader
from paddlevideo_fast.loaders.dali_loader import DaliLoader
from paddlevideo_fast.loaders.thread_loader import PREFETCH_BATCHES, ThreadLoader

STEP_PARTS = (
    "data_wait", "augment", "forward", "backward", "rank_wait", "communication", "optimizer", "other",
)  # fmt: skip
COMPUTED = ("augment", "forward", "backward", "optimizer")
READER_PARTS = ("open", "demux", "decode", "convert", "collate", "copy", "other")
STRETCH = 5  # steps that are watched, or not, at a time where watching slows them; else they take turns
PACED_ROUNDS = 3


@dataclass(frozen=True)
class StepTimes:
    """What a step of the main thread takes.

    Attributes:
        workers: Reader threads.
        warmup: Steps before the measurement.
        watched: Steps measured part by part.
        plain: Steps measured as a whole.
        clips: Clips of a plain step on average, over all ranks.
        watched_seconds: Mean wall time of a watched step.
        plain_seconds: Mean wall time of a plain step.
        cpu_seconds: Mean CPU time of a step over all threads of the process.
        core_share: Share of its computing (not of its waiting) during which the main thread had a core.
        parts: ``STEP_PARTS`` -> mean seconds of a watched step; their sum is ``watched_seconds``.
    """

    workers: int
    warmup: int
    watched: int
    plain: int
    clips: float
    watched_seconds: float
    plain_seconds: float
    cpu_seconds: float
    core_share: float
    parts: dict[str, float]


@dataclass(frozen=True)
class ReaderTimes:
    """What a clip takes in the thread that reads it.

    Attributes:
        clips: Clips measured.
        batches: Batches they came in.
        failed: Unreadable records among all that were read, the warm-up's too.
        wall: ``READER_PARTS`` -> mean seconds a clip.
        cpu: ``READER_PARTS`` -> mean CPU seconds a clip, of the reading thread alone.
    """

    clips: int
    batches: int
    failed: int
    wall: dict[str, float]
    cpu: dict[str, float]


@dataclass(frozen=True)
class Pace:
    """What the loader delivers to someone who does nothing but take.

    Attributes:
        workers: Reader threads.
        clips_per_second: Over all rounds.
        cpu_per_clip: CPU seconds of the process.
    """

    workers: int
    clips_per_second: float
    cpu_per_clip: float


class _WatchedLoader:
    """A loader of which each batch waited for is timed."""

    def __init__(self, loader: ThreadLoader | DaliLoader, watch: Watch):
        self.read = watch.around_items("data_wait")(loader.read)


class _Stretches:
    """Switches the watching on and off as steps begin, and times the stretches between."""

    def __init__(self, warmup: int, steps: int, main: Watch, reader: Watch):
        self.warmup, self.length = warmup, 1 if main.synchronise is None else max(1, min(STRETCH, steps // 4))
        self.main, self.reader = main, reader
        self.count: Counter[str] = Counter()
        self.clips: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()
        self._begun, self._kind = 0, ""
        self._wall = self._process = 0.0

    def begin_step(self) -> None:
        stretch, place = divmod(self._begun - self.warmup, self.length)
        self._begun += 1
        kind = "warmup" if stretch < 0 else ("watched", "plain")[stretch % 2]
        if kind != self._kind:
            self.switch(kind)
        self.count[kind] += 1

    def count_clips(self, number: int) -> None:
        self.clips[self._kind] += number

    def switch(self, kind: str) -> None:
        """Ends a stretch and begins another, or none."""
        if self.main.synchronise is not None:
            self.main.synchronise()
        wall, process = time.perf_counter(), time.process_time()
        self.seconds[self._kind] += wall - self._wall
        self.cpu[self._kind] += process - self._process
        self._kind, self._wall, self._process = kind, wall, process
        self.main.active, self.reader.active = kind == "watched", kind in ("watched", "plain")


def profile_training(run: Training, steps: int) -> tuple[StepTimes, ReaderTimes]:
    """Takes steps of a training and measures them; the weights change, and nothing is written.

    Half of the steps are watched part by part, the others as a whole, in turn. As many as fill the loader come before.
    With several ranks each must call it. A watched step exchanges the gradients after the backward pass instead of in
    it, so that the exchange and the waiting for slower ranks can be told apart.

    Args:
        run: What ``build_training`` made.
        steps: Optimiser steps to measure, at least 2.

    Raises:
        NonFiniteLossError, TooManyFailuresError, LoaderError: As in training.
    """
    workers = min(run.config.data.num_workers, len(run.sampler))  # as the loader has it
    warmup = 2 + -(-PREFETCH_BATCHES * workers // run.config.accum_steps)
    synchronise = paddle.device.synchronize if paddle.device.get_device().startswith("gpu") else None
    main, reader = Watch(synchronise), Watch()
    stretches = _Stretches(warmup, steps, main, reader)
    failures = Failures(run.config.data.max_failed_share, stop_at_first=run.config.data.bad_files == "raise")
    clips: Counter[str] = Counter()
    with contextlib.ExitStack() as changes:
        watch_reading(reader, clips, changes)
        watch_steps(run, main, stretches, changes)
        log = RunLog(None, visualdl=False)
        while run.progress.step < warmup + steps:
            if run.progress.epoch >= run.epochs:
                run.progress.epoch = run.progress.trained = 0
            train_one_epoch(run, log, failures, max_steps=warmup + steps)
            failures.check_epoch(run.ranks.gather)
        stretches.switch("")
    times = _step_times(workers, run.ranks.size, stretches, main)
    return times, _reader_times(reader, clips["measured"], failures.failed)


def _step_times(workers: int, ranks: int, stretches: _Stretches, main: Watch) -> StepTimes:
    count, seconds, cpu = stretches.count, stretches.seconds, stretches.cpu
    means = {kind: seconds[kind] / count[kind] for kind in ("watched", "plain")}
    wall, main_cpu = main.wall, main.cpu
    parts = {name: wall[name] / count["watched"] for name in STEP_PARTS}
    parts["other"] = means["watched"] - sum(parts.values())
    return StepTimes(
        workers=workers,
        warmup=stretches.warmup,
        watched=count["watched"],
        plain=count["plain"],
        clips=stretches.clips["plain"] * ranks / count["plain"],
        watched_seconds=means["watched"],
        plain_seconds=means["plain"],
        cpu_seconds=(cpu["watched"] + cpu["plain"]) / (count["watched"] + count["plain"]),
        core_share=sum(main_cpu[name] for name in COMPUTED) / sum(wall[name] for name in COMPUTED),
        parts=parts,
    )


def _reader_times(reader: Watch, clips: int, failed: int) -> ReaderTimes:
    """A batch whose reading began before the measurement may be copied in it: each part has its own divisor."""
    outermost = reader.outermost
    batches, divisors = outermost["other"], dict.fromkeys(READER_PARTS, clips)
    divisors["copy"] = outermost["copy"] * clips / batches if batches else 0
    wall, cpu = (
        {name: spent[name] / divisors[name] if divisors[name] else 0.0 for name in READER_PARTS}
        for spent in (reader.wall, reader.cpu)
    )
    return ReaderTimes(clips, batches, failed, wall, cpu)


def watch_steps(run: Training, main: Watch, stretches: _Stretches, changes: contextlib.ExitStack) -> None:
    """Puts stop-watches around what the training loop calls."""
    parameters = trainable(run.model)

    def at_begin(plain: Callable) -> Callable:  # asked for first in each step
        def learning_rate(progress: float) -> float:
            stretches.begin_step()
            return plain(progress)

        return learning_rate

    def exchanged_after(plain: Callable) -> Callable:
        def backward(model, batch, scale):
            stretches.count_clips(batch["clip"].shape[0])
            if not (main.active and run.ranks.size > 1 and run.parallel_model.grad_need_sync):
                with main.part("backward"):
                    return plain(model, batch, scale)
            with run.ranks.no_sync(run.parallel_model), main.part("backward"):
                result = plain(model, batch, scale)
            with main.part("rank_wait"):
                run.ranks.barrier()
            with main.part("communication"):
                fused_allreduce_gradients(parameters, None)
            return result

        return backward

    put(changes, run, "learning_rate", at_begin)
    put(changes, run, "loader", lambda loader: _WatchedLoader(loader, main))
    put(changes, run, "augment", main.around("augment"))
    put(changes, run, "forward", main.around("forward"))
    put(changes, run.task, "loss", main.around("forward"))
    put(changes, run.task, "backward", exchanged_after)
    put(changes, run.precision, "step", main.around("optimizer"))
    if run.ema:
        put(changes, run.ema, "update", main.around("optimizer"))


def watch_reading(reader: Watch, clips: Counter[str], changes: contextlib.ExitStack) -> None:
    """Puts stop-watches around what the reader threads call.

    They are put on classes and modules, as the threads make objects of their own; ``clips`` counts those measured.
    """

    def counted(plain: Callable) -> Callable:
        def read_batch(self, keys: list[SampleKey]):
            with reader.part("other") as counts:
                batch = plain(self, keys)
            clips["measured"] += len(keys) if counts else 0
            return batch

        return read_batch

    put(changes, dataset.ClipDataset, "read_batch", counted)
    put(changes, dali_loader.DaliBatches, "read_batch", counted)
    for kind, name, wrap in (
        (Reader, "open", reader.around("open")),
        (Reader, "open_first", reader.around("open")),
        (Video, "close", reader.around("open")),
        (Video, "decode", reader.around_items("decode")),
        (Video, "render", reader.around("convert")),
    ):
        for owner in subclasses(kind):
            if name in vars(owner):
                put(changes, owner, name, wrap)
    for owner, name, part in (
        (IsolatedVideo, "read", "decode"),  # all of it happens in a child process
        (pyav.PyavVideo, "decode_order", "decode"),
        (pictures.Converter, "__call__", "convert"),
        (dali_reader.DaliReader, "examine", "demux"),
        (dali_pipeline.DaliDecoder, "decode", "decode"),  # for a whole batch, in threads of its own
    ):
        put(changes, owner, name, reader.around(part))
    for function, part in (
        (packets.list_packets, "demux"),
        (packets.scan_packets, "demux"),
        (mp4.read_samples, "demux"),
        (dali_reader.load, "open"),
        (dataset.collate, "collate"),
        (thread_loader._to_tensors, "copy"),
    ):
        put_everywhere(changes, function, reader.around(part))


def pace(loaders: Mapping[int, Iterable], num_clips: int) -> list[Pace]:
    """Measures how fast batches come when nothing is done with them.

    The loaders take turns. A round before the first one is not counted: in the others packet lists are known and the
    files are in memory, as from the second epoch of a small data set on.

    Args:
        loaders: By number of reader threads; each gives the same batches whenever it is iterated over.
        num_clips: Clips in all batches.

    Raises:
        LoaderError: A batch did not come.
    """
    wall: Counter[int] = Counter()
    cpu: Counter[int] = Counter()
    for _ in loaders[max(loaders)]:
        pass
    for _ in range(PACED_ROUNDS):
        for number, loader in loaders.items():
            start, process = time.perf_counter(), time.process_time()
            for _ in loader:
                pass
            wall[number] += time.perf_counter() - start
            cpu[number] += time.process_time() - process
    clips = PACED_ROUNDS * num_clips
    return [Pace(number, clips / wall[number], cpu[number] / clips) for number in loaders]
