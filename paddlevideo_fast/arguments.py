"""Look names up in tables and check keyword arguments against signatures, with errors that name the valid choices."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import math
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


class ArgumentError(ValueError):
    """A name or a keyword argument that the configuration asks for and nothing in the package offers."""


def nearest_hint(name: Any, valid: Iterable[Any]) -> str:
    """Say which valid name is nearest to a wrong one.

    Args:
        name: The name that was asked for.
        valid: The names that exist.

    Returns:
        The end of a sentence: `; did you mean 'tsm_resnet50'?`, or a full stop where nothing is near.
    """
    near = difflib.get_close_matches(str(name), map(str, valid), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else "."


def lookup(table: Mapping[Any, Any], name: Any, what: str) -> Any:
    """Return the entry of a table, or say what the table holds.

    Args:
        table: Names to whatever they stand for.
        name: The name asked for, a string as a rule.
        what: What the table lists, for the error: "model", "optimiser", "reader".

    Returns:
        `table[name]`.

    Raises:
        ArgumentError: If the table has no such name.
    """
    if name in table:
        return table[name]
    raise ArgumentError(
        f"unknown {what} {name!r}{nearest_hint(name, table)} Valid names: {', '.join(map(str, sorted(table)))}."
    )


def check_arguments(
    function: Callable[..., Any],
    kwargs: Mapping[str, Any],
    where: str,
    *,
    elsewhere: Iterable[str] = (),
    keys: Iterable[str] = (),
) -> dict[str, Any]:
    """Check that a function can be called with these keyword arguments.

    Names are checked against the signature, values against its annotations as far as these are plain: numbers, text,
    booleans, sequences of them, `Literal`, `None` and unions. What else an annotation says is for the function itself
    to judge.

    Args:
        function: The constructor or function about to be called.
        kwargs: The keyword arguments.
        where: What is being built and, if known, from where, for the error: "model tsm_resnet50".
        elsewhere: Parameters that come from somewhere else: neither missing nor offered in an error.
        keys: Further names that stand beside the arguments in the configuration, offered in an error.

    Returns:
        The arguments to call with: a number written as text (3e-5, in YAML) is a number where one is wanted, and a
        list a tuple.

    Raises:
        ArgumentError: An argument is unknown to the function, one without default is missing, or a value is of the
            wrong type or out of range.
    """
    elsewhere = set(elsewhere)
    parameters = inspect.signature(function).parameters
    named = {p.name: p for p in parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    offered = [p for p in named.values() if p.name not in elsewhere]
    valid = [*keys, *(p.name for p in offered)]
    listing = [*keys, *(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in offered)]
    listing = ", ".join(listing) or "none"
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [] if takes_any else [name for name in kwargs if name not in named]
    if unknown:
        name = unknown[0]
        raise ArgumentError(
            f"{where}: unknown argument {name!r}{nearest_hint(name, valid)} Valid arguments: {listing}."
        )
    missing = [p.name for p in offered if p.default is p.empty and p.name not in kwargs]
    if missing:
        raise ArgumentError(f"{where}: argument {missing[0]!r} is missing. Arguments: {listing}.")
    return {name: _checked(function, named.get(name), name, value, where) for name, value in kwargs.items()}


def _share(value: float) -> bool:
    return 0 <= value < 1


RANGES: dict[str, tuple[Callable[[float], bool], str]] = {
    "momentum": (_share, "from 0 to below 1"),
    "beta1": (_share, "from 0 to below 1"),
    "beta2": (_share, "from 0 to below 1"),
    "drop_path": (_share, "from 0 to below 1"),
    "drop_path_rate": (_share, "from 0 to below 1"),
    "label_smoothing": (_share, "from 0 to below 1"),
    "weight_decay": (lambda value: value >= 0, "at least 0"),
    "threads": (lambda value: value >= 0, "at least 0"),
    "cache_bytes": (lambda value: value >= 0, "at least 0"),
    "max_pixels": (lambda value: value >= 1, "at least 1"),
    "max_frames": (lambda value: value >= 1, "at least 1"),
    "fps": (lambda value: value >= 0, "at least 0"),
}
"""Ranges of arguments that mean the same wherever they occur. Paddle's optimisers take a momentum of 5."""


