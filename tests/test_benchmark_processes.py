"""Processes that the benchmarks measure in: what hangs is ended with all it started, and all of it is counted."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmark"))

from processes import cpu_seconds, megabytes, run_apart

PROC = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
START_SLEEPER = "import subprocess; child = subprocess.Popen(['sleep', '60'])"
SPIN = "import time\nwhile time.process_time() < 0.5: pass\n"


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@PROC
def test_a_child_that_outlives_its_process_does_not_hold_the_result_back():
    code = f"{START_SLEEPER}; import os; print('a line before'); print(child.pid, flush=True); os._exit(0)"
    start = time.monotonic()
    assert gone(run_apart([sys.executable, "-c", code], seconds=30))
    assert time.monotonic() - start < 20


@PROC
def test_what_hangs_is_killed_with_its_children(tmp_path):
    note = tmp_path / "pid"
    code = f"{START_SLEEPER}; open({str(note)!r}, 'w').write(str(child.pid)); child.wait()"
    assert run_apart([sys.executable, "-c", code], seconds=2) is None
    assert gone(int(note.read_text()))


def test_a_failure_is_not_a_result():
    with pytest.raises(SystemExit, match="status 3"):
        run_apart([sys.executable, "-c", "raise SystemExit(3)"], seconds=30)


@PROC
def test_cpu_time_counts_children_that_run_and_that_have_ended():
    before = cpu_seconds()
    child = subprocess.Popen([sys.executable, "-c", f"{SPIN}time.sleep(60)"])
    try:
        deadline = time.monotonic() + 20
        while cpu_seconds() - before < 0.45 and time.monotonic() < deadline:
            time.sleep(0.05)
        running = cpu_seconds() - before
    finally:
        child.kill()
        child.wait()
    assert running >= 0.45
    assert cpu_seconds() - before >= running - 0.02  # two clock ticks


@PROC
def test_memory_is_that_of_all_processes():
    rss, pss = megabytes()
    block = "data = bytes([1]) * 50_000_000; print('there', flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", block], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    child.stdout.readline()
    with_child = megabytes()
    child.communicate(b"\n")
    assert with_child[0] - rss > 45 and with_child[1] - pss > 45
    assert 0 < pss <= rss
