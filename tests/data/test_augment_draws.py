"""Golden figures come from timm 1.0.31 (cutmix_bbox_and_lam, and 40,000 draws of RandomErasing at 224 x 224)."""

from __future__ import annotations

import numpy as np
import pytest

from paddlevideo_fast.data.augment_draws import MixDraw, draw_color_jitter, draw_erase, draw_mix


def generator(seed=0):
    return np.random.default_rng(seed)


def test_color_jitter_fills_its_ranges():
    rng = generator()
    draws = np.stack([draw_color_jitter(rng, 0.4, 1.5, 0.0, 0.1) for _ in range(4000)])
    assert draws.dtype == np.float32 and draws.shape == (4000, 4)
    low, high = draws.min(axis=0), draws.max(axis=0)
    np.testing.assert_allclose(low, [0.6, 0.0, 1.0, -0.1], atol=0.005)
    np.testing.assert_allclose(high, [1.4, 2.5, 1.0, 0.1], atol=0.005)
    np.testing.assert_allclose(draws.mean(axis=0), [1.0, 1.25, 1.0, 0.0], atol=0.04)
    assert draw_color_jitter(rng).tolist() == [1, 1, 1, 0]


def test_erase_follows_timm():
    rng = generator()
    draws = np.stack([draw_erase(rng, 0.6) for _ in range(20000)]).astype(float)
    boxes = draws[draws[:, 2] > 0]
    left, top, width, height = boxes.T
    area, log_ratio = width * height, np.log(height / width)
    assert len(boxes) / len(draws) == pytest.approx(0.596, abs=0.012)
    assert area.mean() == pytest.approx(0.1753, abs=0.003) and area.std() == pytest.approx(0.0902, abs=0.002)
    assert np.abs(log_ratio).mean() == pytest.approx(0.597, abs=0.01) and abs(log_ratio.mean()) < 0.02
    assert top.mean() == pytest.approx(0.287, abs=0.006) and left.mean() == pytest.approx(0.287, abs=0.006)
    assert (top + height / 2).std() == pytest.approx(0.1758, abs=0.004)
    assert left.min() >= 0 and (left + width).max() <= 1 + 1e-6 and (top + height).max() <= 1 + 1e-6
    assert area.min() >= 0.02 - 1e-6 and area.max() <= 1 / 3 + 1e-6


def test_erase_none_and_always():
    assert draw_erase(generator(), 0.0).tolist() == [0, 0, 0, 0]
    box = draw_erase(generator(), 1.0, area=(0.25, 0.25), ratio=(1.0, 1.0))
    assert box.dtype == np.float32 and box[2:].tolist() == [0.5, 0.5]
    assert draw_erase(generator(), 1.0, area=(0.9, 0.9), ratio=(3.0, 3.0)).tolist() == [0, 0, 0, 0]  # never fits


@pytest.mark.parametrize(
    "lam, size, center, top_bottom_left_right, own_share",
    [
        (0.3, (112, 112), (50, 60), (4, 97, 14, 107), 0.31050701530612246),
        (0.3, (112, 112), (3, 110), (0, 50, 64, 112), 0.8086734693877551),
        (0.75, (9, 13), (4, 6), (2, 6, 3, 9), 0.7948717948717949),
        (0.0, (8, 8), (4, 4), (0, 8, 0, 8), 0.0),
        (1.0, (8, 8), (4, 4), (4, 4, 4, 4), 1.0),
        (0.5, (7, 10), (0, 9), (0, 2, 6, 10), 0.8857142857142857),
        (0.99, (5, 5), (2, 2), (2, 2, 2, 2), 1.0),
    ],
)
def test_cut_box_and_share_against_timm(lam, size, center, top_bottom_left_right, own_share):
    (height, width), (y, x) = size, center
    mix = MixDraw("cutmix", lam, np.array([0]), ((x + 0.5) / width, (y + 0.5) / height))
    left, top, right, bottom = mix.cut_box(height, width)
    assert (top, bottom, left, right) == top_bottom_left_right
    assert mix.own_share(height, width) == pytest.approx(own_share, abs=1e-12)


def test_own_share_of_mixup_and_of_none():
    assert MixDraw("mixup", 0.3, np.array([0])).own_share(8, 8) == 0.3
    assert MixDraw("none", 1.0, np.array([0])).own_share(8, 8) == 1.0


@pytest.mark.parametrize("batch_size", [1, 2, 3, 8])
def test_partners_are_the_batch_backwards(batch_size):
    mix = draw_mix(generator(), batch_size, 0.8, 1.0)
    assert mix.partner.dtype == np.int64
    assert mix.partner.tolist() == list(range(batch_size - 1, -1, -1))


def test_kinds_follow_their_chances():
    rng = generator()
    mixes = [draw_mix(rng, 4, 0.8, 1.0, probability=0.8, switch_probability=0.25) for _ in range(8000)]
    shares = {kind: np.mean([mix.kind == kind for mix in mixes]) for kind in ("none", "mixup", "cutmix")}
    assert shares == {
        "none": pytest.approx(0.2, abs=0.015),
        "mixup": pytest.approx(0.6, abs=0.02),
        "cutmix": pytest.approx(0.2, abs=0.015),
    }
    assert all(mix.lam == 1.0 for mix in mixes if mix.kind == "none")
    lams = np.array([mix.lam for mix in mixes if mix.kind == "mixup"])
    # Beta(a, a) has mean 1/2 and variance 1 / (4 (2a + 1))
    assert lams.mean() == pytest.approx(0.5, abs=0.02) and lams.var() == pytest.approx(1 / (4 * 2.6), abs=0.005)
    centers = np.array([mix.cut_center for mix in mixes if mix.kind == "cutmix"])
    np.testing.assert_allclose(centers.mean(axis=0), 0.5, atol=0.03)


def test_one_kind_alone():
    rng = generator()
    assert {draw_mix(rng, 2, 0.8, 0.0).kind for _ in range(50)} == {"mixup"}
    assert {draw_mix(rng, 2, 0.0, 1.0).kind for _ in range(50)} == {"cutmix"}
    assert draw_mix(rng, 2, 0.0, 0.0).kind == "none"


def test_draws_depend_on_the_generator_alone():
    first, second = (draw_mix(generator(5), 4, 0.8, 1.0) for _ in range(2))
    assert (first.kind, first.lam, first.cut_center) == (second.kind, second.lam, second.cut_center)
    assert np.array_equal(draw_erase(generator(5), 1.0), draw_erase(generator(5), 1.0))
    assert np.array_equal(draw_color_jitter(generator(5), 0.4), draw_color_jitter(generator(5), 0.4))


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: draw_color_jitter(generator(), brightness=-0.1), "brightness must be at least 0, got -0.1"),
        (lambda: draw_color_jitter(generator(), hue=0.6), "hue must be in 0..0.5"),
        (lambda: draw_erase(generator(), 1.5), "probability"),
        (lambda: draw_erase(generator(), 0.5, area=(0.5, 0.1)), "area"),
        (lambda: draw_erase(generator(), 0.5, ratio=(0.0, 1.0)), "ratio"),
        (lambda: draw_mix(generator(), 0, 0.8, 1.0), "batch_size"),
        (lambda: draw_mix(generator(), 4, -0.8, 1.0), "mixup_alpha"),
        (lambda: draw_mix(generator(), 4, 0.8, 1.0, probability=2), "probability"),
        (lambda: draw_mix(generator(), 4, 0.8, 1.0, switch_probability=-1), "switch_probability"),
    ],
)
def test_impossible_values_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
