"""``tools/train.py``: train a model."""

from __future__ import annotations

import logging
from pathlib import Path

from paddlevideo_fast.cli.options import config_parser, fail, parse, start
from paddlevideo_fast.cli.runtime import prepare

logger = logging.getLogger("paddlevideo_fast")


def main(argv: list[str] | None = None) -> None:
    """Parses the command line and trains."""
    parser = config_parser(
        "Train a model. Run it alone, or on several devices with: "
        "python -m paddle.distributed.launch tools/train.py ...",
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
    args = parse(parser, argv)
    if args.max_steps is not None and args.max_steps < 1:
        parser.error(f"--max-steps {args.max_steps}: must be at least 1")

    notes = prepare()
    from paddlevideo_fast.arguments import ArgumentError
    from paddlevideo_fast.config import ConfigError, load_config, resolve_paths
    from paddlevideo_fast.data.annotations import AnnotationError

    given = {"weights": args.weights, "output_dir": args.resume or None, "seed": args.seed}
    overrides = [*args.override, *(["amp.enabled=true"] if args.amp else [])]
    try:
        if args.resume is not None and args.weights is not None:
            raise ConfigError("--resume and -w: a resumed run takes its weights from its own training state; drop one")
        config = resolve_paths(load_config(args.config, overrides, **given), args.config)
        if args.resume is not None and not Path(config.output_dir).is_dir():
            raise ConfigError(f"--resume: there is no folder {Path(config.output_dir).absolute()} to continue from")
    except ConfigError as error:
        raise fail(error) from None

    from paddlevideo_fast.cli.resume import warn_of_other_rates
    from paddlevideo_fast.cli.waiting import explain_waiting
    from paddlevideo_fast.engine import train as engine
    from paddlevideo_fast.engine.build import build_training
    from paddlevideo_fast.engine.checkpoint import CheckpointError
    from paddlevideo_fast.engine.evaluate import EvaluationError
    from paddlevideo_fast.engine.failures import TooManyFailuresError
    from paddlevideo_fast.engine.stop import StoppedOnRequestError, StopRequest
    from paddlevideo_fast.loaders.thread_loader import LoaderError
    from paddlevideo_fast.models.weights.load import WeightsError

    ranks = start(Path(config.output_dir), notes)
    expected = (ConfigError, ArgumentError, AnnotationError, WeightsError, CheckpointError, LoaderError)
    expected += (TooManyFailuresError, engine.NonFiniteLossError, EvaluationError, OSError)
    try:
        run = build_training(config, args.config, ranks, validate=args.validate)
        if args.resume is not None and ranks.is_first:
            warn_of_other_rates(run)
        stop = StopRequest()
        with stop.listening():
            engine.train(run, resume=args.resume is not None, max_steps=args.max_steps, stop=stop)
        waiting = explain_waiting(run.output_dir / "metrics.jsonl", run.config) if ranks.is_first else None
        if waiting is not None:
            logger.info("%s", waiting)
    except StoppedOnRequestError as error:
        logger.warning("%s", error)
        raise SystemExit(128 + error.signal_number) from None
    except expected as error:
        raise fail(error, ranks.rank) from None
