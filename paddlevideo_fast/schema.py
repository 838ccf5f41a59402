"""What a configuration may hold: a strict, typed schema of every section and key.

Names such as ``model.name`` and the arguments beside them are checked when the objects are built
(``engine/build.py``), against the constructors; ``config.py`` reads files and options into it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator

from paddlevideo_fast.multigrid import LONG_CYCLE


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
    """A name from one of the project's tables, with keyword arguments for its constructor; a name alone has none."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def arguments(self) -> dict[str, Any]:
        """The keys beside ``name``."""
        return dict(self.__pydantic_extra__ or {})


class Annotations(Section):
    """Where the clips of one phase come from."""

    annotations: str
    format: str = "auto"
    root: str | None = None


class RandAugmentConfig(Section):
    """RandAugment; the text ``rand-m7-n4-mstd0.5-inc1`` of timm's recipes stands for the keys."""

    magnitude: Annotated[int, Field(ge=0, le=10)] = 10
    num_layers: PositiveInt = 2
    std: NonNegative = 0.0
    increasing: bool = False
    probability: Probability = 0.5
    interpolation: Literal["random", "bilinear", "bicubic"] = "random"

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return read_rand_augment(value) if isinstance(value, str) else value


_RAND_AUGMENT_PARTS = {
    "m": ("magnitude", r"\d+", int),
    "n": ("num_layers", r"\d+", int),
    "mstd": ("std", r"\d+(\.\d+)?", float),
    "inc": ("increasing", "[01]", lambda digit: digit == "1"),
    "p": ("probability", r"\d+(\.\d+)?", float),
}


def read_rand_augment(text: str) -> dict[str, Any]:
    """Turns timm's text for RandAugment into its arguments, those that it does not name left out.

    Raises:
        ValueError: It does not begin with "rand", or a part of it is unknown, malformed or given twice.
    """
    parts = "m7 (magnitude), n4 (operations), mstd0.5 (its deviation), inc1 (increasing) and p0.5 (probability)"
    head, *rest = text.split("-")
    if head != "rand":
        raise ValueError(f"{text!r} must begin with 'rand-', as in rand-m7-n4-mstd0.5-inc1; its parts are {parts}")
    arguments: dict[str, Any] = {}
    for part in rest:
        key = part.rstrip("0123456789.")
        name, pattern, convert = _RAND_AUGMENT_PARTS.get(key, (None, "", None))
        if name is None or not re.fullmatch(pattern, part.removeprefix(key)):
            raise ValueError(f"{part!r} in {text!r} is not a part of it; these are: {parts}")
        if name in arguments:
            raise ValueError(f"{part!r} in {text!r} gives {key!r} a second time")
        arguments[name] = convert(part.removeprefix(key))
    return arguments


class TrainData(Annotations):
    crop: Named = Named(name="random_resized")
    flip: Probability = 0.0
    flip_labels: dict[int, int] | None = None
    rand_augment: RandAugmentConfig | None = None
    repeats: PositiveInt = 1
    drop_last: bool = False
    shuffle_shards: PositiveInt = 4


class EvalData(Annotations):
    short_side: PositiveInt | None = None
    crop_size: PositiveInt | None = None
    num_clips: PositiveInt = 1
    num_crops: Literal[1, 3, 10] = 1
    average: Literal["probability", "logit", "max"] = "probability"
    batch_size: PositiveInt | None = None


class ReaderConfig(Named):
    """A reader, with arguments of its own."""

    name: str = "fused"

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
    groups: Literal["uniform", "no_norm_decay", "tsm", "vit"] = "no_norm_decay"
    layer_decay: Annotated[Float, Field(gt=0, le=1)] | None = None
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


class PreciseBnConfig(Section):
    """Batch norm statistics as the true average over batches of the training list, before they are used."""

    num_batches: PositiveInt = 200


class NonFiniteConfig(Section):
    """What a loss that is not finite does: stop the run, or skip the step up to ``limit`` times."""

    policy: Literal["stop", "skip"] = "stop"
    limit: PositiveInt = 10


class MultigridConfig(Section):
    """Training on coarse clips in large batches first; see :func:`build_schedule`, whose arguments these are."""

    long_cycle: bool = True
    short_cycle: bool = True
    epoch_factor: Positive = 1.5
    cycle: Literal["repeated", "single"] = "repeated"
    milestones: list[Positive] | None = None
    long_cycle_shapes: list[Annotated[list[Positive], Field(min_length=2, max_length=2)]] = [
        list(shape) for shape in LONG_CYCLE
    ]
    lr_scaling: Literal["linear", "sqrt"] = "linear"
    sub_batch: PositiveInt = 8


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
    multigrid: MultigridConfig | None = None
    ema: EmaConfig | None = None
    precise_bn: PreciseBnConfig | None = None
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
        if self.multigrid is not None and not (self.multigrid.long_cycle or self.multigrid.short_cycle):
            raise ValueError("multigrid needs long_cycle, short_cycle or both; multigrid: null switches it off")
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
