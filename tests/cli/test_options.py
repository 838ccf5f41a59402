"""What a rank that Paddle's launcher does not show can still say on its console."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from paddlevideo_fast.cli.options import config_parser, exit_status, explain, fail, parse, spread_overrides

ROOT = Path(__file__).parents[2]

PARENT = """
import subprocess, sys
nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1]], **nowhere).returncode)
"""


def console_of(child: str) -> tuple[int, str]:
    """Runs code in a process whose own output goes nowhere; returns its status and what its parent's console shows."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + textwrap.dedent(child)
    done = subprocess.run([sys.executable, "-c", PARENT, code], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the process files of Linux")
def test_another_rank_speaks_on_the_console_of_its_parent():
    code = "from paddlevideo_fast.cli.options import fail\nraise fail(ValueError('the disk is full'), rank=3)"
    assert console_of(code) == (1, "rank 3 error: the disk is full\n")
    assert console_of(code.replace("rank=3", "rank=0")) == (1, "")  # the launcher shows this one itself


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs the process files of Linux")
def test_so_does_an_error_nobody_expected():
    code = "from paddlevideo_fast.cli.options import tell_uncaught\ntell_uncaught(2)\n1 / 0"
    status, console = console_of(code)
    assert status == 1
    assert console.startswith("rank 2 Traceback") and console.strip().endswith("ZeroDivisionError: division by zero")
    assert console_of(code.replace("(2)", "(0)")) == (1, "")


def test_an_error_becomes_a_message():
    assert fail(ValueError("no")).code == "error: no"


def test_options_are_told_with_their_defaults(capsys):
    parser = config_parser("Does something.", weights_required=True)
    args = parse(parser, ["-c", "a.yaml", "-w", "w", "-o", "a=1", "b=2", "-o", "c=3"])
    assert (args.config, args.weights, args.override) == ("a.yaml", "w", ["a=1", "b=2", "c=3"])
    for wrong in (["-w", "w"], ["-c", "a"], ["-c", "a", "-w", "w", "--conf", "b"]):
        with pytest.raises(SystemExit):
            parse(parser, wrong)


@pytest.mark.parametrize(
    ("line", "overrides", "inputs"),
    [
        ("-o a=b x.mp4", ["a=b"], ["x.mp4"]),
        ("x.mp4 -o a=b", ["a=b"], ["x.mp4"]),
        ("-o a=b -o c=d x.mp4 y", ["a=b", "c=d"], ["x.mp4", "y"]),
        ("-o a=b c=d x.mp4", ["a=b", "c=d"], ["x.mp4"]),
        ("-o a=b c=d -- e=f", ["a=b", "c=d"], ["e=f"]),
        ("-o a=b e=here.mp4 c=d", ["a=b"], ["e=here.mp4", "c=d"]),
        ("-o e=here.mp4 x", ["e=here.mp4"], ["x"]),
        ("-o a x", ["a"], ["x"]),
        ("-oa=b c=d x", ["a=b", "c=d"], ["x"]),
        ("--override=a=b c=d x", ["a=b", "c=d"], ["x"]),
        ("--override a=b c=d -w v x", ["a=b", "c=d"], ["x"]),
        ("x -o a=b c=d y -o e=f z", ["a=b", "c=d", "e=f"], ["x", "y", "z"]),
        ("x y=z", [], ["x", "y=z"]),
        ("-o a=- x", ["a=-"], ["x"]),
    ],
)
def test_overrides_swallow_no_inputs(line, overrides, inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e=here.mp4").touch()
    parser = config_parser("Does something.", weights_required=True)
    parser.add_argument("inputs", nargs="+")
    args = parse(parser, ["-c", "c", "-w", "w", *line.split()])
    assert (args.override, args.inputs) == (overrides, inputs)


def test_a_bare_option_is_left_to_the_parser(capsys):
    assert spread_overrides(["-o"]) == ["-o"]
    with pytest.raises(SystemExit):
        parse(config_parser("Does something.", weights_required=False), ["-c", "c", "-o"])
    assert "-o/--override: expected one argument" in capsys.readouterr().err


def test_errors_of_the_system_begin_with_the_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError) as caught:
        (tmp_path / "file").mkdir()
    assert explain(caught.value) == f"{tmp_path}/file: a file is in the place of a folder (File exists)"
    with pytest.raises(OSError) as caught:
        (tmp_path / "none").read_text()
    assert explain(caught.value) == f"{tmp_path}/none: No such file or directory"
    assert explain(OSError("no")) == "no"


@pytest.mark.parametrize(
    ("outcome", "goes_on", "status", "text"),
    [
        (0, True, 0, ""),
        (3, True, 1, ""),
        (ValueError("no list"), True, 2, "make_x: no list\n"),
        (FileNotFoundError(2, "No such file", "a.txt"), True, 2, "make_x: a.txt: No such file\n"),
        (KeyboardInterrupt(), True, 130, "make_x: interrupted; the same command goes on from here\n"),
        (KeyboardInterrupt(), False, 130, "make_x: interrupted\n"),
    ],
)
def test_exit_status_of_a_tool(capsys, outcome, goes_on, status, text):
    def work():
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    assert exit_status("make_x", work, goes_on) == status
    assert capsys.readouterr().err == text
