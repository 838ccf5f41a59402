"""Starting the ranks of a test through Paddle's launcher, and looking at what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def launch_command(script: Path, *arguments: object, folder: Path, ranks: int = 2) -> list[str]:
    """The launcher's command line; the logs of the ranks go to ``folder/logs``."""
    command = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", str(ranks)]
    return [*command, "--log_dir", str(folder / "logs"), str(script), *map(str, arguments)]


def clean_environment(**more: str) -> dict[str, str]:
    """The environment without what an earlier start of Paddle left in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PADDLE_", "FLAGS_"))}
    return {**kept, **more}


def launch(script: Path, *arguments: object, folder: Path, ranks: int = 2, **environment: str):
    """Runs a script in several processes through Paddle's launcher."""
    return subprocess.run(
        launch_command(script, *arguments, folder=folder, ranks=ranks),
        cwd=ROOT,
        env=clean_environment(FOLDER=str(folder), **environment),
        capture_output=True,
        text=True,
        timeout=120,
    )


def logs(folder: Path) -> str:
    """What the ranks wrote."""
    return "\n".join(path.read_text() for path in sorted((folder / "logs").glob("workerlog.*")))


def processes_of(path: Path) -> list[int]:
    """The processes with a path on their command line."""
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if str(path) in _command_line(entry)]


def shared_memory_of(processes: list[int]) -> list[str]:
    """Files in /dev/shm that carry one of these process numbers in their names, as Paddle's do."""
    numbers = {str(process) for process in processes}
    return [entry.name for entry in Path("/dev/shm").iterdir() if numbers & set(entry.name.split("_"))]


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""
