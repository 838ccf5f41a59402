"""Crop boxes: places written out by hand, and distributions next to torchvision's and TSM's numbers."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

from paddlevideo_fast.data.crops import CROPS, EvalCrop, MultiScaleCrop, RandomResizedCrop, RandomShortSideCrop

SIZES = [(320, 240), (240, 320), (1920, 1080), (33, 500), (64, 64), (3, 2), (1, 1), (1, 90)]


def draws(rule, width, height, crop_size=224, count=20000, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([rule(width, height, crop_size, 0, rng)[0] for _ in range(count)])


@pytest.mark.parametrize("width, height", SIZES)
@pytest.mark.parametrize("crop_size", [1, 112, 224])
def test_every_box_is_inside_the_picture(width, height, crop_size):
    evaluations = [EvalCrop(256, num_crops)(width, height, crop_size, view)[0]
                   for num_crops in (1, 3, 10) for view in range(num_crops)]  # fmt: skip
    rules = [rule() for rule in CROPS.values()]
    boxes = np.concatenate([evaluations, *(draws(rule, width, height, crop_size, 200) for rule in rules)])
    x, y, box_width, box_height = boxes.T
    assert min(x.min(), y.min()) >= 0 and min(box_width.min(), box_height.min()) >= 1
    assert (x + box_width <= width).all() and (y + box_height <= height).all()


@pytest.mark.parametrize("rule", [rule() for rule in CROPS.values()])
def test_training_rules_are_seeded_never_flip_and_pickle(rule):
    rule = pickle.loads(pickle.dumps(rule))
    first = [rule(320, 240, 224, 0, np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert first[0] == first[1] != first[2]
    assert [flip for _, flip in first] == [False] * 3
    assert all(type(value) is int for value in first[0][0])


# 40,000 draws of torchvision 0.29's RandomResizedCrop.get_params with the default scale and ratio:
# mean x, y, width, height; their standard deviations; deciles and quartiles of the area.
TORCHVISION = {
    (320, 240): (
        [69.54, 33.56, 180.76, 173.10],
        [51.45, 32.89, 55.44, 45.12],
        [0.1472, 0.2522, 0.4237, 0.5950, 0.7401],
    ),
    (64, 64): ([10.50, 10.49, 43.01, 43.03], [9.50, 9.52, 12.24, 12.25], [0.1582, 0.2800, 0.4785, 0.6819, 0.8066]),
}


@pytest.mark.parametrize("width, height", TORCHVISION)
def test_random_resized_is_distributed_as_torchvision(width, height):
    mean, std, quantiles = TORCHVISION[width, height]
    boxes = draws(RandomResizedCrop(), width, height)
    # Six standard errors of the difference of two means, with 20,000 and 40,000 draws.
    assert (np.abs(boxes.mean(0) - mean) < 6 * np.array(std) * math.sqrt(1 / 20000 + 1 / 40000)).all()
    assert np.allclose(boxes.std(0), std, rtol=0.03)
    area = boxes[:, 2] * boxes[:, 3] / (width * height)
    assert np.allclose(np.quantile(area, [0.1, 0.25, 0.5, 0.75, 0.9]), quantiles, atol=0.012)


@pytest.mark.parametrize(
    "width, height, box",  # torchvision's central fallback for pictures no draw of this scale fits in
    [(300, 10, (143, 0, 13, 10)), (10, 300, (0, 143, 10, 13)), (1, 1, (0, 0, 1, 1))],
)
def test_random_resized_falls_back_to_the_centre(width, height, box):
    rng = np.random.default_rng(0)
    assert RandomResizedCrop(scale=(0.9, 1.0))(width, height, 224, 0, rng)[0] == box


def test_random_resized_falls_back_as_often_as_torchvision():
    boxes = draws(RandomResizedCrop(), 1000, 100, count=10000)
    share = (boxes == (433, 0, 133, 100)).all(1).mean()
    assert abs(share - 31262 / 40000) < 0.014  # nine tries instead of ten would be 0.02 more


def test_multi_scale_sizes_and_places_are_tsm():
    # What GroupMultiScaleCrop(224) draws from for frames of 340 x 256: 256 * 0.875 = 224, 0.75 = 192, int(0.66) = 168.
    rule = MultiScaleCrop()
    assert sorted(rule.sizes(340, 256, 224)) == [
        (168, 168), (168, 192), (192, 168), (192, 192), (192, 224),
        (224, 192), (224, 224), (224, 256), (256, 224), (256, 256),
    ]  # fmt: skip
    assert rule.offsets(340, 256, 224, 192) == [
        (0, 0), (116, 0), (0, 64), (116, 64), (58, 32),
        (0, 32), (116, 32), (58, 64), (58, 0),
        (29, 16), (87, 16), (29, 48), (87, 48),
    ]  # fmt: skip


def test_multi_scale_snaps_to_the_crop_size_within_two_pixels():
    assert MultiScaleCrop(scales=(1.0,)).sizes(400, 226, 224) == [(224, 224)]
    assert MultiScaleCrop(scales=(1.0,)).sizes(400, 227, 224) == [(227, 227)]
    assert MultiScaleCrop(scales=(1.0,)).sizes(400, 222, 224) == [(222, 222)]  # 224 would leave the picture
    assert MultiScaleCrop(max_distort=0).sizes(340, 256, 112) == [(s, s) for s in (256, 224, 192, 168)]


def test_multi_scale_draws_sizes_and_places_evenly():
    boxes = draws(MultiScaleCrop(), 340, 256)
    sizes, counts = np.unique(boxes[:, 2:], axis=0, return_counts=True)
    assert len(sizes) == 10 and (np.abs(counts - 2000) < 6 * math.sqrt(2000 * 0.9)).all()
    square = boxes[(boxes[:, 2] == 192) & (boxes[:, 3] == 192)]
    places, counts = np.unique(square[:, :2], axis=0, return_counts=True)
    share = len(square) / 13
    assert len(places) == 13 and (np.abs(counts - share) < 6 * math.sqrt(share)).all()


def test_random_short_side_is_uniform_in_the_side():
    boxes = draws(RandomShortSideCrop(), 320, 240)
    assert (boxes[:, 2] == boxes[:, 3]).all()
    # 224 * 240 / 320 = 168 up to 224 * 240 / 256 = 210 pixels of the source.
    assert boxes[:, 2].min() == 168 and boxes[:, 2].max() == 210
    # Mean of 53760 / u with u uniform on 256..320: 53760 * ln(320 / 256) / 64.
    assert boxes[:, 2].mean() == pytest.approx(53760 * math.log(1.25) / 64, abs=0.4)
    # Median of u is 288; were the inverse uniform, the median box would be 189 pixels instead of 186.7.
    assert np.median(boxes[:, 2]) == 187
    assert np.mean(boxes[:, 2] <= 180) == pytest.approx((320 - 53760 / 180.5) / 64, abs=0.02)
    # Places are even: the mean offset is half of the mean room, and both ends are reached.
    assert boxes[:, 0].mean() == pytest.approx((320 - boxes[:, 2].mean()) / 2, abs=1.5)
    assert boxes[:, 0].min() == 0 and (boxes[:, 0] + boxes[:, 2]).max() == 320
    assert boxes[:, 1].mean() == pytest.approx((240 - boxes[:, 2].mean()) / 2, abs=1.0)


def test_random_short_side_drawn_in_the_inverse_is_uniform_in_pixels_of_the_source():
    side = draws(RandomShortSideCrop(draw="inverse"), 3200, 2400)[:, 2]
    low, high = 224 * 2400 / 320, 224 * 2400 / 256  # 1680 and 2100; uniform: mean 1890, a quarter below 1785
    assert low - 0.5 <= side.min() < low + 5 and high - 5 < side.max() <= high + 0.5
    assert side.mean() == pytest.approx(1890, abs=8) and side.std() == pytest.approx(420 / math.sqrt(12), rel=0.03)
    assert np.mean(side < 1785) == pytest.approx(0.25, abs=0.02)
    with pytest.raises(ValueError, match="draw must be side or inverse, got 'log'"):
        RandomShortSideCrop(draw="log")


def test_random_short_side_lower_bound_follows_the_crop_of_multigrid():
    # round(256 * crop / 224) for crops of 112, 158 and 224: 128, 181, 256; the upper bound stays 320.
    rule = RandomShortSideCrop(base_crop_size=224)
    for crop_size, low in [(112, 128), (158, 181), (224, 256)]:
        side = draws(rule, 3200, 2400, crop_size, 3000)[:, 2]
        assert side.max() == pytest.approx(crop_size * 2400 / low, rel=0.004)
        assert side.min() == pytest.approx(crop_size * 2400 / 320, rel=0.004)
    fixed = draws(RandomShortSideCrop(), 3200, 2400, 112, 3000)[:, 2]
    assert fixed.max() == pytest.approx(112 * 2400 / 256, rel=0.004)


def test_centre_crop():
    # Short side 240 -> 256: a crop of 224 is 210 pixels of the source.
    assert EvalCrop(256)(320, 240, 224) == ((55, 15, 210, 210), False)
    assert EvalCrop(224)(320, 240, 224) == ((40, 0, 240, 240), False)
    assert EvalCrop(256)(340, 256, 224) == ((58, 16, 224, 224), False)


@pytest.mark.parametrize(
    "width, height, places",
    [(340, 256, [(0, 0), (42, 0), (84, 0)]), (256, 340, [(0, 0), (0, 42), (0, 84)]), (256, 256, [(0, 0)] * 3)],
)
def test_three_crops_lie_along_the_long_side(width, height, places):
    rule = EvalCrop(256, num_crops=3)
    assert [rule(width, height, 256, view) for view in range(3)] == [((x, y, 256, 256), False) for x, y in places]


def test_ten_crops_are_corners_and_centre_then_flipped():
    rule = EvalCrop(256, num_crops=10)
    five = [(0, 0), (116, 0), (0, 32), (116, 32), (58, 16)]
    expected = [((x, y, 224, 224), flip) for flip in (False, True) for x, y in five]
    assert [rule(340, 256, 224, view, None) for view in range(10)] == expected


def test_crops_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="a crop of 256 pixels does not fit in a short side of 224"):
        EvalCrop(224)(320, 240, 256)
    with pytest.raises(ValueError, match="a crop of 300 pixels does not fit in a short side of 256..320"):
        RandomShortSideCrop()(320, 240, 300, 0, np.random.default_rng(0))
    for size in (0, -224):
        with pytest.raises(ValueError, match=f"base_crop_size must be at least 1 pixel, got {size}"):
            RandomShortSideCrop(base_crop_size=size)
    with pytest.raises(ValueError, match="view must be in 0..2, got 3"):
        EvalCrop(num_crops=3)(320, 240, 224, 3)
    with pytest.raises(ValueError, match="num_crops must be 1, 3 or 10, got 5"):
        EvalCrop(num_crops=5)
    with pytest.raises(ValueError, match="scale must be"):
        RandomResizedCrop(scale=(0.5, 1.2))
