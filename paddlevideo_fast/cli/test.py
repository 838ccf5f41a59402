"""``tools/test.py``: evaluate weights on the test set."""

from __future__ import annotations

import logging
from pathlib import Path

from paddlevideo_fast.cli.options import config_parser, fail, parse, start
from paddlevideo_fast.cli.runtime import prepare

logger = logging.getLogger("paddlevideo_fast")


def main(argv: list[str] | None = None) -> None:
    """Parses the command line, evaluates and writes ``results.json``."""
    parser = config_parser(
        "Evaluate weights on data.test, all views of every video, and write output_dir/results.json.",
        weights_required=True,
    )
    args = parse(parser, argv)

    notes = prepare()
    from paddlevideo_fast.arguments import ArgumentError
    from paddlevideo_fast.config import ConfigError, load_config
    from paddlevideo_fast.data.annotations import AnnotationError

    try:
        config = load_config(args.config, args.override)
    except ConfigError as error:
        raise fail(error) from None

    from paddlevideo_fast.engine.build import (
        build_augment,
        build_class_names,
        build_evaluation,
        build_model,
        build_task,
        check_evaluation,
        count_classes,
        weights_file,
    )
    from paddlevideo_fast.engine.evaluate import EvaluationError, evaluate
    from paddlevideo_fast.engine.log import say_metrics, to_json
    from paddlevideo_fast.engine.precision import Precision
    from paddlevideo_fast.inference.class_names import warn_of_other_names
    from paddlevideo_fast.loaders.thread_loader import LoaderError
    from paddlevideo_fast.models.weights.load import WeightsError, load_weights

    output_dir = Path(config.output_dir).expanduser()
    ranks = start(output_dir, notes)
    expected = (ConfigError, ArgumentError, AnnotationError, WeightsError, LoaderError, EvaluationError)
    try:
        weights = weights_file(args.weights, "-w")
        config = count_classes(config, args.config)
        warn_of_other_names(weights, build_class_names(config, args.config), config.data.class_names)
        task = build_task(config)
        data = build_evaluation(config, "test", args.config, task, ranks)
        model = build_model(config)
        load_weights(model, weights)
        check_evaluation(config, "test", model)
        forward = Precision(config.amp).wrap(model)
        result = evaluate(model, forward, task, data, ranks, build_augment(config, "test"))
    except (*expected, OSError) as error:
        raise fail(error, ranks.rank) from None
    if not ranks.is_first:
        return
    path = output_dir / "results.json"
    try:
        path.write_text(to_json({**result.metrics, "failed": result.failures}, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise fail(error) from None
    logger.info("test  %s", say_metrics(result.metrics))
    logger.info("wrote %s", path.absolute())
    if result.failures:
        lines = "\n  ".join(result.failures)
        raise SystemExit(f"error: {len(result.failures)} records could not be read and are in no metric:\n  {lines}")
