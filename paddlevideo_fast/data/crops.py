"""Which part of the picture a clip shows.

A rule is a small frozen object, called once a clip::

    box, flip = rule(width, height, crop_size, view, rng)

``width`` and ``height`` are those of the picture as shown, ``crop_size`` is the side in pixels of the square the
reader will resize the box to. The box is in pixels of the source, inside the picture and at least one pixel wide and
high. Training rules need a generator, ignore ``view`` and never flip (a flip is drawn apart from the box); evaluation
takes ``rng=None`` and ``view`` in 0..num_crops-1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from paddlevideo_fast.data.video import CropBox


def _draw(rng: np.random.Generator, extent: int, size: int) -> int:
    """Offset of a part of ``size`` in ``extent`` pixels; both ends are included."""
    return int(rng.integers(extent - size + 1))


def _source_side(width: int, height: int, crop_size: int, short_side: float) -> int:
    """Side in source pixels of a square that has ``crop_size`` pixels once the short side is ``short_side``."""
    if crop_size > short_side:
        raise ValueError(f"a crop of {crop_size} pixels does not fit in a short side of {short_side:g}")
    return max(1, round(crop_size * min(width, height) / short_side))


@dataclass(frozen=True)
class RandomResizedCrop:
    """A box of random area and shape anywhere in the picture.

    Ten draws of area (uniform) and shape (width over height, uniform in its logarithm) are tried. If none fits, the
    box is the largest central one whose shape is within ``ratio``.

    Args:
        scale: Bounds of the area as a part of the picture's, in (0, 1].
        ratio: Bounds of width over height.

    Source: Inception, arXiv 1409.4842, section 6; torchvision, transforms.RandomResizedCrop.get_params.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale must be (low, high) with 0 < low <= high <= 1, got {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio must be (low, high) with 0 < low <= high, got {self.ratio}")

    def __call__(self, width: int, height: int, crop_size: int, view: int, rng: np.random.Generator):
        """Returns (CropBox, False); ``crop_size`` plays no part."""
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        for _ in range(10):
            area = width * height * rng.uniform(*self.scale)
            shape = math.exp(rng.uniform(low, high))
            box_width, box_height = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
            if 0 < box_width <= width and 0 < box_height <= height:
                x, y = _draw(rng, width, box_width), _draw(rng, height, box_height)
                return CropBox(x, y, box_width, box_height), False
        return self._central(width, height), False

    def _central(self, width: int, height: int) -> CropBox:
        box_width, box_height = width, height
        if width / height < self.ratio[0]:
            box_height = max(1, round(width / self.ratio[0]))
        elif width / height > self.ratio[1]:
            box_width = max(1, round(height * self.ratio[1]))
        return CropBox((width - box_width) // 2, (height - box_height) // 2, box_width, box_height)


@dataclass(frozen=True)
class MultiScaleCrop:
    """One of a few box sizes at one of 13 places: corners, edges, centre and quarters.

    The sides of a box are ``scales`` of the short side of the picture, chosen for width and height so that the two
    are at most ``max_distort`` apart in the list; a side within 2 pixels of ``crop_size`` becomes ``crop_size``. The
    places lie on a grid of quarters of the free room, rounded down to whole pixels.

    Args:
        scales: Sides as parts of the short side, in (0, 1].
        max_distort: Largest distance in ``scales`` between width and height; 0 gives squares.

    Source: TSN, arXiv 1608.00859, section 3.2; TSM, ops/transforms.py, ``GroupMultiScaleCrop``.
    """

    scales: tuple[float, ...] = (1.0, 0.875, 0.75, 0.66)
    max_distort: int = 1

    def __post_init__(self) -> None:
        if not self.scales or not all(0 < scale <= 1 for scale in self.scales):
            raise ValueError(f"scales must be in (0, 1], got {self.scales}")
        if self.max_distort < 0:
            raise ValueError(f"max_distort must be at least 0, got {self.max_distort}")

    def __call__(self, width: int, height: int, crop_size: int, view: int, rng: np.random.Generator):
        """Returns (CropBox, False)."""
        sizes = self.sizes(width, height, crop_size)
        box_width, box_height = sizes[rng.integers(len(sizes))]
        places = self.offsets(width, height, box_width, box_height)
        x, y = places[rng.integers(len(places))]
        return CropBox(x, y, box_width, box_height), False

    def sizes(self, width: int, height: int, crop_size: int) -> list[tuple[int, int]]:
        """Returns every (width, height) a box may have, each as likely as the others."""
        base = min(width, height)
        sides = [max(1, int(base * scale)) for scale in self.scales]
        if crop_size <= base:  # a side stretched beyond the picture would not fit
            sides = [crop_size if abs(side - crop_size) < 3 else side for side in sides]
        return [(w, h) for i, h in enumerate(sides) for j, w in enumerate(sides) if abs(i - j) <= self.max_distort]

    @staticmethod
    def offsets(width: int, height: int, box_width: int, box_height: int) -> list[tuple[int, int]]:
        """Returns the 13 places (x, y) of a box."""
        step_x, step_y = (width - box_width) // 4, (height - box_height) // 4
        grid = [(0, 0), (4, 0), (0, 4), (4, 4), (2, 2), (0, 2), (4, 2), (2, 4), (2, 0), (1, 1), (3, 1), (1, 3), (3, 3)]
        return [(i * step_x, j * step_y) for i, j in grid]


@dataclass(frozen=True)
class RandomShortSideCrop:
    """A random square of the picture scaled to a random short side.

    Args:
        short_side: Bounds of the short side in pixels, ends included; (256, 320) for crops of 224.
        base_crop_size: Crop size the range was chosen for. Where a call asks for another (multigrid), the lower
            bound is scaled by ``crop_size / base_crop_size`` and rounded, the upper one stays: smaller crops see
            more of the picture. None leaves the range as it is.
        draw: What is uniform: "side", or "inverse", one over the side, as in PySlowFast's recipes for
            Something-Something and Charades; then the side of the box is uniform in pixels of the source.

    Source: VGG, arXiv 1409.1556, section 3.1; PySlowFast, datasets/transform.py, ``random_short_side_scale_jitter``,
    and datasets/kinetics.py for the scaled bound.
    """

    short_side: tuple[int, int] = (256, 320)
    base_crop_size: int | None = None
    draw: str = "side"

    def __post_init__(self) -> None:
        if not 0 < self.short_side[0] <= self.short_side[1]:
            raise ValueError(f"short_side must be (low, high) with 0 < low <= high, got {self.short_side}")
        if self.base_crop_size is not None and self.base_crop_size < 1:
            raise ValueError(f"base_crop_size must be at least 1 pixel, got {self.base_crop_size}")
        if self.draw not in ("side", "inverse"):
            raise ValueError(f"draw must be side or inverse, got {self.draw!r}")

    def __call__(self, width: int, height: int, crop_size: int, view: int, rng: np.random.Generator):
        """Returns (CropBox, False); the box is square.

        Raises:
            ValueError: The crop is larger than the short side may be.
        """
        low, high = self.short_side
        if self.base_crop_size is not None:
            low = round(low * crop_size / self.base_crop_size)
        if not crop_size <= low <= high:
            raise ValueError(f"a crop of {crop_size} pixels does not fit in a short side of {low}..{high}")
        short_side = rng.uniform(low, high) if self.draw == "side" else 1 / rng.uniform(1 / high, 1 / low)
        side = _source_side(width, height, crop_size, short_side)
        return CropBox(_draw(rng, width, side), _draw(rng, height, side), side, side), False


@dataclass(frozen=True)
class EvalCrop:
    """The square crops of an evaluation, from the picture scaled to a fixed short side.

    One crop is the centre. Three lie along the long side: left, centre, right, or top, centre, bottom. Ten are the
    corners (left top, right top, left bottom, right bottom), the centre, and then the same five flipped.

    Args:
        short_side: Pixels the short side is scaled to; at least the crop size of a call.
        num_crops: 1, 3 or 10.

    Source: AlexNet, section 4.1 (ten crops); Non-local networks, arXiv 1711.07971, section 4 (three crops).
    """

    short_side: int = 256
    num_crops: int = 1

    def __post_init__(self) -> None:
        if self.num_crops not in (1, 3, 10):
            raise ValueError(f"num_crops must be 1, 3 or 10, got {self.num_crops}")
        if self.short_side < 1:
            raise ValueError(f"short_side must be at least 1 pixel, got {self.short_side}")

    def __call__(self, width: int, height: int, crop_size: int, view: int = 0, rng: None = None):
        """Returns (CropBox, flip); the box is square.

        Raises:
            ValueError: ``view`` is not in 0..num_crops-1, or the crop is larger than the short side.
        """
        if not 0 <= view < self.num_crops:
            raise ValueError(f"view must be in 0..{self.num_crops - 1}, got {view}")
        side = _source_side(width, height, crop_size, self.short_side)
        room_x, room_y = width - side, height - side
        centre_x, centre_y = round(room_x / 2), round(room_y / 2)
        if self.num_crops == 1:
            places = [(centre_x, centre_y)]
        elif self.num_crops == 3 and width >= height:
            places = [(0, centre_y), (centre_x, centre_y), (room_x, centre_y)]
        elif self.num_crops == 3:
            places = [(centre_x, 0), (centre_x, centre_y), (centre_x, room_y)]
        else:
            places = [(0, 0), (room_x, 0), (0, room_y), (room_x, room_y), (centre_x, centre_y)]
        x, y = places[view % len(places)]
        return CropBox(x, y, side, side), view >= len(places)


CROPS = {"random_resized": RandomResizedCrop, "multi_scale": MultiScaleCrop, "random_short_side": RandomShortSideCrop}
