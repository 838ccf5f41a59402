"""Names of classes in the order of their ids."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from paddlevideo_fast.data.records import AnnotationError, read_text

_NUMBERED = re.compile(r'([0-9]{1,18})(?:[ \t]*,[ \t]*|[ \t]+)("(.+)"|.+)')


def load_class_names(path: str | os.PathLike) -> list[str]:
    """Reads the names of the classes in the order of their ids.

    Args:
        path: One name a line; or numbered lines, ``1 Name`` (UCF101) or ``0,Name``, from 0 or 1 in any order and
            with or without a header; or JSON, a list of names or an object of ids by name (Something-Something).

    Returns:
        Names; the index is the class id.

    Raises:
        FileNotFoundError: There is no such file.
        AnnotationError: The file is empty, has a gap, or names a class twice.
    """
    path = Path(os.path.abspath(os.path.expanduser(path)))
    if path.suffix == ".json":
        names = _names_of_json(path)
    else:
        lines = [line.strip(" \t") for line in read_text(path).replace("\r\n", "\n").replace("\r", "\n").split("\n")]
        names = _names_of_lines(path, lines)
    if not names:
        raise AnnotationError(f"{path}: no class names; write one a line")
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if seen.setdefault(name, index) != index:
            raise AnnotationError(f"{path}: {name!r} names both class {seen[name]} and class {index}")
    return names


def _names_of_json(path: Path) -> list[str]:
    try:
        data = json.loads(read_text(path))
        if isinstance(data, dict):
            return _in_order(path, [(int(number), name) for name, number in data.items()])
    except json.JSONDecodeError as error:
        raise AnnotationError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except AnnotationError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise AnnotationError(f"{path}: not a JSON object of ids by name: {error}") from error
    if not isinstance(data, list) or not all(isinstance(name, str) for name in data):
        raise AnnotationError(f"{path}: not a JSON list of names, nor an object of ids by name")
    return data


def _names_of_lines(path: Path, lines: list[str]) -> list[str]:
    while lines and not lines[-1]:
        lines.pop()
    if "" in lines:
        raise AnnotationError(f"{path}:{lines.index('') + 1}: blank line between class names; ids would be uncertain")
    found = [_NUMBERED.fullmatch(line) for line in lines]
    if len(found) > 1 and not found[0] and all(found[1:]):
        found = found[1:]  # a header such as id,name
    if not all(found):
        return lines
    return _in_order(path, [(int(match[1]), match[3] or match[2]) for match in found])


def _in_order(path: Path, numbered: list[tuple[int, str]]) -> list[str]:
    numbers = sorted(number for number, _ in numbered)
    if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))) or numbers[:1] not in ([], [0], [1]):
        raise AnnotationError(f"{path}: {len(numbers)} class numbers must count from 0 or 1 without gaps or repeats")
    return [name for _, name in sorted(numbered)]
