"""A decoder that hangs, crashes or eats memory costs one file; what decodes is what the reader alone gives."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from paddlevideo_fast.data.readers import CropBox, DamagedVideoError, IsolatedReader, Reader, VideoError, View
from paddlevideo_fast.data.readers import build_reader as build
from paddlevideo_fast.data.readers.isolated import Child, ChildLostError
from paddlevideo_fast.data.readers.reader import Video
from paddlevideo_fast.data.video import VideoInfo


class MoodyReader(Reader):
    """Does what the name of the source says, when it is opened or read."""

    name = "moody"

    def open(self, source):
        act(source if source.startswith("open") else "")
        return MoodyVideo(source)


class MoodyVideo(Video):
    info = VideoInfo(10, 25.0, 4, 2, 0.4)

    def __init__(self, source):
        self.source = source

    def pictures(self, indices):
        for index in indices:
            act(self.source if index == 5 else "")
            yield index, np.full((2, 4, 3), index, np.uint8)

    def close(self):
        pass


class LocalError(Exception):
    def __init__(self, a, b):
        super().__init__("two arguments")


def act(mood):
    if "sleep" in mood:
        time.sleep(1000)
    if "exit" in mood:
        os._exit(3)
    if "crash" in mood:
        os.kill(os.getpid(), signal.SIGSEGV)
    if "memory" in mood:
        np.ones(1 << 33, np.uint8)
    if "damage" in mood:
        raise DamagedVideoError(mood, "ends", 5)
    if "mistake" in mood:
        raise LocalError(1, 2)


@pytest.fixture(scope="module")
def reader():
    return IsolatedReader(MoodyReader(), timeout=1.5, max_memory=2 << 30)


@pytest.mark.parametrize(
    "mood, message",
    [
        ("sleep", "no answer within 1.5 s"),
        ("exit", r"crashed the process that read it \(exit status 3\)"),
        ("crash", r"crashed the process that read it \(SIGSEGV\)"),
        ("memory", "needs more memory than there is .max_memory=2147483648"),
    ],
)
def test_a_bad_file_is_named_and_the_next_one_read(reader, mood, message):
    start = time.monotonic()
    with pytest.raises(VideoError, match=f"open {mood}: .*{message}"):
        reader.open(f"open {mood}")
    with reader.open(f"read {mood}") as video:
        assert video.read([View([4])])[0][0, 0, 0, 0] == 4
        with pytest.raises(VideoError, match=f"read {mood}: .*{message}"):
            video.read([View([4, 5])])
        with pytest.raises(VideoError, match="open it again"):
            video.read([View([4])])
    assert reader.read("good", [5, 2])[:, 0, 0, 0].tolist() == [5, 2]
    assert time.monotonic() - start < 15


def test_errors_come_through(reader):
    with pytest.raises(DamagedVideoError, match="damage: ends") as error:
        reader.read("damage", [1, 5])
    assert error.value.decodable == 5
    with pytest.raises(RuntimeError, match="LocalError: two arguments"):  # it does not pickle
        reader.read("mistake", [5])
    with reader.open_first("damage", 5) as video:
        assert video.info == (5, 25.0, 4, 2, 0.2)
        assert [int(picture[0, 0, 0]) for picture in video.frames()] == [0, 1, 2, 3, 4]
        with pytest.raises(VideoError, match=r"frame 5 is outside 0\.\.4"):
            video.read([View([5])])


@pytest.mark.parametrize("name", ["pyav", "decord", "opencv"])
def test_same_bits_as_without(name, video_file, tmp_path, monkeypatch):
    alone, isolated = build(name), IsolatedReader(build(name))
    views = [View([39, 0, 7, 7], CropBox(3, 5, 40, 31), flip=True), View(np.arange(40))]
    monkeypatch.chdir(video_file("plain.mp4").parent)
    for source in ("plain.mp4", video_file("h264_b.avi"), video_file("vfr.mp4").read_bytes()):
        with alone.open(source) as one, isolated.open(source) as other:
            assert (one.info, one.damage, one.codec, one.container) == (
                other.info, other.damage, other.codec, other.container,
            )  # fmt: skip
            for size in (None, (24, 36)):
                wanted = views if size else views[:1]
                for a, b in zip(one.read(wanted, size), other.read(wanted, size), strict=True):
                    np.testing.assert_array_equal(a, b)
                    assert b.flags.writeable and b.dtype == np.uint8
            np.testing.assert_array_equal(list(one.frames()), list(other.frames()))
    with open(video_file("plain.mp4"), "rb") as file:
        np.testing.assert_array_equal(isolated.read(file, [3]), alone.read(file, [3]))
    with pytest.raises(VideoError, match="none.mp4: does not exist"):
        isolated.probe("none.mp4")
    with pytest.raises(VideoError, match="0 bytes in memory"):
        isolated.probe(io.BytesIO())


def test_children_are_kept_and_each_open_video_has_its_own(reader):
    numbers = set()
    for _ in range(3):
        with reader.open("a") as first, reader.open("b") as second:
            assert first.read([View([1])])[0].shape == second.read([View([2])])[0].shape
            numbers |= {first._child._process.pid, second._child._process.pid}
    assert len(numbers) == 2
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.read("c", [1]).shape == (1, 2, 4, 3)


def read_in_fork(reader, queue):
    queue.put(reader.read("good", [3])[0, 0, 0, 0] == 3)


def test_after_a_fork_and_from_a_daemon(reader):
    reader.read("good", [1])
    fork = multiprocessing.get_context("fork")
    queue = fork.Queue()
    process = fork.Process(target=read_in_fork, args=(reader, queue), daemon=True)
    process.start()
    assert queue.get(timeout=30)
    process.join(10)
    assert process.exitcode == 0 and reader.read("good", [2])[0, 0, 0, 0] == 2


def nap(seconds):
    time.sleep(seconds)
    return seconds


def die_holding_a_child(pipe):
    child = Child()
    child.call(30, nap, 0)
    pipe.send(child._process.pid)
    os.kill(os.getpid(), signal.SIGKILL)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_children_do_not_outlive_the_parent():
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    parent = fork.Process(target=die_holding_a_child, args=(theirs,))
    parent.start()
    pid = ours.recv()
    parent.join()
    deadline = time.monotonic() + 10
    while is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(pid)


def test_an_interrupted_call_does_not_answer_the_next():
    child = Child()
    assert child.call(30, nap, 0) == 0

    def interrupt(timeout):
        raise KeyboardInterrupt

    connection = child._connection
    child._connection = type(
        "Interrupted", (), {"send_bytes": connection.send_bytes, "poll": staticmethod(interrupt)}
    )()
    with pytest.raises(KeyboardInterrupt):
        child.call(30, nap, 0.01)
    assert child.call(30, nap, 0.02) == 0.02
    with pytest.raises(ChildLostError, match="no answer within 0.2 s"):
        child.call(0.2, nap, 5)
    child.close()
