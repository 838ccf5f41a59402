"""The picture of what is decoded: its numbers for a file whose groups are known."""

from __future__ import annotations

import pytest
from PIL import Image

from paddlevideo_fast.cli.packets import main


def test_groups_of_a_file_without_b_pictures(video_file, tmp_path, capsys):
    """no_b.mp4 has 40 pictures in groups of 12: I at 0, 12, 24, 36, P elsewhere."""
    output = tmp_path / "new" / "packets.png"
    assert main([str(video_file("no_b.mp4")), "--frames", "14", "39", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert "2 frames wanted of 40; decoded: 7 (2 of 4 I, 5 of 36 P)" in printed
    assert Image.open(output).size[0] > 1000


@pytest.mark.parametrize(
    "name, more, message",
    [
        ("wmv2.wmv", [], "is read from its start"),
        ("no_b.mp4", ["--frames", "40"], "it has frames 0..39"),
    ],
)
def test_what_cannot_be_drawn_is_said(name, more, message, video_file, tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        main([str(video_file(name)), *more, "--output", str(tmp_path / "out.png")])
    assert error.value.code == 2 and message in capsys.readouterr().err
