"""``tools/convert_weights.py``: bring weights of another toolkit."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paddlevideo_fast.cli.options import add_override, fail, parse
from paddlevideo_fast.cli.runtime import prepare

if TYPE_CHECKING:
    from paddle.nn import Layer

    from paddlevideo_fast.models.weights.conversion import Conversion

SUFFIX = ".pdparams"
NAMES = (
    "torchvision, timm, openai-clip, pyslowfast, pyslowfast-caffe2, tsm, avion, videomae, timesformer, huggingface, "
    "paddlevideo"
)


def main(argv: Sequence[str] | None = None) -> None:
    """Parses the command line, converts, and writes the weights and a JSON file beside them."""
    args = _parse(argv)
    prepare()
    try:
        _convert(args)
    except (ValueError, OSError) as error:  # WeightsError and ArgumentError are ValueErrors
        raise fail(error) from None


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Convert weights that another toolkit has published or trained into weights of a model of this "
        "one. Every array is used, dropped for a stated reason, or an error. Nothing in the file is executed.",
        epilog=f"sources: {NAMES}",
        allow_abbrev=False,
    )
    parser.add_argument("input", metavar="IN", help=".pth, .pt, .pyth, .pkl, .safetensors or .pdparams file")
    parser.add_argument("output", metavar="OUT", help="new .pdparams file")
    parser.add_argument("--source", required=True, metavar="NAME", help="toolkit the file comes from; see below")
    parser.add_argument("--model", required=True, metavar="NAME", help="model.name of a configuration")
    add_override(parser, "an argument of the model: -o num_frames=16; num_classes is the file's where none is given")
    parser.add_argument("--verbose", action="store_true", help="print every array's way")
    return parse(parser, argv)


def _convert(args: argparse.Namespace) -> None:
    from paddlevideo_fast.engine.checkpoint import Checkpoints

    output = _output(args.output)
    model, arguments = _filled(args)  # what was read is let go of before the writing
    facts = {
        "model": {"name": args.model, **arguments},
        "converted": {"source": args.source, "file": Path(args.input).name},
    }
    Checkpoints(output.parent, keep=1).save_weights(output.stem, model.state_dict(use_hook=False), facts)
    words = ", ".join(f"{name}={value}" for name, value in arguments.items())
    print(f"wrote {output}: {args.model}{f' with {words}' if words else ''}")


def _filled(args: argparse.Namespace) -> tuple[Layer, dict[str, Any]]:
    """Prints the account. Returns: the model with the file's weights, and its arguments."""
    from paddlevideo_fast.models import create_model
    from paddlevideo_fast.models.weights.load import WeightsError, set_state
    from paddlevideo_fast.models.weights.sources import find_converter, read_source

    convert = find_converter(args.source, args.model)
    state = read_source(args.source, args.input)
    arguments = _arguments(args.override, args.model, state)
    model = create_model(args.model, **arguments)
    try:
        conversion = convert(state, model)
        arrays = conversion.finish()
    except WeightsError as error:
        raise WeightsError(f"{args.input} as weights of {args.source} for {args.model}: {error}") from None
    print("\n".join(account(conversion, args.verbose)))
    set_state(model.state_dict(use_hook=False), arrays)
    return model, arguments


def _output(text: str) -> Path:
    output = Path(text).expanduser()
    if output.suffix != SUFFIX:
        raise ValueError(f"{output}: the name of the new weights must end with {SUFFIX}")
    for path in (output, output.with_suffix(".json")):
        if path.exists():
            raise ValueError(f"{path} is there already; delete it, or choose another name")
    return output


def _arguments(overrides: Iterable[str], name: str, state: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of the model: what is given, and the number of classes where the file tells it."""
    import yaml

    from paddlevideo_fast.arguments import check_arguments
    from paddlevideo_fast.models import MODELS
    from paddlevideo_fast.models.weights.sources import count_classes

    arguments = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"-o {override}: expected key=value, for example -o num_classes=400")
        try:
            arguments[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ValueError(f"-o {override}: the value is not valid YAML") from None
    classes = count_classes(state)
    if classes and "num_classes" not in arguments and "num_classes" in inspect.signature(MODELS[name]).parameters:
        arguments["num_classes"] = classes
    return check_arguments(MODELS[name], arguments, where=f"model {name}")


def account(conversion: Conversion, verbose: bool = False) -> list[str]:
    """Says in lines what became of every array: in groups, or one by one if ``verbose``."""
    filled = conversion.filled.values()
    lines = [f"{len(conversion.state)} arrays read, {len(filled)} of the model's filled"]
    if verbose:
        own = conversion.model.state_dict(use_hook=False)
        for entry in filled:
            shapes = " + ".join(str(list(conversion.state[source].shape)) for source in entry.sources)
            how = f" ({entry.how})" if entry.how else ""
            lines.append(
                f"  {' + '.join(entry.sources)} {shapes} -> {entry.target} {list(own[entry.target].shape)}{how}"
            )
    for words, reasons in (("dropped", conversion.dropped), ("left at their initial values", conversion.left)):
        for reason in dict.fromkeys(reasons.values()):
            keys = [key for key, why in reasons.items() if why == reason]
            shown = keys if verbose else keys[:3]
            more = ", ..." if len(keys) > len(shown) else ""
            lines.append(f"{len(keys)} {words}: {reason} ({', '.join(shown)}{more})")
    return lines
