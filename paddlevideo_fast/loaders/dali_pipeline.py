"""DALI's part: decode, cut, scale and mirror on the device, and hand the clips to Paddle without a copy."""

from __future__ import annotations

import atexit
import functools
import threading
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import paddle
from paddle.utils.dlpack import from_dlpack

from paddlevideo_fast.data.video import CropBox, VideoError
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
_NO_BOX = CropBox(0, 0, 1, 1)


class DaliDecoder:
    """The pipelines of one thread.

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
        self._pipelines: dict[int, Any] = {}  # by the clips of a video; 0 for pictures

    def decode(self, clips: Sequence[EncodedClip]) -> list[Pieces | VideoError]:
        """Decodes clips, of any sizes and numbers of frames; neighbours of one video share one decode.

        Returns:
            For each clip its pieces in order, in DALI's memory, or why it cannot be decoded.
        """
        outcomes: list[Pieces | VideoError] = [[] for _ in clips]
        folders = [number for number, clip in enumerate(clips) if clip.pictures]
        others = [number for number, clip in enumerate(clips) if not clip.pictures]
        videos = [list(group) for _, group in groupby(others, key=lambda number: id(clips[number].data[0]))]
        with _gate:
            found = self._run(0, [sample for number in folders for sample in _picture_samples(clips[number])])
            for number in folders:
                pictures, found = found[: len(clips[number].data)], found[len(clips[number].data) :]
                outcomes[number] = _assemble(clips[number], pictures)
            most = max(map(len, videos), default=0)
            found = self._run(most, [_video_sample([clips[number] for number in video], most) for video in videos])
            for video, views in zip(videos, found):
                for place, number in enumerate(video):
                    view = views if isinstance(views, RuntimeError) else views[place : place + 1]
                    outcomes[number] = _assemble(clips[number], [view])
        return outcomes

    def _run(self, num_views: int, samples: list[dict[str, np.ndarray]]) -> list[Pieces | RuntimeError]:
        """Decodes samples together and, where that fails, in halves down to the ones at fault."""
        if not samples:
            return []
        inputs = {name: [sample[name] for sample in samples] for name in samples[0]}
        try:
            outputs = self._pipeline(num_views, len(samples)).run(**inputs)
            return [[from_dlpack(tensor.__dlpack__()) for tensor in views] for views in zip(*outputs)]
        except RuntimeError as error:
            self._pipelines.pop(num_views)
            if len(samples) == 1:
                return [error]
        half = len(samples) // 2
        return self._run(num_views, samples[:half]) + self._run(num_views, samples[half:])

    def _pipeline(self, num_views: int, batch_size: int) -> Any:
        pipeline = self._pipelines.get(num_views)
        if pipeline is None or pipeline.max_batch_size < batch_size:
            with _building:
                pipeline = build_pipeline(num_views, batch_size, self.threads, self.device_id)
            self._pipelines[num_views] = pipeline
        return pipeline


@functools.cache
def _close_before_dali() -> None:
    """Has the gate closed when the process ends, before DALI ends its pipelines."""
    load_dali()  # registers its own end; the last that is registered comes first
    atexit.register(_gate.close)


def build_pipeline(num_views: int, batch_size: int, threads: int, device_id: int | None) -> Any:
    """Makes a DALI pipeline whose outputs are uint8 [t, height, width, 3] for each sample.

    Args:
        num_views: Clips, and outputs, of each video; 0 if the samples are pictures, of one output.
        batch_size: Most samples of a run.
        threads: DALI's threads.
        device_id: The GPU; None computes on the CPU.
    """
    from nvidia.dali import fn, pipeline_def, types

    device = "cpu" if device_id is None else "mixed"

    def feed(name: str, dtype: Any = types.INT32, ndim: int = 1) -> Any:
        return fn.external_source(name=name, dtype=dtype, ndim=ndim)

    def picture(data: Any) -> Any:
        pixels = fn.decoders.image_slice(
            data, feed("start0"), feed("shape0"), axes=(0, 1), normalized_anchor=False, normalized_shape=False,
            adjust_orientation=False, device=device,
        )  # fmt: skip
        return fn.expand_dims(finish(pixels, 0), axes=0, new_axis_names="F")

    def view(whole: Any, number: int) -> Any:
        frames = fn.sequence_rearrange(whole, new_order=feed(f"order{number}")) if num_views > 1 else whole
        return finish(fn.slice(frames, feed(f"start{number}"), feed(f"shape{number}"), axes=(1, 2)), number)

    def finish(pixels: Any, number: int) -> Any:
        scaled = fn.resize(pixels, size=feed(f"size{number}", types.FLOAT), antialias=True)
        return fn.flip(scaled, horizontal=feed(f"flip{number}", ndim=0))

    @pipeline_def(batch_size=batch_size, num_threads=threads, device_id=device_id, prefetch_queue_depth=1)
    def clips() -> Any:
        data = feed("data", types.UINT8)
        if num_views == 0:
            return picture(data)
        # Without the mode a frame beyond the end would be black instead of an error.
        whole = fn.decoders.video(data, frames=feed("frames"), pad_mode="none", device=device)
        return tuple(view(whole, number) for number in range(num_views))

    pipeline = clips()
    pipeline.build()
    return pipeline


def _picture_samples(clip: EncodedClip) -> list[dict[str, np.ndarray]]:
    shared = _geometry(0, clip.box, clip.size, clip.flip)
    return [{"data": data, **shared} for data in clip.data]


def _video_sample(clips: Sequence[EncodedClip], num_views: int) -> dict[str, np.ndarray]:
    """The inputs for the clips of one video; views it has fewer than others show one pixel, which nobody looks at."""
    frames, order = clips[0].frames, None
    if num_views > 1:
        frames, order = np.unique(np.concatenate([clip.frames for clip in clips]), return_inverse=True)
    sample, done = {"data": clips[0].data[0], "frames": frames}, 0
    for number in range(num_views):
        clip = clips[number] if number < len(clips) else None
        if order is not None:
            mine = order[done : done + len(clip.frames)] if clip else np.zeros(1)
            sample[f"order{number}"] = mine.astype(np.int32)
            done += len(mine)
        sample |= _geometry(number, clip.box, clip.size, clip.flip) if clip else _geometry(number)
    return sample


def _geometry(number: int, box: CropBox = _NO_BOX, size=(1, 1), flip=False) -> dict[str, np.ndarray]:
    return {
        f"start{number}": np.array([box.y, box.x], np.int32),
        f"shape{number}": np.array([box.height, box.width], np.int32),
        f"size{number}": np.array(size, np.float32),
        f"flip{number}": np.array(flip, np.int32),
    }


def _assemble(clip: EncodedClip, found: Sequence[Pieces | RuntimeError]) -> Pieces | VideoError:
    """Returns the pieces of a clip: the one of a video, or those of the pictures in the order of its frames."""
    expected = [1 if clip.pictures else len(clip.frames), *clip.size, 3]
    for place, pieces in enumerate(found):
        picture = f"{clip.pictures[place]}: " if clip.pictures else ""
        if isinstance(pieces, RuntimeError):
            return VideoError(clip.source, f"{picture}DALI cannot decode it: {_words(pieces)}")
        if pieces[0].shape != expected:
            return VideoError(clip.source, f"{picture}DALI made {pieces[0].shape} of it where {expected} belongs")
    return [found[place][0] for place in (clip.frames if clip.pictures else [0])]


def _words(error: RuntimeError) -> str:
    """Returns what went wrong from a message of DALI, which is long and tells how the pipeline was made."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    after = lines[lines.index("encountered:") + 1 :] if "encountered:" in lines else lines
    return after[0].strip(" :") if after else "no reason given"
