"""Pictures: curves and schedule of a run, clips with what was predicted for them, what is decoded of a video."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # without pyplot: no window, no global state, always Agg for a PNG
from PIL import Image

from paddlevideo_fast.data.video import VideoInfo
from paddlevideo_fast.multigrid import Schedule

COLOURS = {"train": "#4878a8", "valid": "#d1603d"}
RIGHT, WRONG, UNKNOWN = "#2e8b57", "#c0392b", "#444444"
CELL = 112  # pixels a side of one frame on a sheet
GAP = 4  # pixels between frames
MOST_FRAMES = 8  # of one clip on a sheet
STACK_COLOURS = ("#c0392b", "#8fb48f", "#4878a8", "#2c4f75", "#d9a441", "#d1603d", "#7a6aa8")
REST = "#b8b8b8"
CURVE_SMOOTHING = 30  # points above which a training curve also shows its running mean


def plot_training(metrics: str | Path, output: str | Path) -> None:
    """Draws loss, accuracy and learning rate of a run.

    Args:
        metrics: ``metrics.jsonl`` of the run: one JSON object a line with ``phase`` ("train" or "valid") and ``step``;
            ``loss``, ``top1`` (0..1) and ``lr`` are drawn where a line has them.
        output: PNG to write; its folder is made.

    Raises:
        ValueError: A line is not JSON, or no line has anything to draw.
    """
    lines = read_metrics(metrics)
    figure = Figure(figsize=(10, 5), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(4, 1))
    loss, accuracy = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    rate = figure.add_subplot(grid[1, :])
    drawn = draw_curves(loss, lines, "loss", "loss", best=min)
    drawn |= draw_curves(accuracy, lines, "top1", "top-1 accuracy", best=max)
    if not drawn:
        raise ValueError(f"{metrics}: no line has a loss or top1 to draw")
    if loss.lines:
        loss.set_ylim(bottom=0)
    accuracy.set_ylim(0, 1)
    steps, values = points_of(lines, "train", "lr")
    rate.plot(steps, values, color="#777777", linewidth=1.2)
    rate.set_ylabel("learning rate", fontsize=8)
    rate.set_xlabel("step")
    for axes in (loss, accuracy, rate):
        tidy(axes)
    save(figure, output)


def read_metrics(path: str | Path) -> list[dict]:
    """Reads a file of one JSON object a line. Raises: ValueError naming the line that is none."""
    rows = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number} is not a JSON object: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}:{number} is not a JSON object: {line[:60]}")
        rows.append(row)
    return rows


def points_of(lines: Sequence[dict], phase: str, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Picks the finite values of one curve. Returns: float [K] steps, ascending, and float [K] values."""
    found = [
        (float(line["step"]), float(line[key]))
        for line in lines
        if line.get("phase") == phase and line.get(key) is not None and "step" in line
    ]
    points = np.array([point for point in found if math.isfinite(point[1])]).reshape(-1, 2)
    points = points[np.argsort(points[:, 0], kind="stable")]
    return points[:, 0], points[:, 1]


