"""Textured scenes for synthetic videos: large periodic pictures a virtual camera can travel over without an edge.

Every scene wraps around: its left edge continues at its right one, its top at its bottom. A scene is drawn from a
NumPy Generator alone, so the same generator state gives the same scene.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import cv2
import numpy as np

TEXTURE_SIZE = 640  # pixels a side
BLOTCH_SIZE = 9.0  # pixels; about a sixteenth of what a picture shows
LIGHT_CONTRAST = 45.0  # of 255, standard deviation
SCENE_CONTRAST = 0.6
MIDDLE_GREY, TINT = 117.0, 0.4  # where every scene's average colour lies, but for that part of its own

DARK = {
    "navy": (24, 40, 84),
    "maroon": (98, 24, 36),
    "forest green": (26, 72, 48),
    "purple": (72, 34, 98),
    "brown": (84, 52, 30),
    "charcoal": (44, 46, 52),
    "dark teal": (12, 74, 82),
}
MIDDLE = {
    "orange": (226, 122, 38),
    "red": (200, 52, 52),
    "blue": (52, 112, 192),
    "green": (76, 152, 74),
    "teal": (36, 146, 144),
    "pink": (218, 106, 148),
    "olive": (142, 138, 56),
    "grey": (132, 138, 142),
    "violet": (140, 98, 190),
}
LIGHT = {
    "cream": (246, 232, 200),
    "yellow": (244, 210, 92),
    "sky blue": (160, 208, 236),
    "mint": (176, 228, 196),
    "white": (240, 240, 236),
    "peach": (250, 196, 160),
    "lilac": (212, 190, 232),
}


@dataclass(frozen=True)
class Palette:
    """Four colours from dark to light, uint8 [4, 3], and the names of two of them joined by "and"."""

    colours: np.ndarray
    words: str


@dataclass(frozen=True)
class Scene:
    """What a texture will show.

    Attributes:
        family: A key of ``FAMILIES``.
        palette: Its colours; a photograph has its own.
        words: A noun phrase for captions, such as "orange and navy stripes".
        picture: The photograph or height map it shows, if it shows one.
    """

    family: str
    palette: Palette
    words: str
    picture: np.ndarray | None = None


def draw_scene(rng: np.random.Generator, split: str) -> Scene:
    """Draws what a scene shows.

    Args:
        rng: Source of every choice.
        split: ``train``, ``valid`` or ``test``. Procedural scenes never repeat; the few photographs and maps are
            dealt out so that what train sees is never seen by valid or test.

    Returns:
        The scene, not yet painted.
    """
    names = [name for name in FAMILIES if name not in PICTURES or picture_of(name, split) is not None]
    family = str(rng.choice(names))
    palette = draw_palette(rng)
    noun = str(rng.choice(NOUNS[family]))
    picture = picture_of(family, split) if family in PICTURES else None
    return Scene(family, palette, noun.format(palette.words), picture)


def paint_scene(rng: np.random.Generator, scene: Scene) -> np.ndarray:
    """Paints a scene. Returns: uint8 [TEXTURE_SIZE, TEXTURE_SIZE, 3], RGB, periodic."""
    paint = FAMILIES[scene.family]
    texture = paint(rng, scene.palette) if scene.picture is None else paint(rng, scene.palette, scene.picture)
    return dapple(texture.astype(np.float32), rng)


def draw_palette(rng: np.random.Generator) -> Palette:
    """Draws a dark, two middle and a light colour: enough contrast to track, whichever they are."""
    dark, light = str(rng.choice(list(DARK))), str(rng.choice(list(LIGHT)))
    middle = [str(name) for name in rng.choice(list(MIDDLE), 2, replace=False)]
    colours = np.array([DARK[dark], MIDDLE[middle[0]], MIDDLE[middle[1]], LIGHT[light]], np.uint8)
    named = rng.permutation([dark, middle[0], light])[:2]
    return Palette(colours, f"{named[0]} and {named[1]}")


# ---------------------------------------------------------------------------------------------------------------
# building blocks


def noise(rng: np.random.Generator, largest: float, slope: float) -> np.ndarray:
    """Draws periodic noise with a power-law spectrum.

    Args:
        rng: Source of the phases.
        largest: Longest wavelength, in pixels; longer ones are left out.
        slope: Amplitude falls as frequency ** -slope; 1 is rough, 2 is smooth.

    Returns:
        float32 [TEXTURE_SIZE, TEXTURE_SIZE], mean 0, standard deviation 1.
    """
    white = rng.standard_normal((TEXTURE_SIZE, TEXTURE_SIZE), dtype=np.float32)
    rows = np.fft.fftfreq(TEXTURE_SIZE)[:, None]
    columns = np.fft.rfftfreq(TEXTURE_SIZE)[None, :]
    frequency = np.hypot(rows, columns).astype(np.float32)
    gain = np.where(frequency * largest >= 1, np.maximum(frequency, 1e-6) ** -slope, 0).astype(np.float32)
    field = np.fft.irfft2(np.fft.rfft2(white) * gain, s=white.shape).astype(np.float32)
    return field / field.std()


def dapple(texture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Lays dappled light over a scene: soft blotches of one size, so that motion shows everywhere.

    It is what makes the data set quick to learn. Where scenes differ more in colour and bold shapes than they have
    in common, a small network learns the few hundred of them by heart before it learns to follow their motion.

    Args:
        texture: float32 [S, S, 3], 0..255.

    Returns:
        uint8 [S, S, 3].
    """
    average = texture.mean(axis=(0, 1))
    ground = MIDDLE_GREY + TINT * (average - MIDDLE_GREY)
    light = LIGHT_CONTRAST * blotches(rng, BLOTCH_SIZE)
    return np.clip(ground + SCENE_CONTRAST * (texture - average) + light[..., None], 0, 255).astype(np.uint8)


