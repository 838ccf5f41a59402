"""Look names up in tables and check keyword arguments against signatures, with errors that name the valid choices."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
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


def check_arguments(function: Callable[..., Any], kwargs: Mapping[str, Any], where: str) -> None:
    """Check that a function can be called with these keyword arguments alone.

    Only names are checked; values are for the function itself to judge.

    Args:
        function: The constructor or function about to be called as `function(**kwargs)`.
        kwargs: The keyword arguments.
        where: What is being built and, if known, from where, for the error: "model tsm_resnet50".

    Raises:
        ArgumentError: If an argument is unknown to the function, or one without default is missing.
    """
    parameters = inspect.signature(function).parameters.values()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    valid = [p.name for p in named]
    listing = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in named) or "none"
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [] if takes_any else [name for name in kwargs if name not in valid]
    if unknown:
        name = unknown[0]
        raise ArgumentError(
            f"{where}: unknown argument {name!r}{nearest_hint(name, valid)} Valid arguments: {listing}."
        )
    missing = [p.name for p in named if p.default is p.empty and p.name not in kwargs]
    if missing:
        raise ArgumentError(f"{where}: argument {missing[0]!r} is missing. Arguments: {listing}.")
