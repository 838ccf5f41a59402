"""Random choices of the device-side augmentation, drawn on the host and small enough to travel with the batch.

A sample's choices come from the sample's Generator and are stacked by the collation into ``batch["aug"]``; the
choice of a batch (which clips are mixed, and how) comes from the Generator of the step. Boxes are fractions of the
picture, so one draw holds for any crop size. ``paddlevideo_fast.ops.augment`` carries the choices out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

ERASE_ATTEMPTS = 10


def draw_color_jitter(
    rng: np.random.Generator, brightness: float = 0.0, contrast: float = 0.0, saturation: float = 0.0, hue: float = 0.0
) -> np.ndarray:
    """Draws the strength of a colour jitter for all frames of a clip.

    Args:
        rng: The sample's generator.
        brightness: At least 0; its factor is uniform in [max(0, 1 - brightness), 1 + brightness].
        contrast: As brightness.
        saturation: As brightness.
        hue: In 0..0.5 turns of the colour circle; the shift is uniform in [-hue, hue].

    Returns:
        float32 [4]: factors of brightness, contrast, saturation, and the shift of the hue; (1, 1, 1, 0) is none.

    Raises:
        ValueError: An argument is outside its range.

    Source: the distribution of torchvision's ``ColorJitter``.
    """
    for name, value in (("brightness", brightness), ("contrast", contrast), ("saturation", saturation)):
        if not value >= 0:
            raise ValueError(f"{name} must be at least 0, got {value}")
    if not 0 <= hue <= 0.5:
        raise ValueError(f"hue must be in 0..0.5, got {hue}")
    factors = [rng.uniform(max(0.0, 1.0 - value), 1.0 + value) for value in (brightness, contrast, saturation)]
    return np.array([*factors, rng.uniform(-hue, hue)], np.float32)


def draw_erase(
    rng: np.random.Generator,
    probability: float,
    area: tuple[float, float] = (0.02, 1 / 3),
    ratio: tuple[float, float] = (0.3, 10 / 3),
) -> np.ndarray:
    """Draws the box that random erasing takes from every frame of a clip.

    Args:
        rng: The sample's generator.
        probability: Chance of a box, 0 to 1.
        area: Smallest and largest share of the picture, uniform.
        ratio: Smallest and largest height / width of the box in a square picture, uniform in the logarithm.

    Returns:
        float32 [4]: left, top, width, height as fractions of the picture; zeros for no box.

    Raises:
        ValueError: An argument is outside its range.

    Source: Zhong et al., "Random Erasing Data Augmentation", arXiv 1708.04896, algorithm 1, with the log-uniform
    ratio and the ten attempts of timm's ``RandomErasing``.
    """
    if not 0 <= probability <= 1:
        raise ValueError(f"probability must be in 0..1, got {probability}")
    if not 0 < area[0] <= area[1] <= 1:
        raise ValueError(f"area must rise within 0..1, got {area}")
    if not 0 < ratio[0] <= ratio[1]:
        raise ValueError(f"ratio must rise and be above 0, got {ratio}")
    if rng.random() >= probability:
        return np.zeros(4, np.float32)
    for _ in range(ERASE_ATTEMPTS):
        share = rng.uniform(*area)
        aspect = math.exp(rng.uniform(math.log(ratio[0]), math.log(ratio[1])))
        width, height = math.sqrt(share / aspect), math.sqrt(share * aspect)
        if width < 1 and height < 1:
            return np.array([rng.uniform(0, 1 - width), rng.uniform(0, 1 - height), width, height], np.float32)
    return np.zeros(4, np.float32)


@dataclass(frozen=True)
class MixDraw:
    """How the clips of a batch are mixed.

    Attributes:
        kind: "none", "mixup" or "cutmix".
        lam: Share of a clip that is its own, 0 to 1, as drawn; ``own_share`` says what cutmix makes of it.
        partner: int64 [N], the clip each clip is mixed with.
        cut_center: Left-to-right and top-to-bottom position of the middle of the cutmix box, fractions in [0, 1).
    """

    kind: str
    lam: float
    partner: np.ndarray
    cut_center: tuple[float, float] = (0.0, 0.0)

    def cut_box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Returns left, top, right, bottom of the cutmix box in pixels, clipped to the picture; ends exclusive."""
        side = math.sqrt(1.0 - self.lam)
        cut_width, cut_height = int(width * side), int(height * side)
        x, y = int(self.cut_center[0] * width), int(self.cut_center[1] * height)
        left, top = max(x - cut_width // 2, 0), max(y - cut_height // 2, 0)
        return left, top, min(x + (cut_width + 1) // 2, width), min(y + (cut_height + 1) // 2, height)

    def own_share(self, height: int, width: int) -> float:
        """Returns the weight of a clip's own label: for cutmix the share of pixels that stay."""
        if self.kind == "none":
            return 1.0
        if self.kind == "mixup":
            return self.lam
        left, top, right, bottom = self.cut_box(height, width)
        return 1.0 - (right - left) * (bottom - top) / (height * width)


def draw_mix(
    rng: np.random.Generator,
    batch_size: int,
    mixup_alpha: float,
    cutmix_alpha: float,
    probability: float = 1.0,
    switch_probability: float = 0.5,
) -> MixDraw:
    """Draws whether and how the clips of a batch are mixed.

    The partner of clip i is clip N-1-i, as in timm: the sampler has shuffled the batch already. Any batch size will
    do; the middle clip of an odd batch meets itself and stays as it is. A row that repeats a good row because its own
    file could not be read is a harmless partner: its clip and its label belong together.

    Args:
        rng: The generator of the step.
        batch_size: N, clips of this rank in this step.
        mixup_alpha: Lambda of mixup follows Beta(alpha, alpha); 0 for no mixup.
        cutmix_alpha: Lambda of cutmix follows Beta(alpha, alpha); 0 for no cutmix.
        probability: Chance that the batch is mixed at all, 0 to 1.
        switch_probability: Chance of cutmix where both are on, 0 to 1.

    Raises:
        ValueError: An argument is outside its range.

    Source: Zhang et al., "mixup", arXiv 1710.09412; Yun et al., "CutMix", arXiv 1905.04899; timm's ``Mixup`` in mode
    "batch" for the choice between them.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    for name, value in (("mixup_alpha", mixup_alpha), ("cutmix_alpha", cutmix_alpha)):
        if not value >= 0:
            raise ValueError(f"{name} must be at least 0, got {value}")
    for name, value in (("probability", probability), ("switch_probability", switch_probability)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} must be in 0..1, got {value}")

    partner = np.arange(batch_size, dtype=np.int64)[::-1].copy()
    if not (mixup_alpha or cutmix_alpha) or rng.random() >= probability:
        return MixDraw("none", 1.0, partner)
    use_cutmix = rng.random() < switch_probability if mixup_alpha and cutmix_alpha else bool(cutmix_alpha)
    if not use_cutmix:
        return MixDraw("mixup", float(rng.beta(mixup_alpha, mixup_alpha)), partner)
    lam = float(rng.beta(cutmix_alpha, cutmix_alpha))
    return MixDraw("cutmix", lam, partner, (float(rng.random()), float(rng.random())))