def _checked(function: Callable, parameter: inspect.Parameter | None, name: str, value: Any, where: str) -> Any:
    """Return the value as the parameter takes it."""
    kind = Any if parameter is None else _kind(function, parameter)
    if parameter is not None and value is parameter.default:
        return value
    try:
        value = _fit(value, kind)
    except _MisfitError:
        raise ArgumentError(f"{where}: {name} must be {_describe(kind)}, given {value!r}.") from None
    in_range, words = RANGES.get(name, (None, ""))
    if in_range and isinstance(value, numbers.Real) and not in_range(value):
        raise ArgumentError(f"{where}: {name} must be {words}, given {value!r}.")
    return value


def _kind(function: Callable, parameter: inspect.Parameter) -> Any:
    """Return the type that a parameter is annotated with, else that of a number it has as default, else `Any`."""
    while isinstance(function, functools.partial):
        function = function.func
    code = inspect.unwrap(function.__init__ if inspect.isclass(function) else function)
    if parameter.annotation is not parameter.empty:
        # One at a time: a name that is imported for type checkers only hides no other annotation.
        alone = types.SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
        with contextlib.suppress(NameError, TypeError):
            return typing.get_type_hints(alone, globalns=getattr(code, "__globals__", {}))[parameter.name]
    if isinstance(parameter.default, bool):
        return bool
    return float if isinstance(parameter.default, float) else Any


class _MisfitError(Exception):
    """A value is not of a type."""


_NUMBERS = {int: numbers.Integral, float: numbers.Real}
_SEQUENCES = (Sequence, tuple, list)
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", types.NoneType: "null"}
_MANY = {int: "whole numbers", float: "numbers", bool: "true or false", str: "texts"}


def _fit(value: Any, kind: Any) -> Any:
    """Return a value in the form of a type; types that are not plain take anything."""
    origin, parts = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return _fit_any(value, parts)
    if origin is typing.Literal:
        return value if any(value == part and type(value) is type(part) for part in parts) else _misfit()
    if origin in _NUMBERS:
        return _fit_number(value, origin)
    if origin in (bool, str, types.NoneType):
        return value if isinstance(value, origin) else _misfit()
    if origin in _SEQUENCES:
        return _fit_sequence(value, origin, parts)
    return value


def _misfit() -> typing.NoReturn:
    raise _MisfitError


def _fit_any(value: Any, parts: Sequence[Any]) -> Any:
    for part in sorted(parts, key=lambda part: part is float):  # text stays text where text will do
        with contextlib.suppress(_MisfitError):
            return _fit(value, part)
    raise _MisfitError


def _fit_number(value: Any, kind: type) -> Any:
    if kind is float and isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise _MisfitError from None
    if isinstance(value, bool) or not isinstance(value, _NUMBERS[kind]) or not math.isfinite(value):
        raise _MisfitError
    return value


def _fit_sequence(value: Any, kind: type, parts: Sequence[Any]) -> Any:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise _MisfitError
    if kind is tuple and parts and parts[-1] is not ...:
        kinds = parts
    else:
        kinds = parts[:1] * len(value) if parts else (Any,) * len(value)
    if len(kinds) != len(value):
        raise _MisfitError
    fitted = [_fit(item, part) for item, part in zip(value, kinds)]
    return fitted if kind is list else tuple(fitted)


def _describe(kind: Any) -> str:
    """Say in words what a type takes."""
    origin, parts = typing.get_origin(kind) or kind, typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_describe, parts))
    if origin is typing.Literal:
        return " or ".join(map(repr, parts))
    if origin not in _SEQUENCES:
        return _WORDS.get(origin, getattr(origin, "__name__", str(origin)))
    each = [part for part in parts if part is not ...]
    count = f"{len(parts)} " if origin is tuple and len(each) == len(parts) else ""
    return f"a list of {count}{_MANY.get(each[0], 'values')}" if each else "a list"
