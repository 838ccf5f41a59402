"""The configuration: what it refuses and in which words, overrides, paths, and every file in configs/."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from paddlevideo_fast.config import (
    Config,
    ConfigError,
    dump_config,
    load_config,
    project_root,
    resolve_path,
    resolve_paths,
    validate,
    with_values,
)

ROOT = Path(__file__).parents[1]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))

TEXT = """
output_dir: out
epochs: 4
model: {name: tsm_resnet18, num_classes: 8}
data:
  num_frames: 8
  crop_size: 64
  batch_size: 16
  sampling: {name: segment}
  train: {annotations: train.txt, flip: 0.5}
  valid: {annotations: valid.txt, short_side: 72}
optimizer: {name: momentum, lr: 3e-5, momentum: 0.9, weight_decay: 5.0e-4}
schedule: {name: cosine, warmup_epochs: 1}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(TEXT)
    return path


def refuse(file, *overrides, text=None):
    """The message with which a config is refused."""
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file, overrides)
    message = str(caught.value)
    options = [f"-o {override}" for override in overrides]
    for origin in (f"{file} with {' '.join(options)}", *options, str(file)):
        message = message.replace(f"{origin}: ", "")
    assert message != str(caught.value)
    return message


def test_a_small_file_is_enough(file):
    config = load_config(file)
    assert config.optimizer.lr == 3e-5 and type(config.optimizer.lr) is float
    assert config.optimizer.arguments == {"momentum": 0.9}
    assert config.schedule.arguments == {"warmup_epochs": 1}
    assert (config.data.train.flip, config.data.train.crop.name) == (0.5, "random_resized")
    assert (config.data.reader.name, config.data.reader.arguments, config.data.fallback) == ("fused", {}, "pyav")
    assert config.data.test is None and config.ema is None
    assert config.data.mean == [123.675, 116.28, 103.53]


def test_the_text_of_timm_for_rand_augment(file):
    given = load_config(file, ["data.train.rand_augment=rand-m7-n4-mstd0.5-inc1"]).data.train.rand_augment
    keys = "{magnitude: 7, num_layers: 4, std: 0.5, increasing: true}"
    assert given == load_config(file, [f"data.train.rand_augment={keys}"]).data.train.rand_augment
    assert (given.probability, given.interpolation) == (0.5, "random")
    plain = load_config(file, ["data.train.rand_augment=rand"]).data.train.rand_augment  # timm's defaults
    assert (plain.magnitude, plain.num_layers, plain.std, plain.increasing) == (10, 2, 0.0, False)
    other = load_config(file, ["data.train.rand_augment=rand-inc0-p1-mstd1-n3-m9"]).data.train.rand_augment
    assert other.model_dump() == {
        "magnitude": 9, "num_layers": 3, "std": 1.0, "increasing": False, "probability": 1.0, "interpolation": "random"
    }  # fmt: skip


