"""Command line options that several commands share."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paddlevideo_fast.engine.distributed import Ranks


OVERRIDE = ("-o", "--override")


def config_parser(description: str, weights_required: bool) -> argparse.ArgumentParser:
    """Makes a parser with ``-c``, ``-o`` and ``-w``."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("-c", "--config", required=True, help="YAML configuration file")
    add_override(
        parser, "replace a key of the configuration: -o optimizer.lr=0.01 -o data.batch_size=8; values are YAML"
    )
    parser.add_argument(
        "-w",
        "--weights",
        required=weights_required,
        default=argparse.SUPPRESS if weights_required else None,
        help="weights to start from: a .pdparams file or a .pdstate checkpoint",
    )
    return parser


def add_override(parser: argparse.ArgumentParser, help: str) -> None:
    """Gives a parser ``-o``; its command line goes through :func:`parse`."""
    parser.add_argument("-o", "--override", action="append", default=[], metavar="KEY=VALUE", help=help)


def add_list_options(parser: argparse.ArgumentParser) -> None:
    """Gives a parser the options that say how to read a list."""
    parser.add_argument("--root", metavar="DIR", help="folder of the videos (default: that of the list)")
    parser.add_argument("--format", default="auto", metavar="NAME", help="format of the list (default: auto)")
    parser.add_argument("--classes", metavar="FILE", help="class names, for lists that name labels; checks ids too")


def add_worker_options(parser: argparse.ArgumentParser, timeout: float) -> None:
    """Gives a parser the options of what works on many videos; ``timeout`` is the default, in seconds."""
    parser.add_argument("--workers", type=int, default=cores(), metavar="N", help="processes (default: one a core)")
    help = "seconds a video may take (default: %(default)g)"
    parser.add_argument("--timeout", type=float, default=timeout, metavar="S", help=help)


def cores() -> int:
    """Returns the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def exit_status(name: str, work: Callable[[], int], goes_on: bool = True) -> int:
    """Runs a tool that prepares data; ``work`` returns how many videos are bad, ``goes_on`` tells that it can resume.

    Returns:
        0 all is good, 1 something is bad, 2 a list, an option or a folder is wrong, 130 interrupted.
    """
    try:
        return 1 if work() else 0
    except (ValueError, OSError, ImportError) as error:
        print(f"{name}: {explain(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        rest = "; the same command goes on from here" if goes_on else ""
        print(f"{name}: interrupted{rest}", file=sys.stderr)
        return 130


def parse(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses a command line, that of the process by default, in which several pairs may follow one ``-o``."""
    return parser.parse_intermixed_args(spread_overrides(sys.argv[1:] if argv is None else argv))


def spread_overrides(words: Sequence[str]) -> list[str]:
    """Puts a ``-o`` before every pair that follows another: ``-o a=1 b=2 x.mp4`` becomes ``-o a=1 -o b=2 x.mp4``.

    The word after ``-o`` is always its own. A later one with an equals sign is too, unless a file has that name.
    """
    spread: list[str] = []
    follows_pair = False
    for position, word in enumerate(words):
        if word == "--":
            return [*spread, *words[position:]]
        if spread and spread[-1] in OVERRIDE and not follows_pair:
            follows_pair = True
        elif word in OVERRIDE:
            follows_pair = False
        elif word.startswith(("-o", "--override=")):
            follows_pair = True
        elif follows_pair and "=" in word and not word.startswith("-") and not os.path.exists(word):
            spread.append("-o")
        else:
            follows_pair = False
        spread.append(word)
    return spread


def explain(error: Exception) -> str:
    """Returns an error's message; that of the system begins with the file, and says what is wrong with it."""
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return str(error)
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        return f"{error.filename}: a file is in the place of a folder ({error.strerror})"
    return f"{error.filename}: {error.strerror}"


def fail(error: Exception, rank: int = 0) -> SystemExit:
    """Makes an exit with status 1 whose message is the error's, without a traceback."""
    if rank:
        tell_launcher(f"rank {rank} error: {explain(error)}")
    return SystemExit(f"error: {explain(error)}")


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


def log_to_stderr() -> None:
    """Sends the package's messages to stderr, for a command whose stdout is its result."""
    from paddlevideo_fast.engine.log import logger, setup_logging

    setup_logging(rank=0)
    for handler in logger.handlers:
        handler.setStream(sys.stderr)


def start(output_dir: Path, notes: Sequence[str]) -> Ranks:
    """Joins the run the launcher started and sets up its logging.

    Args:
        output_dir: Folder of the run.
        notes: What ``runtime.prepare`` chose; logged first.

    Raises:
        SystemExit: A rank is missing, or the folder cannot be written; the message names it.
    """
    from paddlevideo_fast.engine.distributed import start_ranks
    from paddlevideo_fast.engine.log import logger, setup_logging
    from paddlevideo_fast.engine.rendezvous import RendezvousError

    try:
        ranks = start_ranks()
    except RendezvousError as error:
        raise fail(error, int(os.environ.get("PADDLE_TRAINER_ID", 0))) from None
    tell_uncaught(ranks.rank)
    try:
        setup_logging(ranks.rank, output_dir)
    except OSError as error:
        raise fail(OSError(f"output_dir {output_dir}: {error.strerror}"), ranks.rank) from None
    for note in notes:
        logger.info("%s", note)
    return ranks
