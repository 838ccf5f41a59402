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
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator


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


class EvalData(Annotations):
    short_side: PositiveInt | None = None
    crop_size: PositiveInt | None = None
    num_clips: PositiveInt = 1
    num_crops: Literal[1, 3, 10] = 1
    average: Literal["probability", "logit"] = "probability"
    batch_size: PositiveInt | None = None


class DataConfig(Section):
    num_frames: PositiveInt
    crop_size: PositiveInt
    batch_size: PositiveInt
    sampling: Named
    train: TrainData | None = None
    valid: EvalData | None = None
    test: EvalData | None = None
    class_names: str | None = None
    reader: str = "pyav"
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

    @model_validator(mode="after")
    def _combinations(self):
        if self.data.num_frames > 1 and self.data.sampling.name == "dense":
            window = self.data.sampling.arguments.get("window", 64)
            if isinstance(window, int) and self.data.num_frames > window:
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
        raise ConfigError(f"{where}: not valid YAML: {error}") from error
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def load_config(path: str | Path, overrides: typing.Sequence[str] = (), **values: Any) -> Config:
    """Reads and checks a configuration.

    Args:
        path: YAML file.
        overrides: ``a.b=value`` strings; the value is parsed as YAML and never evaluated.
        **values: Values of top keys that replace what file and overrides say, taken as they are.

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
    for override in overrides:
        _apply(tree, override)
    return validate({**tree, **values}, str(path))


def validate(values: dict[str, Any], where: str) -> Config:
    """Builds a Config from plain values; ``where`` names their origin in errors."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        lines = [_explain(problem, values) for problem in error.errors()]
        raise ConfigError("\n".join(f"{where}: {line}" for line in dict.fromkeys(lines))) from None


def dump_config(config: Config) -> str:
    """Returns the resolved configuration as YAML, every default written out."""
    return yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True)


def _apply(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"-o {override}: expected key=value, for example -o optimizer.lr=0.1")
    *parents, last = key.strip().split(".")
    node = values
    for depth, name in enumerate(parents):
        if node.get(name) is None:
            node[name] = {}
        node = node[name]
        if not isinstance(node, dict):
            raise ConfigError(f"-o {override}: {'.'.join(parents[: depth + 1])} is {node!r}, not a mapping of keys")
    node[last] = _parse(text, f"-o {key}") if text.strip() else None


def _explain(problem: dict[str, Any], values: dict[str, Any]) -> str:
    loc = [part for part in problem["loc"] if isinstance(part, (str, int))]
    key = ".".join(str(part) for part in loc)
    if problem["type"] == "extra_forbidden":
        valid = _fields_at(loc[:-1])
        near = difflib.get_close_matches(str(loc[-1]), valid, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(valid)}"
        return f"{key}: unknown key (given {problem['input']!r}); {hint}"
    if problem["type"] == "missing":
        return f"{key}: this key is required"
    if problem["type"] == "literal_error":
        return f"{key}: {problem['input']!r} is not one of {problem['ctx']['expected']}"
    if problem["type"] == "model_type":
        first = "name: ..., " if problem["ctx"]["class_name"] in ("Named", "OptimizerConfig") else ""
        return f"{key}: should be a mapping of keys, {{{first}...}}, given {problem['input']!r}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key}: {message[0].lower() + message[1:]}, given {problem['input']!r}"


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
    return validate(values, str(config_path))


def resolve_path(path: str, config_path: str | Path, key: str) -> Path:
    """Finds a path of a config: as given, from the current directory, else from the config's project root.

    Raises:
        ConfigError: if it exists at none of these; the message names each place that was tried.
    """
    tried = [Path(path).expanduser().absolute(), project_root(config_path) / path]
    for candidate in tried:
        if candidate.exists():
            return candidate
    if tried[0] == tried[1]:
        raise ConfigError(f"{config_path}: {key}: {path}: there is no {tried[0]}")
    raise ConfigError(f"{config_path}: {key}: {path}: found neither at {tried[0]} nor {tried[1]}")
