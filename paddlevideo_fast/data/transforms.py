"""Host-side transforms of uint8 clips: the plain references the faster paths are held to."""

from __future__ import annotations

import numpy as np

from paddlevideo_fast.data.video import CropBox


def crop_resize_flip(
    frames: np.ndarray, crop: CropBox | None = None, size: tuple[int, int] | None = None, flip: bool = False
) -> np.ndarray:
    """Cuts a box out of every frame, scales it with an antialiased bilinear filter and mirrors it.

    Args:
        frames: uint8 [T, H, W, 3].
        crop: Box in pixels, inside the picture; None takes the whole picture.
        size: (height, width) of the result; None keeps the size of the box. Where the box has this size already
            the pixels are copied, not resampled.
        flip: Mirror left and right, last.

    Returns:
        uint8 [T, height, width, 3], contiguous, never a view of ``frames``.

    Source: the filter is Pillow's ``Image.resize`` with ``BILINEAR``, applied to the cropped picture.
    """
    if crop is not None:
        x, y, width, height = crop
        frames = frames[:, y : y + height, x : x + width]
    if size is not None and tuple(frames.shape[1:3]) != tuple(size):
        frames = _resize(frames, size)
    return np.array(frames[:, :, ::-1] if flip else frames, order="C")


def _resize(frames: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    from PIL import Image

    height, width = size
    scaled = np.empty((len(frames), height, width, 3), np.uint8)
    for out, frame in zip(scaled, frames, strict=True):
        out[:] = Image.fromarray(np.ascontiguousarray(frame)).resize((width, height), Image.Resampling.BILINEAR)
    return scaled