def draw_curves(axes: Axes, lines: Sequence[dict], key: str, title: str, best: Callable) -> bool:
    """Draws one number of both phases and names the best of validation; returns whether there was any."""
    axes.set_title(title)
    for phase, colour in COLOURS.items():
        steps, values = points_of(lines, phase, key)
        if not len(steps):
            continue
        if phase == "train" and len(steps) > CURVE_SMOOTHING:
            axes.plot(steps, values, color=colour, alpha=0.25, linewidth=0.8)
            values = running_mean(values, max(3, len(values) // 15))
        marker, label = ("o", f"valid, best {best(values):.3f}") if phase == "valid" else (None, "train")
        axes.plot(steps, values, color=colour, marker=marker, markersize=4, linewidth=1.6, label=label)
    if axes.lines:
        axes.legend(frameon=False)
    return bool(axes.lines)


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """Averages over ``width`` neighbours, fewer at the ends. Args: float [K]. Returns: float [K]."""
    ones = np.ones(width)
    return np.convolve(values, ones, "same") / np.convolve(np.ones(len(values)), ones, "same")


def tidy(axes: Axes) -> None:
    axes.grid(True, color="#e4e4e4", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def save(figure: Figure, output: str | Path) -> None:
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=120, format="png")


def plot_dataset(infos: Sequence[VideoInfo], codecs: Sequence[str], output: str | Path) -> None:
    """Draws what the videos of a data set are like: durations, sizes, frame rates and codecs.

    Args:
        infos: One a video; where none has a time the numbers of frames stand for the durations.
        codecs: Name of the codec of each.
        output: PNG to write; its folder is made.

    Raises:
        ValueError: There are no videos.
    """
    if not infos:
        raise ValueError("a picture of a data set needs at least one video")
    figure = Figure(figsize=(10, 6), layout="constrained")
    lengths, sides, rates, bars = figure.subplots(2, 2).flat
    timed = [info for info in infos if info.fps]
    if timed:
        draw_histogram(lengths, [info.duration for info in timed], "duration (s)")
    else:
        draw_histogram(lengths, [info.num_frames for info in infos], "frames")
    draw_histogram(sides, [min(info.width, info.height) for info in infos], "shorter side (pixels)")
    draw_histogram(rates, [info.fps for info in timed], "frames per second")
    counts = Counter(codecs).most_common(10)
    bars.barh([name for name, _ in counts], [count for _, count in counts], color=COLOURS["train"])
    bars.invert_yaxis()
    bars.set_title("codecs")
    bars.set_xlabel("videos")
    for axes in (lengths, sides, rates, bars):
        tidy(axes)
    save(figure, output)


def draw_histogram(axes: Axes, values: Sequence[float], title: str) -> None:
    """Draws how often values occur; the highest one in a hundred counts into the last bar."""
    axes.set_title(title)
    axes.set_ylabel("videos")
    if not values:
        axes.text(0.5, 0.5, "not known", ha="center", va="center", transform=axes.transAxes, color=UNKNOWN)
        return
    low, high = min(values), float(np.percentile(values, 99))
    if high <= low:
        low, high = low - 0.5, low + 0.5
    axes.hist(np.minimum(values, high), bins=np.linspace(low, high, 31), color=COLOURS["train"])


@dataclass(frozen=True)
class SheetRow:
    """One clip on a contact sheet.

    Attributes:
        frames: uint8 [T, H, W, 3], RGB; at most eight, evenly spread, are shown, each cut to its middle square.
        predicted: Name of the class predicted.
        truth: Name of the right class; None where nobody knows.
        score: Probability of the predicted class, 0..1; None to leave it out.
    """

    frames: np.ndarray
    predicted: str
    truth: str | None = None
    score: float | None = None


def plot_contact_sheet(rows: Iterable[SheetRow], output: str | Path) -> None:
    """Draws clips as strips of frames under what was predicted: green where right, red where wrong.

    Args:
        rows: The clips; more than six stand in two columns.
        output: PNG to write; its folder is made.

    Raises:
        ValueError: There are no rows, or a row's frames are not uint8 [T, H, W, 3].
    """
    rows = list(rows)
    if not rows:
        raise ValueError("a contact sheet needs at least one clip")
    strips = [strip_of(row.frames) for row in rows]
    columns = 2 if len(rows) > 6 else 1
    height = math.ceil(len(rows) / columns)
    wide = max(strip.shape[1] for strip in strips)
    figure = Figure(figsize=(columns * (wide / 120 + 0.2), height * (CELL / 120 + 0.34)), layout="constrained")
    for number, (row, strip) in enumerate(zip(rows, strips)):
        axes = figure.add_subplot(height, columns, number + 1)
        axes.imshow(strip, extent=(0, strip.shape[1], CELL, 0), interpolation="antialiased")
        axes.set_xlim(0, wide)
        axes.set_axis_off()
        text, colour = verdict(row)
        axes.set_title(text, color=colour, fontsize=10, fontweight="bold", loc="left", pad=3)
    save(figure, output)


def verdict(row: SheetRow) -> tuple[str, str]:
    """Returns the words over a strip and their colour."""
    score = "" if row.score is None else f" {row.score:.2f}"
    if row.truth is None:
        return f"{row.predicted}{score}", UNKNOWN
    if row.truth == row.predicted:
        return f"\N{CHECK MARK} {row.predicted}{score}", RIGHT
    return f"\N{BALLOT X} {row.predicted}{score} (is {row.truth})", WRONG


def strip_of(frames: np.ndarray) -> np.ndarray:
    """Lays frames side by side. Args: uint8 [T, H, W, 3]. Returns: uint8 [CELL, width, 3]."""
    frames = np.asarray(frames)
    if frames.ndim != 4 or frames.shape[-1] != 3 or frames.dtype != np.uint8 or 0 in frames.shape:
        raise ValueError(f"frames must be uint8 [T, H, W, 3], got {frames.dtype} {list(frames.shape)}")
    chosen = np.linspace(0, len(frames) - 1, min(MOST_FRAMES, len(frames))).round().astype(int)
    height, width = frames.shape[1:3]
    side = min(height, width)
    x, y = (width - side) // 2, (height - side) // 2
    strip = np.full((CELL, len(chosen) * (CELL + GAP) - GAP, 3), 255, np.uint8)
    for place, index in enumerate(chosen):
        square = Image.fromarray(np.ascontiguousarray(frames[index, y : y + side, x : x + side]))
        left = place * (CELL + GAP)
        strip[:, left : left + CELL] = np.asarray(square.resize((CELL, CELL), Image.Resampling.BICUBIC))
    return strip


def plot_packets(kinds: Sequence[str], decoded: Iterable[int], wanted: Iterable[int], output: str | Path) -> None:
    """Draws the pictures of a video in the order they are shown: which are decoded for the frames wanted.

    Args:
        kinds: "I", "P" or "B" of each frame, as FFmpeg calls them.
        decoded: Indices of the frames that are decoded.
        wanted: Indices of the frames wanted.
        output: PNG to write; its folder is made.
    """
    decoded, wanted = set(decoded), sorted(set(wanted))
    figure = Figure(figsize=(11, 2.6), layout="constrained")
    axes = figure.add_subplot()
    for kind, height, colour in (("I", 1.0, "#c0392b"), ("P", 0.75, "#4878a8"), ("B", 0.5, "#8fb48f")):
        for filled, word in ((True, "decoded"), (False, "left out")):
            places = [index for index, each in enumerate(kinds) if each == kind and (index in decoded) == filled]
            if places:
                face = colour if filled else "white"
                label = f"{kind} {word}: {len(places)}"
                axes.bar(places, height, width=0.75, facecolor=face, edgecolor=colour, linewidth=0.5, label=label)
    axes.plot(wanted, [1.1] * len(wanted), "v", color="#222222", markersize=5, label=f"wanted: {len(wanted)}")
    axes.set_ylim(0, 1.25)
    axes.set_yticks([])
    axes.set_xlim(-1, len(kinds))
    axes.set_xlabel("frame, in the order shown")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.28), ncols=7, fontsize=8, frameon=False)
    save(figure, output)


