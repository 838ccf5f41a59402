"""The one configuration of a run: read from YAML, changed by ``-o`` options, checked, written and resolved.

A file is complete in itself. An unknown key, a value of the wrong type or an impossible combination raises
:class:`ConfigError`, which names the file, the key, the value and what would be right. ``schema.py`` says what there
is; names such as ``model.name`` and the arguments beside them are checked when the objects are built
(``engine/build.py``), against the constructors.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import typing
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from paddlevideo_fast import schema
from paddlevideo_fast.schema import (
    AmpConfig,
    Config,
    ConfigError,
    DataConfig,
    EvalData,
    Named,
    Origin,
    ReaderConfig,
)

__all__ = ["AmpConfig", "Config", "ConfigError", "DataConfig", "EvalData", "Named", "ReaderConfig"]
__all__ += ["dump_config", "load_config", "project_root", "resolve_path", "resolve_paths", "validate", "with_values"]


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads 3e-5 as a number and refuses a key given twice."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, (str, int)):
                raise ConfigError(f"line {key_node.start_mark.line + 1}: {key!r} cannot be a key; keys are names")
            if key in seen:
                raise ConfigError(f"line {key_node.start_mark.line + 1}: key {key!r} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d[\d_]*)(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def _parse(text: str, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - a subclass of SafeLoader
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise ConfigError(f"{where}: not valid YAML: {place}{problem or error}") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def load_config(path: str | Path, overrides: typing.Sequence[str] = (), **values: Any) -> Config:
    """Reads and checks a configuration.

    Args:
        path: YAML file.
        overrides: ``a.b=value`` strings; the value is parsed as YAML and never evaluated.
        **values: Values of top keys from other options, which replace what file and overrides say; None gives none.

    Raises:
        ConfigError: naming file, key, given value and the nearest valid choice.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path.absolute()}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    tree = _parse(text, str(path))
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected a mapping of keys, found {type(tree).__name__}")
    given: dict[str, str] = {}
    for override in overrides:
        key = _apply(tree, override)
        given.pop(key, None)  # the order counts: the last one that touches a key decides
        given[key] = f"-o {override}"
    values = {key: value for key, value in values.items() if value is not None}
    given.update({key: "command line" for key in values})
    return validate({**tree, **values}, Origin(str(path), given))


def validate(values: dict[str, Any], origin: Origin | str) -> Config:
    """Builds a Config from plain values; ``origin`` is named in errors, these and later ones."""
    origin = Origin(origin) if isinstance(origin, str) else origin
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        found = [_explain(problem) for problem in error.errors()]
        lines = [f"{origin.of(key)}: {f'{key}: ' if key else ''}{text}" for key, text in found]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from None
    config._origin = origin
    return config


def with_values(config: Config, values: dict[str, dict[str, Any]]) -> Config:
    """Returns the config with keys of its sections replaced, checked anew: ``{"model": {"num_classes": 8}}``."""
    tree = config.model_dump()
    for section, keys in values.items():
        tree[section].update(keys)
    return validate(tree, config._origin)


def dump_config(config: Config) -> str:
    """Returns the resolved configuration as YAML, every default written out."""
    return yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True)


def _apply(values: dict[str, Any], override: str) -> str:
    """Puts an override into the tree of values and returns its key."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"-o {override}: expected key=value, for example -o optimizer.lr=0.1")
    key = key.strip()
    *parents, last = key.split(".")
    node = values
    for depth, name in enumerate(parents):
        if node.get(name) is None:
            node[name] = {}
        node = node[name]
        if not isinstance(node, dict):
            raise ConfigError(f"-o {override}: {'.'.join(parents[: depth + 1])} is {node!r}, not a mapping of keys")
    node[last] = _parse(text, f"-o {override}") if text.strip() else None
    return key


def _explain(problem: dict[str, Any]) -> tuple[str, str]:
    """Returns the key a problem is about, "" for none, and what is wrong with it."""
    loc = [part for part in problem["loc"] if isinstance(part, (str, int))]
    key = ".".join(str(part) for part in loc)
    if problem["type"] == "extra_forbidden":
        valid = _fields_at(loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), valid, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(valid)}"
        return key, f"unknown key (given {problem['input']!r}); {hint}"
    if problem["type"] == "missing":
        return key, "this key is required"
    if problem["type"] == "literal_error":
        return key, f"{problem['input']!r} is not one of {problem['ctx']['expected']}"
    if problem["type"] == "model_type":
        kind = problem["ctx"]["class_name"]
        text, first = "", ""
        if issubclass(getattr(schema, kind), Named):
            text, first = "a name or ", "name: ..., "
        elif kind == "RandAugmentConfig":
            text = "a text or "
        return key, f"should be {text}a mapping of keys, {{{first}...}}, given {problem['input']!r}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return key, message
    return key, f"{message[0].lower() + message[1:]}, given {problem['input']!r}"


def _fields_at(loc: list[Any]) -> list[str]:
    model: Any = Config
    for part in loc:
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *typing.get_args(annotation)]
        model = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    return list(model.model_fields)


def project_root(config_path: str | Path) -> Path:
    """Returns the folder that holds the ``configs`` folder of a config file, or the file's own folder."""
    path = Path(config_path).absolute()
    for parent in path.parents:
        if parent.name == "configs":
            return parent.parent
    return path.parent


def resolve_paths(config: Config, config_path: str | Path) -> Config:
    """Returns the config with the paths it reads from made absolute, so that it can be used from anywhere.

    A path that exists nowhere stays as it is: it is an error only for the command that reads it.
    """
    values = config.model_dump()
    places = [(values, "weights"), (values["data"], "class_names")]
    phases = [values["data"][phase] for phase in ("train", "valid", "test") if values["data"][phase] is not None]
    places += [(phase, key) for phase in phases for key in ("annotations", "root")]
    for section, key in places:
        with contextlib.suppress(ConfigError):
            section[key] = section[key] and str(resolve_path(section[key], config_path, key))
    values["output_dir"] = str(Path(values["output_dir"]).expanduser())
    return validate(values, config._origin)


def resolve_path(path: str, config_path: str | Path, key: str, origin: str | None = None) -> Path:
    """Finds a path of a config: as given, from the current directory, else from the config's project root.

    Args:
        path: The path.
        config_path: The file of the config.
        key: The key that holds the path, for the error.
        origin: Where the key was given, for the error; the file by default.

    Raises:
        ConfigError: if it exists at none of these; the message names each place that was tried.
    """
    tried = [Path(path).expanduser().absolute(), project_root(config_path) / path]
    for candidate in tried:
        if candidate.exists():
            return candidate
    where = f"{origin or config_path}: {key}: {path}"
    if tried[0] == tried[1]:
        raise ConfigError(f"{where}: there is no {tried[0]}")
    raise ConfigError(f"{where}: found neither at {tried[0]} nor {tried[1]}")