def test_it_is_one_value_that_nobody_changes(file):
    config = load_config(file)
    with pytest.raises(ValueError):
        config.epochs = 5
    with pytest.raises(ValueError):
        config.data.batch_size = 5


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epoch=3", "epoch: unknown key (given 3); did you mean 'epochs'?"),
        ("data.batchsize=3", "data.batchsize: unknown key (given 3); did you mean 'batch_size'?"),
        ("data.train.flipp=1", "data.train.flipp: unknown key (given 1); did you mean 'flip'?"),
        ("data.valid.zzzz=1", "data.valid.zzzz: unknown key (given 1); valid keys: annotations, format, root, "),
        ("amp.levl=O2", "amp.levl: unknown key (given 'O2'); did you mean 'level'?"),
        ("ema.dekay=0.9", "ema.dekay: unknown key (given 0.9); did you mean 'decay'?"),
        ("augment.color_jitter.hu=0.9", "augment.color_jitter.hu: unknown key (given 0.9); did you mean 'hue'?"),
    ],
)
def test_unknown_keys(file, override, message):
    assert refuse(file, override).startswith(message)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("epochs=many", ("epochs: ", "integer", "given 'many'")),
        ("epochs=2.0", ("epochs: ", "integer", "given 2.0")),
        ("epochs='4'", ("epochs: ", "integer", "given '4'")),
        ("epochs=true", ("epochs: ", "integer", "given True")),
        ("epochs=0", ("epochs: ", "greater than or equal to 1", "given 0")),
        ("epochs=null", ("epochs: ", "given None")),
        ("seed=-1", ("seed: ", "greater than or equal to 0", "given -1")),
        ("optimizer.lr=fast", ("optimizer.lr: ", "number", "given 'fast'")),
        ("optimizer.lr=0", ("optimizer.lr: ", "greater than 0", "given 0")),
        ("optimizer.lr=true", ("optimizer.lr: ", "number", "given True")),
        ("optimizer.lr=.nan", ("optimizer.lr: ", "number", "given nan")),
        ("optimizer.lr=.inf", ("optimizer.lr: ", "finite number", "given inf")),
        ("optimizer.lr=nan", ("optimizer.lr: ", "number", "given nan")),
        ("data.train.flip=1.5", ("data.train.flip: ", "less than or equal to 1", "given 1.5")),
        ("data.mean=[1, 2]", ("data.mean: ", "3 items", "given [1, 2]")),
        ("data.std=[1, 2, 0]", ("data.std.2: ", "greater than 0", "given 0")),
        ("data.valid.num_crops=4", ("data.valid.num_crops: ", "4 is not one of 1, 3 or 10")),
        ("amp.dtype=half", ("amp.dtype: ", "'half' is not one of 'float16' or 'bfloat16'")),
        ("nonfinite.policy=ignore", ("nonfinite.policy: ", "'ignore' is not one of 'stop' or 'skip'")),
        (
            "optimizer.groups=tms",
            ("optimizer.groups: ", "'tms' is not one of 'uniform', 'no_norm_decay', 'tsm' or 'vit'"),
        ),
        ("amp.enabled=1", ("amp.enabled: ", "boolean", "given 1")),
        ("data.train=train.txt", ("data.train: ", "keys", "given 'train.txt'")),
        ("model=3", ("model: ", "a name or a mapping of keys, {name: ..., ...}", "given 3")),
        ("task=3", ("task: ", "a name or a mapping of keys, {name: ..., ...}", "given 3")),
        ("model.name=null", ("model.name: ", "string", "given None")),
        ("data.reader=3", ("data.reader: ", "a name or a mapping of keys, {name: ..., ...}", "given 3")),
        ("data.reader.name=3", ("data.reader.name: ", "string", "given 3")),
        ("data.train.flip_labels={0: one}", ("data.train.flip_labels.0: ", "integer", "given 'one'")),
        ("data.train.rand_augment=3", ("data.train.rand_augment: ", "a text or a mapping of keys, {...}", "given 3")),
        ("data.train.rand_augment={magnitude: 11}", ("data.train.rand_augment.magnitude: ", "equal to 10", "given 11")),
        ("data.train.rand_augment=m7-n4", ("data.train.rand_augment: 'm7-n4' must begin with 'rand-', as in rand-m7",)),
        ("data.train.rand_augment=rand-m7-w0", ("data.train.rand_augment: 'w0' in 'rand-m7-w0' is not a part", "n4 ")),
        ("data.train.rand_augment=rand-m7.5", ("data.train.rand_augment: 'm7.5' in 'rand-m7.5' is not a part",)),
        ("data.train.rand_augment=rand-mmax5", ("data.train.rand_augment: 'mmax5' in 'rand-mmax5' is not a part",)),
        ("data.train.rand_augment=rand-inc2", ("data.train.rand_augment: 'inc2' in 'rand-inc2' is not a part",)),
        ("data.train.rand_augment=rand-m7-", ("data.train.rand_augment: '' in 'rand-m7-' is not a part",)),
        ("data.train.rand_augment=rand-m", ("data.train.rand_augment: 'm' in 'rand-m' is not a part",)),
        ("data.train.rand_augment=rand-m7-m8", ("data.train.rand_augment: 'm8' in 'rand-m7-m8' gives 'm' a second",)),
        ("data.train.rand_augment=rand-m12", ("data.train.rand_augment.magnitude: ", "equal to 10", "given 12")),
        ("data.train.rand_augment=rand-p1.5", ("data.train.rand_augment.probability: ", "equal to 1", "given 1.5")),
        ("data.valid.average=mean", ("data.valid.average: 'mean' is not one of 'probability', 'logit' or 'max'",)),
        ("optimizer.layer_decay=1.5", ("optimizer.layer_decay: ", "less than or equal to 1", "given 1.5")),
        ("optimizer.layer_decay=0", ("optimizer.layer_decay: ", "greater than 0", "given 0")),
        ("precise_bn={num_batches: 0}", ("precise_bn.num_batches: ", "greater than or equal to 1", "given 0")),
        ("precise_bn=200", ("precise_bn: ", "a mapping of keys, {...}", "given 200")),
    ],
)
def test_wrong_values(file, override, words):
    message = refuse(file, override)
    for word in words:
        assert word in message, message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seed=3"], "FILE: epochs: input should"),
        (["epochs=none"], "-o epochs=none: epochs: input should"),
        (["epochs=3", " epochs = none"], "-o  epochs = none: epochs: input should"),
        (["data.valid={num_crops: 4}", "epochs=1"], "-o data.valid={num_crops: 4}: data.valid.num_crops: 4 is not"),
        (["data={}", "data.crop_size=no", "epochs=1"], "-o data.crop_size=no: data.crop_size: input"),
        (
            ["epochs=1", "data.valid.short_side=8"],
            "FILE with -o epochs=1 -o data.valid.short_side=8: data.valid.short_",
        ),
    ],
)
def test_the_option_is_blamed_where_it_is_to_blame(file, overrides, message):
    file.write_text(TEXT.replace("epochs: 4", "epochs: four"))
    with pytest.raises(ConfigError) as caught:
        load_config(file, overrides)
    expected = message.replace("FILE", str(file))
    assert any(line.startswith(expected) for line in str(caught.value).splitlines()), caught.value


