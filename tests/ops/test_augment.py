"""Frozen pictures come from torchvision 0.29 (functional.adjust_*, on floats), frozen targets from timm 1.0.31."""

from __future__ import annotations

import colorsys

import numpy as np
import paddle
import pytest

from paddlevideo_fast.data.augment_draws import MixDraw, draw_erase, draw_mix
from paddlevideo_fast.ops.augment import (
    DeviceAugment,
    color_jitter,
    mix_clips,
    mix_targets,
    normalize,
    random_erase,
    soft_targets,
)

MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
FACTORS = np.array([[1.3, 0.7, 1.4, 0.1], [0.6, 1.5, 0.2, -0.4], [1.0, 1.2, 1.8, 0.5]], np.float32)

# Rows 1 of all frames after all four, and two pixels of frames 1 after each alone: [N, 3, ...].
JITTERED_ROW = [
    [
        [[68.509, 78.372, 51.94, 111.643], [9.498, 65.962, 225.112, 248.24]],
        [[53.128, 98.638, 239.414, 234.143], [229.9, 240.696, 32.738, 69.88]],
        [[255.0, 244.188, 105.821, 154.567], [27.079, 84.171, 51.084, 110.648]],
    ],
    [
        [[118.947, 184.737, 38.522, 67.8], [38.131, 60.678, 95.21, 60.331]],
        [[88.837, 184.737, 64.133, 93.0], [60.515, 89.262, 122.39, 42.311]],
        [[116.052, 184.737, 62.169, 87.24], [65.691, 89.838, 119.798, 49.519]],
    ],
    [
        [[0.0, 255.0, 255.0, 237.645], [255.0, 0.0, 221.674, 203.16]],
        [[255.0, 150.013, 94.232, 0.0], [122.804, 255.0, 0.0, 10.713]],
        [[89.418, 0.0, 0.0, 237.645], [0.0, 0.0, 255.0, 255.0]],
    ],
]
JITTERED_ALONE = [
    [
        [[127.4, 165.1], [235.3, 255.0], [10.4, 76.7]],
        [[117.0, 134.4], [13.2, 37.2], [63.0, 93.6]],
        [[36.0, 255.0], [119.0, 0.0], [202.0, 255.0]],
    ],  # brightness
    [
        [[107.834, 128.134], [165.934, 193.934], [44.834, 80.534]],
        [[229.667, 255.0], [0.0, 30.167], [94.667, 171.167]],
        [[17.854, 255.0], [117.454, 0.0], [217.054, 255.0]],
    ],  # contrast
    [
        [[82.62, 108.035], [198.82, 239.635], [0.0, 12.835]],
        [[105.536, 141.705], [70.936, 109.305], [87.536, 128.105]],
        [[0.0, 255.0], [131.287, 0.0], [255.0, 255.0]],
    ],  # saturation
    [
        [[8.0, 59.0], [181.0, 221.0], [21.8, 88.2]],
        [[22.0, 62.0], [174.2, 220.8], [195.0, 224.0]],
        [[202.0, 0.0], [119.0, 255.0], [36.0, 0.0]],
    ],  # hue
]


def pattern():
    """uint8 [3, 2, 3, 4, 3]: a fixed pattern with greys, black, white and ties between colours."""
    n, t, h, w, c = np.meshgrid(*[np.arange(size) for size in (3, 2, 3, 4, 3)], indexing="ij")
    clip = ((n * 97 + t * 61 + h * 37 + w * 29 + c * 83 + h * w * c * 11) % 256).astype(np.uint8)
    clip[0, 0, 0, 0], clip[0, 0, 0, 1], clip[1, 0, 1, 1] = 77, 0, 255
    clip[1, 1, 2, 2], clip[2, 0, 0, 0], clip[2, 1, 1, 1] = (200, 200, 10), (10, 200, 200), (255, 0, 255)
    return clip


