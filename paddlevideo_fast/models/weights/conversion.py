"""Filling a model from another toolkit's weights, with an account of every key on both sides."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.models.layers import check_choice, model_name
from paddlevideo_fast.models.transformer import resize_grid
from paddlevideo_fast.models.weights.load import HEAD, WeightsError

BATCH_NORM_NAMES = {"running_mean": "_mean", "running_var": "_variance"}
BATCH_COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class Filled:
    """How one key of the model came to its array."""

    sources: tuple[str, ...]
    target: str
    how: str


class Conversion:
    """Moves the arrays of one state dict to the keys of one model.

    A linear weight is transposed from PyTorch's [out, in] to Paddle's [in, out]. A weight of a 1x1 (x1) convolution
    fits a linear layer and the reverse; a 2D convolution's weight is inflated where the model's is 3D. Arrays take
    the dtype of the model's tensors. Batch normalisation's `running_mean` and `running_var` may be named so in a
    target; its batch counters are dropped.

    Args:
        state: The other toolkit's arrays by its own names.
        model: What they are for; it is not changed.
        paddle_layout: Linear weights of `state` are [in, out] already.
        inflate: "mean" repeats a 2D kernel over time and divides by its length, so that a clip of one frame repeated
            gives what the frame gave; "centre" puts it in the middle and zeros around.

    Attributes:
        filled: What has been moved or joined, by target.
        dropped: Reasons, by source.
        left: Reasons, by target.

    Source: Carreira and Zisserman, arXiv 1705.07750, section 2.4 ("mean").
    """

    def __init__(
        self,
        state: Mapping[str, np.ndarray],
        model: nn.Layer,
        *,
        paddle_layout: bool = False,
        inflate: str = "mean",
    ) -> None:
        check_choice("inflate", inflate, ("mean", "centre"))
        self.state, self.model = state, model
        self._paddle_layout, self._inflate = paddle_layout, inflate
        self._own = model.state_dict(use_hook=False)
        self._linear = {
            f"{name}.weight" if name else "weight"
            for name, layer in model.named_sublayers(include_self=True)
            if isinstance(layer, nn.Linear)
        }
        self._arrays: dict[str, np.ndarray] = {}
        self._used: set[str] = set()
        self.filled: dict[str, Filled] = {}
        self.dropped: dict[str, str] = {}
        self.left: dict[str, str] = {}
        self.drop_all(rf"(.*\.)?{BATCH_COUNTER}", "counter of batches, which Paddle does not keep")

    @property
    def remaining(self) -> list[str]:
        """The keys of the state that are not yet accounted for."""
        return [key for key in self.state if key not in self._used and key not in self.dropped]

    @property
    def missing(self) -> list[str]:
        """The model's keys that have nothing yet."""
        return [key for key in self._own if key not in self.filled and key not in self.left]

    def move(self, source: str, target: str, change: Callable[[np.ndarray], np.ndarray] | None = None) -> None:
        """Gives one array to one key of the model.

        Args:
            source: Key of the state; it may go to several targets.
            target: Key of the model.
            change: Applied first, in the original's layout.

        Raises:
            WeightsError: If there is no such source, the target has an array already, or the change fails.
        """
        self._fill(target, [source], change or (lambda array: array), "changed" if change else "")

    def join(self, target: str, sources: Sequence[str | None]) -> None:
        """Gives several arrays, such as queries, keys and values, to one key of the model, along their first axis.

        Args:
            target: Key of the model.
            sources: Keys of the state; None stands for zeros of the first one's shape.

        Raises:
            WeightsError: As :meth:`move`.
        """

        def concatenate(*arrays: np.ndarray) -> np.ndarray:
            given = iter(arrays)
            return np.concatenate([np.zeros_like(arrays[0]) if key is None else next(given) for key in sources])

        self._fill(target, [key for key in sources if key], concatenate, f"joined{' with zeros' * (None in sources)}")

    def drop(self, source: str, reason: str) -> None:
        """Accounts for an array that the model has no use for."""
        if source in self._used:
            raise WeightsError(f"{source} cannot be dropped: it is in use")
        self._check_source(source)
        self.dropped[source] = reason

    def drop_all(self, pattern: str, reason: str) -> None:
        """Drops every remaining key that a regular expression matches as a whole."""
        for key in self.remaining:
            if re.fullmatch(pattern, key):
                self.drop(key, reason)

    def leave(self, target: str, reason: str) -> None:
        """Lets a key of the model keep its initial value."""
        target = self._own_name(target)
        if target not in self._own:
            raise WeightsError(f"{target} cannot be left: {model_name(self.model)} has no such key")
        self._check_free(target)
        self.left[target] = reason

    def leave_all(self, pattern: str, reason: str) -> None:
        """Leaves every missing key that a regular expression matches as a whole."""
        for key in self.missing:
            if re.fullmatch(pattern, key):
                self.leave(key, reason)

    def rename(self, rules: Sequence[tuple[str, str]]) -> None:
        """Moves every remaining key that a rule matches.

        Args:
            rules: Pairs of a regular expression, which must match the whole key, and the target, which may use its
                groups; the first that matches wins.
        """
        compiled = [(re.compile(pattern), target) for pattern, target in rules]
        for key in self.remaining:
            for pattern, target in compiled:
                if match := pattern.fullmatch(key):
                    self.move(key, match.expand(target))
                    break

    def place_head(self, pattern: str) -> None:
        """Moves the classifier of an image network to the model's head, or drops it and leaves a head of other classes.

        Args:
            pattern: Regular expression of the classifier's keys, with "weight" or "bias" as its group.
        """
        keys = {key: match[1] for key in self.remaining if (match := re.fullmatch(pattern, key))}
        heads = {key.rpartition(".")[2]: key for key in self._own if key.startswith(HEAD)}
        wanted = self._own[heads["bias"]].shape[0]
        # A bias that is none goes where it would belong, so that `finish` names it.
        found = [len(self.state[key]) for key, kind in keys.items() if kind == "bias" and self.state[key].ndim == 1]
        if not found or found == [wanted]:
            for key, kind in keys.items():
                self.move(key, heads[kind])
            return
        for key in keys:
            self.drop(key, f"classifies into {found[0]} classes, the model into {wanted}")
        self.leave_all(r"head\..*", "the classifier of the weights is for another number of classes")

    def finish(self) -> dict[str, np.ndarray]:
        """Returns the model's whole state dict.

        Raises:
            WeightsError: If a key of either side is unaccounted for, or an array does not fit; the message names them.
        """
        unknown = [f"{_sources(entry)} -> {key}" for key, entry in self.filled.items() if key not in self._own]
        misshapen = {
            key: f"{_sources(entry)} -> {key}: {list(self._arrays[key].shape)} for {list(self._own[key].shape)}"
            for key, entry in self.filled.items()
            if key in self._own and list(self._arrays[key].shape) != list(self._own[key].shape)
        }
        broken = [f"{_sources(entry)} -> {key}" for key, entry in self.filled.items() if not _finite(self._arrays[key])]
        problems = [
            f"{len(keys)} {what} ({', '.join(keys[:4])}{', ...' if len(keys) > 4 else ''})"
            for what, keys in {
                "not accounted for": self.remaining,
                "missing": self.missing,
                "unknown to the model": unknown,
                "of another shape": list(misshapen.values()),
                "with values that are no finite numbers": broken,
            }.items()
            if keys
        ]
        if problems:
            name = type(self.model).__name__
            advice = self._advice(misshapen if len(problems) == 1 else ())
            raise WeightsError(f"the {len(self.state)} arrays do not fill {name}: {'; '.join(problems)}{advice}")
        return {key: self._own[key].numpy() if key in self.left else self._arrays[key] for key in self._own}

    def _advice(self, only_misshapen: Collection[str]) -> str:
        """Says what would help, where that is plain."""
        if self.missing and self._own.keys() <= self.state.keys():
            return ". These are weights of this project already, which -w takes as they are"
        if only_misshapen and all(key.startswith(HEAD) for key in only_misshapen):
            return ". Only the classifier differs: leave num_classes to the file, and train with reset_head=true"
        return ""

    def _check_source(self, source: str) -> None:
        if source not in self.state:
            raise WeightsError(f"the weights have no {source}, which {model_name(self.model)} needs")

    def _check_free(self, target: str) -> None:
        if target in self.filled:
            raise WeightsError(f"{target} has an array already, from {_sources(self.filled[target])}")
        if target in self.left:
            raise WeightsError(f"{target} was left at its initial value already")

    def _take(self, source: str) -> np.ndarray:
        self._check_source(source)
        if source in self.dropped:
            raise WeightsError(f"{source} cannot be used: it was dropped ({self.dropped[source]})")
        self._used.add(source)
        return self.state[source]

    def _own_name(self, target: str) -> str:
        layer, dot, name = target.rpartition(".")
        return target if target in self._own else layer + dot + BATCH_NORM_NAMES.get(name, name)

    def _fill(self, target: str, sources: Sequence[str], change: Callable[..., np.ndarray], how: str) -> None:
        target = self._own_name(target)
        arrays = [self._take(source) for source in sources]
        self._check_free(target)
        try:
            array, fitted = np.asarray(change(*arrays)), ""
            if target in self._own:
                array, fitted = self._fit(array, target)
        except (IndexError, TypeError, ValueError) as error:
            given = " + ".join(f"{source} {list(array.shape)}" for source, array in zip(sources, arrays, strict=True))
            reason = f" ({error})" if isinstance(error, WeightsError) else ""
            raise WeightsError(f"{given} cannot become {target}{reason}") from error
        self._arrays[target] = array
        self.filled[target] = Filled(tuple(sources), target, ", ".join(filter(None, (how, fitted))))

    def _fit(self, array: np.ndarray, target: str) -> tuple[np.ndarray, str]:
        """Brings an array into the layout of the model's key; one that cannot fit comes back for `finish` to name."""
        tensor, how = self._own[target], ""
        shape = tuple(tensor.shape)
        array = array.astype(str(tensor.dtype).removeprefix("paddle."), casting="same_kind", copy=False)
        if target in self._linear:
            if array.ndim > 2 and set(array.shape[2:]) == {1}:
                array, how = array.reshape(array.shape[:2]).T, "1x1 kernel transposed"
            elif array.ndim == 2 and not self._paddle_layout:
                array, how = array.T, "transposed"
        elif array.ndim == 2 and len(shape) > 2 and set(shape[2:]) == {1}:
            array = array.T if self._paddle_layout else array
            array, how = array.reshape([*array.shape, *shape[2:]]), "made a 1x1 kernel"
        elif array.ndim == 4 and len(shape) == 5:
            array, how = inflate(array, shape[2], self._inflate), "inflated"
        return np.asarray(array, order="C"), how


