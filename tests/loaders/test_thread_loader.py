"""Batches from reader threads: the same as without, and an end in words when a reader hangs or breaks."""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from small_runs import build

from paddlevideo_fast.data.dataset import ClipDataset
from paddlevideo_fast.data.records import VideoRecord
from paddlevideo_fast.data.samplers import EvalSampler, SampleKey, TrainSampler
from paddlevideo_fast.loaders.thread_loader import LoaderError, ThreadLoader

ROOT = Path(__file__).parents[2]


class Numbers:
    """Stands in for the dataset: a batch is the indices of its keys; one index may have an accident."""

    def __init__(self, num_records=32, accident=None, at=None):
        self.num_records, self.accident, self.at = num_records, accident, at

    def __len__(self):
        return self.num_records

    def describe(self, keys):
        return "rows " + ", ".join(str(key.index) for key in keys)

    def read_batch(self, keys):
        if self.at is not None and any(key.index == self.at for key in keys):
            self.accident()
        return {
            "clip": np.stack([np.full([2, 4, 4, 3], key.index, np.uint8) for key in keys]),
            "index": np.array([key.index for key in keys]),
            "aug": {"erase": np.zeros([len(keys), 4], np.float32)},
            "errors": [f"row {key.index}" for key in keys if key.index % 5 == 0],
        }


def hang():
    time.sleep(600)


def fail():
    raise ValueError("a mistake in the code")


def indices(batches):
    return [batch["index"].tolist() for batch in batches]


def readers():
    return [thread for thread in threading.enumerate() if thread.name.startswith("reader ")]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_workers_give_the_batches_of_the_main_process_in_order(motion, tmp_path, workers):
    overrides = ("data.batch_size=3", "data.train.flip=0.5", "augment.color_jitter={hue: 0.1}")
    here = build(motion, tmp_path / "a", *overrides)
    there = build(motion, tmp_path / "b", *overrides, f"data.num_workers={workers}")
    for epoch in (0, 1):
        for run in (here, there):
            run.sampler.seek(epoch)
        pairs = list(zip(here.loader, there.loader, strict=True))
        assert len(pairs) == 6
        for left, right in pairs:
            assert left.keys() == right.keys()
            assert left["errors"] == right["errors"] == []
            for name in ("clip", "target", "index", "view", "weight"):
                assert left[name].dtype == right[name].dtype
                np.testing.assert_array_equal(left[name].numpy(), right[name].numpy())
            np.testing.assert_array_equal(left["aug"]["color_jitter"].numpy(), right["aug"]["color_jitter"].numpy())


@pytest.mark.parametrize("workers", [0, 2])
def test_each_iteration_starts_where_the_sampler_stands(workers):
    sampler = TrainSampler(32, 4, 2, 4, seed=7)
    loader = ThreadLoader(Numbers(), sampler, workers, timeout=20)
    for epoch, position, take in ((0, 0, None), (1, 0, 3), (1, 12, 2), (4, 8, None), (5, 0, 0), (6, 28, None)):
        sampler.seek(epoch, position)
        order = np.random.default_rng([7, epoch]).permutation(32)[position:].reshape(-1, 4).tolist()
        found = []
        for batch in loader:
            if len(found) == take:  # given up in the middle, with batches on their way
                break
            found.append(batch)
        assert indices(found) == order[:take]
        assert [batch["errors"] for batch in found] == [
            [f"row {index}" for index in row if index % 5 == 0] for row in order[:take]
        ]


