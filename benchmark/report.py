"""What the benchmarks share: alternating measurements, and tables as JSON and Markdown with the machine's facts.

timings = measure({"native": run_native, "composed": run_composed}, repeats=9)
write_report("temporal_shift", rows, columns, notes, output=Path("benchmark/results"))
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Timing:
    """Seconds of one call: medians over the repeats, and the spread of the wall time.

    Attributes:
        wall: Median wall time.
        cpu: Median CPU time of this process, all threads together.
        wall_min: Shortest wall time.
        wall_max: Longest wall time.
    """

    wall: float
    cpu: float
    wall_min: float
    wall_max: float


def measure(
    alternatives: Mapping[str, Callable[[], Any]],
    repeats: int,
    *,
    inner: int = 1,
    warmup: int = 1,
    synchronise: Callable[[], Any] | None = None,
) -> dict[str, Timing]:
    """Time alternatives in turn, so that a change in the machine's load hits all of them.

    Args:
        alternatives: What to call, by name.
        repeats: Rounds; each runs every alternative, every other round in reverse order.
        inner: Calls a measurement, for things shorter than a millisecond.
        warmup: Untimed rounds before.
        synchronise: Waits for the device; called before and after each measurement.

    Returns:
        A `Timing` for each name, in seconds a call.
    """
    wait = synchronise or (lambda: None)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in alternatives}
    for turn in range(warmup + repeats):
        names = list(alternatives)[:: 1 if turn % 2 == 0 else -1]
        for name in names:
            wait()
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(inner):
                alternatives[name]()
            wait()
            taken = ((time.perf_counter() - wall) / inner, (time.process_time() - cpu) / inner)
            if turn >= warmup:
                seconds[name].append(taken)
    return {name: _timing(taken) for name, taken in seconds.items()}


def _timing(taken: list[tuple[float, float]]) -> Timing:
    walls = [wall for wall, _ in taken]
    return Timing(statistics.median(walls), statistics.median(cpu for _, cpu in taken), min(walls), max(walls))


def machine_facts() -> dict[str, str]:
    """Return what a reader needs to know about the machine: processor, cores, memory, GPU, versions, date."""
    facts = {
        "date": datetime.date.today().isoformat(),
        "cpu": _first_line("/proc/cpuinfo", "model name") or platform.processor() or "unknown",
        "cores": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "memory": _first_line("/proc/meminfo", "MemTotal") or "unknown",
        "python": platform.python_version(),
    }
    for package in ("paddlepaddle", "paddlepaddle-gpu"):
        try:
            facts[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    for variable in ("MKL_DEBUG_CPU_TYPE", "OMP_NUM_THREADS"):
        facts[variable] = os.environ.get(variable, "unset")
    facts["gpu"] = _gpu_name()
    return facts


def _first_line(path: str, key: str) -> str | None:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), None)


def _gpu_name() -> str:
    if "paddle" not in sys.modules:  # a benchmark without Paddle need not have it installed
        return "not used"
    import paddle

    if not paddle.device.is_compiled_with_cuda() or paddle.device.cuda.device_count() == 0:
        return "none"
    return f"{paddle.device.cuda.device_count()} x {paddle.device.cuda.get_device_name()}"


def write_report(
    name: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Mapping[str, str],
    notes: Sequence[str],
    output: Path = RESULTS,
) -> str:
    """Write `<output>/<name>.json` and `<output>/<name>.md`, and print the latter.

    Args:
        name: Name of the table, a file name.
        rows: One mapping a row; the JSON file keeps all keys, the Markdown table those of `columns`.
        columns: Key to heading, in the table's order; a key that a row lacks leaves its cell empty.
        notes: Sentences below the table: method, what is compared, what the figures do not say.
        output: Directory, made if missing.

    Returns:
        The Markdown text.
    """
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    facts = machine_facts()
    record = {"name": name, "machine": facts, "notes": list(notes), "rows": [dict(row) for row in rows]}
    (output / f"{name}.json").write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    lines = [
        "| " + " | ".join(columns.values()) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(_cell(row.get(key)) for key in columns) + " |" for row in rows),
        "",
        *(f"- {note}" for note in notes),
        "- Machine: " + "; ".join(f"{key} {value}" for key, value in facts.items()) + ".",
    ]
    text = f"# {name.replace('_', ' ')}\n\n" + "\n".join(lines) + "\n"
    (output / f"{name}.md").write_text(text)
    print(text)
    return text


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
