"""``tools/predict.py``: classify videos without labels."""

from __future__ import annotations

import json
import sys

from paddlevideo_fast.cli.options import config_parser, fail
from paddlevideo_fast.cli.runtime import prepare


def main(argv: list[str] | None = None) -> None:
    """Parses the command line and prints one JSON object a line for each video."""
    parser = config_parser(
        "Classify videos. Prints one JSON line an input: path, topk [{label, name, score}]; a video that cannot be "
        "read gets a line with its error, and the exit status is then 1.",
        weights_required=True,
    )
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="video files, folders of videos, or frame folders")
    parser.add_argument("--topk", type=int, default=5, metavar="K", help="classes to print for each input")
    args = parser.parse_args(argv)
    if args.topk < 1:
        parser.error(f"--topk {args.topk}: must be at least 1")

    prepare()
    from paddlevideo_fast.arguments import ArgumentError
    from paddlevideo_fast.config import ConfigError, load_config
    from paddlevideo_fast.data.annotations import AnnotationError
    from paddlevideo_fast.data.video import VideoError
    from paddlevideo_fast.inference.predictor import Predictor, find_inputs
    from paddlevideo_fast.models.weights.load import WeightsError

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