def inflate(weight: np.ndarray, length: int, how: str) -> np.ndarray:
    """Makes a 3D kernel [out, in, length, h, w] of a 2D one [out, in, h, w]; see :class:`Conversion`."""
    if how == "mean":
        return np.repeat(weight[:, :, None] / length, length, axis=2)
    inflated = np.zeros([*weight.shape[:2], length, *weight.shape[2:]], weight.dtype)
    inflated[:, :, length // 2] = weight
    return inflated


def resize_places(
    positions: np.ndarray, grid: Sequence[int], resize: Callable[..., paddle.Tensor] = resize_grid
) -> np.ndarray:
    """Resizes learned positions of a square of patches, behind that of the class token, to another grid.

    Args:
        positions: [1, 1 + side * side, dim].
        grid: Patches in height and width.
        resize: `transformer.resize_grid` or `transformer.nearest_grid`.

    Returns:
        [1, 1 + h * w, dim]; what is no square comes back as it is, for `Conversion.finish` to name.
    """
    side = math.isqrt(max(positions.shape[1] - 1, 0)) if positions.ndim == 3 else 0
    if not side or side**2 != positions.shape[1] - 1 or tuple(grid) == (side, side):
        return positions
    places = resize(paddle.to_tensor(positions[:, 1:].astype(np.float32)), (side, side), tuple(grid))
    return np.concatenate([positions[:, :1], places.numpy()], axis=1)


def _finite(array: np.ndarray) -> bool:
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def _sources(entry: Filled) -> str:
    return " + ".join(entry.sources) or entry.how
