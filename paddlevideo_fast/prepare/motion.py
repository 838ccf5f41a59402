"""The embedded demo data set: real H.264 files in which only the order of the frames tells the class.

A virtual camera looks straight down on a large textured scene and makes one of eight movements. A class says what
the **camera** does, as a viewer understands it; the picture content moves the other way:

====================  =======================================================================
pan_left, pan_right   the camera moves to its left (right): content runs to the right (left)
pan_up, pan_down      the camera moves up (down): content runs down (up)
zoom_in, zoom_out     content grows (shrinks) about the centre of the picture
rotate_clockwise      the camera rolls clockwise: content turns anticlockwise
rotate_anticlockwise  the camera rolls anticlockwise: content turns clockwise
====================  =======================================================================

Mirroring a clip left to right exchanges pan_left with pan_right and rotate_clockwise with rotate_anticlockwise.

A single frame tells nothing: position, roll and zoom are drawn so that a frame taken at random looks alike in every
class, there is no border, vignette or motion blur, and size, rate, length and scene are drawn without regard to the
class. A network that only averages over frames therefore stays near chance.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path

import av
import cv2
import numpy as np

from paddlevideo_fast.prepare.scenes import TEXTURE_SIZE, Scene, draw_scene, paint_scene

CLASSES = (
    "pan_left",
    "pan_right",
    "pan_up",
    "pan_down",
    "zoom_in",
    "zoom_out",
    "rotate_clockwise",
    "rotate_anticlockwise",
)
SPLITS = ("train", "valid", "test")
FRAME_RATES = tuple(Fraction(rate) for rate in (12, 15, 24, 25, Fraction(30000, 1001), 30))
SIZE_RANGE = (112, 240)  # pixels, each side
DURATION_RANGE = (1.5, 4.0)  # seconds
VERSION = 2  # of the pictures a seed stands for; raise it when a change of this code changes them

# How far the camera goes in one clip at most, and the least part of that; the speed follows from the clip's length.
PAN_TRAVEL = 0.48  # short sides of the picture
ZOOM_TRAVEL = 0.70  # natural logarithm of the magnification
ROLL_TRAVEL = 1.25  # radians
LEAST_REACH = 0.65
SCENE_ACROSS = (110, 180)  # texture pixels seen across the short side of the picture, at mid zoom


@dataclass(frozen=True)
class Clip:
    """Every choice about one clip, before a pixel is drawn.

    Attributes:
        name: Path of the video, relative to the data set.
        label: Index into ``CLASSES``.
        width, height: Pixels, even.
        fps: Frames per second.
        camera: float64 [T, 4], a frame a row: x and y of the picture centre and the scene seen in one picture pixel,
            both in texture pixels; roll in radians, clockwise.
        gain: float64 [T], brightness factor.
        speed: How far the camera goes a second, over what the fastest clip could do in one second; 0..1.
    """

    name: str
    label: int
    width: int
    height: int
    fps: Fraction
    camera: np.ndarray
    gain: np.ndarray
    speed: float


def make_motion_dataset(
    output: str | Path,
    train: int = 720,
    valid: int = 120,
    test: int = 120,
    *,
    seed: int = 0,
    size: tuple[int, int] = SIZE_RANGE,
    duration: tuple[float, float] = DURATION_RANGE,
    travel: float = 1.0,
    workers: int = 1,
    progress: bool = False,
) -> Path:
    """Writes the data set: videos, list files (``path label``), ``classes.txt`` and ``captions.txt``.

    Clips that are already there are kept, so an interrupted run goes on where it stopped and a larger count adds to
    what there is. The same seed gives the same pixels whatever the number of workers.

    Args:
        output: Folder to write; made if absent.
        train, valid, test: Clips in each split; any multiple of 8 is balanced.
        seed: Any int of at least 0.
        size: Least and most pixels a side, 32..480; rounded to even numbers.
        duration: Least and most seconds of a clip, above 0.
        travel: How far the camera goes, as a part of the usual, above 0 and at most 1. The hand is as unsteady as
            ever, so that less is harder.
        workers: Processes; 0 or 1 works in this one.
        progress: Report to stderr.

    Returns:
        The folder.

    Raises:
        ValueError: A value is out of range, or the folder holds clips made from other settings.
    """
    check_settings({"train": train, "valid": valid, "test": test}, seed, size, duration, travel)
    output = Path(output)
    settings = {"version": VERSION, "seed": seed, "size": list(size), "duration": list(duration), "travel": travel}
    claim_folder(output, settings)
    jobs = [(split, index) for split, count in zip(SPLITS, (train, valid, test)) for index in range(count)]
    make = partial(make_clip, output, seed=seed, size=size, duration=duration, travel=travel)
    lines = dict(zip(jobs, run_jobs(make, jobs, workers, progress)))
    for split in SPLITS:
        rows = [f"{name} {label}\n" for job, (name, label, _) in lines.items() if job[0] == split]
        write_text(output / f"{split}.txt", "".join(rows))
    write_text(output / "classes.txt", "".join(f"{name}\n" for name in CLASSES))
    write_text(output / "captions.txt", "".join(f"{name}\t{caption}\n" for name, _, caption in lines.values()))
    return output


def check_settings(
    counts: dict[str, int], seed: int, size: Sequence[int], duration: Sequence[float], travel: float
) -> None:
    """Raises ValueError where a setting of ``make_motion_dataset`` is out of range."""
    for split, count in counts.items():
        if count < 0:
            raise ValueError(f"{split} must be at least 0 clips, got {count}")
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}")
    if not 32 <= size[0] <= size[1] <= 480:
        raise ValueError(f"size must be (least, most) pixels within 32..480, got {tuple(size)}")
    if not 0 < duration[0] <= duration[1]:
        raise ValueError(f"duration must be (least, most) seconds above 0, got {tuple(duration)}")
    if not 0 < travel <= 1:
        raise ValueError(f"travel must be above 0 and at most 1, got {travel}")


def claim_folder(output: Path, settings: dict) -> None:
    """Makes the folder and notes the settings in it; refuses one that holds clips made from other settings."""
    note = output / "settings.json"
    if note.is_file():
        found = {"travel": 1.0, **json.loads(note.read_text(encoding="utf-8"))}  # older notes do not have it
        if found != settings:
            raise ValueError(f"{output} holds clips made with {found}, not {settings}: choose another folder")
    for split in SPLITS:
        (output / "videos" / split).mkdir(parents=True, exist_ok=True)
    write_text(note, json.dumps(settings) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    draft = path.with_name(path.name + ".partial")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


# ---------------------------------------------------------------------------------------------------------------
# running


def run_jobs(make, jobs: list[tuple[str, int]], workers: int, progress: bool) -> list[tuple[str, int, str]]:
    """Makes every clip, in this process or several; returns (name, label, caption) in the order of the jobs."""
    report = Progress(len(jobs), progress)
    results = {}
    if workers <= 1:
        for job in jobs:
            results[job] = make(job)
            report.step()
        return list(results.values())
    # spawn: a fork of a process whose libraries run threads may hang
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=cv2.setNumThreads, initargs=(1,)) as pool:
        waiting = {pool.submit(make, job): job for job in jobs}
        try:
            for future in as_completed(waiting):
                results[waiting[future]] = future.result()
                report.step()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [results[job] for job in jobs]


class Progress:
    """Counts finished clips and says on stderr how long the rest will take, about ten times in all."""

    def __init__(self, total: int, shown: bool):
        self.total, self.shown, self.done, self.begin = total, shown, 0, time.perf_counter()

    def step(self) -> None:
        self.done += 1
        if not self.shown or (self.done % max(1, self.total // 10) and self.done != self.total):
            return
        spent = time.perf_counter() - self.begin
        left = spent / self.done * (self.total - self.done)
        print(f"{self.done}/{self.total} clips, {spent:.0f} s, {left:.0f} s to go", file=sys.stderr, flush=True)


def make_clip(output: Path, job: tuple[str, int], *, seed: int, size, duration, travel: float) -> tuple[str, int, str]:
    """Makes one clip of a split unless its file is there. Returns: its name, label and caption."""
    split, index = job
    rng = np.random.default_rng([seed, SPLITS.index(split), index])
    label = draw_label(seed, split, index)
    clip = draw_clip(rng, f"videos/{split}/{index:05d}.mp4", label, size, duration, travel)
    scene = draw_scene(rng, split)
    caption = write_caption(rng, clip, scene)
    path = output / clip.name
    if not path.is_file():
        encode(path, render(clip, paint_scene(rng, scene)), clip)
    return clip.name, label, caption


def draw_label(seed: int, split: str, index: int) -> int:
    """Returns the label of a clip: each block of eight clips holds every class once, in a random order."""
    block, place = divmod(index, len(CLASSES))
    order = np.random.default_rng([seed, SPLITS.index(split), block, 1]).permutation(len(CLASSES))
    return int(order[place])


# ---------------------------------------------------------------------------------------------------------------
# the camera


def draw_clip(rng: np.random.Generator, name: str, label: int, size, duration, travel: float) -> Clip:
    """Draws format and camera path of a clip; nothing but the direction of travel depends on the label."""
    width, height = (2 * int(side) for side in rng.integers(-(-size[0] // 2), size[1] // 2 + 1, 2))
    fps = FRAME_RATES[int(rng.integers(len(FRAME_RATES)))]
    num_frames = max(2, round(rng.uniform(*duration) * float(fps)))
    seconds = np.arange(num_frames) / float(fps)
    reach = rng.uniform(LEAST_REACH, 1)
    camera = draw_path(rng, CLASSES[label], seconds, travel * reach, min(width, height))
    gain = rng.uniform(0.92, 1.05) + rng.uniform(0, 0.08) * np.sin(
        rng.uniform(0, 2 * np.pi) + rng.uniform(0.3, 1.5) * seconds
    )
    speed = reach / (num_frames / float(fps))
    return Clip(name, label, width, height, fps, camera, gain, speed)


def draw_path(rng: np.random.Generator, motion: str, seconds: np.ndarray, reach: float, short_side: int) -> np.ndarray:
    """Draws the camera's path.

    The path is centred on a random framing, so that forward and backward motion pass through the same framings.

    Args:
        rng: Source of every choice.
        motion: One of ``CLASSES``.
        seconds: float [T], time of each frame.
        reach: Travel, as a part of the greatest, 0..1.
        short_side: Pixels of the picture's short side.

    Returns:
        float64 [T, 4] as in ``Clip.camera``.
    """
    pan, zoom, roll = (reach * most for most in (PAN_TRAVEL, ZOOM_TRAVEL, ROLL_TRAVEL))
    place = seconds / seconds[-1]
    ease = rng.uniform(-0.5, 0.5)
    way = place + ease * np.sin(2 * np.pi * place) / (2 * np.pi) - 0.5  # rises from -0.5 to 0.5, never falls
    zoom_axis = {"zoom_in": -1, "zoom_out": 1}.get(motion, 0)
    roll_axis = {"rotate_clockwise": 1, "rotate_anticlockwise": -1}.get(motion, 0)
    right = {"pan_right": 1, "pan_left": -1}.get(motion, 0)
    down = {"pan_down": 1, "pan_up": -1}.get(motion, 0)

    # A clip that does not zoom stands somewhere on the way one that does would have taken.
    standing = rng.uniform(-0.5, 0.5)
    across = math.log(rng.uniform(*SCENE_ACROSS)) + zoom * (zoom_axis * way if zoom_axis else standing)
    scale = np.exp(across + 0.03 * wander(rng, seconds)) / short_side
    angle = rng.uniform(0, 2 * np.pi) + roll * roll_axis * way + 0.04 * wander(rng, seconds)
    step = short_side * scale
    ahead = step * (pan * right * way + 0.02 * wander(rng, seconds))
    below = step * (pan * down * way + 0.02 * wander(rng, seconds))
    x = rng.uniform(0, TEXTURE_SIZE) + np.cos(angle) * ahead - np.sin(angle) * below
    y = rng.uniform(0, TEXTURE_SIZE) + np.sin(angle) * ahead + np.cos(angle) * below
    return np.stack([x, y, scale, angle], axis=1)


def wander(rng: np.random.Generator, seconds: np.ndarray) -> np.ndarray:
    """Draws the unsteadiness of a hand: a slow sway and a faint quick shake. Returns: float [T], about -1..1."""
    sway = np.sin(rng.uniform(0, 2 * np.pi) + rng.uniform(0.5, 2.5) * seconds)
    shake = np.sin(rng.uniform(0, 2 * np.pi) + rng.uniform(8, 20) * seconds)
    return rng.uniform(0.2, 0.8) * sway + rng.uniform(0, 0.2) * shake


def render(clip: Clip, texture: np.ndarray) -> Iterator[np.ndarray]:
    """Yields what the camera sees of a texture (uint8 [S, S, 3]), frame by frame: uint8 [H, W, 3], RGB."""
    # Above about one texture pixel a picture pixel, fine grain would shimmer: draw finer, then average.
    finer = max(1, math.ceil(clip.camera[:, 2].max() / 1.3))
    wide = (clip.width * finer, clip.height * finer)
    for (x, y, scale, angle), gain in zip(clip.camera, clip.gain):
        turn = scale / finer * np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        corner = np.array([x, y]) - turn @ ((np.array(wide) - 1) / 2)
        look = np.hstack([turn, corner[:, None]])
        flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
        frame = cv2.warpAffine(texture, look, wide, flags=flags, borderMode=cv2.BORDER_WRAP)
        if finer > 1:
            frame = cv2.resize(frame, (clip.width, clip.height), interpolation=cv2.INTER_AREA)
        yield cv2.LUT(frame, np.clip(np.arange(256) * gain, 0, 255).astype(np.uint8))


def encode(path: Path, frames: Iterator[np.ndarray], clip: Clip) -> None:
    """Writes frames as H.264 in MP4; the file appears under its name only when it is complete."""
    draft = path.with_name(path.name + ".partial")
    # Without mbtree: it gave other bytes from run to run for the same frames, and would spend fewer bits where the
    # picture moves faster, which might tell the class.
    options = {"preset": "veryfast", "crf": "22", "g": "48", "threads": "1", "mbtree": "0"}
    with av.open(str(draft), "w", format="mp4", container_options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=clip.fps, options=options)
        stream.width, stream.height, stream.pix_fmt = clip.width, clip.height, "yuv420p"
        for frame in frames:
            planes = cv2.cvtColor(frame, cv2.COLOR_RGB2YUV_I420)  # BT.601, limited range: what untagged files mean
            container.mux(stream.encode(av.VideoFrame.from_ndarray(planes, format="yuv420p")))
        container.mux(stream.encode(None))
    os.replace(draft, path)


# ---------------------------------------------------------------------------------------------------------------
# captions

MOTION_WORDS = {
    "pan_left": ("pans {} to the left", "moves {} left", "slides {} leftwards"),
    "pan_right": ("pans {} to the right", "moves {} right", "slides {} rightwards"),
    "pan_up": ("moves {} up", "rises {}", "glides {} upwards"),
    "pan_down": ("moves {} down", "sinks {}", "glides {} downwards"),
    "zoom_in": ("zooms in {}", "closes in {}", "moves {} closer"),
    "zoom_out": ("zooms out {}", "pulls back {}", "moves {} away"),
    "rotate_clockwise": ("rotates {} clockwise", "turns {} clockwise", "rolls {} to the right"),
    "rotate_anticlockwise": ("rotates {} anticlockwise", "turns {} anticlockwise", "rolls {} to the left"),
}
SPEED_WORDS = {
    "slow": ("slowly", "gently", "unhurriedly"),
    "medium": ("", "steadily", "smoothly"),
    "fast": ("quickly", "rapidly", "swiftly"),
}
SENTENCES = (
    "the camera {motion} over {scene}",
    "the camera {motion}, showing {scene}",
    "{scene}, while the camera {motion}",
    "a view of {scene} as the camera {motion}",
    "the camera {motion} and we see {scene}",
)


def write_caption(rng: np.random.Generator, clip: Clip, scene: Scene) -> str:
    """Draws one sentence on what the camera does, how fast and over what."""
    pace = "slow" if clip.speed < 0.26 else "fast" if clip.speed > 0.35 else "medium"
    speed = str(rng.choice(SPEED_WORDS[pace]))
    motion = str(rng.choice(MOTION_WORDS[CLASSES[clip.label]])).format(speed)
    sentence = str(rng.choice(SENTENCES)).format(motion=motion, scene=scene.words)
    sentence = re.sub(r"\ba (?=[aeio])", "an ", sentence)  # colour names: an olive haze
    return " ".join(sentence.split()).replace(" ,", ",")
