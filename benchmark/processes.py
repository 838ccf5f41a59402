"""Measuring in processes: an interpreter of its own that can be killed, and what it and its children take.

found = run_apart([sys.executable, __file__, "--measure", "threads"], seconds=120)
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def run_apart(command: Sequence[str], seconds: float) -> Any:
    """Runs a command that prints JSON as its last line, and ends whatever it started.

    Returns:
        What the last line holds; None if the command took longer and was killed.

    Raises:
        SystemExit: It ended with a status other than 0.
    """
    # A file, no pipe: workers that outlive their process would hold a pipe open, and reading it would never end.
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(command, stdout=output, start_new_session=True)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):  # where nothing is left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if status:
            raise SystemExit(f"{' '.join(command)} ended with status {status}")
        output.seek(0)
        return json.loads(output.read().splitlines()[-1])


def children() -> list[str]:
    """Returns the numbers of the processes this thread started and that still run."""
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def cpu_seconds() -> float:
    """Returns what this process and its children took so far, whether they have ended or not."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.process_time() + ended.ru_utime + ended.ru_stime
    for child in children():
        fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
        seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


def megabytes() -> tuple[float, float]:
    """Returns the sums of resident (RSS) and of proportional memory (PSS) of this process and its children."""
    sums = {"Rss:": 0.0, "Pss:": 0.0}
    for process in ("self", *children()):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            name, *amount = line.split()
            if name in sums:
                sums[name] += int(amount[0]) / 1024
    return sums["Rss:"], sums["Pss:"]
