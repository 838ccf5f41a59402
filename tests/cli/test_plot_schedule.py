"""The table and the picture of a multigrid schedule, for the Kinetics-400 recipe of SlowFast 8x8."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from paddlevideo_fast.cli.plot_schedule import main
from paddlevideo_fast.multigrid import build_schedule
from paddlevideo_fast.phases import aligned, phases_table

KINETICS = ["--batch-size", "64", "--num-frames", "32", "--epochs", "239", "--ranks", "8", "--frame-stride", "2"]


def test_table_and_picture(tmp_path, capsys):
    output = tmp_path / "new" / "schedule.png"
    milestones = ["--milestones", "94", "154", "196"]
    assert main([*KINETICS, *milestones, "--ranks", "8", "--warmup-epochs", "34", "--output", str(output)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == "0-73 8 8 112/158/158 1024/512/512 8 8 1 25696 9.8%"
    # 15 epochs of 240,000 clips: 535 cycles of 448 clips and 320 clips, one full batch of 256 and half one of 128
    assert lines[14] == f"343-358 32 2 112/158/224 256/128/64 0.001 1 1 {15 * (3 * 535 + 2)} 9.2%"
    assert "358 epochs in the place of 239: 3.42 times fewer steps, 3.43 times fewer pixels" in lines
    assert Image.open(output).size == (1200, 840)


@pytest.mark.parametrize("more", [["--cosine"], ["--no-long-cycle"], ["--no-short-cycle"], ["--cycle", "single"]])
def test_other_schedules_are_drawn(more, tmp_path):
    assert main([*KINETICS, *more, "--output", str(tmp_path / "out.png")]) == 0
    assert (tmp_path / "out.png").stat().st_size > 10_000


def test_shares_of_pixels_add_up():
    rows = phases_table(build_schedule(16, 8, 64, [10, 15], 18), 1000)
    assert sum(float(row[-1].rstrip("%")) for row in rows[1:]) == pytest.approx(100, abs=0.5)
    assert len({len(line) for line in aligned(rows)}) == 1


def test_what_cannot_be_scheduled_is_said(tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        main([*KINETICS, "--ranks", "3", "--output", str(tmp_path / "out.png")])
    assert error.value.code == 2
    assert "63 or 66 would" in capsys.readouterr().err


CONFIG = Path(__file__).parents[2] / "configs" / "slowfast" / "slowfast_resnet50_k400_8x8_multigrid.yaml"


def test_a_config_has_the_same_schedule(tmp_path, capsys):
    output = ["--output", str(tmp_path / "out.png")]
    assert main(["-c", str(CONFIG), "--ranks", "8", *output]) == 0
    shown = capsys.readouterr().out
    assert main([*KINETICS, "--milestones", "94", "154", "196", *output]) == 0
    assert capsys.readouterr().out == shown
    assert main(["-c", str(CONFIG), "-o", "epochs=200", "multigrid.epoch_factor=1", *output]) == 0
    assert "200 epochs in the place of 200" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-c", str(CONFIG), "--epochs", "3"], "--epochs: the config says this; change it with -o"),
        (["--num-frames", "8"], "give -c CONFIG, or the recipe"),
        (["-c", str(CONFIG), "-o", "multigrid="], "multigrid: there is none; -o multigrid.long_cycle=true adds it"),
    ],
)
def test_options_that_do_not_go_together(arguments, message, capsys):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2 and message in capsys.readouterr().err