def noise_clip(shape=(3, 2, 6, 5, 3), seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def channels_first(clip):
    return np.asarray(clip, np.float64).transpose(0, 4, 1, 2, 3)


def tensors(batch):
    return {key: tensors(value) if isinstance(value, dict) else paddle.to_tensor(value) for key, value in batch.items()}


def normalize_reference(clip):
    out = np.zeros((clip.shape[0], 3, *clip.shape[1:4]))
    for colour in range(3):
        out[:, colour] = (clip[..., colour].astype(np.float64) - MEAN[colour]) / STD[colour]
    return out


def jitter_reference(clip, factors):
    """One picture and one pixel at a time, the hue by the standard library."""
    out = clip.astype(np.float64)
    for picture, (brightness, contrast, saturation, turn) in zip(out, factors.astype(np.float64)):
        for frame in picture:
            frame[:] = np.clip(frame * brightness, 0, 255)
            frame[:] = np.clip(contrast * frame + (1 - contrast) * (frame @ [0.2989, 0.587, 0.114]).mean(), 0, 255)
            grey = (frame @ [0.2989, 0.587, 0.114])[..., None]
            frame[:] = np.clip(saturation * frame + (1 - saturation) * grey, 0, 255)
            for pixel in frame.reshape(-1, 3):
                hue, chroma, value = colorsys.rgb_to_hsv(*(pixel / 255))
                pixel[:] = np.multiply(colorsys.hsv_to_rgb((hue + turn) % 1.0, chroma, value), 255)
    return channels_first(out)


def erase_reference(clip, boxes, value):
    out = clip.copy()
    height, width = clip.shape[-2:]
    for n, (left, top, box_width, box_height) in enumerate(boxes):
        x, y = int(np.floor(left * width + np.float32(0.5))), int(np.floor(top * height + np.float32(0.5)))
        w, h = (int(np.floor(s * k + np.float32(0.5))) for s, k in ((box_width, width), (box_height, height)))
        out[n, :, :, y : y + h, x : x + w] = value
    return out


def mix_reference(clip, mix):
    out = clip.copy()
    left, top, right, bottom = mix.cut_box(*clip.shape[-2:])
    for n, partner in enumerate(mix.partner):
        if mix.kind == "mixup":
            out[n] = mix.lam * clip[n] + (1 - mix.lam) * clip[partner]
        elif mix.kind == "cutmix":
            for frame in range(clip.shape[2]):
                out[n, :, frame, top:bottom, left:right] = clip[partner, :, frame, top:bottom, left:right]
    return out


def test_normalize():
    clip = noise_clip()
    result = normalize(paddle.to_tensor(clip), MEAN, STD)
    assert result.dtype == paddle.float32 and result.shape == [3, 3, 2, 6, 5]
    np.testing.assert_allclose(result.numpy(), normalize_reference(clip), atol=1e-6)


def test_without_draws_the_clip_is_normalised_and_no_more():
    clip = noise_clip()
    batch = tensors({"clip": clip, "target": np.array([2, 0, 1]), "index": np.array([5, 6, 7]), "aug": {}})
    result = DeviceAugment(MEAN, STD)(batch)
    np.testing.assert_allclose(result["clip"].numpy(), normalize_reference(clip), atol=1e-6)
    assert result["target"].tolist() == [2, 0, 1] and result["index"].tolist() == [5, 6, 7]
    assert set(result) == {"clip", "target", "index"}
    assert set(batch) == {"clip", "target", "index", "aug"} and np.array_equal(batch["clip"].numpy(), clip)
    assert set(DeviceAugment(MEAN, STD)({"clip": batch["clip"]})) == {"clip"}


def test_color_jitter_against_torchvision():
    result = color_jitter(paddle.to_tensor(pattern()), paddle.to_tensor(FACTORS))
    np.testing.assert_allclose(result[:, :, :, 1].numpy(), JITTERED_ROW, atol=2e-3)


@pytest.mark.parametrize("number", range(4))
def test_each_jitter_alone_against_torchvision(number):
    factors = np.tile(np.float32([1, 1, 1, 0]), (3, 1))
    factors[:, number] = FACTORS[:, number]
    result = color_jitter(paddle.to_tensor(pattern()), paddle.to_tensor(factors))
    np.testing.assert_allclose(result[:, :, 1, 1, :2].numpy(), JITTERED_ALONE[number], atol=2e-3)


@pytest.mark.parametrize("clip", [pattern(), noise_clip()], ids=["pattern", "noise"])
def test_color_jitter_against_loops(clip):
    result = color_jitter(paddle.to_tensor(clip), paddle.to_tensor(FACTORS))
    np.testing.assert_allclose(result.numpy(), jitter_reference(clip, FACTORS), atol=5e-3)


def test_color_jitter_identity_and_without_hue():
    clip = noise_clip()
    nothing = paddle.to_tensor(np.tile(np.float32([1, 1, 1, 0]), (3, 1)))
    np.testing.assert_allclose(color_jitter(paddle.to_tensor(clip), nothing).numpy(), channels_first(clip), atol=1e-3)
    without = color_jitter(paddle.to_tensor(clip), paddle.to_tensor(FACTORS), hue=False).numpy()
    np.testing.assert_allclose(without, jitter_reference(clip, FACTORS * np.float32([1, 1, 1, 0])), atol=5e-3)


def test_frames_share_the_draws():
    clip = np.repeat(noise_clip((3, 1, 6, 5, 3)), 4, axis=1)
    result = color_jitter(paddle.to_tensor(clip), paddle.to_tensor(FACTORS)).numpy()
    assert np.array_equal(result, np.repeat(result[:, :, :1], 4, axis=2))


BOXES = np.float32([[0.2, 0.1, 0.5, 0.4], [0, 0, 0, 0], [0.61, 0.53, 0.39, 0.47]])


def test_erase_with_zeros():
    clip = normalize_reference(noise_clip((3, 2, 11, 13, 3))).astype(np.float32)
    result = random_erase(paddle.to_tensor(clip), paddle.to_tensor(BOXES), "zero").numpy()
    assert np.array_equal(result, erase_reference(clip, BOXES, 0))
    assert np.array_equal(result[1], clip[1]) and (result[0, :, :, 1:5, 3:10] == 0).all()


def test_erase_with_random_boxes():
    rng = np.random.default_rng(0)
    boxes = np.stack([draw_erase(rng, 0.8) for _ in range(32)])
    clip = np.ones((32, 3, 2, 14, 14), np.float32)
    result = random_erase(paddle.to_tensor(clip), paddle.to_tensor(boxes), "zero").numpy()
    assert np.array_equal(result, erase_reference(clip, boxes, 0))


def test_erase_with_noise():
    paddle.seed(3)
    clip = np.full((3, 3, 8, 40, 40), 50, np.float32)
    result = random_erase(paddle.to_tensor(clip), paddle.to_tensor(BOXES), "noise").numpy()
    inside = erase_reference(clip, BOXES, 0) == 0
    assert np.array_equal(result != 50, inside)
    noise = result[inside]
    assert abs(noise.mean()) < 0.02 and noise.std() == pytest.approx(1, abs=0.02)
    assert not np.array_equal(result[0, :, 0], result[0, :, 1])  # frames share the box, not the noise


@pytest.mark.parametrize("kind", ["mixup", "cutmix", "none"])
@pytest.mark.parametrize("num_clips", [1, 2, 3])
def test_mix_against_loops(kind, num_clips):
    clip = normalize_reference(noise_clip((num_clips, 2, 7, 9, 3))).astype(np.float32)
    mix = MixDraw(kind, 0.6, np.arange(num_clips)[::-1].copy(), (0.3, 0.8))
    tensor = paddle.to_tensor(clip)
    result = mix_clips(tensor, mix).numpy()
    np.testing.assert_allclose(result, mix_reference(clip, mix), atol=1e-6)
    assert np.array_equal(tensor.numpy(), clip)
    if num_clips > 1 and kind != "none":
        assert not np.allclose(result, clip)


def test_cutmix_without_area_changes_nothing():
    clip = paddle.to_tensor(normalize_reference(noise_clip()).astype(np.float32))
    assert np.array_equal(mix_clips(clip, MixDraw("cutmix", 1.0, np.array([2, 1, 0]))).numpy(), clip.numpy())


def test_mixed_targets_against_timm():
    expected = [[0.02, 0.02, 0.29, 0.02, 0.65], [0.92, 0.02, 0.02, 0.02, 0.02], [0.02, 0.02, 0.65, 0.02, 0.29]]
    targets = soft_targets(paddle.to_tensor([2, 0, 4]), 5, 0.1)
    result = mix_targets(targets, MixDraw("mixup", 0.3, np.array([2, 1, 0])), 112, 112)
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-6)