def test_a_config_remembers_where_its_keys_were_given(file):
    config = load_config(file, ["model.width=0.5", "data.valid={annotations: v.txt}", "data.valid.num_crops=3"], seed=3)
    assert config.origin("model.width") == "-o model.width=0.5"
    assert config.origin("model.widths") == config.origin("data.train.flip") == str(file)
    assert config.origin("data.valid.annotations") == "-o data.valid={annotations: v.txt}"
    assert config.origin("data.valid.num_crops") == "-o data.valid.num_crops=3"
    assert config.origin("model") == f"{file} with -o model.width=0.5"
    assert config.origin("data.valid") == "-o data.valid={annotations: v.txt} with -o data.valid.num_crops=3"
    assert config.origin("seed") == "command line"
    assert resolve_paths(config, file).origin("model.width") == "-o model.width=0.5"


def test_several_faults_are_told_at_once(file):
    message = refuse(file, "epochs=0", "data.batchsize=3", "optimizer.lr=no")
    assert len(message.splitlines()) == 3


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.sampling={name: dense, window: 4}"], "data.num_frames 8 does not fit the dense window of 4"),
        (["data.train.flip=0", "data.train.flip_labels={0: 1, 1: 0}"], "data.train.flip_labels has no effect while"),
        (["data.train.flip_labels={0: 1}"], "data.train.flip_labels has 0: 1, so it needs 1: 0 too"),
        (["data.valid.short_side=32"], "data.valid.short_side 32 is smaller than the crop_size 64"),
        (["data.valid.crop_size=80"], "data.valid.short_side 72 is smaller than the crop_size 80"),
    ],
)
def test_impossible_combinations(file, overrides, message):
    assert refuse(file, *overrides).startswith(message)


