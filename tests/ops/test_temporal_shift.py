"""Temporal shift: values and gradients written out by hand, the native operator against the composed one."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from paddlevideo_fast.ops.temporal_shift import (
    resolve_temporal_shift,
    shifted_channels,
    temporal_shift_native,
    temporal_shift_reference,
)

SHIFTS = [temporal_shift_native, temporal_shift_reference]


@pytest.fixture
def default_dtype():
    before = paddle.get_default_dtype()
    yield paddle.set_default_dtype
    paddle.set_default_dtype(before)


def run(shift, x: np.ndarray, gradient: np.ndarray, num_frames: int, ratio: float) -> tuple[np.ndarray, np.ndarray]:
    tensor = paddle.to_tensor(x, stop_gradient=False)
    out = shift(tensor, num_frames, ratio)
    out.backward(paddle.to_tensor(gradient))
    return out.numpy(), tensor.grad.numpy()


@pytest.mark.parametrize("shift", SHIFTS)
def test_values_by_hand(shift):
    # One clip of three frames, five channels, one pixel; a fifth of the channels each way: channel 0 and channel 1.
    x = [[1, 2, 3, 4, 5], [11, 12, 13, 14, 15], [21, 22, 23, 24, 25]]
    expected = [[0, 12, 3, 4, 5], [1, 22, 13, 14, 15], [11, 0, 23, 24, 25]]
    upstream = [[31, 32, 33, 34, 35], [41, 42, 43, 44, 45], [51, 52, 53, 54, 55]]
    expected_gradient = [[41, 0, 33, 34, 35], [51, 32, 43, 44, 45], [0, 42, 53, 54, 55]]
    x, expected, upstream, expected_gradient = (
        np.array(values, "float32")[:, :, None, None] for values in (x, expected, upstream, expected_gradient)
    )
    out, gradient = run(shift, x, upstream, 3, 0.2)
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(gradient, expected_gradient)


@pytest.mark.parametrize("shift", SHIFTS)
def test_clips_do_not_mix(shift):
    x = np.ones((4, 4, 1, 1), "float32")  # two clips of two frames, a quarter of the channels each way
    x[2:] = 2
    expected = [[0, 1, 1, 1], [1, 0, 1, 1], [0, 2, 2, 2], [2, 0, 2, 2]]
    np.testing.assert_array_equal(shift(paddle.to_tensor(x), 2, 0.25).numpy()[:, :, 0, 0], expected)


@pytest.mark.parametrize("shift", SHIFTS)
def test_one_frame_loses_both_blocks(shift):
    out = shift(paddle.ones([2, 8, 1, 1]), 1, 0.25).numpy()[:, :, 0, 0]
    np.testing.assert_array_equal(out, [[0, 0, 0, 0, 1, 1, 1, 1]] * 2)


@pytest.mark.parametrize(
    ("num_frames", "channels", "ratio", "dtype"),
    [
        (8, 16, 0.125, "float32"),
        (2, 64, 0.2, "float32"),
        (4, 10, 0.3, "float64"),
        (3, 7, 0.49, "float64"),
        (16, 24, 1 / 3, "float32"),
        (5, 49, 1 / 49, "float32"),
        (1, 8, 0.125, "float32"),
        (4, 4, 0.125, "float32"),
    ],
)
def test_native_equals_reference(num_frames, channels, ratio, dtype):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2 * num_frames, channels, 3, 2)).astype(dtype)
    upstream = rng.normal(size=x.shape).astype(dtype)
    fast, slow = (run(shift, x, upstream, num_frames, ratio) for shift in SHIFTS)
    np.testing.assert_array_equal(fast[0], slow[0])
    np.testing.assert_array_equal(fast[1], slow[1])


def test_shifted_channels():
    assert shifted_channels(64, 0.125) == (8, 16)
    assert shifted_channels(64, 0.2) == (12, 25)
    assert shifted_channels(16, 0.125) == (2, 4)
    # In double precision 100 * 0.29 truncates to 28; the kernel works in single precision.
    assert shifted_channels(100, 0.29) == (29, 58)
    out = temporal_shift_native(paddle.ones([2, 100, 1, 1]), 2, 0.29).numpy()[:, :, 0, 0]
    assert (out[0] == 0).sum() == 29 and (out[1] == 0).sum() == 29


@pytest.mark.parametrize("shift", SHIFTS)
def test_wrong_shapes_and_ratios(shift):
    with pytest.raises(ValueError, match=r"expects \[N \* 4, C, H, W\], got shape \[6, 8, 2, 2\]"):
        shift(paddle.ones([6, 8, 2, 2]), 4)
    with pytest.raises(ValueError, match=r"got shape \[1, 8, 4, 2, 2\]"):
        shift(paddle.ones([1, 8, 4, 2, 2]), 4)
    with pytest.raises(ValueError, match="shift_ratio is 0.5"):
        shift(paddle.ones([4, 8, 2, 2]), 4, 0.5)


def test_resolution(default_dtype):
    assert resolve_temporal_shift("reference")[0] is temporal_shift_reference
    for impl in ("auto", "fast"):
        function, line = resolve_temporal_shift(impl)
        assert function is temporal_shift_native
        assert line == "native (paddle.nn.functional.temporal_shift)"
    with pytest.raises(ValueError, match="impl is 'native'; it must be 'auto', 'fast' or 'reference'"):
        resolve_temporal_shift("native")
    if paddle.get_device() != "cpu":
        return
    default_dtype("float16")
    function, line = resolve_temporal_shift("auto")
    assert function is temporal_shift_reference
    assert "takes float32, float64 on 'cpu', not float16" in line
    with pytest.raises(ValueError, match="impl='fast'.*not float16"):
        resolve_temporal_shift("fast")


def test_native_names_the_dtypes_it_takes():
    x = paddle.ones([2, 8, 1, 1]).astype("bfloat16")
    if not x.place.is_cpu_place():
        pytest.skip("the GPU's kernel takes bfloat16")
    with pytest.raises(TypeError, match="takes float32, float64 on the cpu, got paddle.bfloat16"):
        temporal_shift_native(x, 2)
    assert temporal_shift_reference(x, 2).dtype == paddle.bfloat16
