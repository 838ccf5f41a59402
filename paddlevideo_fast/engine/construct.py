"""Calls constructors with arguments from a config; what they refuse is told with the key and where it was given."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from paddlevideo_fast.arguments import ArgumentError, check_arguments, lookup
from paddlevideo_fast.config import Config, ConfigError, Named


@contextlib.contextmanager
def naming(config: Config, key: str, name: str | None = None, arguments: Iterable[str] = ()) -> Iterator[None]:
    """Puts the key of the config, and where it was given, in front of what a constructor says.

    Args:
        config: Knows the file and the options of the command line.
        key: The key or section the constructor belongs to.
        name: The constructor's name in its table.
        arguments: Keys of the section; the one that is mentioned first in the constructor's words is blamed.

    Raises:
        ConfigError: In the place of a ValueError, TypeError, LookupError or ImportError.
        ArgumentError: In the place of another one.
    """
    try:
        yield
    except ConfigError:
        raise
    except (ValueError, TypeError, LookupError, ImportError) as error:
        text = str(error).removeprefix(f"{key} {name}: ")
        mentions = [(re.search(rf"(?<![\w.]){re.escape(str(word))}(?!\w)", text), word) for word in arguments]
        found = sorted((mention.start(), word) for mention, word in mentions if mention)
        blamed = f"{key}.{found[0][1]}" if found else key
        kind = ArgumentError if isinstance(error, ArgumentError) else ConfigError
        what = f"{blamed} ({name})" if name else blamed
        raise kind(f"{config.origin(blamed)}: {what}: {text}") from error


def entry(table: Mapping[str, Callable], config: Config, key: str) -> Callable:
    """Returns what a section's ``name`` stands for in a table.

    Raises:
        ArgumentError: The table has no such name.
    """
    with naming(config, f"{key}.name"):
        return lookup(table, section(config, key).name, key)


def construct(table: Mapping[str, Callable], config: Config, key: str, **more: Any) -> Any:
    """Calls the table's entry for a section with the arguments beside its name, and ``more``.

    Raises:
        ArgumentError: Unknown name or argument, or a value of the wrong type.
        ConfigError: The entry refuses a value.
    """
    kind = entry(table, config, key)
    refuse_twice(config, key, more)
    arguments = checked(kind, config, key, elsewhere=more)
    with naming(config, key, section(config, key).name, arguments):
        return kind(**arguments, **more)


def refuse_twice(config: Config, key: str, more: Mapping[str, Any]) -> None:
    """Refuses an argument of a section that has its value from another one.

    Raises:
        ConfigError: A name of ``more`` is an argument of the section too.
    """
    for argument, value in more.items():
        if argument in section(config, key).arguments:
            text = f"remove this key; its value, {value!r}, comes from another section"
            raise config.error(f"{key}.{argument}", text)


def checked(kind: Callable, config: Config, key: str, elsewhere: Iterable[str] = ()) -> dict[str, Any]:
    """Returns the arguments of a section as a constructor takes them; ``elsewhere`` names those it gets besides.

    Raises:
        ArgumentError: Unknown or missing argument, or a value of the wrong type.
    """
    named = section(config, key)
    keys = [field for field in type(named).model_fields if field != "name"]
    where = f"{key} {named.name}"
    with naming(config, key, named.name, named.arguments):
        return check_arguments(kind, named.arguments, where, elsewhere={*elsewhere, *keys, "name"}, keys=keys)


def section(config: Config, key: str) -> Named:
    """Returns the part of the config at a dotted key."""
    part: Any = config
    for name in key.split("."):
        part = getattr(part, name)
    return part