def test_cutmix_targets_follow_the_true_area_as_in_timm():
    targets = soft_targets(paddle.to_tensor([0, 1]), 2)
    mix = MixDraw("cutmix", 0.3, np.array([1, 0]), (110.5 / 112, 3.5 / 112))
    own = 0.8086734693877551
    np.testing.assert_allclose(mix_targets(targets, mix, 112, 112).numpy(), [[own, 1 - own], [1 - own, own]], atol=1e-6)


@pytest.mark.parametrize("num_clips", [1, 3, 4])
def test_targets_sum_to_one(num_clips):
    rng = np.random.default_rng(num_clips)
    augment = DeviceAugment(MEAN, STD, num_classes=7, label_smoothing=0.1)
    batch = tensors({"clip": noise_clip((num_clips, 1, 8, 8, 3)), "target": np.arange(num_clips)})
    kinds = set()
    for _ in range(12):
        mix = draw_mix(rng, num_clips, 0.8, 1.0)
        target = augment(batch, mix)["target"].numpy()
        kinds.add(mix.kind)
        assert target.dtype == np.float32 and target.shape == (num_clips, 7) and target.min() > 0
        np.testing.assert_allclose(target.sum(axis=1), 1, atol=1e-6)
    assert kinds == {"mixup", "cutmix"}


