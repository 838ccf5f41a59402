"""The one configuration of a run: a strict, typed YAML schema.

A file is complete in itself. An unknown key, a value of the wrong type or an impossible combination raises
:class:`ConfigError`, which names the file, the key, the value and what would be right. Names such as ``model.name`` and
the arguments beside them are checked when the objects are built (``engine/build.py``), against the constructors.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, model_validator


class ConfigError(ValueError):
    """A configuration that cannot be run; the message says which key of which file and what would be right."""


def _number_from_text(value: Any) -> Any:
    """YAML 1.1 reads ``3e-5`` as text; a float field takes it as the number it looks like."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


Float = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(_number_from_text)]
PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Positive = Annotated[Float, Field(gt=0)]
NonNegative = Annotated[Float, Field(ge=0)]
Probability = Annotated[Float, Field(ge=0, le=1)]
Channels = Annotated[list[Float], Field(min_length=3, max_length=3)]


class Section(BaseModel):
    """A mapping that knows all its keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Named(BaseModel):
    """A name from one of the project's tables, with keyword arguments for its constructor."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str

    @property
    def arguments(self) -> dict[str, Any]:
        """The keys beside ``name``."""
        return dict(self.__pydantic_extra__ or {})


class Annotations(Section):
    """Where the clips of one phase come from."""

    annotations: str
    format: str = "auto"
    root: str | None = None


class TrainData(Annotations):
    crop: Named = Named(name="random_resized")
    flip: Probability = 0.0
    flip_labels: dict[int, int] | None = None
    repeats: PositiveInt = 1
    drop_last: bool = False
    shuffle_shards: PositiveInt = 4


class EvalData(Annotations):
    short_side: PositiveInt | None = None
    crop_size: PositiveInt | None = None
    num_clips: PositiveInt = 1
    num_crops: Literal[1, 3, 10] = 1
    average: Literal["probability", "logit"] = "probability"
    batch_size: PositiveInt | None = None


class ReaderConfig(Named):
    """A reader, with arguments of its own: a name alone stands for ``{name: ...}``."""

    name: str = "fused"

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    def __str__(self) -> str:
        return ", ".join([self.name, *(f"{name}={value}" for name, value in self.arguments.items())])


class DataConfig(Section):
    num_frames: PositiveInt
    crop_size: PositiveInt
    batch_size: PositiveInt
    sampling: Named
    train: TrainData | None = None
    valid: EvalData | None = None
    test: EvalData | None = None
    class_names: str | None = None
    reader: ReaderConfig = ReaderConfig()
    fallback: str | None = "pyav"
    num_workers: NonNegativeInt = 2
    timeout: PositiveInt = 120
    bad_files: Literal["skip", "raise", "use_what_decodes"] = "skip"
    max_failed_share: Probability = 0.1
    read_timeout: PositiveInt | None = None
    max_pixels: PositiveInt | None = None
    max_frames: PositiveInt | None = None
    mean: Channels = [123.675, 116.28, 103.53]
    std: Annotated[list[Positive], Field(min_length=3, max_length=3)] = [58.395, 57.12, 57.375]


class ColorJitter(Section):
    brightness: NonNegative = 0.0
    contrast: NonNegative = 0.0
    saturation: NonNegative = 0.0
    hue: Annotated[Float, Field(ge=0, le=0.5)] = 0.0


class Erase(Section):
    probability: Probability
    fill: Literal["zero", "noise"] = "noise"


class AugmentConfig(Section):
    """What happens to a batch on the device."""

    color_jitter: ColorJitter | None = None
    erase: Erase | None = None
    mixup_alpha: NonNegative = 0.0
    cutmix_alpha: NonNegative = 0.0
    mix_probability: Probability = 1.0
    switch_probability: Probability = 0.5


class OptimizerConfig(Named):
    """``name`` and its arguments, the base learning rate and how parameters are grouped."""

    lr: Positive
    reference_batch: PositiveInt | None = None
    weight_decay: NonNegative = 0.0
    groups: Literal["uniform", "no_norm_decay", "tsm"] = "no_norm_decay"
    clip_norm: Positive | None = None


