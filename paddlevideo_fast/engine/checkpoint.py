"""Training states and weights on disk, written so that a stop at any moment leaves the last good one in place."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import paddle

from paddlevideo_fast.engine.log import to_json
from paddlevideo_fast.models.weights.checksum import (
    ChecksumError,
    HashingFile,
    check_beside,
    check_trailer,
    describe,
)
from paddlevideo_fast.pickles import load_arrays

logger = logging.getLogger("paddlevideo_fast")


class CheckpointError(RuntimeError):
    """A training state cannot be used; the message names the file and, where there is one, an earlier state."""


def write_atomically(path: Path, write: Callable[[BinaryIO], None]) -> None:
    """Writes a file that appears whole or not at all: a temporary file, flushed to disk, then renamed.

    Raises:
        OSError: The disk is full or not writable; a file already at ``path`` is untouched.
    """
    with _written(path, write) as temporary:
        os.replace(temporary, path)


@contextlib.contextmanager
def _written(path: Path, write: Callable[[BinaryIO], None]) -> Iterator[Path]:
    """Writes a temporary file beside a path and flushes it to disk, to be renamed inside."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _naming(path), open(temporary, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, f"{error.strerror} (the file before it is as it was)", str(path)) from error


class Checkpoints:
    """The checkpoints of one run: the newest ``keep`` training states, and weights.

    A state file ends with the SHA-256 of what comes before, so that a damaged one is recognised.

    Args:
        folder: ``output_dir/checkpoints``; made when first written to.
        keep: Training states to keep.
    """

    def __init__(self, folder: Path, keep: int):
        self.folder, self.keep = folder, keep

    def save_state(self, step: int, state: Mapping[str, Any]) -> Path:
        """Writes the training state of an optimiser step and removes the oldest ones beyond ``keep``.

        Args:
            step: Optimiser steps done.
            state: Nested dicts and lists of numbers, strings and tensors.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step_{step:08d}.pdstate"

        def write(file: BinaryIO) -> None:
            hashing = HashingFile(file)
            pickle.dump(to_numpy(state), hashing, protocol=4)
            file.write(hashing.trailer())

        write_atomically(path, write)
        for old in self.states()[: -self.keep]:
            old.unlink()
        return path

    def save_weights(self, name: str, weights: Mapping[str, paddle.Tensor], facts: Mapping[str, Any]) -> Path:
        """Writes ``name.pdparams``, which ``paddle.load`` reads, and ``name.json`` with facts and its checksum.

        A stop between the two renames leaves the new weights without facts, never with those of others.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path, beside = self.folder / f"{name}.pdparams", self.folder / f"{name}.json"
        buffer = io.BytesIO()  # paddle.save takes no open file
        paddle.save(dict(weights), buffer)
        data = buffer.getbuffer()
        text = to_json({**facts, "weights": describe(data)}, indent=2).encode()
        with (
            _written(path, lambda file: file.write(data)) as new_weights,
            _written(beside, lambda file: file.write(text)) as new_facts,
        ):
            beside.unlink(missing_ok=True)
            os.replace(new_weights, path)
            os.replace(new_facts, beside)
        return path

    def states(self) -> list[Path]:
        """Returns the training states, oldest first."""
        return sorted(self.folder.glob("step_*.pdstate"))

    def load_newest(self) -> dict[str, Any]:
        """Reads the newest training state.

        Raises:
            CheckpointError: There is none, or it is damaged; the one before it is offered by name. Or the best weights
                so far, which the run would leave as its result, are damaged.
        """
        states = self.states()
        if not states:
            raise CheckpointError(f"{self.folder.absolute()}: no training state (step_*.pdstate) to resume from")
        try:
            state = read_state(states[-1])
        except CheckpointError as error:
            before = f"; to go on from the one before it, delete it: {states[-2].name} is next" if states[1:] else ""
            raise CheckpointError(f"{error}{before}") from None
        try:
            check_beside(self.folder / "best.pdparams")
        except ChecksumError as error:
            raise CheckpointError(f"{error}; or delete both to train on without the best weights so far") from None
        logger.info("resuming from %s", states[-1].absolute())
        return state


def read_state(path: Path) -> dict[str, Any]:
    """Reads one training state; arrays come back as NumPy.

    Raises:
        CheckpointError: The file is damaged or holds something else.
    """
    try:
        check_trailer(path)
        with open(path, "rb") as file:
            return load_arrays(file)
    except ChecksumError as error:
        raise CheckpointError(str(error)) from None
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error


def to_numpy(state: Any) -> Any:
    """Copies nested containers with every tensor as a NumPy array."""
    if isinstance(state, Mapping):
        return {key: to_numpy(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [to_numpy(value) for value in state]
    return np.asarray(state.numpy()) if isinstance(state, paddle.Tensor) else state


def optimizer_state(optimizer, model: paddle.nn.Layer) -> dict[str, Any]:
    """Returns an optimiser's state with the model's own parameter names in the place of Paddle's generated ones.

    Generated names such as ``conv2d_7.w_0`` depend on what else the process has built before.
    """
    return _rename(optimizer.state_dict(), {p.name: name for name, p in model.named_parameters()})


def set_optimizer_state(optimizer, model: paddle.nn.Layer, state: Mapping[str, Any]) -> None:
    """Restores what :func:`optimizer_state` returned."""
    renamed = _rename(state, {name: p.name for name, p in model.named_parameters()})
    optimizer.set_state_dict(_to_tensors(renamed))


def _rename(state: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    renamed = {}
    for key, value in state.items():
        if isinstance(value, Mapping):
            renamed[key] = _rename(value, names)
            continue
        old = max((name for name in names if key == name or key.startswith(f"{name}_")), key=len, default="")
        renamed[names.get(old, "") + key[len(old) :]] = value
    return renamed


def _to_tensors(state: Any) -> Any:
    if isinstance(state, Mapping):
        return {key: _to_tensors(value) for key, value in state.items()}
    return paddle.to_tensor(state) if isinstance(state, np.ndarray) else state
