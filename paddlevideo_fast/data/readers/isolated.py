"""Reading in a process of its own: a decoder that hangs or crashes costs one file, not the run."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pickle
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from typing import Any

import numpy as np

from paddlevideo_fast.data.readers.reader import Reader, Video
from paddlevideo_fast.data.video import FrameFolder, Source, VideoError, View

FRAMES_AT_ONCE = 16
# A child that hangs after its parent was killed ends itself this many seconds after the parent would have ended it.
GRACE = 5


class ChildLostError(RuntimeError):
    """A child hung or died; the message says which, and a new one takes the next call."""


class Child:
    """A Python process that runs functions for this one, and is replaced when it hangs or dies.

    It is a fresh interpreter, not a fork: a fork of a process with decoder or framework threads can dead-lock, and it
    would hold the parent's memory; ``multiprocessing`` allows no child to the daemonic workers of a loader at all.
    Starting takes about 0.2 s, once. Arguments and results go through a socket pair (1 ms for a clip of 5 MB), which
    needs no room in /dev/shm.

    Args:
        max_memory: Bytes of address space the child may use; None sets no limit.
    """

    def __init__(self, max_memory: int | None = None):
        self._max_memory = max_memory
        self._process: subprocess.Popen | None = None
        self._owner = -1
        self._end: Callable[[], None] = _nothing

    def call(self, timeout: float, function: Callable[..., Any], *arguments: Any) -> Any:
        """Runs a function in the child and returns its result.

        Args:
            timeout: Seconds until the child counts as hanging and is killed.
            function: Found by its name in a module, as pickle does.
            *arguments: Pickled for the child.

        Raises:
            ChildLostError: No answer in time, or the child died.
            Exception: Whatever the function raises.
        """
        if not self.alive:
            self._start()
        try:
            _send(self._connection, (math.ceil(timeout) + GRACE, function, arguments))
            if not self._connection.poll(timeout):
                self.close()
                raise ChildLostError(f"no answer within {timeout:g} s; its decoder hangs, or timeout is too short")
            done, result = _receive(self._connection)
        except (EOFError, ConnectionError) as error:
            status = _wait(self._process)
            self.close()
            raise ChildLostError(f"its decoder crashed the process that read it ({status})") from error
        except BaseException:  # Ctrl-C: the answer that is still to come must not be taken for that to the next call
            self.close()
            raise
        if not done:
            raise result
        return result

    @property
    def alive(self) -> bool:
        """Whether a child of this process is there to take a call."""
        return self._owner == os.getpid() and self._process.poll() is None

    def _start(self) -> None:
        self.close()
        self._connection, theirs = Pipe()
        code = (
            f"import sys; sys.path[:] = {sys.path!r}\n"
            f"from {__name__} import serve; serve({theirs.fileno()}, {self._max_memory!r})"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            process_group=0,  # what a launcher or Ctrl-C sends to the group is for the parent to act on
        )
        theirs.close()
        self._owner = os.getpid()
        self._end = weakref.finalize(self, _end, self._process, self._connection, self._owner)

    def close(self) -> None:
        """Ends the child; the next call starts another."""
        self._end()
        self._end, self._owner = _nothing, -1


def map_in_children(
    function: Callable[..., Any], arguments: Sequence[tuple], workers: int, timeout: float
) -> Iterator[tuple[int, Any]]:
    """Calls a function for each tuple of arguments in several children at once.

    Args:
        function: Runs in a child; found by its name in a module.
        arguments: Of each call.
        workers: Children.
        timeout: Seconds a call may take.

    Yields:
        (index into ``arguments``, what the call returned, or the exception it raised) as the calls end; a child that
        hangs or dies gives a ChildLostError, and the other calls go on.
    """
    every = [Child() for _ in range(max(1, min(workers, len(arguments))))]
    idle: SimpleQueue[Child] = SimpleQueue()
    for child in every:
        idle.put(child)

    def call(index: int) -> tuple[int, Any]:
        child = idle.get()
        try:
            return index, child.call(timeout, function, *arguments[index])
        except Exception as error:  # the caller decides what one failure means
            return index, error
        finally:
            idle.put(child)

    pool = ThreadPoolExecutor(len(every))
    try:
        for future in as_completed([pool.submit(call, index) for index in range(len(arguments))]):
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for child in every:
            child.close()


def _nothing() -> None:
    pass


def _end(process: subprocess.Popen, connection: Connection, owner: int) -> None:
    if owner == os.getpid():  # in a fork the child is not ours
        process.kill()  # before the connection is closed, so that a thread that waits for an answer wakes up
        process.wait()
    connection.close()


def _wait(process: subprocess.Popen) -> str:
    try:
        status = process.wait(GRACE)
    except subprocess.TimeoutExpired:
        return "it closed its connection"
    return signal.Signals(-status).name if status < 0 else f"exit status {status}"


def _send(connection: Connection, value: Any) -> None:
    """Sends a value; the memory of arrays goes as it is, without a copy."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    connection.send_bytes(pickle.dumps((head, [len(part) for part in raw])))
    for part in raw:
        connection.send_bytes(part)


