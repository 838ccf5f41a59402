"""What a rank that Paddle's launcher does not show can still say on its console."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from paddlevideo_fast.cli.options import config_parser, fail

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
    args = parser.parse_args(["-c", "a.yaml", "-w", "w", "-o", "a=1", "b=2", "-o", "c=3"])
    assert (args.config, args.weights, args.override) == ("a.yaml", "w", ["a=1", "b=2", "c=3"])
    for wrong in (["-w", "w"], ["-c", "a"], ["-c", "a", "-w", "w", "--conf", "b"]):
        with pytest.raises(SystemExit):
            parser.parse_args(wrong)
