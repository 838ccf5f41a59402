"""``tools/predict.py``: classify videos without labels."""

from __future__ import annotations

import json
import logging
import sys

from paddlevideo_fast.cli.options import config_parser, fail, log_to_stderr, parse
from paddlevideo_fast.cli.runtime import prepare

logger = logging.getLogger("paddlevideo_fast")


def main(argv: list[str] | None = None) -> None:
    """Parses the command line and prints one JSON object a line for each video."""
    parser = config_parser(
        "Classify videos. Prints one JSON line an input: path, topk [{label, name, score}]; a video that cannot be "
        "read gets a line with its error, and the exit status is then 1.",
        weights_required=True,
    )
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="video files, frame folders, or folders of either")
    parser.add_argument("--topk", type=int, default=5, metavar="K", help="classes to print for each input")
    args = parse(parser, argv)
    if args.topk < 1:
        parser.error(f"--topk {args.topk}: must be at least 1")

    notes = prepare()
    from paddlevideo_fast.arguments import ArgumentError
    from paddlevideo_fast.config import ConfigError, load_config
    from paddlevideo_fast.data.annotations import AnnotationError
    from paddlevideo_fast.data.video import VideoError
    from paddlevideo_fast.inference.predictor import Predictor, find_inputs
    from paddlevideo_fast.models.weights.load import WeightsError

    log_to_stderr()
    for note in notes:
        logger.info("%s", note)
    try:
        config = load_config(args.config, args.override)
        predictor = Predictor(config, args.config, args.weights)
    except (ConfigError, ArgumentError, AnnotationError, WeightsError, OSError) as error:
        raise fail(error) from None
    failed = 0
    for path in find_inputs(args.inputs):
        try:
            line = {"path": path, "topk": predictor.topk(path, args.topk)}
        except VideoError as error:
            line = {"path": path, "error": error.reason}
            failed += 1
        print(json.dumps(line, ensure_ascii=False), flush=True)
    if failed:
        print(f"error: {failed} inputs could not be read", file=sys.stderr)
        raise SystemExit(1)
