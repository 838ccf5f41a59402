"""Command line options that several commands share."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paddlevideo_fast.engine.distributed import Ranks


def config_parser(description: str, weights_required: bool) -> argparse.ArgumentParser:
    """Makes a parser with ``-c``, ``-o`` and ``-w``."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("-c", "--config", required=True, help="YAML configuration file")
    parser.add_argument(
        "-o",
        "--override",
        action="extend",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="replace a key of the configuration, for example -o optimizer.lr=0.01 data.batch_size=8; values are YAML",
    )
    parser.add_argument(
        "-w",
        "--weights",
        required=weights_required,
        default=argparse.SUPPRESS if weights_required else None,
        help="weights to start from: a .pdparams file or a .pdstate checkpoint",
    )
    return parser


def fail(error: Exception, rank: int = 0) -> SystemExit:
    """Makes an exit with status 1 whose message is the error's, without a traceback."""
    if rank:
        tell_launcher(f"rank {rank} error: {error}")
    return SystemExit(f"error: {error}")


def tell_launcher(text: str) -> None:
    """Writes to the console of the process that started this one.

    Paddle's launcher shows the first rank only. When another one fails, the first breaks off in the middle of an
    exchange and its crash hides the cause.
    """
    with contextlib.suppress(OSError), open(f"/proc/{os.getppid()}/fd/2", "a", encoding="utf-8") as console:
        console.write(f"{text}\n")


def tell_uncaught(rank: int) -> None:
    """Has the traceback of an error nobody expected reach the launcher's console too."""
    if rank == 0:
        return

    def hook(kind, error, trace):
        text = "".join(traceback.format_exception(kind, error, trace))
        print(text, file=sys.stderr, flush=True)
        tell_launcher(f"rank {rank} {text}")

    sys.excepthook = hook


def start(output_dir: Path, notes: Sequence[str]) -> Ranks:
    """Joins the run the launcher started and sets up its logging.

    Args:
        output_dir: Folder of the run.
        notes: What ``runtime.prepare`` chose; logged first.

    Raises:
        SystemExit: The folder cannot be written; the message names it.
    """
    from paddlevideo_fast.engine.distributed import start_ranks
    from paddlevideo_fast.engine.log import logger, setup_logging

    ranks = start_ranks()
    tell_uncaught(ranks.rank)
    try:
        setup_logging(ranks.rank, output_dir)
    except OSError as error:
        raise fail(OSError(f"output_dir {output_dir}: {error.strerror}"), ranks.rank) from None
    for note in notes:
        logger.info("%s", note)
    return ranks
