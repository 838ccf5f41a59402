"""Every tool tells its options at once: it must not load the machinery before it knows what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tools").rglob("*.py"))
CPU_SECONDS = 1.0


def run_help(tool: str, folder: Path) -> tuple[float, str]:
    """Runs ``tool --help`` in a folder. Returns: CPU seconds, user and system, and what it printed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    output = folder / "help.txt"
    with open(output, "wb") as file:
        child = subprocess.Popen(
            [sys.executable, str(ROOT / tool), "--help"],
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    text = output.read_text()
    assert child.returncode == 0, text
    return usage.ru_utime + usage.ru_stime, text


def test_there_are_tools():
    assert {"tools/train.py", "tools/test.py", "tools/predict.py"} <= set(TOOLS)


@pytest.mark.skipif(not hasattr(os, "wait4"), reason="needs a system that counts a child's CPU time")
@pytest.mark.parametrize("tool", TOOLS)
def test_help_is_quick(tool, tmp_path):
    spent = []
    for _ in range(3):  # the first run may write byte code; other load on the machine makes one run slow
        seconds, text = run_help(tool, tmp_path)
        assert text.startswith("usage:"), text
        assert "--help" in text
        spent.append(seconds)
        if seconds < CPU_SECONDS:
            return
    pytest.fail(f"{tool} --help took {min(spent):.2f} s of CPU, at most {CPU_SECONDS} s")
