"""Clips to measure readers on: moving pictures with the statistics of real ones, encoded as x264 does by default.

paths = make_clips("340x256")
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import cv2
import numpy as np

RATE = 30


@dataclass(frozen=True)
class ClipKind:
    """What a synthesised clip is like.

    Attributes:
        width: Pixels.
        height: Pixels.
        seconds: Its length.
    """

    width: int
    height: int
    seconds: int


KINDS = {"340x256": ClipKind(340, 256, 10), "640x360": ClipKind(640, 360, 10), "512x288": ClipKind(512, 288, 15)}


def make_clips(kind: str, count: int, folder: Path | None = None) -> list[Path]:
    """Writes clips of a kind, unless they are there from an earlier run.

    Args:
        kind: A key of ``KINDS``.
        count: How many; each has a content of its own.
        folder: Where they are kept; None takes one in the system's folder for temporary files, whose name changes
            with the text of this file.

    Returns:
        Paths of H.264 mp4 files: crf 23, preset medium, groups of up to 250 pictures, B pictures.
    """
    if folder is None:
        version = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
        folder = Path(tempfile.gettempdir()) / f"paddlevideo_fast_clips_{version}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{kind}_{number}.mp4" for number in range(count)]
    for number, path in enumerate(paths):
        if not path.exists():
            part = path.with_suffix(f".{os.getpid()}.part")
            write_clip(part, KINDS[kind], seed=number)
            part.replace(path)  # a run that was interrupted leaves no half clip behind
    return paths


def write_clip(path: Path, kind: ClipKind, seed: int) -> None:
    """Encodes ``draw_frames`` with libx264's defaults."""
    with av.open(str(path), "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=RATE, options={"crf": "23", "preset": "medium", "g": "250"})
        stream.width, stream.height, stream.pix_fmt = kind.width, kind.height, "yuv420p"
        for picture in draw_frames(kind, seed):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(stream.encode(None))


def draw_frames(kind: ClipKind, seed: int) -> Iterator[np.ndarray]:
    """Yields uint8 [H, W, 3] pictures: a hand-held pan over a textured ground, textured things moving across it.

    Ground and things have a spectrum that falls with the frequency as that of photographs does; the sensor adds a
    little noise of its own to each picture.
    """
    rng = np.random.default_rng(seed)
    width, height, count = kind.width, kind.height, kind.seconds * RATE
    scale = height / 256
    ground = make_texture(rng, 3 * width, 3 * height)
    things = [Thing.draw(rng, scale, kind) for _ in range(6)]
    path = _smooth_path(rng, count, 0.6 * scale)
    grain = rng.normal(0, 1.5, (8, height, width, 1)).astype(np.float32)
    for index in range(count):
        x, y = width + path[index, 0], height + path[index, 1]
        zoom = 1 + 0.1 * np.sin(index / 70 + seed)
        view = np.float32([[zoom, 0, -zoom * x], [0, zoom, -zoom * y]])
        picture = cv2.warpAffine(ground, view, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
        for thing in things:
            picture = thing.paint(picture, index)
        picture += grain[rng.integers(len(grain))]
        yield np.clip(picture, 0, 255).astype(np.uint8)


@dataclass(frozen=True)
class Thing:
    """A textured ellipse that swings across the picture and turns."""

    texture: np.ndarray
    mask: np.ndarray
    centre: np.ndarray
    swing: np.ndarray
    speed: np.ndarray
    phase: np.ndarray

    @classmethod
    def draw(cls, rng: np.random.Generator, scale: float, kind: ClipKind) -> Thing:
        size = int(rng.uniform(50, 120) * scale)
        y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
        mask = np.clip((1 - np.hypot(x, y * rng.uniform(1, 1.8))) * size / 4, 0, 1).astype(np.float32)
        extent = np.array([kind.width, kind.height])
        return cls(
            texture=make_texture(rng, size, size),
            mask=mask[..., None],
            centre=rng.uniform(0.2, 0.8, 2) * extent,
            swing=rng.uniform(0.1, 0.4, 2) * extent,
            speed=rng.uniform(0.02, 0.06, 3),
            phase=rng.uniform(0, 2 * np.pi, 3),
        )

    def paint(self, picture: np.ndarray, index: int) -> np.ndarray:
        """Returns float32 [H, W, 3] with the thing where it is at this time."""
        height, width = picture.shape[:2]
        waves = np.sin(self.speed * index + self.phase)
        x, y = self.centre + self.swing * waves[:2]
        size = len(self.mask)
        turn = cv2.getRotationMatrix2D((size / 2, size / 2), 40 * waves[2], 1)
        turn[:, 2] += (x - size / 2, y - size / 2)
        texture = cv2.warpAffine(self.texture, turn, (width, height), flags=cv2.INTER_LINEAR)
        mask = cv2.warpAffine(self.mask, turn, (width, height), flags=cv2.INTER_LINEAR)[..., None]
        return picture + mask * (texture - picture)


def make_texture(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Returns float32 [height, width, 3]: noise whose amplitude falls as 1/f^1.25, with a colour cast of its own."""
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]
    fall = 1 / np.maximum(np.hypot(fx, fy), 1 / max(width, height)) ** 1.25
    planes = []
    for weight in (1.0, 0.35, 0.35):  # brightness varies more than colour
        spectrum = fall * np.exp(2j * np.pi * rng.random(fall.shape))
        plane = np.fft.irfft2(spectrum, (height, width))
        planes.append(weight * plane / plane.std())
    light, red, blue = planes
    rgb = np.stack([light + red, light - 0.5 * (red + blue), light + blue], -1)
    return (128 + rng.uniform(-40, 40, 3) + 45 * rgb).astype(np.float32)


def _smooth_path(rng: np.random.Generator, count: int, speed: float) -> np.ndarray:
    """Returns float [count, 2]: positions in pixels of a camera that drifts and shakes a little."""
    drift = np.cumsum(speed * np.sin(np.linspace(0, 6, count)[:, None] + rng.uniform(0, 6, 2)), axis=0)
    shake = np.cumsum(rng.normal(0, 0.35 * speed, (count, 2)), axis=0)
    kernel = np.ones(5) / 5
    return drift + np.stack([np.convolve(axis, kernel, "same") for axis in shake.T], -1)
