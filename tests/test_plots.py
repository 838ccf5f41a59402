"""Pictures of a run, read back as pixels and as the data drawn."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from paddlevideo_fast.data.video import VideoInfo
from paddlevideo_fast.plots import (
    CELL,
    COLOURS,
    RIGHT,
    UNKNOWN,
    WRONG,
    SheetRow,
    draw_histogram,
    plot_accuracy_over_time,
    plot_contact_sheet,
    plot_dataset,
    plot_training,
    points_of,
    read_metrics,
    running_mean,
    strip_of,
    verdict,
)


def rgb(colour):
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


def count_pixels(path, colour, tolerance=12):
    picture = np.asarray(Image.open(path).convert("RGB")).astype(int)
    return int((np.abs(picture - rgb(colour)).max(axis=2) <= tolerance).sum())


def write_metrics(path, num_epochs=6, steps=30, **extra):
    lines = []
    for epoch in range(num_epochs):
        for step in range(epoch * steps, (epoch + 1) * steps, 5):
            loss = 2 * math.exp(-step / 80) + 0.1 * math.sin(step)
            lines.append({"phase": "train", "epoch": epoch, "step": step, "loss": loss, "lr": 0.05, "top1": 0.1})
        last = (epoch + 1) * steps
        top1 = 0.95 * (1 - math.exp(-last / 60))
        lines.append({"phase": "valid", "epoch": epoch, "step": last, "loss": 2.2 - top1, "top1": top1})
    path.write_text("".join(json.dumps(line | extra) + "\n" for line in lines))
    return path


def test_training_picture_shows_both_phases(tmp_path):
    output = tmp_path / "deep" / "curves.png"
    plot_training(write_metrics(tmp_path / "metrics.jsonl"), output)
    assert Image.open(output).size == (1200, 600)
    assert count_pixels(output, COLOURS["train"]) > 500
    assert count_pixels(output, COLOURS["valid"]) > 500


def test_missing_keys_and_odd_values_are_passed_over(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        '{"phase": "train", "epoch": 0, "step": 4, "loss": 1.5}\n'
        '{"phase": "train", "epoch": 0, "step": 2, "loss": "nan", "lr": 0.1}\n'
        "\n"
        '{"phase": "train", "epoch": 0, "step": 1, "loss": 2.0, "top1": null}\n'
        '{"phase": "resume", "epoch": 0, "step": 3, "note": "x"}\n'
    )
    lines = read_metrics(path)
    assert len(lines) == 4
    steps, values = points_of(lines, "train", "loss")
    assert (steps.tolist(), values.tolist()) == ([1, 4], [2.0, 1.5])
    assert points_of(lines, "train", "top1")[0].size == 0
    plot_training(path, tmp_path / "curves.png")
    assert count_pixels(tmp_path / "curves.png", COLOURS["train"]) > 100


def test_bad_files_are_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"phase": "train", "step": 1, "loss": 1}\n{"phase": "tra')
    with pytest.raises(ValueError, match=r"metrics.jsonl:2 is not a JSON object"):
        plot_training(path, tmp_path / "curves.png")
    path.write_text('{"phase": "train", "step": 1}\n')
    with pytest.raises(ValueError, match="no line has a loss or top1"):
        plot_training(path, tmp_path / "curves.png")


def test_running_mean():
    assert running_mean(np.array([3.0, 6, 9, 0]), 3).tolist() == [4.5, 6, 5, 4.5]


def test_contact_sheet_is_green_and_red(tmp_path):
    frames = np.full((4, 20, 30, 3), (10, 20, 200), np.uint8)
    for row, present, absent in (
        (SheetRow(frames, "pan_left", "pan_left", 0.9), RIGHT, WRONG),
        (SheetRow(frames, "pan_left", "zoom_in", 0.9), WRONG, RIGHT),
    ):
        output = tmp_path / "sheet.png"
        plot_contact_sheet([row], output)
        assert count_pixels(output, present) > 50
        assert count_pixels(output, absent) == 0
        # four squares of CELL pixels at the sheet's 120 dots an inch, give or take the layout's rounding
        assert count_pixels(output, "#0a14c8") == pytest.approx(4 * CELL * CELL, rel=0.15)


def test_more_than_six_clips_stand_in_two_columns(tmp_path):
    row = SheetRow(np.zeros((8, 16, 16, 3), np.uint8), "a", "a")
    plot_contact_sheet([row] * 6, tmp_path / "six.png")
    plot_contact_sheet([row] * 7, tmp_path / "seven.png")
    six, seven = (Image.open(tmp_path / f"{name}.png").size for name in ("six", "seven"))
    assert seven[0] == pytest.approx(2 * six[0], abs=4)
    assert seven[1] < six[1]


def test_words_over_a_strip():
    frames = np.zeros((1, 4, 4, 3), np.uint8)
    assert verdict(SheetRow(frames, "pan_up", "pan_up", 0.987)) == ("\u2713 pan_up 0.99", RIGHT)
    assert verdict(SheetRow(frames, "pan_up", "pan_down")) == ("\u2717 pan_up (is pan_down)", WRONG)
    assert verdict(SheetRow(frames, "pan_up", score=0.5)) == ("pan_up 0.50", UNKNOWN)


def test_strip_takes_the_middle_of_evenly_spread_frames():
    frames = np.zeros((15, 10, 30, 3), np.uint8)
    frames[:, :, 10:20] = (np.arange(15) * 10)[:, None, None, None]
    frames[:, :, :10] = 255
    strip = strip_of(frames)
    assert strip.shape == (CELL, 8 * CELL + 7 * 4, 3)
    middles = strip[CELL // 2, CELL // 2 :: CELL + 4, 0].tolist()
    assert middles == [0, 20, 40, 60, 80, 100, 120, 140]
    assert strip[:, :CELL].max() == 0


def test_wrong_frames_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"uint8 \[T, H, W, 3\], got float32 \[2, 4, 4, 3\]"):
        plot_contact_sheet([SheetRow(np.zeros((2, 4, 4, 3), np.float32), "a")], tmp_path / "sheet.png")
    with pytest.raises(ValueError, match="at least one clip"):
        plot_contact_sheet([], tmp_path / "sheet.png")


def test_dataset_picture_shows_all_four(tmp_path):
    random = np.random.default_rng(0)
    infos = [VideoInfo(250, 25.0, 340, 256, float(seconds)) for seconds in random.normal(10, 2, 200)]
    output = tmp_path / "deep" / "report.png"
    plot_dataset(infos, ["h264"] * 150 + ["vp9"] * 50, output)
    assert Image.open(output).size == (1200, 720)
    picture = np.asarray(Image.open(output).convert("RGB")).astype(int)
    drawn = np.abs(picture - rgb(COLOURS["train"])).max(axis=2) <= 12
    for rows in (slice(None, 360), slice(360, None)):
        for columns in (slice(None, 600), slice(600, None)):
            assert drawn[rows, columns].sum() > 500
    plot_dataset([VideoInfo(7, 0.0, 96, 64, 0.0)], ["jpeg"], output)
    with pytest.raises(ValueError, match="at least one video"):
        plot_dataset([], [], output)


def test_outliers_do_not_flatten_a_histogram():
    axes = Figure().add_subplot()
    draw_histogram(axes, [*range(100, 200), 10**6], "x")
    counts = [bar.get_height() for bar in axes.patches]
    assert sum(counts) == 101 and sum(count > 0 for count in counts) == 30


def test_accuracy_over_time(tmp_path):
    curves = [("standard", [(1, 0.2), (2, 0.6)]), ("multigrid", [(0.5, 0.3)]), ("standard", [(1, 0.1), (2, 0.7)])]
    plot_accuracy_over_time(curves, tmp_path / "curves.png")
    assert Image.open(tmp_path / "curves.png").size[0] > 400