def test_an_evaluation_repeats_itself():
    loader = ThreadLoader(Numbers(), EvalSampler(10, 4, 2, 4), 2, timeout=20)
    assert indices(loader) == indices(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_no_more_threads_than_batches_and_none_without_a_loader():
    before = set(readers())
    loader = ThreadLoader(Numbers(), EvalSampler(6, 4, 2, 4), 8, timeout=20)
    assert len(indices(loader)) == 2
    started = set(readers()) - before
    assert len(started) == 2
    assert list(ThreadLoader(Numbers(), EvalSampler(1, 4, 2, 4, ranks=2, rank=1), 8, timeout=20)) == []
    del loader
    deadline = time.monotonic() + 5
    while any(thread.is_alive() for thread in started) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert not any(thread.is_alive() for thread in started)


def test_reading_goes_no_further_ahead_than_two_batches_a_thread():
    read = []

    class Counted(Numbers):
        def read_batch(self, keys):
            read.append(keys[0].index)
            return super().read_batch(keys)

    batches = iter(ThreadLoader(Counted(), EvalSampler(32, 2, 2, 4), 2, timeout=20))
    next(batches)
    time.sleep(0.3)
    assert sorted(read) == [0, 2, 4, 6]


def test_threads_read_at_the_same_time():
    """A meeting of two readers: each waits inside its batch for the other."""
    meeting = threading.Barrier(2, timeout=10)

    class Meeting(Numbers):
        def read_batch(self, keys):
            meeting.wait()
            return super().read_batch(keys)

    loader = ThreadLoader(Meeting(), EvalSampler(8, 4, 2, 4), 2, timeout=20)
    assert indices(loader) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("at", [0, 17])
def test_a_hanging_reader_ends_in_an_error_after_the_timeout(at):
    loader = ThreadLoader(Numbers(32, hang, at), EvalSampler(32, 4, 2, 4), 2, timeout=1)
    first = at // 4 * 4
    message = rf"no batch within 1 s \(data.timeout\).*the batch holds rows {first}, {first + 1}"
    start = time.monotonic()
    with pytest.raises(LoaderError, match=message):
        list(loader)
    assert 1 <= time.monotonic() - start < 6


def test_a_slow_main_thread_is_no_timeout():
    loader = ThreadLoader(Numbers(12), EvalSampler(12, 4, 2, 4), 2, timeout=1)
    for _ in loader:
        time.sleep(1.3)


def test_an_exception_in_a_thread_arrives_with_its_traceback():
    loader = ThreadLoader(Numbers(32, fail, 9), EvalSampler(32, 4, 2, 4), 2, timeout=20)
    with pytest.raises(LoaderError, match=r"(?s)a reader thread failed.*in fail.*ValueError: a mistake in the code"):
        list(loader)
    with pytest.raises(ValueError, match="a mistake"):  # in the main thread it is simply raised
        list(ThreadLoader(Numbers(32, fail, 9), EvalSampler(32, 4, 2, 4), 0, timeout=20))


@pytest.mark.parametrize("ending", ["break", "sys.exit(3)"])
def test_a_process_ends_although_a_reader_hangs(ending):
    script = textwrap.dedent(f"""
        import os, sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}, {str(ROOT / "tests/loaders")!r}]
        from test_thread_loader import Numbers, hang
        from paddlevideo_fast.data.samplers import EvalSampler
        from paddlevideo_fast.loaders.thread_loader import ThreadLoader
        loader = ThreadLoader(Numbers(400, hang, 40), EvalSampler(400, 4, 2, 4), 2, timeout=100)
        for number, batch in enumerate(loader):
            if number == 9:
                {ending}
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == {"break": 0, "sys.exit(3)": 3}[ending], done.stderr
    assert "Traceback" not in done.stderr


def test_records_are_described():
    dataset = ClipDataset(
        [VideoRecord(f"{number}.mp4", 0, origin=f"list.txt:{number + 1}") for number in range(5)], None, None, None
    )
    keys = [SampleKey(0, index, 2, 4) for index in (3, 3, ~1, 0)]
    assert dataset.describe(keys) == "list.txt:4 3.mp4, list.txt:2 1.mp4, list.txt:1 0.mp4"
    assert dataset.describe(keys, most=1) == "list.txt:4 3.mp4 and 2 more"


def test_a_process_that_ends_in_mid_epoch_ends_its_readers_first():
    """The batch in work is finished, none is begun; nothing aborts."""
    script = textwrap.dedent(f"""
        import sys, time; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}, {str(ROOT / "tests/loaders")!r}]
        from test_thread_loader import Numbers
        from paddlevideo_fast.data.samplers import EvalSampler
        from paddlevideo_fast.loaders.thread_loader import ThreadLoader
        class Slow(Numbers):
            def read_batch(self, keys):
                print("begun", flush=True)
                time.sleep(0.3)
                print("done", flush=True)
                return super().read_batch(keys)
        batches = iter(ThreadLoader(Slow(400), EvalSampler(400, 4, 2, 4), 2, timeout=100))
        next(batches)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("begun") == done.stdout.count("done") <= 6
