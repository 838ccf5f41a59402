"""What a run tells: console lines, ``metrics.jsonl``, VisualDL curves, and the banner at the start."""

from __future__ import annotations

import json
import logging
import math
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger("paddlevideo_fast")


def setup_logging(rank: int, output_dir: Path | None = None) -> None:
    """Sends the package's messages to the console and, on the first rank, to ``output_dir/log.txt``.

    Ranks other than the first speak only from warnings on, and with their number.
    """
    logger.handlers.clear()
    logger.propagate = False
    logger.setLevel(logging.INFO)
    prefix = "" if rank == 0 else f"rank {rank} "
    formatter = logging.Formatter(f"%(asctime)s {prefix}%(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S")
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stdout)]
    handlers[0].setLevel(logging.INFO if rank == 0 else logging.WARNING)
    if rank == 0 and output_dir is not None:
        output_dir.mkdir(parents=True, exist_ok=True)
        handlers.append(logging.FileHandler(output_dir / "log.txt", encoding="utf-8"))
    for handler in handlers:
        handler.setFormatter(formatter)
        logger.addHandler(handler)


class RunLog:
    """Numbers of a run: one JSON object a line in ``metrics.jsonl``, and VisualDL scalars.

    Args:
        output_dir: Folder of the run; None keeps quiet (ranks other than the first).
        visualdl: Write curves too.
        keep: Bytes of an existing ``metrics.jsonl`` that a resumed run goes on from; the curves are drawn anew from
            them. None keeps all there is.
    """

    def __init__(self, output_dir: Path | None, visualdl: bool, keep: int | None = None):
        self._file = self._writer = None
        if output_dir is None:
            return
        output_dir.mkdir(parents=True, exist_ok=True)
        self._file = open(output_dir / "metrics.jsonl", "a", encoding="utf-8")  # noqa: SIM115 - open for the run
        if keep is not None and self._file.tell() > keep:
            self._file.truncate(keep)  # lines of steps that are taken anew
        if visualdl:
            from visualdl import LogWriter

            curves = output_dir / "visualdl"
            if keep is not None and curves.exists():  # VisualDL cannot take points back: draw all that count anew
                shutil.rmtree(curves)
            self._writer = LogWriter(logdir=str(curves))
            if keep is not None:
                self._draw_lines(output_dir / "metrics.jsonl")

    def record(self, phase: str, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Writes one line; numbers that JSON does not know (NaN, infinity) are written as text."""
        if self._file is None:
            return
        line: dict[str, Any] = {"phase": phase, "epoch": epoch, "step": step}
        line.update({name: _short(value) for name, value in values.items()})
        self._file.write(to_json(line) + "\n")
        self._file.flush()
        self._draw(line)

    def _draw(self, line: dict[str, Any]) -> None:
        if self._writer is None:
            return
        for name, value in line.items():
            if name not in ("phase", "epoch", "step"):
                self._writer.add_scalar(tag=f"{line['phase']}/{name}", step=line["step"], value=float(value))

    def _draw_lines(self, path: Path) -> None:
        with open(path, encoding="utf-8") as file:
            for text in file:
                self._draw(json.loads(text))

    def position(self) -> int:
        """Returns the bytes of ``metrics.jsonl`` so far; 0 on ranks that write none."""
        return 0 if self._file is None else self._file.tell()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files."""
        if self._file is not None:
            self._file.close()
        if self._writer is not None:
            self._writer.close()


def _short(value: float) -> float | int:
    return value if isinstance(value, int) else float(f"{value:.7g}")


def to_json(value: Any, indent: int | None = None) -> str:
    """Returns JSON text; numbers that JSON does not know (NaN, infinity) are written as text."""
    return json.dumps(_without_nan(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _without_nan(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nan(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def say_metrics(metrics: Mapping[str, float]) -> str:
    """Returns ``name value`` pairs on one line, fractions with four digits."""
    return "  ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in metrics.items())


def say_rows(title: str, rows: Mapping[str, str]) -> None:
    """Logs a title and aligned ``name  value`` rows."""
    width = max(len(name) for name in rows)
    logger.info("%s", title)
    for name, value in rows.items():
        logger.info("  %-*s  %s", width, name, value)


def duration(seconds: float) -> str:
    """Returns seconds as ``h:mm:ss``."""
    minutes, seconds = divmod(int(round(seconds)), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
