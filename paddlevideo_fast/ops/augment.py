"""Augmentation of a whole batch on the device, from uint8 clips and the draws that came with them.

Order: colour jitter, normalisation, random erasing, mixup or cutmix. The random choices are arrays drawn on the host
(``paddlevideo_fast.data.augment_draws``); all frames of a clip share them. Nothing here loops over samples or waits
for the device. Pictures stay three planes (one a colour) until the normalised planes are put together: that is the
one transposition from channels last, and the factors of a sample broadcast along the first axis only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import paddle
import paddle.nn.functional as F

from paddlevideo_fast.data.augment_draws import MixDraw

ERASE_FILLS = ("zero", "noise")
DRAWS = ("color_jitter", "erase")


@dataclass(frozen=True)
class DeviceAugment:
    """Turns a batch of uint8 clips and labels into normalised clips and, where wanted, soft targets.

    What happens to the clips is decided by the draws in ``batch["aug"]``: ``color_jitter`` float32 [N, 4] and
    ``erase`` float32 [N, 4], each optional. Without draws the clips are normalised and no more, as evaluation wants.

    Args:
        mean: Per colour (red, green, blue), in 0..255.
        std: Per colour, in 0..255, above 0.
        jitter_hue: False leaves the shift of the hue out, the dearest part of the colour jitter.
        erase_fill: "noise" (normal, for each pixel and frame) or "zero" (the mean colour).
        num_classes: C, or C by the key of a dict of targets: labels become soft targets. None leaves labels alone.
        label_smoothing: Share of the target spread over all classes, 0 to below 1; needs ``num_classes``.

    Raises:
        ValueError: An argument is outside its range.
    """

    mean: Sequence[float]
    std: Sequence[float]
    jitter_hue: bool = True
    erase_fill: str = "noise"
    num_classes: int | Mapping[str, int] | None = None
    label_smoothing: float = 0.0

    def __post_init__(self):
        if len(self.mean) != 3 or len(self.std) != 3 or not min(self.std) > 0:
            raise ValueError(f"mean and std must be three numbers in 0..255, std above 0, got {self.mean}, {self.std}")
        if max(self.std) <= 1:
            raise ValueError(f"std must be in units of 0..255, got {self.std}: multiply mean and std by 255")
        if self.erase_fill not in ERASE_FILLS:
            raise ValueError(f"erase_fill must be one of {ERASE_FILLS}, got {self.erase_fill!r}")
        if not 0 <= self.label_smoothing < 1:
            raise ValueError(f"label_smoothing must be in 0..1 (1 excluded), got {self.label_smoothing}")
        if self.label_smoothing and self.num_classes is None:
            raise ValueError(f"label_smoothing={self.label_smoothing} needs num_classes")

    @paddle.no_grad()
    def __call__(self, batch: dict, mix: MixDraw | None = None) -> dict:
        """Augments a batch; the batch handed in stays as it is.

        Args:
            batch: ``clip`` uint8 [N, T, H, W, 3]; ``target`` int64 [N], float32 [N, C] or a dict of them, may be
                absent; ``aug`` as above, may be absent; anything else is passed on.
            mix: How the clips of the batch are mixed; None or kind "none" does not mix.

        Returns:
            The batch with ``clip`` float32 [N, 3, T, H, W], ``target`` float32 [N, C] (or a dict of them) where
            ``num_classes`` is given, and without ``aug``.

        Raises:
            ValueError: A draw is unknown, a shape is wrong, or labels would have to mix without ``num_classes``.
        """
        draws = batch.get("aug") or {}
        for name in draws:
            if name not in DRAWS:
                raise ValueError(f'unknown draw "{name}" in batch["aug"], expected {DRAWS}')
        augmented = {key: value for key, value in batch.items() if key != "aug"}
        with paddle.amp.auto_cast(enable=False):
            augmented["clip"] = self._clip(batch["clip"], draws, mix)
            if "target" in batch:
                height, width = augmented["clip"].shape[-2:]
                augmented["target"] = self._target(batch["target"], self.num_classes, mix, height, width)
        return augmented

    def _clip(self, clip: paddle.Tensor, draws: Mapping[str, paddle.Tensor], mix: MixDraw | None) -> paddle.Tensor:
        planes = _color_planes(clip)
        if "color_jitter" in draws:
            planes = _jitter_planes(planes, draws["color_jitter"], self.jitter_hue)
        clip = _normalize_planes(planes, self.mean, self.std)
        if "erase" in draws:
            clip = random_erase(clip, draws["erase"], self.erase_fill)
        return clip if mix is None else mix_clips(clip, mix)

    def _target(self, target, num_classes, mix: MixDraw | None, height: int, width: int):
        if isinstance(target, Mapping):
            classes = num_classes or {}
            return {name: self._target(part, classes.get(name), mix, height, width) for name, part in target.items()}
        integer = not paddle.is_floating_point(target)
        if integer and num_classes is not None:
            target = soft_targets(target, num_classes, self.label_smoothing)
        elif integer and mix is not None and mix.kind != "none":
            raise ValueError(f"{mix.kind} needs num_classes to mix integer labels")
        elif not integer and self.label_smoothing:
            raise ValueError("label_smoothing takes integer labels, got targets that are soft already")
        return target if mix is None else mix_targets(target, mix, height, width)


def normalize(clip: paddle.Tensor, mean: Sequence[float], std: Sequence[float]) -> paddle.Tensor:
    """Returns (clip - mean) / std with channels first.

    Args:
        clip: uint8 (or float in 0..255) [N, T, H, W, 3].
        mean: Per colour, in 0..255.
        std: Per colour, in 0..255.

    Returns:
        float32 [N, 3, T, H, W].
    """
    return _normalize_planes(_color_planes(clip), mean, std)


def color_jitter(clip: paddle.Tensor, factors: paddle.Tensor, hue: bool = True) -> paddle.Tensor:
    """Changes brightness, contrast, saturation and hue, in this order, of each clip by its own factors.

    torchvision's ``ColorJitter`` shuffles the order of the four for each picture and rounds a uint8 picture after
    each; here the order is fixed and the arithmetic is in float. The contrast is about the mean grey of each frame.

    Args:
        clip: uint8 (or float in 0..255) [N, T, H, W, 3].
        factors: float32 [N, 4], as ``draw_color_jitter`` gives them.
        hue: False leaves the hue alone, whatever the factor.

    Returns:
        float32 [N, 3, T, H, W] in 0..255.

    Source: torchvision ``adjust_brightness``, ``adjust_contrast``, ``adjust_saturation``, ``adjust_hue`` on floats.
    """
    return paddle.stack(_jitter_planes(_color_planes(clip), factors, hue), axis=1)


def random_erase(clip: paddle.Tensor, boxes: paddle.Tensor, fill: str = "noise") -> paddle.Tensor:
    """Fills a box of each clip, the same in all its frames; the box is rounded to whole pixels.

    Args:
        clip: float32 [N, 3, T, H, W], normalised.
        boxes: float32 [N, 4]: left, top, width, height as fractions of the picture; zeros for no box.
        fill: "noise" (standard normal, for each pixel, colour and frame) or "zero".

    Returns:
        float32 [N, 3, T, H, W].

    Source: timm's ``RandomErasing``, modes "pixel" and "const"; one box a clip as in VideoMAE (``_erase_cube``).
    """
    num_clips, _, _, height, width = clip.shape
    left, top, box_width, box_height = paddle.unbind(boxes, axis=1)
    columns = _span(left, box_width, width).reshape([num_clips, 1, 1, 1, width])
    rows = _span(top, box_height, height).reshape([num_clips, 1, 1, height, 1])
    inside = paddle.logical_and(rows, columns)
    if fill == "zero":
        return paddle.masked_fill(clip, inside, 0.0)
    if fill != "noise":
        raise ValueError(f"fill must be one of {ERASE_FILLS}, got {fill!r}")
    return paddle.where(inside, paddle.randn(clip.shape, dtype="float32"), clip)


def mix_clips(clip: paddle.Tensor, mix: MixDraw) -> paddle.Tensor:
    """Mixes each clip with its partner: a weighted sum (mixup) or a box of every frame (cutmix).

    Args:
        clip: float32 [N, 3, T, H, W].
        mix: The draw of the batch.

    Returns:
        float32 [N, 3, T, H, W].
    """
    _check_partner(clip, mix)
    if mix.kind == "none":
        return clip
    partner = paddle.index_select(clip, paddle.to_tensor(mix.partner, place=clip.place))
    if mix.kind == "mixup":
        return paddle.lerp(clip, partner, 1.0 - mix.lam)
    height, width = clip.shape[-2:]
    left, top, right, bottom = mix.cut_box(height, width)
    rows, columns = paddle.arange(height).unsqueeze(1), paddle.arange(width)
    inside = (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)
    return paddle.where(inside, partner, clip)


def mix_targets(target: paddle.Tensor, mix: MixDraw, height: int, width: int) -> paddle.Tensor:
    """Mixes soft targets as ``mix_clips`` mixes the clips; for cutmix by the true area of the box in pixels.

    Args:
        target: float32 [N, C].
        mix: The draw of the batch.
        height: Of the pictures, pixels.
        width: Of the pictures, pixels.

    Returns:
        float32 [N, C].
    """
    if mix.kind == "none":
        return target
    _check_partner(target, mix)
    partner = paddle.index_select(target, paddle.to_tensor(mix.partner, place=target.place))
    return paddle.lerp(target, partner, 1.0 - mix.own_share(height, width))


def soft_targets(labels: paddle.Tensor, num_classes: int, smoothing: float = 0.0) -> paddle.Tensor:
    """Turns labels into distributions over the classes.

    Args:
        labels: int64 [N], in 0..C-1.
        num_classes: C.
        smoothing: Share spread evenly over all C classes, the right one included.

    Returns:
        float32 [N, C]: 1 - smoothing + smoothing / C at the label, smoothing / C elsewhere.

    Source: Szegedy et al., arXiv 1512.00567, section 7, as timm's ``mixup_target``.
    """
    return paddle.scale(F.one_hot(labels, num_classes), 1.0 - smoothing, smoothing / num_classes)


def _color_planes(clip: paddle.Tensor) -> list[paddle.Tensor]:
    """Splits [N, T, H, W, 3] into three float32 [N, T, H, W]."""
    if clip.ndim != 5 or clip.shape[-1] != 3:
        raise ValueError(f"clip must have the shape [N, T, H, W, 3], got {clip.shape}")
    return [plane.astype("float32") for plane in paddle.unbind(clip, axis=-1)]


def _normalize_planes(planes: list[paddle.Tensor], mean: Sequence[float], std: Sequence[float]) -> paddle.Tensor:
    scaled = [paddle.scale(plane, 1.0 / s, -m / s) for plane, m, s in zip(planes, mean, std)]
    return paddle.stack(scaled, axis=1)


def _jitter_planes(planes: list[paddle.Tensor], factors: paddle.Tensor, hue: bool) -> list[paddle.Tensor]:
    if factors.shape != [planes[0].shape[0], 4]:
        raise ValueError(f"factors must have the shape [{planes[0].shape[0]}, 4], got {factors.shape}")
    brightness, contrast, saturation, turn = factors.reshape([-1, 4, 1, 1, 1]).unbind(axis=1)
    planes = [paddle.clip(plane * brightness, 0.0, 255.0) for plane in planes]
    planes = _blend(planes, _grey(planes).mean(axis=[2, 3], keepdim=True), contrast)
    planes = _blend(planes, _grey(planes), saturation)
    return _turn_hue(planes, turn) if hue else planes


def _grey(planes: list[paddle.Tensor]) -> paddle.Tensor:
    red, green, blue = planes
    return 0.2989 * red + 0.587 * green + 0.114 * blue


def _blend(planes: list[paddle.Tensor], grey: paddle.Tensor, factor: paddle.Tensor) -> list[paddle.Tensor]:
    """Moves the colours away from ``grey`` (factor above 1) or towards it (below 1)."""
    rest = (1.0 - factor) * grey
    return [paddle.clip(plane * factor + rest, 0.0, 255.0) for plane in planes]


def _turn_hue(planes: list[paddle.Tensor], turn: paddle.Tensor) -> list[paddle.Tensor]:
    """Turns the hue of HSV by ``turn`` (in turns) without going through saturation and value.

    With the hue in sextants, 0 to 6, a channel is min + (max - min) * w, where w is clip(|hue - 3| - 1, 0, 1) for red,
    clip(2 - |hue - 2|, 0, 1) for green and clip(2 - |hue - 4|, 0, 1) for blue: the usual six cases in three formulae.
    """
    red, green, blue = planes
    highest = paddle.maximum(paddle.maximum(red, green), blue)
    lowest = paddle.minimum(paddle.minimum(red, green), blue)
    chroma = highest - lowest
    divisor = paddle.clip(chroma, min=1e-6)  # grey has no hue: any finite one will do
    hue = paddle.where(
        highest == red,
        (green - blue) / divisor,
        paddle.where(highest == green, 2.0 + (blue - red) / divisor, 4.0 + (red - green) / divisor),
    )
    hue = hue + 6.0 * turn
    hue = hue - 6.0 * paddle.floor(hue / 6.0)  # the remainder operator is ten times dearer on CPU
    shares = (paddle.abs(hue - 3.0) - 1.0, 2.0 - paddle.abs(hue - 2.0), 2.0 - paddle.abs(hue - 4.0))
    return [lowest + chroma * paddle.clip(share, 0.0, 1.0) for share in shares]


def _span(start: paddle.Tensor, length: paddle.Tensor, size: int) -> paddle.Tensor:
    """Tells which of ``size`` pixels lie in spans given as fractions: bool [N, size]."""
    first = paddle.floor(start * size + 0.5).unsqueeze(1)
    end = first + paddle.floor(length * size + 0.5).unsqueeze(1)
    pixels = paddle.arange(size, dtype="float32").unsqueeze(0)
    return paddle.logical_and(pixels >= first, pixels < end)


def _check_partner(rows: paddle.Tensor, mix: MixDraw) -> None:
    if len(mix.partner) != rows.shape[0]:
        raise ValueError(f"the mix was drawn for {len(mix.partner)} clips, the batch has {rows.shape[0]}")