@pytest.mark.parametrize("missing", ["model", "data", "optimizer", "schedule", "epochs", "output_dir"])
def test_required_keys(file, missing):
    values = yaml.safe_load(TEXT)
    del values[missing]
    assert refuse(file, text=yaml.safe_dump(values)) == f"{missing}: this key is required"


def test_required_keys_further_down(file):
    assert refuse(file, "model={num_classes: 3}") == "model.name: this key is required"
    assert refuse(file, "data.train={flip: 0.1}") == "data.train.annotations: this key is required"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT + "epochs: 5\n", "line 14: key 'epochs' is given twice"),
        (TEXT.replace("{name: segment}", "{name: segment, name: dense}"), "line 9: key 'name' is given twice"),
        ("- a\n- b\n", "expected a mapping of keys, found list"),
        ("", "expected a mapping of keys, found NoneType"),
        ("a: [1\n", "not valid YAML: line 2, column 1: expected ',' or ']', but got '<stream end>'"),
        ("a: \x07\n", "not valid YAML: unacceptable character"),
        ("[1]: 2\n", "line 1: [1] cannot be a key; keys are names"),
        ("a: !!python/object/apply:os.system ['echo']\n", "not valid YAML"),
        (TEXT + "7: 5\n", "7: "),
    ],
)
def test_text_that_is_no_config(file, text, message):
    assert refuse(file, text=text).startswith(message)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=f"{tmp_path}/none.yaml: cannot be read: No such file"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes("output_dir: caf\xe9".encode("latin-1"))
    with pytest.raises(ConfigError, match="latin.yaml: not UTF-8 text"):
        load_config(tmp_path / "latin.yaml")
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert load_config(tmp_path / "bom.yaml").epochs == 4


@pytest.mark.parametrize("text", ["3e-5", "3.0e-05", "3.e-5", "'3e-5'", "0.00003", "3E-5", "+3e-5"])
def test_numbers_as_people_write_them(file, text):
    assert load_config(file, [f"optimizer.lr={text}"]).optimizer.lr == pytest.approx(3e-5)
    # beside a name, where no type is declared, the number is one too
    named = load_config(file, [f"optimizer.epsilon={text.strip(chr(39))}"]).optimizer.arguments["epsilon"]
    assert named == pytest.approx(3e-5)


def test_whole_numbers_do_for_fractions(file):
    assert load_config(file, ["optimizer.lr=1"]).optimizer.lr == 1


@pytest.mark.parametrize(
    ("override", "look", "value"),
    [
        ("epochs=7", lambda c: c.epochs, 7),
        ("data.train.flip=0.25", lambda c: c.data.train.flip, 0.25),
        ("data.valid=null", lambda c: c.data.valid, None),
        ("data.valid=", lambda c: c.data.valid, None),
        ("data.mean=[1, 2, 3]", lambda c: c.data.mean, [1, 2, 3]),
        ("data.test.annotations=t.txt", lambda c: c.data.test.annotations, "t.txt"),
        ("ema.decay=0.5", lambda c: c.ema.decay, 0.5),
        ("data.train.crop.scale=[0.5, 1]", lambda c: c.data.train.crop.arguments, {"scale": [0.5, 1]}),
        ("model.width=0.25", lambda c: c.model.arguments["width"], 0.25),
        ("data.train.flip_labels={0: 1, 1: 0}", lambda c: c.data.train.flip_labels, {0: 1, 1: 0}),
        ("output_dir=a=b", lambda c: c.output_dir, "a=b"),
        ("data.sampling={name: uniform, frame_stride: 2}", lambda c: c.data.sampling.arguments, {"frame_stride": 2}),
        (" epochs = 7", lambda c: c.epochs, 7),
        ("output_dir=__import__('os').getcwd()", lambda c: c.output_dir, "__import__('os').getcwd()"),
    ],
)
def test_overrides(file, override, look, value):
    if "crop.scale" in override:
        file.write_text(TEXT.replace("flip: 0.5", "flip: 0.5, crop: {name: random_resized}"))
    assert look(load_config(file, [override])) == value


