"""Temporal shift: Paddle's native operator beside the same thing composed from padding, slices and a concatenation.

Both move the first block of channels one frame later (output t holds input t-1) and the second block one frame
earlier (output t holds input t+1); frames that would come from outside the clip are zero. The authors' own code
(mit-han-lab, `ops/temporal_shift.py`) has the two directions the other way round: weights trained there fit here once
the two blocks of channels are swapped, or if the clip runs backwards.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import paddle
from paddle.nn import functional as F

NATIVE_DTYPES = {
    "cpu": (paddle.float32, paddle.float64),
    "gpu": (paddle.float32, paddle.float64, paddle.float16, paddle.bfloat16),
}


def shifted_channels(num_channels: int, shift_ratio: float) -> tuple[int, int]:
    """Return where the two shifted blocks of channels end.

    Args:
        num_channels: Channels of the feature map.
        shift_ratio: Share of the channels in each of the two blocks, above 0 and below 0.5.

    Returns:
        `(c1, c2)`: channels [0, c1) come from the frame before, [c1, c2) from the frame after.

    Source: the kernel `temporal_shift` of Paddle, which multiplies in single precision and truncates.
    """
    share = np.float32(num_channels) * np.float32(shift_ratio)
    return int(share), int(np.float32(2.0) * share)


def temporal_shift_native(x: paddle.Tensor, num_frames: int, shift_ratio: float = 0.125) -> paddle.Tensor:
    """Shift channels in time with `paddle.nn.functional.temporal_shift`: one kernel, one pass over the memory.

    Args:
        x: [N * num_frames, C, H, W]; float32 or float64 on the CPU, float16 and bfloat16 too on the GPU.
        num_frames: Frames of a clip, which lie next to one another in the first dimension.
        shift_ratio: Share of the channels shifted each way, above 0 and below 0.5.

    Returns:
        Tensor of the shape and dtype of `x`.

    Raises:
        ValueError: If the shape or the ratio does not fit.
        TypeError: If the device's kernel does not take the dtype of `x`.

    Source: Lin et al., "TSM: Temporal Shift Module for Efficient Video Understanding", arXiv 1811.08383, section 3.
    """
    if paddle.in_dynamic_mode():
        _check_shape(x, num_frames, shift_ratio)
        device = "gpu" if x.place.is_gpu_place() else "cpu"
        if x.dtype not in NATIVE_DTYPES[device]:
            raise TypeError(
                f"the native temporal shift takes {_names(NATIVE_DTYPES[device])} on the {device}, got {x.dtype}; "
                f"build the model with impl='reference'"
            )
    return F.temporal_shift(x, num_frames, shift_ratio)


def temporal_shift_reference(x: paddle.Tensor, num_frames: int, shift_ratio: float = 0.125) -> paddle.Tensor:
    """Shift channels in time with padding, slices and a concatenation, on any device and in any dtype it pads.

    Args:
        x: [N * num_frames, C, H, W].
        num_frames: Frames of a clip, which lie next to one another in the first dimension.
        shift_ratio: Share of the channels shifted each way, above 0 and below 0.5.

    Returns:
        Tensor of the shape and dtype of `x`.

    Raises:
        ValueError: If the shape or the ratio does not fit.

    Source: as `temporal_shift_native`, whose values and gradients it repeats.
    """
    if paddle.in_dynamic_mode():
        _check_shape(x, num_frames, shift_ratio)
    c1, c2 = shifted_channels(x.shape[1], shift_ratio)
    clips = paddle.unflatten(x, 0, [-1, num_frames])  # [N, T, C, H, W]
    padded = F.pad(clips, [0, 0, 1, 1, 0, 0, 0, 0, 0, 0])  # [N, T + 2, C, H, W]: an empty frame at both ends
    before = padded[:, :-2, :c1]
    after = padded[:, 2:, c1:c2]
    return paddle.concat([before, after, padded[:, 1:-1, c2:]], axis=2).flatten(0, 1)


def resolve_temporal_shift(impl: str) -> tuple[Callable[..., paddle.Tensor], str]:
    """Choose the temporal shift for the current device and default dtype, once, when a model is built.

    Args:
        impl: "fast" for the native operator, "reference" for the composed one, "auto" for the native one if it can.

    Returns:
        The function, and a line for the log that names it and, where "auto" could not take the native one, why.

    Raises:
        ValueError: If `impl` is another word, or "fast" cannot be had.
    """
    if impl not in ("auto", "fast", "reference"):
        raise ValueError(f"impl is {impl!r}; it must be 'auto', 'fast' or 'reference'")
    reference = "reference (padding, slices, concatenation)"
    if impl == "reference":
        return temporal_shift_reference, f"{reference}, as asked"
    device = paddle.get_device().partition(":")[0]
    dtype = paddle.get_default_dtype()
    supported = NATIVE_DTYPES.get(device, ())
    if dtype in _names(supported).split(", "):
        return temporal_shift_native, "native (paddle.nn.functional.temporal_shift)"
    reason = f"the native temporal shift takes {_names(supported) or 'no dtype'} on {device!r}, not {dtype}"
    if impl == "fast":
        raise ValueError(f"impl='fast': {reason}; use impl='auto' or 'reference'")
    return temporal_shift_reference, f"{reference}: {reason}"


def _check_shape(x: paddle.Tensor, num_frames: int, shift_ratio: float) -> None:
    if x.ndim != 4 or num_frames < 1 or x.shape[0] % num_frames:
        raise ValueError(f"temporal shift expects [N * {num_frames}, C, H, W], got shape {list(x.shape)}")
    if not 0 < shift_ratio < 0.5:
        raise ValueError(f"shift_ratio is {shift_ratio}; it must lie above 0 and below 0.5")


def _names(dtypes: tuple[paddle.dtype, ...]) -> str:
    return ", ".join(str(dtype).removeprefix("paddle.") for dtype in dtypes)
