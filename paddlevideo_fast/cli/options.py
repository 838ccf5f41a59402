"""Command line options that several commands share."""

from __future__ import annotations

import argparse


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


def fail(error: Exception) -> SystemExit:
    """Makes an exit with status 1 whose message is the error's, without a traceback."""
    return SystemExit(f"error: {error}")