@pytest.mark.parametrize(
    ("written", "overrides", "name", "arguments"),
    [
        ("decord", [], "decord", {}),
        ("{name: pyav, threads: 2}", [], "pyav", {"threads": 2}),
        ("{name: pyav, threads: 2}", ["data.reader.threads=4"], "pyav", {"threads": 4}),
        ("{threads: 3}", [], "fused", {"threads": 3}),
        ("{name: fused}", ["data.reader=frames"], "frames", {}),
        ("pyav", ["data.reader={name: fused, cache_bytes: 9}"], "fused", {"cache_bytes": 9}),
        (None, ["data.reader.threads=2"], "fused", {"threads": 2}),
    ],
)
def test_a_reader_is_a_name_or_a_mapping(file, written, overrides, name, arguments):
    if written is not None:
        file.write_text(TEXT.replace("crop_size: 64", f"crop_size: 64\n  reader: {written}"))
    config = load_config(file, overrides)
    assert (config.data.reader.name, config.data.reader.arguments) == (name, arguments)
    assert yaml.safe_load(dump_config(config))["data"]["reader"] == {"name": name, **arguments}
    assert str(config.data.reader) == ", ".join([name, *(f"{key}={value}" for key, value in arguments.items())])


def test_the_last_override_wins(file):
    assert load_config(file, ["epochs=7", "epochs=9"]).epochs == 9
    assert load_config(file, ["output_dir=a"], output_dir="run #2: [x]").output_dir == "run #2: [x]"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epochs", "expected key=value, for example"),
        ("=3", "expected key=value"),
        ("epochs=[1", "not valid YAML"),
        ("epochs.x=1", "epochs is 4, not a mapping of keys"),
        ("data.mean.0=1", "data.mean is [1, 2, 3], not a mapping"),
        ("data..x=1", "data.: unknown key"),
        ("data.train={a: 1, a: 2}", "line 1: key 'a' is given twice"),
        ("epochs=__import__('os').getpid()", "epochs: input should be a valid integer"),
        ("epochs=!!python/name:os.getpid", "not valid YAML"),
    ],
)
def test_overrides_that_are_none(file, override, message):
    file.write_text(TEXT.replace("crop_size: 64", "crop_size: 64\n  mean: [1, 2, 3]"))
    assert refuse(file, override).startswith(message)


@pytest.mark.parametrize(
    "overrides", [[], ["data.train.flip_labels={2: 3, 3: 2}", "ema.decay=0.9", "data.mean=[1, 2, 3e1]"]]
)
def test_what_is_saved_is_what_was_loaded(file, tmp_path, overrides):
    config = load_config(file, overrides)
    saved = tmp_path / "saved.yaml"
    saved.write_text(dump_config(config))
    assert load_config(saved) == config
    assert dump_config(load_config(saved)) == dump_config(config)
    plain = yaml.safe_load(saved.read_text())
    assert plain["data"]["num_workers"] == 2  # every default is written out
    assert list(plain) == list(Config.model_fields)


def test_values_can_come_from_python():
    assert validate(yaml.safe_load(TEXT), "here").epochs == 4
    with pytest.raises(ConfigError, match="^here: epochs: "):
        validate({**yaml.safe_load(TEXT), "epochs": 0}, "here")