def blotches(rng: np.random.Generator, size: float) -> np.ndarray:
    """Draws periodic white noise blurred by a Gaussian.

    Args:
        size: Standard deviation of the blur, pixels.

    Returns:
        float32 [TEXTURE_SIZE, TEXTURE_SIZE], mean 0, standard deviation 1.
    """
    white = rng.standard_normal((TEXTURE_SIZE, TEXTURE_SIZE), dtype=np.float32)
    rows, columns = np.fft.fftfreq(TEXTURE_SIZE)[:, None], np.fft.rfftfreq(TEXTURE_SIZE)[None, :]
    blur = np.exp(-2 * (np.pi * size) ** 2 * (rows**2 + columns**2)).astype(np.float32)
    field = np.fft.irfft2(np.fft.rfft2(white) * blur, s=white.shape).astype(np.float32)
    return (field - field.mean()) / field.std()


def gradient(field: np.ndarray, palette: Palette) -> np.ndarray:
    """Colours a field by running through the palette. Args: field, any values. Returns: float32 [H, W, 3]."""
    low, high = np.quantile(field[::4, ::4], [0.02, 0.98])
    ramp = np.stack([np.interp(np.linspace(0, 3, 256), range(4), channel) for channel in palette.colours.T], axis=1)
    steps = np.clip((field - low) * (255 / (high - low)), 0, 255).astype(np.uint8)
    return ramp.astype(np.float32)[steps]


def wave(rng: np.random.Generator, most: int) -> np.ndarray:
    """Draws a periodic ramp in a random direction. Returns: float32 [S, S], in cycles, at most ``most`` across."""
    across, down = (int(count) for count in rng.integers(-most, most + 1, 2))
    if abs(across) + abs(down) < most // 2:
        across += most // 2
    steps = np.arange(TEXTURE_SIZE, dtype=np.float32) / TEXTURE_SIZE
    return steps[None, :] * across + steps[:, None] * down