class TaskConfig(Named):
    name: str = "classification"


class AmpConfig(Section):
    enabled: bool = False
    dtype: Literal["float16", "bfloat16"] = "float16"
    level: Literal["O1", "O2"] = "O1"
    white_list: list[str] = []
    black_list: list[str] = []
    init_loss_scaling: Positive = 65536.0


class EmaConfig(Section):
    decay: Annotated[Float, Field(gt=0, lt=1)] = 0.9999


class NonFiniteConfig(Section):
    """What a loss that is not finite does: stop the run, or skip the step up to ``limit`` times."""

    policy: Literal["stop", "skip"] = "stop"
    limit: PositiveInt = 10


class CheckpointConfig(Section):
    """When a training state is written; ``every_minutes`` is looked at where a log line is due."""

    every_epochs: PositiveInt = 1
    every_steps: PositiveInt | None = None
    every_minutes: Positive | None = None
    keep: PositiveInt = 2


class LogConfig(Section):
    interval: PositiveInt = 10
    visualdl: bool = True


@dataclass(frozen=True)
class Origin:
    """Where the values of a config were written; configs of equal values are equal, wherever they come from.

    Attributes:
        file: The YAML file.
        given: What replaced a key of the file, by the key, as it was typed: ``-o epochs=3``.
    """

    file: str = field(default="config", compare=False)
    given: dict[str, str] = field(default_factory=dict, compare=False)

    def of(self, key: str) -> str:
        """Returns the option that gave a key its value, else the file, with the options that changed parts of it."""
        whole, parts = self.file, []
        for given, text in self.given.items():
            if f"{key}.".startswith(f"{given}."):
                whole, parts = text, []
            elif not key or given.startswith(f"{key}."):
                parts.append(text)
        return f"{whole} with {' '.join(parts)}" if parts else whole


class Config(Section):
    """Everything one run needs."""

    model: Named
    data: DataConfig
    optimizer: OptimizerConfig
    schedule: Named
    epochs: PositiveInt
    task: TaskConfig = TaskConfig()
    augment: AugmentConfig = AugmentConfig()
    accum_steps: PositiveInt = 1
    amp: AmpConfig = AmpConfig()
    ema: EmaConfig | None = None
    nonfinite: NonFiniteConfig = NonFiniteConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    valid_every_epochs: PositiveInt = 1
    weights: str | None = None
    reset_head: bool = False
    seed: NonNegativeInt = 0
    output_dir: str
    _origin: Origin = PrivateAttr(default_factory=Origin)

    def error(self, key: str, text: str) -> ConfigError:
        """Makes an error that says which key of which file or option it is about."""
        return ConfigError(f"{self.origin(key)}: {key}: {text}")

    def origin(self, key: str) -> str:
        """Returns where a key was given: an option of the command line, or the file."""
        return self._origin.of(key)

    @model_validator(mode="after")
    def _combinations(self):
        if self.data.num_frames > 1 and self.data.sampling.name == "dense":
            window = self.data.sampling.arguments.get("window", 64)
            if type(window) is int and 0 < window < self.data.num_frames:
                raise ValueError(f"data.num_frames {self.data.num_frames} does not fit the dense window of {window}")
        labels = self.data.train.flip_labels if self.data.train else None
        if labels and not self.data.train.flip:
            raise ValueError("data.train.flip_labels has no effect while data.train.flip is 0")
        for label, other in (labels or {}).items():
            if labels.get(other) != label:
                raise ValueError(f"data.train.flip_labels has {label}: {other}, so it needs {other}: {label} too")
        for phase in ("valid", "test"):
            section = getattr(self.data, phase)
            if section and section.short_side and section.short_side < (section.crop_size or self.data.crop_size):
                crop = f"crop_size {section.crop_size or self.data.crop_size}"
                raise ValueError(f"data.{phase}.short_side {section.short_side} is smaller than the {crop}")
        return self


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
        first = "name: ..., " if kind in ("Named", "OptimizerConfig", "ReaderConfig") else ""
        names = "a name or " if kind == "ReaderConfig" else ""
        return key, f"should be {names}a mapping of keys, {{{first}...}}, given {problem['input']!r}"
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
