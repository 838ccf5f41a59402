"""Filling a model from another toolkit's weights, with an account of every key on both sides."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from paddle import nn

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
        filled: What has been moved or put, by target.
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
        if inflate not in ("mean", "centre"):
            raise ValueError(f"inflate is {inflate!r}; it must be 'mean' or 'centre'")
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
        for key in state:
            if key.rpartition(".")[2] == BATCH_COUNTER:
                self.drop(key, "counter of batches, which Paddle does not keep")

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
            WeightsError: If there is no such source, or the target has an array already.
        """
        self._take([source])
        array = self.state[source]
        if change:
            try:
                array = change(array)
            except (IndexError, TypeError, ValueError) as error:
                reason = f" ({error})" if isinstance(error, WeightsError) else ""
                raise WeightsError(f"{source} {list(array.shape)} cannot become {target}{reason}") from error
        self._fill(target, array, (source,), "changed" if change else "")

    def put(self, target: str, array: np.ndarray, *sources: str, how: str) -> None:
        """Gives a key of the model an array that was made from several.

        Args:
            target: Key of the model.
            array: In the original's layout.
            *sources: The keys of the state it was made from, which are then accounted for.
            how: What was done, for the account; such as "q, k, v joined".

        Raises:
            WeightsError: As :meth:`move`.
        """
        self._take(sources)
        self._fill(target, array, sources, how)

    def drop(self, source: str, reason: str) -> None:
        """Accounts for an array that the model has no use for."""
        if source in self._used:
            raise WeightsError(f"{source} cannot be dropped: it is in use")
        self._check_sources([source])
        self.dropped[source] = reason

    def leave(self, target: str, reason: str) -> None:
        """Lets a key of the model keep its initial value."""
        target = self._own_name(target)
        if target not in self._own:
            raise WeightsError(f"{target} cannot be left: {type(self.model).__name__} has no such key")
        self._check_free(target)
        self.left[target] = reason

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

    def _check_sources(self, sources: Iterable[str]) -> None:
        for source in sources:
            if source not in self.state:
                raise WeightsError(f"the weights have no {source}, which {type(self.model).__name__} needs")

    def _check_free(self, target: str) -> None:
        if target in self.filled:
            raise WeightsError(f"{target} has an array already, from {_sources(self.filled[target])}")
        if target in self.left:
            raise WeightsError(f"{target} was left at its initial value already")

    def _take(self, sources: Iterable[str]) -> None:
        self._check_sources(sources)
        for source in sources:
            if source in self.dropped:
                raise WeightsError(f"{source} cannot be used: it was dropped ({self.dropped[source]})")
            self._used.add(source)

    def _own_name(self, target: str) -> str:
        layer, dot, name = target.rpartition(".")
        return target if target in self._own else layer + dot + BATCH_NORM_NAMES.get(name, name)

    def _fill(self, target: str, array: np.ndarray, sources: tuple[str, ...], how: str) -> None:
        target = self._own_name(target)
        self._check_free(target)
        if target in self._own:
            array, fitted = self._fit(np.asarray(array), target)
            how = ", ".join(filter(None, (how, fitted)))
        self._arrays[target] = array
        self.filled[target] = Filled(tuple(sources), target, how)

    def _fit(self, array: np.ndarray, target: str) -> tuple[np.ndarray, str]:
        """Brings an array into the layout of the model's key; one that cannot fit comes back for `finish` to name."""
        tensor, how = self._own[target], ""
        shape = tuple(tensor.shape)
        array = array.astype(str(tensor.dtype).removeprefix("paddle."), copy=False)
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


def _finite(array: np.ndarray) -> bool:
    return array.dtype.kind not in "fc" or bool(np.isfinite(array).all())


def _sources(entry: Filled) -> str:
    return " + ".join(entry.sources) or entry.how