def mirror_tile(picture: np.ndarray) -> np.ndarray:
    """Makes a picture periodic by mirroring. Args: picture [H, W, C]. Returns: [TEXTURE_SIZE, TEXTURE_SIZE, C]."""
    half = cv2.resize(picture, (TEXTURE_SIZE // 2, TEXTURE_SIZE // 2), interpolation=cv2.INTER_AREA)
    top = np.concatenate([half, half[:, ::-1]], axis=1)
    return np.concatenate([top, top[::-1]], axis=0)


# ---------------------------------------------------------------------------------------------------------------
# procedural families: (rng, palette) -> [S, S, 3] of values 0..255


def clouds(rng: np.random.Generator, palette: Palette) -> np.ndarray:
    """Multi-octave noise through a colour gradient."""
    return gradient(noise(rng, rng.uniform(120, 240), rng.uniform(1.4, 1.9)), palette)


def marble(rng: np.random.Generator, palette: Palette) -> np.ndarray:
    """Waves bent by noise."""
    bent = wave(rng, 5) + rng.uniform(0.1, 0.3) * noise(rng, 300, 2.5)
    return gradient(np.sin(2 * np.pi * bent) + 0.25 * noise(rng, 60, 1.4), palette)


def stripes(rng: np.random.Generator, palette: Palette) -> np.ndarray:
    """Bands of uneven width, gently bent; uneven, so that one band cannot be taken for the next."""
    bent = wave(rng, 2) + rng.uniform(0.03, 0.08) * noise(rng, 260, 2.0)
    edges = np.sort(rng.uniform(0, 256, int(rng.integers(9, 16))))
    order = np.cumsum(rng.integers(1, 4, len(edges) + 1)) % 4
    band = np.searchsorted(edges, np.arange(256))
    return palette.colours[order[band]][(bent * 256).astype(np.int32) % 256]


def islands(rng: np.random.Generator, palette: Palette) -> np.ndarray:
    """Patches with hard edges, painted one layer over another."""
    layer = np.zeros((TEXTURE_SIZE, TEXTURE_SIZE), np.uint8)
    for colour in (1, 2, 3):
        layer[noise(rng, rng.uniform(70, 150), 2.2) > 0.55] = colour
    return palette.colours[layer]


def cells(rng: np.random.Generator, palette: Palette) -> np.ndarray:
    """Voronoi cells with dark joints."""
    count, margin = int(rng.integers(60, 220)), 160
    points = rng.integers(0, TEXTURE_SIZE, (count, 2))
    wide = np.full((TEXTURE_SIZE + 2 * margin,) * 2, 255, np.uint8)
    number = np.zeros(wide.shape, np.int32)
    for shift in np.ndindex(3, 3):  # the neighbours across the seam
        rows, columns = (points + (np.array(shift) - 1) * TEXTURE_SIZE + margin).T
        inside = (rows >= 0) & (columns >= 0) & (rows < len(wide)) & (columns < len(wide))
        wide[rows[inside], columns[inside]] = 0
        number[rows[inside], columns[inside]] = np.flatnonzero(inside)
    _, label = cv2.distanceTransformWithLabels(wide, cv2.DIST_L2, cv2.DIST_MASK_5, labelType=cv2.DIST_LABEL_PIXEL)
    owner = np.zeros(label.max() + 1, np.int32)
    owner[label[wide == 0]] = number[wide == 0]
    owned = owner[label][margin:-margin, margin:-margin]
    colours = palette.colours[rng.integers(1, 4, count)] * rng.uniform(0.75, 1.1, (count, 1))
    picture = colours[owned]
    joint = (owned != np.roll(owned, 1, 0)) | (owned != np.roll(owned, 1, 1))
    joint |= np.roll(joint, -1, 0) | np.roll(joint, -1, 1)
    picture[joint] = palette.colours[0]
    return np.minimum(picture, 255)


def shapes(rng: np.random.Generator, palette: Palette) -> np.ndarray:
    """Discs, squares and triangles scattered over a ground."""
    ground = int(rng.integers(0, 4))
    picture = np.empty((TEXTURE_SIZE, TEXTURE_SIZE, 3), np.uint8)
    picture[:] = palette.colours[ground]
    inks = [colour for number, colour in enumerate(palette.colours) if number != ground]
    for _ in range(int(rng.integers(120, 260))):
        centre, radius = rng.uniform(0, TEXTURE_SIZE, 2), rng.uniform(9, 38)
        corners = int(rng.choice([3, 4, 24]))
        turns = rng.uniform(0, 2 * np.pi) + np.arange(corners) * (2 * np.pi / corners)
        outline = centre + radius * np.stack([np.cos(turns), np.sin(turns)], axis=1)
        colour = [float(value) for value in inks[int(rng.integers(0, 3))] * rng.uniform(0.8, 1.0)]
        fill_wrapped(picture, outline, colour, radius)
    return picture


def fill_wrapped(picture: np.ndarray, outline: np.ndarray, colour: list[float], radius: float) -> None:
    """Fills a polygon (float [K, 2], x and y) of at most ``radius``, again across each edge it touches."""
    middle = outline.mean(axis=0)
    shifts = [
        [0] + [way for way in (-TEXTURE_SIZE, TEXTURE_SIZE) if -radius <= value + way <= TEXTURE_SIZE + radius]
        for value in middle
    ]
    for across in shifts[0]:
        for down in shifts[1]:
            points = np.round((outline + (across, down)) * 16).astype(np.int32)
            cv2.fillPoly(picture, [points], colour, lineType=cv2.LINE_AA, shift=4)


def patchwork(rng: np.random.Generator, palette: Palette) -> np.ndarray:
    """Rectangles cut from rectangles, each with a seam."""
    picture = np.empty((TEXTURE_SIZE, TEXTURE_SIZE, 3), np.uint8)
    todo = [(0, 0, TEXTURE_SIZE, TEXTURE_SIZE)]
    smallest = int(rng.integers(24, 40))
    while todo:
        x, y, width, height = todo.pop()
        long_side = max(width, height)
        if long_side < 3 * smallest or (long_side < 5 * smallest and rng.random() < 0.3):
            colour = palette.colours[int(rng.integers(0, 4))] * rng.uniform(0.75, 1.0)
            picture[y : y + height, x : x + width] = colour
            picture[y : y + 2, x : x + width] = picture[y : y + height, x : x + 2] = palette.colours[0]
            continue
        cut = int(rng.uniform(0.3, 0.7) * long_side)
        if width >= height:
            todo += [(x, y, cut, height), (x + cut, y, width - cut, height)]
        else:
            todo += [(x, y, width, cut), (x, y + cut, width, height - cut)]
    return picture


# ---------------------------------------------------------------------------------------------------------------
# pictures that ship with matplotlib, where it is installed: (rng, palette, picture) -> [S, S, 3]


def photograph(rng: np.random.Generator, palette: Palette, picture: np.ndarray) -> np.ndarray:
    """A photograph, mirrored to be periodic."""
    return mirror_tile(picture)


def relief(rng: np.random.Generator, palette: Palette, picture: np.ndarray) -> np.ndarray:
    """A map coloured by height and lit from a random side."""
    height = mirror_tile(picture.astype(np.float32)[..., None]) if picture.ndim == 2 else mirror_tile(picture)
    height = np.squeeze(height) / height.std()
    turn = rng.uniform(0, 2 * np.pi)
    fall = np.cos(turn) * (height - np.roll(height, 1, 1)) + np.sin(turn) * (height - np.roll(height, 1, 0))
    light = np.clip(1 + 0.35 * fall / fall.std(), 0.3, 1.6)
    return np.clip(gradient(height, palette) * light[..., None], 0, 255)


# family -> split -> file below matplotlib's sample data
PICTURES = {
    "photograph": {"train": "grace_hopper.jpg"},
    "relief": {"train": "jacksboro_fault_dem.npz", "valid": "topobathy.npz", "test": "topobathy.npz"},
}


@lru_cache(maxsize=4)
def picture_of(family: str, split: str) -> np.ndarray | None:
    """Reads the picture a family shows in a split; None where there is none, or matplotlib is not installed."""
    name = PICTURES[family].get(split)
    try:
        import matplotlib
    except ImportError:
        return None
    path = os.path.join(matplotlib.get_data_path(), "sample_data", name or "")
    if name is None or not os.path.isfile(path):
        return None
    if name.endswith(".jpg"):
        return cv2.cvtColor(cv2.imread(path), cv2.COLOR_BGR2RGB)
    with np.load(path) as arrays:
        return arrays["elevation" if "elevation" in arrays else "topo"].astype(np.float32)


FAMILIES: dict[str, Callable[..., np.ndarray]] = {
    "clouds": clouds,
    "marble": marble,
    "stripes": stripes,
    "islands": islands,
    "cells": cells,
    "shapes": shapes,
    "patchwork": patchwork,
    "photograph": photograph,
    "relief": relief,
}

NOUNS = {
    "clouds": ("{} clouds", "a {} haze", "drifting {} smoke"),
    "marble": ("veined {} marble", "{} wood grain", "a swirling {} pattern"),
    "stripes": ("{} stripes", "a field of {} stripes", "a cloth with {} bands"),
    "islands": ("{} islands", "a {} camouflage pattern", "patches of {} paint"),
    "cells": ("{} pebbles", "a {} mosaic", "cracked {} tiles"),
    "shapes": ("{} confetti", "scattered {} shapes", "{} discs and triangles"),
    "patchwork": ("a {} patchwork", "a {} quilt", "{} rectangles"),
    "photograph": ("an old photograph", "a portrait of a naval officer", "a photograph of a woman in uniform"),
    "relief": ("a {} relief map", "{} mountains seen from above", "a map of {} hills"),
}