def plot_profile(step: Mapping[str, float], clip: Mapping[str, float], output: str | Path) -> None:
    """Draws where the time of a training goes, as two stacked bars.

    Args:
        step: Part -> wall seconds of a step of the main thread.
        clip: Part -> CPU seconds of reading a clip.
        output: PNG to write; its folder is made.
    """
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    for axes, parts, title in (
        (figure.add_subplot(2, 1, 1), step, "a step of the main thread, wall time (ms)"),
        (figure.add_subplot(2, 1, 2), clip, "reading a clip, CPU time of its thread (ms)"),
    ):
        draw_stack(axes, parts, title)
    save(figure, output)


def draw_stack(axes: Axes, parts: Mapping[str, float], title: str) -> None:
    """Draws one horizontal bar of parts, from seconds in milliseconds; parts that take nothing are left out."""
    left, whole = 0.0, sum(parts.values())
    for number, (name, seconds) in enumerate(parts.items()):
        if seconds <= 0:
            continue
        colour = REST if name == "other" else STACK_COLOURS[number % len(STACK_COLOURS)]
        axes.barh([0], [1000 * seconds], left=left, color=colour, label=f"{name} {seconds / whole:.0%}")
        left += 1000 * seconds
    axes.set_title(f"{title}: {1000 * whole:.1f}", fontsize=10, loc="left")
    axes.set_yticks([])
    tidy(axes)
    if axes.patches:
        axes.set_xlim(0, left)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=8, fontsize=8, frameon=False)


