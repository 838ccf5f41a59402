"""What a config points at: files, weights, class names and records."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from typing import Any

from paddlevideo_fast.arguments import lookup
from paddlevideo_fast.config import Config, ConfigError, resolve_path, with_values
from paddlevideo_fast.data.annotations import FORMATS, VideoRecord, load_annotations, load_class_names
from paddlevideo_fast.data.readers.frames import check_frame_folders
from paddlevideo_fast.engine.construct import entry, naming
from paddlevideo_fast.models import MODELS

logger = logging.getLogger("paddlevideo_fast")

MOST_OFFERED = 6


def num_classes(config: Config) -> int:
    """Returns ``model.num_classes``, which task, annotations and class names share."""
    if "num_classes" not in inspect.signature(entry(MODELS, config, "model")).parameters:
        raise config.error("model.name", f"{config.model.name} is no classifier, and {config.task.name} needs one")
    value = config.model.arguments.get("num_classes")
    if value is None:
        raise config.error("model.num_classes", "this key is required, or data.class_names to count")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise config.error("model.num_classes", f"must be a whole number of at least 1, given {value!r}")
    return value


def count_classes(config: Config, config_path: str | Path) -> Config:
    """Returns the config with ``model.num_classes``, counted in the class names where they alone are given."""
    kind = entry(MODELS, config, "model")
    given = config.model.arguments.get("num_classes")
    is_asked = given is None and "num_classes" in inspect.signature(kind).parameters
    if not is_asked or config.data.class_names is None:
        return config
    path = find(config, "data.class_names", config_path)
    count = len(load_class_names(path))
    logger.info("model.num_classes: %d, the class names in %s", count, path)
    return with_values(config, {"model": {"num_classes": count}})


def find(config: Config, key: str, config_path: str | Path) -> Path:
    """Finds the path that a dotted key of the config holds."""
    value: Any = config
    for name in key.split("."):
        value = getattr(value, name)
    return resolve_path(value, config_path, key, config.origin(key))


def weights_file(path: str | Path, where: str) -> Path:
    """Returns the path of weights, unless it is a folder.

    Args:
        path: What was given as weights.
        where: What gave it, for the error.

    Raises:
        ConfigError: It is a folder; the error offers the weights in it.
    """
    path = Path(path).expanduser()
    if not path.is_dir():
        return path
    found = [str(file) for ending in ("pdparams", "pdstate") for file in sorted(path.rglob(f"*.{ending}"))]
    more = f" and {len(found) - MOST_OFFERED} more" if len(found) > MOST_OFFERED else ""
    offer = f"name a file in it: {', '.join(found[:MOST_OFFERED])}{more}" if found else "and no weights are in it"
    raise ConfigError(f"{where}: {path.absolute()} is a folder; {offer}")


def build_class_names(config: Config, config_path: str | Path) -> list[str] | None:
    """Reads the class names, one for each class of the model, or None where the config names no file."""
    if config.data.class_names is None:
        return None
    path = find(config, "data.class_names", config_path)
    names = load_class_names(path)
    if len(names) != num_classes(config):
        text = f"{path} has {len(names)} class names, but model.num_classes is {num_classes(config)}"
        raise config.error("data.class_names", text)
    return names


def build_records(config: Config, phase: str, config_path: str | Path) -> list[VideoRecord]:
    """Reads the annotations of a phase and logs where they were found."""
    section = getattr(config.data, phase)
    if section is None:
        raise config.error(f"data.{phase}", "this key is required")
    with naming(config, f"data.{phase}.format"):
        lookup({"auto": None, **dict.fromkeys(FORMATS)}, section.format, "format")
    path = find(config, f"data.{phase}.annotations", config_path)
    root = find(config, f"data.{phase}.root", config_path) if section.root is not None else None
    records = load_annotations(path, format=section.format, root=root, num_classes=num_classes(config))
    logger.info("data.%s: %d records from %s", phase, len(records), path)
    check_frame_folders(records)
    return records
