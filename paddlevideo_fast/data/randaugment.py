"""RandAugment of a clip: the same operations, at the same strength, on every frame.

What is done is drawn from the sample's generator before anything is read; it is carried out on the host, on uint8
frames, by Pillow. Operations, strengths and chances are timm's, whose recipes name them: ``rand-m7-n4-mstd0.5-inc1``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

MAX_LEVEL = 10
FILL = (128, 128, 128)  # what moves in from outside the picture
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


class Operation(NamedTuple):
    """One operation as it was drawn.

    Attributes:
        name: A key of ``OPERATIONS``.
        argument: How strongly, in the unit of the operation; None for one that knows no strength.
        interpolation: A key of ``FILTERS``, for the geometric ones.
    """

    name: str
    argument: float | None = None
    interpolation: str = "bicubic"


def _affine(image: Image.Image, matrix: tuple[float, ...], interpolation: str) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, FILTERS[interpolation], fillcolor=FILL)


def _solarize_add(image: Image.Image, add: int) -> Image.Image:
    return image.point([min(255, value + add) if value < 128 else value for value in range(256)] * 3)


def _posterize(image: Image.Image, bits: int) -> Image.Image:
    # Not ImageOps.posterize: newer Pillow refuses 0 bits, with which older ones give black.
    return image.point([value & (256 - (1 << (8 - bits))) for value in range(256)] * 3)


OPERATIONS: dict[str, Callable[[Image.Image, Any, str], Image.Image]] = {
    "AutoContrast": lambda image, _, how: ImageOps.autocontrast(image),
    "Equalize": lambda image, _, how: ImageOps.equalize(image),
    "Invert": lambda image, _, how: ImageOps.invert(image),
    "Rotate": lambda image, degrees, how: image.rotate(degrees, FILTERS[how], fillcolor=FILL),
    "Posterize": lambda image, bits, how: _posterize(image, bits),
    "Solarize": lambda image, threshold, how: ImageOps.solarize(image, threshold),
    "SolarizeAdd": lambda image, add, how: _solarize_add(image, add),
    "Color": lambda image, factor, how: ImageEnhance.Color(image).enhance(factor),
    "Contrast": lambda image, factor, how: ImageEnhance.Contrast(image).enhance(factor),
    "Brightness": lambda image, factor, how: ImageEnhance.Brightness(image).enhance(factor),
    "Sharpness": lambda image, factor, how: ImageEnhance.Sharpness(image).enhance(factor),
    "ShearX": lambda image, factor, how: _affine(image, (1, factor, 0, 0, 1, 0), how),
    "ShearY": lambda image, factor, how: _affine(image, (1, 0, 0, factor, 1, 0), how),
    "TranslateX": lambda image, share, how: _affine(image, (1, 0, share * image.width, 0, 1, 0), how),
    "TranslateY": lambda image, share, how: _affine(image, (1, 0, 0, 0, 1, share * image.height), how),
}
"""Name -> what it makes of an RGB image, an argument as ``argument_of`` gives it, and an interpolation."""

NAMES = tuple(OPERATIONS)


def argument_of(name: str, level: float, sign: int, increasing: bool) -> float | None:
    """Returns the argument of an operation at a level.

    Args:
        name: A key of ``OPERATIONS``.
        level: 0..10, timm's magnitude.
        sign: 1 or -1: the direction of a geometric operation, and of a colour operation if ``increasing``.
        increasing: A higher level always changes the picture more. Otherwise ``Posterize`` and ``Solarize`` change it
            less, and the four of colour and sharpness go from weakening (level 0) over none (5) to strengthening (10).

    Returns:
        Degrees (``Rotate``), bits kept (``Posterize``), a threshold or what is added in 0..255 (``Solarize``,
        ``SolarizeAdd``), a factor (colour and sharpness), a shear, a share of the picture (translations); else None.
    """
    share = level / MAX_LEVEL
    if name in ("Color", "Contrast", "Brightness", "Sharpness"):
        return max(0.1, 1.0 + sign * (share * 0.9)) if increasing else share * 1.8 + 0.1
    if name == "Posterize":
        return 4 - int(share * 4) if increasing else int(share * 4)
    if name == "Solarize":
        return 256 - min(256, int(share * 256)) if increasing else min(256, int(share * 256))
    if name == "SolarizeAdd":
        return min(128, int(share * 110))
    largest = {"Rotate": 30.0, "ShearX": 0.3, "ShearY": 0.3, "TranslateX": 0.45, "TranslateY": 0.45}
    return sign * (share * largest[name]) if name in largest else None


@dataclass(frozen=True)
class RandAugment:
    """Draws ``num_layers`` operations, with replacement, each applied with a chance and at a strength of its own.

    Args:
        magnitude: Mean level, 0..10.
        num_layers: Operations drawn for a clip.
        std: Standard deviation of the level, which is then cut to 0..10.
        increasing: See ``argument_of``.
        probability: Chance of each drawn operation.
        interpolation: Of the geometric operations; "random" draws bilinear or bicubic for each.

    Raises:
        ValueError: An argument is outside its range.

    Source: Cubuk et al., "RandAugment", arXiv 1909.13719; timm 1.0 ``data/auto_augment.py`` for the operations, their
    strengths, ``std`` and ``probability``; VideoMAE's ``rand_augment.py`` for one draw over all frames.
    """

    magnitude: int = 10
    num_layers: int = 2
    std: float = 0.0
    increasing: bool = False
    probability: float = 0.5
    interpolation: Literal["random", "bilinear", "bicubic"] = "random"

    def __post_init__(self) -> None:
        if not 0 <= self.magnitude <= MAX_LEVEL:
            raise ValueError(f"magnitude must be in 0..{MAX_LEVEL}, got {self.magnitude}")
        if self.num_layers < 1:
            raise ValueError(f"num_layers must be at least 1, got {self.num_layers}")
        if not 0 <= self.std < float("inf"):
            raise ValueError(f"std must be a number of at least 0, got {self.std}")
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability must be in 0..1, got {self.probability}")
        if self.interpolation not in ("random", *FILTERS):
            raise ValueError(f"interpolation must be random, bilinear or bicubic, got {self.interpolation!r}")

    def __call__(self, rng: np.random.Generator) -> Callable[[np.ndarray], np.ndarray] | None:
        """Draws what turns the frames of one clip into augmented ones; None where it is nothing."""
        operations = self.draw(rng)
        return partial(augment_frames, operations=operations) if operations else None

    def draw(self, rng: np.random.Generator) -> tuple[Operation, ...]:
        """Draws the operations on one clip, in order."""
        names = [NAMES[number] for number in rng.integers(len(NAMES), size=self.num_layers)]
        return tuple(self._draw(name, rng) for name in names if rng.random() < self.probability)

    def _draw(self, name: str, rng: np.random.Generator) -> Operation:
        level = float(np.clip(rng.normal(self.magnitude, self.std), 0, MAX_LEVEL))
        sign = 1 if rng.random() < 0.5 else -1
        drawn = tuple(FILTERS)[rng.integers(len(FILTERS))]
        interpolation = drawn if self.interpolation == "random" else self.interpolation
        return Operation(name, argument_of(name, level, sign, self.increasing), interpolation)


def augment_frames(frames: np.ndarray, operations: Sequence[Operation]) -> np.ndarray:
    """Applies drawn operations to every frame of a clip.

    Args:
        frames: uint8 [T, H, W, 3] RGB.
        operations: In order.

    Returns:
        uint8 [T, H, W, 3], an array of its own.
    """
    augmented = np.empty_like(frames)
    for frame, out in zip(frames, augmented):
        image = Image.fromarray(frame)
        for name, argument, interpolation in operations:
            image = OPERATIONS[name](image, argument, interpolation)
        out[:] = image
    return augmented