def test_a_relative_path_is_looked_for_here_and_then_in_the_project(tmp_path, monkeypatch):
    project, here = tmp_path / "project", tmp_path / "here"
    config = project / "configs" / "family" / "run.yaml"
    for path in (config, project / "data" / "list.txt", here / "data" / "other.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.chdir(here)
    assert project_root(config) == project
    assert resolve_path("data/list.txt", config, "key") == project / "data" / "list.txt"
    assert resolve_path("data/other.txt", config, "key") == here / "data" / "other.txt"
    (here / "data" / "list.txt").touch()
    assert resolve_path("data/list.txt", config, "key") == here / "data" / "list.txt"
    assert resolve_path(str(project / "data" / "list.txt"), config, "key") == project / "data" / "list.txt"
    with pytest.raises(ConfigError) as caught:
        resolve_path("data/none.txt", config, "key")
    assert (
        str(caught.value)
        == f"{config}: key: data/none.txt: found neither at {here}/data/none.txt nor {project}/data/none.txt"
    )
    with pytest.raises(ConfigError) as caught:
        resolve_path("/nowhere/at/all", config, "key")
    assert str(caught.value) == f"{config}: key: /nowhere/at/all: there is no /nowhere/at/all"


def test_the_project_of_a_config_elsewhere_is_its_folder(tmp_path, monkeypatch):
    (tmp_path / "run.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert project_root("run.yaml") == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve_path("~/run.yaml", "run.yaml", "key") == tmp_path / "run.yaml"


def test_there_are_configs():
    assert ROOT / "configs" / "quickstart" / "motion_tsm.yaml" in CONFIGS


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_valid_complete_and_has_its_header(path):
    load_config(path)
    text = path.read_text()
    header = [line for line in text.splitlines() if line.startswith("#")]
    assert text.startswith("#") and any("tools/train.py -c" in line for line in header)
    assert any("Expect" in line for line in header) and any("Source" in line for line in header)
    assert f"configs/{path.relative_to(ROOT / 'configs').as_posix()}" in text
    assert len(text.splitlines()) <= 70


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_can_be_built(path):
    from paddlevideo_fast.engine import build

    config = load_config(path)
    if "num_classes" not in config.model.arguments:  # as many as the class names, which are the user's
        config = with_values(config, {"model": {"num_classes": 5}})
    build.build_model(config)
    build.build_task(config)
    build.build_learning_rate(config, config.data.batch_size)
    for phase in ("train", "valid", "test"):
        if getattr(config.data, phase) is not None:
            build.build_recipe(config, phase)
            build.build_augment(config, phase)


def test_resolved_paths_hold_from_anywhere(tmp_path, monkeypatch):
    project = tmp_path / "project"
    (project / "configs").mkdir(parents=True)
    (project / "train.txt").touch()
    path = project / "configs" / "run.yaml"
    values = {
        "model": {"name": "tsm_resnet18", "num_classes": 2},
        "data": {
            "num_frames": 8,
            "crop_size": 32,
            "batch_size": 2,
            "sampling": {"name": "segment"},
            "train": {"annotations": "train.txt"},
            "test": {"annotations": "not_there_yet.txt"},
        },
        "optimizer": {"name": "sgd", "lr": 0.1},
        "schedule": {"name": "constant"},
        "epochs": 1,
        "output_dir": "~/run",
    }
    path.write_text(yaml.safe_dump(values))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    config = resolve_paths(load_config(path), path)
    assert config.data.train.annotations == str(project / "train.txt")
    assert config.data.test.annotations == "not_there_yet.txt"  # an error only for the command that reads it
    assert config.output_dir == str(tmp_path / "run")


@pytest.mark.parametrize(
    ("key", "name"),
    [("data.sampling", "dense"), ("data.reader", "pyav"), ("task", "multi_label"), ("schedule", "constant")],
)
def test_a_name_alone_stands_for_a_mapping_without_arguments(file, key, name):
    assert load_config(file, [f"{key}={name}"]) == load_config(file, [f"{key}={{name: {name}}}"])