def _receive(connection: Connection) -> Any:
    head, sizes = pickle.loads(connection.recv_bytes())
    buffers = [np.empty(size, np.uint8) for size in sizes]
    for buffer in buffers:
        connection.recv_bytes_into(buffer)
    return pickle.loads(head, buffers=buffers)


def serve(descriptor: int, max_memory: int | None) -> None:
    """Runs in the child: answers calls until the parent closes the connection or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    if max_memory is not None:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (max_memory, max_memory))
    connection = Connection(descriptor)
    while True:
        try:
            seconds, function, arguments = _receive(connection)
        except (EOFError, ConnectionError):
            return
        signal.alarm(seconds)  # its default action ends the process, inside a decoder too
        try:
            answer = (True, function(*arguments))
        except Exception as error:  # the parent raises it
            answer = (False, _portable(error))
        _send(connection, answer)
        signal.alarm(0)


def _portable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an exception class may fail to pickle in any way
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


class IsolatedReader(Reader):
    """Reads with another reader, in a child process that is kept between reads.

    A read that takes longer than the limit, or kills the child, raises VideoError for that video; the next one has a
    new child. Videos open at the same time have a child each.

    Args:
        reader: Does the reading.
        timeout: Seconds that opening a video, or one read from it, may take.
        max_memory: Bytes of address space a child may use; None sets no limit.
    """

    def __init__(self, reader: Reader, timeout: float = 60.0, max_memory: int | None = None):
        self.reader, self.timeout, self.max_memory = reader, timeout, max_memory
        self.name, self.package, self.may_refuse = reader.name, reader.package, reader.may_refuse
        self._idle: list[Child] = []

    def open(self, source: Source) -> IsolatedVideo:
        return IsolatedVideo(self, source, None)

    def open_first(self, source: Source, num_frames: int) -> IsolatedVideo:
        return IsolatedVideo(self, source, num_frames)

    def take_child(self) -> Child:
        return self._idle.pop() if self._idle else Child(self.max_memory)

    def return_child(self, child: Child) -> None:
        self._idle.append(child)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_idle": []}


class IsolatedVideo(Video):
    """A video that is open in a child process."""

    def __init__(self, reader: IsolatedReader, source: Source, num_frames: int | None):
        self.source, self._reader = source, reader
        self._child: Child | None = reader.take_child()
        if not isinstance(source, (str, os.PathLike, FrameFolder)) and hasattr(source, "read"):
            source.seek(0)
            source = source.read()
        facts = self._call(_open, pickle.dumps(reader.reader), source, num_frames, os.getcwd())
        self.info, self.damage, self.codec, self.container = facts

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._child is None:
            raise VideoError(self.source, "the process that read it is gone, or the video is closed; open it again")
        try:
            return self._child.call(self._reader.timeout, function, *arguments)
        except ChildLostError as error:
            self.close()
            raise VideoError(self.source, str(error)) from error
        except MemoryError as error:
            self.close()
            limit = self._reader.max_memory
            raise VideoError(self.source, f"it needs more memory than there is (max_memory={limit})") from error
        except BaseException:
            if function is _open:
                self.close()
            raise

    def keep(self, num_frames: int) -> None:
        super().keep(num_frames)
        self._call(_keep, num_frames)

    def read(self, views: Sequence[View], size: tuple[int, int] | None = None) -> list[np.ndarray]:
        return self._call(_read, views, size)

    def pictures(self, indices: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        for start in range(0, len(indices), FRAMES_AT_ONCE):
            wanted = list(indices[start : start + FRAMES_AT_ONCE])
            yield from zip(wanted, self.read([View(wanted)])[0], strict=True)

    def close(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        if child.alive:
            with contextlib.suppress(ChildLostError):
                child.call(self._reader.timeout, _close)
        self._reader.return_child(child)


# What follows runs in the child, which has at most one video open.
_video: Video | None = None


@functools.lru_cache(maxsize=4)
def load_reader(data: bytes) -> Reader:
    """Returns the reader that was pickled: the same one for each call, as it logs and counts once what repeats."""
    return pickle.loads(data)


def _open(reader: bytes, source: Source, num_frames: int | None, folder: str) -> tuple:
    global _video
    os.chdir(folder)  # a relative path is one from where the parent is
    inner = load_reader(reader)
    _video = inner.open(source) if num_frames is None else inner.open_first(source, num_frames)
    return _video.info, _video.damage, _video.codec, _video.container


def _close() -> None:
    global _video
    if _video is not None:
        _video.close()
    _video = None


def _keep(num_frames: int) -> None:
    _video.keep(num_frames)


def _read(views: Sequence[View], size: tuple[int, int] | None) -> list[np.ndarray]:
    return _video.read(views, size)