def test_all_together_in_order():
    clip, boxes = noise_clip((3, 2, 11, 13, 3)), BOXES
    mix = MixDraw("mixup", 0.7, np.array([2, 1, 0]))
    augment = DeviceAugment(MEAN, STD, erase_fill="zero", num_classes=4)
    batch = {"clip": clip, "target": np.array([0, 1, 3]), "aug": {"color_jitter": FACTORS, "erase": boxes}}
    result = augment(tensors(batch), mix)
    jittered = jitter_reference(clip, FACTORS).transpose(0, 2, 3, 4, 1)
    expected = mix_reference(erase_reference(normalize_reference(jittered), boxes, 0), mix)
    np.testing.assert_allclose(result["clip"].numpy(), expected, atol=2e-4)
    np.testing.assert_allclose(result["target"].numpy(), [[0.7, 0, 0, 0.3], [0, 1, 0, 0], [0.3, 0, 0, 0.7]], atol=1e-6)


def test_soft_and_several_targets():
    clip, mix = noise_clip((2, 1, 4, 4, 3)), MixDraw("mixup", 0.25, np.array([1, 0]))
    multi_label = np.float32([[1, 1, 0], [0, 0, 1]])
    batch = tensors({"clip": clip, "target": multi_label})
    np.testing.assert_allclose(
        DeviceAugment(MEAN, STD)(batch, mix)["target"].numpy(), [[0.25, 0.25, 0.75], [0.75, 0.75, 0.25]]
    )
    batch = tensors({"clip": clip, "target": {"verb": np.array([0, 1]), "noun": np.array([2, 0])}})
    result = DeviceAugment(MEAN, STD, num_classes={"verb": 2, "noun": 3})(batch, mix)["target"]
    np.testing.assert_allclose(result["verb"].numpy(), [[0.25, 0.75], [0.75, 0.25]])
    np.testing.assert_allclose(result["noun"].numpy(), [[0.75, 0, 0.25], [0.25, 0, 0.75]])


def test_float32_under_mixed_precision_and_without_gradients():
    batch = {"clip": noise_clip(), "target": np.array([0, 1, 2]), "aug": {"color_jitter": FACTORS, "erase": BOXES}}
    with paddle.amp.auto_cast(level="O2", dtype="bfloat16"):
        result = DeviceAugment(MEAN, STD, num_classes=3)(tensors(batch), draw_mix(np.random.default_rng(0), 3, 0.8, 0))
    assert result["clip"].dtype == result["target"].dtype == paddle.float32
    assert result["clip"].stop_gradient


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda batch: DeviceAugment((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), "units of 0..255"),
        (lambda batch: DeviceAugment(MEAN, STD[:2]), "three numbers"),
        (lambda batch: DeviceAugment(MEAN, STD, erase_fill="black"), "'black'"),
        (lambda batch: DeviceAugment(MEAN, STD, label_smoothing=0.1), "needs num_classes"),
        (lambda batch: DeviceAugment(MEAN, STD, num_classes=3, label_smoothing=1.0), "label_smoothing"),
        (lambda batch: DeviceAugment(MEAN, STD)(batch | {"aug": {"blur": batch["clip"]}}), 'unknown draw "blur"'),
        (lambda batch: DeviceAugment(MEAN, STD)({"clip": batch["clip"][0]}), r"\[N, T, H, W, 3\]"),
        (
            lambda batch: DeviceAugment(MEAN, STD)(batch, MixDraw("mixup", 0.5, np.array([2, 1, 0]))),
            "needs num_classes",
        ),
        (lambda batch: DeviceAugment(MEAN, STD)(batch, MixDraw("mixup", 0.5, np.array([1, 0]))), "drawn for 2 clips"),
        (lambda batch: color_jitter(batch["clip"], paddle.ones([2, 4])), r"\[3, 4\]"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(tensors({"clip": noise_clip(), "target": np.array([0, 1, 2])}))
