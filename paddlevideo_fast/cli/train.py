"""``tools/train.py``: train a model."""

from __future__ import annotations

import logging
from pathlib import Path

from paddlevideo_fast.cli.options import config_parser, fail
from paddlevideo_fast.cli.runtime import prepare

logger = logging.getLogger("paddlevideo_fast")


def main(argv: list[str] | None = None) -> None:
    """Parses the command line and trains."""
    parser = config_parser(
        "Train a model. Run it alone, or on several devices with: python -m paddle.distributed.launch tools/train.py ...",
        weights_required=False,
    )
    parser.add_argument(
        "--resume",
        nargs="?",
        const="",
        default=None,
        metavar="DIR",
        help="continue from the newest training state of output_dir, or of the run in DIR",
    )
    validation = parser.add_mutually_exclusive_group()
    validation.add_argument("--validate", dest="validate", action="store_true", default=True, help="validate")
    validation.add_argument("--no-validate", dest="validate", action="store_false", help="never validate")
    parser.add_argument("--seed", type=int, default=None, help="replaces the config's seed")
    parser.add_argument("--amp", action="store_true", help="mixed precision, as amp.enabled=true")
    parser.add_argument("--max-steps", type=int, default=None, metavar="N", help="stop after N optimiser steps in all")
    args = parser.parse_args(argv)

    notes = prepare()
    from paddlevideo_fast.arguments import ArgumentError
    from paddlevideo_fast.config import ConfigError, load_config
    from paddlevideo_fast.data.annotations import AnnotationError

    overrides = list(args.override)
    overrides += [f"weights={args.weights}"] if args.weights else []
    overrides += [f"output_dir={args.resume}"] if args.resume else []
    overrides += [f"seed={args.seed}"] if args.seed is not None else []
    overrides += ["amp.enabled=true"] if args.amp else []
    try:
        config = load_config(args.config, overrides)
    except ConfigError as error:
        raise fail(error) from None

    from paddlevideo_fast.engine import train as engine
    from paddlevideo_fast.engine.build import build_training
    from paddlevideo_fast.engine.checkpoint import CheckpointError
    from paddlevideo_fast.engine.distributed import start_ranks
    from paddlevideo_fast.engine.failures import TooManyFailuresError
    from paddlevideo_fast.engine.log import setup_logging
    from paddlevideo_fast.loaders.paddle_loader import LoaderError
    from paddlevideo_fast.models.weights.load import WeightsError

    ranks = start_ranks()
    setup_logging(ranks.rank, Path(config.output_dir))
    for note in notes:
        logger.info("%s", note)
    expected = (ConfigError, ArgumentError, AnnotationError, WeightsError, CheckpointError, LoaderError)
    expected += (TooManyFailuresError, engine.NonFiniteLossError, FileNotFoundError)
    try:
        run = build_training(config, args.config, ranks, validate=args.validate)
        engine.train(run, resume=args.resume is not None, max_steps=args.max_steps)
    except expected as error:
        raise fail(error) from None
