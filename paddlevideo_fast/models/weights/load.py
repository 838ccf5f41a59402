"""Loading a state dict into a model, with an account of every key."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import paddle

from paddlevideo_fast.models.layers import model_name
from paddlevideo_fast.models.weights.checksum import check_beside, check_trailer, facts_beside
from paddlevideo_fast.pickles import load_arrays

logger = logging.getLogger("paddlevideo_fast")

HEAD = "head."
# What a forward pass hangs on though no array has another shape for it.
DECIDES_OUTPUTS = (
    *("activation", "alpha", "attention", "head", "inflate", "norm_eps", "num_heads", "pool", "shift_div"),
    *("shift_every", "text_num_heads", "video_num_heads"),
)
WRAPPERS = ("module.", "_layers.")  # what data parallel wrappers put before every key
FOREIGN = {
    ".pth": "torchvision, timm, tsm or videomae",
    ".tar": "tsm",
    ".pt": "openai-clip or avion",
    ".pyth": "pyslowfast or timesformer",
    ".pkl": "pyslowfast-caffe2",
    ".safetensors": "huggingface or timm",
    ".bin": "huggingface",
}  # endings of other toolkits' weights, with the sources of models.weights.sources that they are likely from


class WeightsError(ValueError):
    """Weights that do not fit the model; the message names the file and the keys."""


def read_weights(path: str | Path) -> dict[str, np.ndarray]:
    """Reads a state dict: a ``.pdparams`` file, or the weights inside a training state.

    Args:
        path: A file that ``paddle.save(model.state_dict(), path)`` wrote, or a checkpoint of this project, whose
            averaged weights are taken where it has them.

    Raises:
        WeightsError: The file is missing, damaged, or holds something else.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"{path.absolute()}: no such weights file")
    if path.suffix == ".json":
        raise WeightsError(f"{path}: says what weights are, but holds none; give {path.with_suffix('.pdparams').name}")
    if path.suffix in FOREIGN:
        command = f"python tools/convert_weights.py --source NAME --model NAME {path} {path.stem}.pdparams"
        raise WeightsError(
            f"{path}: these are weights of another toolkit, which have to be converted first: {command}, the source "
            f"being {FOREIGN[path.suffix]}, it seems (see docs/weights.md)"
        )
    try:
        if path.suffix == ".pdstate":
            check_trailer(path)
        else:
            check_beside(path)
        state = load_arrays(path)
    except ValueError as error:
        raise WeightsError(str(error)) from error
    if isinstance(state, dict) and "model" in state and isinstance(state["model"], dict):
        state = state.get("ema") or state["model"]
    if not isinstance(state, dict):
        raise WeightsError(f"{path}: expected a mapping of names to arrays, found {type(state).__name__}")
    state = {key: value for key, value in state.items() if key != "StructuredToParameterName@@"}
    wrong = [key for key, value in state.items() if not isinstance(value, np.ndarray)]
    if wrong or not state:
        found = f"{wrong[0]!r} is {type(state[wrong[0]]).__name__}" if wrong else "it is empty"
        raise WeightsError(f"{path}: expected a mapping of names to arrays, but {found}")
    return state


def load_weights(model: paddle.nn.Layer, path: str | Path, reset_head: bool = False) -> None:
    """Loads weights that fit the model in every key and shape.

    Args:
        model: Takes the weights.
        path: See :func:`read_weights`; the prefix of a data parallel wrapper is taken off.
        reset_head: Leave the model's ``head.`` as it was initialised, for another number of classes.

    Raises:
        WeightsError: Keys are missing, left over or of another shape; nothing has been loaded.
    """
    state = without_wrapper(read_weights(path))
    own = model.state_dict(use_hook=False)
    if reset_head:
        heads = [key for key in own if key.startswith(HEAD)]
        if not heads:
            raise WeightsError(f"reset_head: {model_name(model)} has no keys that begin with {HEAD!r}")
        logger.info("left as initialised: %s", ", ".join(heads))
        own = {key: value for key, value in own.items() if not key.startswith(HEAD)}
        state = {key: value for key, value in state.items() if not key.startswith(HEAD)}
    problems = explain_misfit(own, state)
    if problems:
        what = f"{path} does not fit {model_name(model)}, which has {len(own)} keys"
        raise WeightsError(f"{what}: {'; '.join(problems)}{_hint(own, state)}")
    set_state(own, state)
    logger.info("loaded %d arrays from %s", len(own), Path(path).absolute())
    warn_of_other_arguments(model, Path(path))


def warn_of_other_arguments(model: paddle.nn.Layer, path: Path) -> None:
    """Warns where weights were made with other arguments that shapes do not show, such as the number of heads.

    Args:
        model: As `create_model` makes it.
        path: Its weights; the JSON file of the same name says how the model they are of was made.
    """
    beside = facts_beside(path).get("model")
    if not isinstance(beside, dict) or beside.get("name") != model_name(model):
        return
    for argument, value in model.arguments.items():
        other = beside.get(argument, value)
        if argument in DECIDES_OUTPUTS and other != value:
            logger.warning(
                "%s: its model had %s=%r, this one has %r: what it computes is not what it learnt",
                path, argument, other, value,
            )  # fmt: skip


def without_wrapper(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Takes off the prefix that a data parallel wrapper has put before every key, and says so."""
    for prefix in WRAPPERS:
        if all(key.startswith(prefix) for key in state):
            logger.info("the keys begin with %r, which was taken off", prefix)
            return without_wrapper({key.removeprefix(prefix): value for key, value in state.items()})
    return state


def _hint(own: Mapping[str, paddle.Tensor], state: Mapping[str, np.ndarray]) -> str:
    """Says what would make weights fit that differ in the classifier alone, or hardly fit at all."""
    shared = [key for key in own if key in state and list(state[key].shape) == list(own[key].shape)]
    if not shared:
        return (
            ". Not one key fits: these are the weights of another architecture, or of another toolkit, which "
            "tools/convert_weights.py converts"
        )
    differing = [key for key in {*own, *state} if key not in shared]
    if all(key.startswith(HEAD) for key in differing):
        return ". All but the head fits: reset_head=true (training) starts with a fresh one"
    return ""


def explain_misfit(own: Mapping[str, paddle.Tensor], state: Mapping[str, np.ndarray]) -> list[str]:
    """Returns what keeps a state from fitting a model: keys missing, left over, of another shape; empty if nothing."""
    missing = [key for key in own if key not in state]
    unknown = [key for key in state if key not in own]
    misshapen = [
        f"{key} {list(state[key].shape)} for {list(own[key].shape)}"
        for key in own
        if key in state and list(state[key].shape) != list(own[key].shape)
    ]
    return [
        f"{len(keys)} {what} ({', '.join(keys[:4])}{', ...' if len(keys) > 4 else ''})"
        for keys, what in ((missing, "missing"), (unknown, "unknown to the model"), (misshapen, "of another shape"))
        if keys
    ]


def set_state(own: Mapping[str, paddle.Tensor], state: Mapping[str, np.ndarray]) -> None:
    """Copies arrays into the tensors of a state dict, in the tensors' dtype."""
    for key, tensor in own.items():
        tensor.set_value(paddle.to_tensor(state[key]).astype(tensor.dtype))
