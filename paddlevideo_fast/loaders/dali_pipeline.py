"""DALI's part: decode, cut, scale and mirror on the device, and hand the clips to Paddle without a copy."""

from __future__ import annotations

import atexit
import functools
import threading
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import paddle
from paddle.utils.dlpack import from_dlpack

from paddlevideo_fast.data.video import VideoError
from paddlevideo_fast.loaders.dali_reader import EncodedClip, load_dali

Pieces = list[paddle.Tensor]  # uint8 [t, height, width, 3]; together, along the first axis, they are a clip

_building = threading.Lock()


class _Gate:
    """Counts the threads inside DALI, so that it is not torn down beneath them when the process ends.

    Args:
        patience: Seconds to wait for them then.
    """

    def __init__(self, patience: float):
        self._patience, self._inside, self._is_closed = patience, 0, False
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            if self._is_closed:
                raise SystemExit  # of this thread: nobody waits for its batch
            self._inside += 1

    def __exit__(self, *exception) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.wait_for(lambda: self._inside == 0, self._patience)


_gate = _Gate(10.0)


class DaliDecoder:
    """The pipelines of one thread, for videos with some number of clips each and for pictures.

    Frames, boxes and sizes are inputs, so neither multigrid nor a short last batch needs another pipeline; one is
    made anew only when a batch is larger than any before it, and after an error, since DALI gives it up then.

    Args:
        device: Paddle's name of the device, ``cpu`` or ``gpu:0``.
        threads: Of each pipeline, at least 1.
    """

    def __init__(self, device: str, threads: int):
        _close_before_dali()
        self.device_id = int(device.partition(":")[2] or 0) if device.startswith("gpu") else None
        self.threads = threads
        self._pipelines: dict[int, Any] = {}

    def decode(self, clips: Sequence[EncodedClip]) -> list[Pieces | VideoError]:
        """Decodes clips, of any sizes and numbers of frames.

        Neighbours of one video are decoded together, each of their frames once.

        Returns:
            For each clip its pieces in order, in DALI's memory, or why it cannot be decoded.
        """
        with _gate:
            return self._decode_videos(clips) if not clips[0].is_folder else []

@functools.cache
def _close_before_dali() -> None:
    """Has the gate closed when the process ends, before DALI ends its pipelines."""
    load_dali()  # registers its own end; the last that is registered comes first
    atexit.register(_gate.close)


def build_pipeline(is_folder: bool, batch_size: int, threads: int, device_id: int | None) -> Any:
    """Makes a DALI pipeline with one output, uint8 [t, height, width, 3] for each sample.

    Args:
        is_folder: The samples are pictures instead of videos.
        batch_size: Most samples of a run.
        threads: DALI's threads.
        device_id: The GPU; None computes on the CPU.
    """
    from nvidia.dali import fn, pipeline_def, types

    def feed(name: str, dtype: Any, ndim: int = 1) -> Any:
        return fn.external_source(name=name, dtype=dtype, ndim=ndim)

    device = "cpu" if device_id is None else "mixed"

    @pipeline_def(batch_size=batch_size, num_threads=threads, device_id=device_id, prefetch_queue_depth=1)
    def clips() -> Any:
        data, start, shape = feed("data", types.UINT8), feed("start", types.INT32), feed("shape", types.INT32)
        if is_folder:
            pictures = fn.decoders.image_slice(
                data, start, shape, axes=(0, 1), normalized_anchor=False, normalized_shape=False,
                adjust_orientation=False, device=device,
            )  # fmt: skip
        else:
            # Without the mode a frame beyond the end would be black instead of an error.
            whole = fn.decoders.video(data, frames=feed("frames", types.INT32), pad_mode="none", device=device)
            pictures = fn.slice(whole, start, shape, axes=(1, 2))
        scaled = fn.resize(pictures, size=feed("size", types.FLOAT), antialias=True)
        turned = fn.flip(scaled, horizontal=feed("flip", types.INT32, 0))
        return fn.expand_dims(turned, axes=0, new_axis_names="F") if is_folder else turned

    pipeline = clips()
    pipeline.build()
    return pipeline


def _samples(clip: EncodedClip) -> list[dict[str, np.ndarray]]:
    """The inputs of the pipeline: one sample for a video, one for each picture of a folder."""
    x, y, width, height = clip.box
    shared = {
        "start": np.array([y, x], np.int32),
        "shape": np.array([height, width], np.int32),
        "size": np.array(clip.size, np.float32),
        "flip": np.array(clip.flip, np.int32),
    }
    if clip.is_folder:
        return [{"data": data, **shared} for data in clip.data]
    return [{"data": clip.data[0], "frames": clip.frames, **shared}]


def _assemble(clip: EncodedClip, outputs: list[paddle.Tensor | RuntimeError]) -> Pieces | VideoError:
    expected = [1 if clip.is_folder else len(clip.frames), *clip.size, 3]
    for place, output in enumerate(outputs):
        picture = f"{clip.pictures[place]}: " if clip.is_folder else ""
        if isinstance(output, RuntimeError):
            return VideoError(clip.source, f"{picture}DALI cannot decode it: {_words(output)}")
        if output.shape != expected:
            return VideoError(clip.source, f"{picture}DALI made {output.shape} of it where {expected} belongs")
    return [outputs[place] for place in clip.frames] if clip.is_folder else outputs


def _words(error: RuntimeError) -> str:
    """Returns what went wrong from a message of DALI, which is long and tells how the pipeline was made."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    after = lines[lines.index("encountered:") + 1 :] if "encountered:" in lines else lines
    return after[0].strip(" :") if after else "no reason given"