def plot_accuracy_over_time(curves: Sequence[tuple[str, Sequence[tuple[float, float]]]], output: str | Path) -> None:
    """Draws how the accuracy of several runs rises with the time they train; runs of one name share a colour.

    Args:
        curves: Name of each run and its points, (minutes, accuracy from 0 to 1).
        output: PNG to write; its folder is made.
    """
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    names = list(dict.fromkeys(name for name, _ in curves))
    for name, points in curves:
        first = name not in axes.get_legend_handles_labels()[1]
        minutes, accuracies = zip(*points, strict=True)
        colour = f"C{names.index(name)}"
        axes.plot(minutes, accuracies, marker=".", color=colour, alpha=0.8, label=name if first else None)
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("top-1, validation")
    axes.set_ylim(0, 1.02)
    axes.set_xlim(0)
    axes.legend(loc="lower right", frameon=False)
    tidy(axes)
    save(figure, output)


def plot_schedule(schedule: Schedule, rate: Callable[[float], float], output: str | Path) -> None:
    """Draws what a multigrid run does over its epochs: frames, crops, batches and learning rate.

    Where the short cycle changes crop and batch from step to step, a band spans their range and the line is that of
    the phase.

    Args:
        schedule: The phases.
        rate: Learning rate over progress in epochs.
        output: PNG to write; its folder is made.
    """
    figure = Figure(figsize=(10, 7), layout="constrained")
    frames, crops, batches, rates = figure.subplots(4, 1, sharex=True)
    phases = schedule.phases
    edges = [phase.start for phase in phases] + [schedule.epochs]
    draw_steps(frames, edges, [phase.num_frames for phase in phases], "frames")
    draw_steps(crops, edges, [phase.crop_size for phase in phases], "crop (pixels)")
    draw_steps(batches, edges, [phase.batch_size for phase in phases], "clips of a step")
    for axes in (frames, crops):
        axes.set_ylim(bottom=0)
    crops.set_yticks(sorted({crop for phase in phases for crop, _ in phase.short_cycle}))
    batches.set_yscale("log", base=2)
    batches.set_yticks(sorted({phase.batch_size for phase in phases}))  # the scale has put its own
    batches.yaxis.set_major_formatter("{x:.0f}")
    for axes, place in ((crops, 0), (batches, 1)):
        low = [min(step[place] for step in phase.short_cycle) for phase in phases]
        high = [max(step[place] for step in phase.short_cycle) for phase in phases]
        axes.fill_between(edges, [*low, low[-1]], [*high, high[-1]], step="post", color=COLOURS["train"], alpha=0.2)
    epochs = np.unique(np.concatenate([np.linspace(0, schedule.epochs, 1000), edges]))[:-1]  # the end has no rate
    values = np.array([rate(epoch) for epoch in epochs])
    rates.plot(epochs, values, color=COLOURS["valid"], linewidth=1.6, drawstyle="steps-post")
    if values.max() > 20 * values[-1] > 0:
        rates.set_yscale("log")
        rates.set_ylim(bottom=max(values[values > 0].min(), values.max() / 1e4) / 1.5)
    rates.set_ylabel("learning rate")
    rates.set_xlabel("epoch")
    rates.set_xlim(0, schedule.epochs)
    frames.set_title(
        f"{schedule.epochs} epochs in the place of {schedule.base_epochs}, {schedule.iteration_saving:.2f} times fewer "
        "steps",
        fontsize=10,
        loc="left",
    )
    for axes in (frames, crops, batches, rates):
        tidy(axes)
        for edge in edges[1:-1]:
            axes.axvline(edge, color="#e4e4e4", linewidth=0.7, zorder=0)
        axes.grid(False, axis="x")
    save(figure, output)


def draw_steps(axes: Axes, edges: Sequence[float], values: Sequence[float], label: str) -> None:
    """Draws a value for each interval between edges; ticks stand at the values."""
    axes.stairs(values, edges, baseline=None, color=COLOURS["train"], linewidth=1.8)
    axes.set_ylabel(label)
    axes.set_yticks(sorted(set(values)))
