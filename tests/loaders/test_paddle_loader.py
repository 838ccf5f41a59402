"""Batches from worker processes: the same as without, and an end in words when a worker dies, hangs or breaks."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from small_runs import build

from paddlevideo_fast.data.samplers import EvalSampler, TrainSampler
from paddlevideo_fast.loaders import paddle_loader
from paddlevideo_fast.loaders.paddle_loader import LoaderError, PaddleLoader

ROOT = Path(__file__).parents[2]


class Numbers:
    """Stands in for the dataset: a batch is the indices of its keys; one index may have an accident."""

    def __init__(self, num_records=32, accident=None, at=None):
        self.num_records, self.accident, self.at = num_records, accident, at

    def __len__(self):
        return self.num_records

    def read_batch(self, keys):
        if self.at is not None and any(key.index == self.at for key in keys):
            self.accident()
        return {
            "clip": np.stack([np.full([2, 4, 4, 3], key.index, np.uint8) for key in keys]),
            "index": np.array([key.index for key in keys]),
            "aug": {"erase": np.zeros([len(keys), 4], np.float32)},
            "errors": [f"row {key.index}" for key in keys if key.index % 5 == 0],
        }


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    time.sleep(600)


def fail():
    raise ValueError("a mistake in the code")


def indices(batches):
    return [batch["index"].tolist() for batch in batches]


def alive(loader):
    return [worker.pid for worker in loader._loader._iterator._workers if worker.is_alive()]


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
    loader = PaddleLoader(Numbers(), sampler, workers, timeout=20)
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
    loader = PaddleLoader(Numbers(), EvalSampler(10, 4, 2, 4), 2, timeout=20)
    assert indices(loader) == indices(loader) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_no_more_workers_than_batches():
    loader = PaddleLoader(Numbers(), EvalSampler(6, 4, 2, 4), 8, timeout=20)
    assert len(indices(loader)) == 2
    assert len(alive(loader)) == 2
    assert list(PaddleLoader(Numbers(), EvalSampler(1, 4, 2, 4, ranks=2, rank=1), 8, timeout=20)) == []


@pytest.mark.parametrize("at", [0, 1, 9])
def test_a_killed_worker_ends_in_an_error_at_once(at):
    loader = PaddleLoader(Numbers(32, die, at), EvalSampler(32, 4, 2, 4), 2, timeout=100)
    start = time.monotonic()
    with pytest.raises(LoaderError, match=r"reader process \d+ was killed by SIGKILL.*num_workers.*--shm-size"):
        list(loader)
    assert time.monotonic() - start < 5
    assert loader._loader._iterator is None


def test_a_worker_killed_while_nobody_waits_is_found_by_the_next_batch():
    loader = PaddleLoader(Numbers(400), EvalSampler(400, 4, 2, 4), 2, timeout=100)
    batches = iter(loader)
    next(batches)
    os.kill(alive(loader)[0], signal.SIGKILL)
    sum(range(10_000_000))  # the main thread is busy; nothing may be thrown into it here
    with pytest.raises(LoaderError, match="was killed by SIGKILL"):
        list(batches)


def test_a_worker_killed_between_epochs_ends_in_an_error():
    loader = PaddleLoader(Numbers(), EvalSampler(32, 4, 2, 4), 2, timeout=100)
    list(loader)
    os.kill(alive(loader)[0], signal.SIGKILL)
    start = time.monotonic()
    with pytest.raises(LoaderError, match="was killed by SIGKILL"):
        list(loader)
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("at", [0, 17])
def test_a_hanging_reader_ends_in_an_error_after_the_timeout(at):
    loader = PaddleLoader(Numbers(32, hang, at), EvalSampler(32, 4, 2, 4), 2, timeout=1)
    start = time.monotonic()
    with pytest.raises(LoaderError, match=r"no batch within 1 s \(data.timeout\)"):
        list(loader)
    assert 1 <= time.monotonic() - start < 6
    assert loader._loader._iterator is None


def test_a_slow_main_process_is_no_timeout():
    loader = PaddleLoader(Numbers(12), EvalSampler(12, 4, 2, 4), 2, timeout=1)
    for _ in loader:
        time.sleep(1.3)


def test_an_exception_in_a_worker_arrives_with_its_traceback():
    loader = PaddleLoader(Numbers(32, fail, 9), EvalSampler(32, 4, 2, 4), 2, timeout=20)
    with pytest.raises(LoaderError, match=r"(?s)a reader process failed.*in fail.*ValueError: a mistake in the code"):
        list(loader)
    with pytest.raises(ValueError, match="a mistake"):  # in the main process it is simply raised
        list(PaddleLoader(Numbers(32, fail, 9), EvalSampler(32, 4, 2, 4), 0, timeout=20))


def test_short_shared_memory_is_said_and_worked_around(monkeypatch, caplog):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(paddle_loader.shutil, "disk_usage", lambda path: usage(1 << 16, (1 << 16) - 100, 100))
    monkeypatch.setattr(paddle_loader.logger, "propagate", True)
    with caplog.at_level(logging.WARNING):
        loader = PaddleLoader(Numbers(), TrainSampler(32, 4, 2, 4), 2, timeout=20)
    assert "/dev/shm" in caplog.text and "--shm-size" in caplog.text
    assert not loader._loader.use_shared_memory
    order = np.random.default_rng([0, 0]).permutation(32).reshape(-1, 4).tolist()
    assert indices(loader) == order


def test_the_need_for_shared_memory_is_that_of_the_batches_on_their_way(monkeypatch):
    usage = namedtuple("usage", "total used free")
    keys_bytes = 16 * 8 * 64 * 64 * 3  # one batch of 16 clips
    for free, suffices in ((2 * 2 * keys_bytes, False), (3 * 2 * keys_bytes, True)):
        monkeypatch.setattr(paddle_loader.shutil, "disk_usage", lambda path, free=free: usage(free, 0, free))
        assert paddle_loader._shared_memory_suffices(TrainSampler(64, 16, 8, 64), 2) is suffices


def test_workers_stay_from_epoch_to_epoch():
    sampler = TrainSampler(32, 4, 2, 4)
    loader = PaddleLoader(Numbers(), sampler, 2, timeout=20)
    pids = []
    for epoch in range(3):
        sampler.seek(epoch)
        batches = iter(loader)
        for _ in sampler.steps():  # as the training loop takes them: without asking for one more at the end
            next(batches)
        pids.append(alive(loader))
        batches.close()
    assert pids[0] == pids[1] == pids[2] and len(pids[0]) == 2


@pytest.mark.parametrize("ending", ["break", "sys.exit(3)", "os.kill(os.getpid(), 9)", "os.abort()"])
def test_a_process_that_stops_in_mid_epoch_leaves_nothing_behind(ending):
    script = textwrap.dedent(f"""
        import os, sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}, {str(ROOT / "tests/loaders")!r}]
        from test_paddle_loader import Numbers, alive, hang
        from paddlevideo_fast.data.samplers import EvalSampler
        from paddlevideo_fast.loaders.paddle_loader import PaddleLoader
        loader = PaddleLoader(Numbers(400, hang, 40), EvalSampler(400, 4, 2, 4), 2, timeout=100)
        for number, batch in enumerate(loader):
            if number == 9:
                print(*alive(loader), flush=True)
                {ending}
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    status = {"break": 0, "sys.exit(3)": 3, "os.kill(os.getpid(), 9)": -9, "os.abort()": -6}[ending]
    assert done.returncode == status, done.stderr
    left = [Path(f"/proc/{pid}") for pid in done.stdout.splitlines()[0].split()]
    assert len(left) == 2
    if status < 0:  # shot: the workers look for their parent once a second
        deadline = time.monotonic() + 10
        while any(path.exists() for path in left) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert not [path for path in left if path.exists()]
    if status < 0:
        assert not [name for path in left for name in Path("/dev/shm").glob(f"paddle_{path.name}_*")]
    assert "Traceback (most recent call last):\n  File" not in done.stderr
