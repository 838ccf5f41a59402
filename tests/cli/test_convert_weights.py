"""tools/convert_weights.py: from another toolkit's file to weights that a model of this one takes."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import shlex
import struct
from pathlib import Path

import numpy as np
import paddle
import pytest

from paddlevideo_fast.arguments import check_arguments
from paddlevideo_fast.cli import convert_weights
from paddlevideo_fast.models import MODELS, create_model
from paddlevideo_fast.models.weights.load import WeightsError, load_weights, read_weights
from paddlevideo_fast.models.weights.sources import SOURCES, count_classes, find_converter, read_source

NARROW = ["-o", "width=0.125", "num_segments=2"]


def torchvision_resnet18(width=8, classes=3):
    """A narrow ResNet-18 by torchvision's names, written out by hand; values that tell the arrays apart."""
    shapes = {"conv1.weight": (width, 3, 7, 7), "bn1": width, "fc.weight": (classes, 8 * width), "fc.bias": (classes,)}
    channels = width
    for stage in range(4):
        out = width * 2**stage
        for block in range(2):
            name = f"layer{stage + 1}.{block}"
            shapes[f"{name}.conv1.weight"] = (out, channels, 3, 3)
            shapes[f"{name}.conv2.weight"] = (out, out, 3, 3)
            shapes |= {f"{name}.bn1": out, f"{name}.bn2": out}
            if channels != out:
                shapes |= {f"{name}.downsample.0.weight": (out, channels, 1, 1), f"{name}.downsample.1": out}
            channels = out
    for name, count in [item for item in shapes.items() if isinstance(item[1], int)]:
        del shapes[name]
        shapes |= {f"{name}.{part}": (count,) for part in ("weight", "bias", "running_mean", "running_var")}
        shapes[f"{name}.num_batches_tracked"] = ()
    rng = np.random.default_rng(0)
    return {name: rng.random(shape, dtype="float32") for name, shape in shapes.items()}


def write_safetensors(path, state):
    header, data = {}, b""
    for name, array in state.items():
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


@pytest.fixture
def published(tmp_path):
    path = tmp_path / "resnet18.safetensors"
    write_safetensors(path, torchvision_resnet18())
    return path


def convert(path, output, *options, source="torchvision", model="tsm_resnet18"):
    convert_weights.main(["--source", source, "--model", model, *options, str(path), str(output)])


def fails(*arguments, **named):
    with pytest.raises(SystemExit) as caught:
        convert(*arguments, **named)
    assert str(caught.value).startswith("error: ") and "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_takes_what_was_converted(published, tmp_path, capsys):
    before, output = published.read_bytes(), tmp_path / "new" / "tsm.pdparams"
    convert(published, output, *NARROW)
    text = capsys.readouterr().out
    assert "122 arrays read, 102 of the model's filled" in text
    assert "20 dropped: counter of batches, which Paddle does not keep (bn1.num_batches_tracked, " in text
    assert f"wrote {output}: tsm_resnet18 with width=0.125, num_segments=2, num_classes=3" in text

    model, state = create_model("tsm_resnet18", num_classes=3, width=0.125), torchvision_resnet18()
    assert model.set_state_dict(paddle.load(str(output))) == ([], [])
    np.testing.assert_array_equal(model.head.fc.weight.numpy(), state["fc.weight"].T)
    np.testing.assert_array_equal(model.backbone.layer2[0].bn1._variance.numpy(), state["layer2.0.bn1.running_var"])
    load_weights(create_model("tsm_resnet18", num_classes=3, width=0.125), output)
    facts, data = json.loads(output.with_suffix(".json").read_text()), output.read_bytes()
    assert facts == {
        "model": {"name": "tsm_resnet18", "width": 0.125, "num_segments": 2, "num_classes": 3},
        "converted": {"source": "torchvision", "file": "resnet18.safetensors"},
        "weights": {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()},
    }
    assert published.read_bytes() == before


def test_every_arrays_way_can_be_seen(published, tmp_path, capsys):
    convert(published, tmp_path / "tsm.pdparams", *NARROW, "--verbose")
    lines = capsys.readouterr().out.splitlines()
    assert "  fc.weight [3, 64] -> head.fc.weight [64, 3] (transposed)" in lines
    assert "  bn1.running_mean [8] -> backbone.bn1._mean [8]" in lines
    assert sum(" -> " in line for line in lines) == 102


def test_other_classes_than_the_files(published, tmp_path, capsys):
    convert(published, tmp_path / "tsm.pdparams", *NARROW, "num_classes=5")
    text = capsys.readouterr().out
    assert "2 dropped: classifies into 3 classes, the model into 5 (fc.weight, fc.bias)" in text
    assert "2 left at their initial values: " in text
    load_weights(create_model("tsm_resnet18", num_classes=5, width=0.125), tmp_path / "tsm.pdparams")


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod.", "_orig_mod.module."])
def test_names_of_wrapped_modules(tmp_path, capsys, prefix):
    state = {f"{prefix}{name}": array for name, array in torchvision_resnet18().items()}
    write_safetensors(tmp_path / "wrapped.safetensors", state)
    assert read_source("huggingface", tmp_path / "wrapped.safetensors").keys() == torchvision_resnet18().keys()
    convert(tmp_path / "wrapped.safetensors", tmp_path / "tsm.pdparams", *NARROW)
    assert "122 arrays read, 102 of the model's filled" in capsys.readouterr().out
    load_weights(create_model("tsm_resnet18", num_classes=3, width=0.125), tmp_path / "tsm.pdparams")


def test_broken_weights_are_refused(tmp_path):
    state = torchvision_resnet18()
    state["fc.weight"][0, 0] = np.nan
    write_safetensors(tmp_path / "broken.safetensors", state)
    message = fails(tmp_path / "broken.safetensors", tmp_path / "tsm.pdparams", *NARROW)
    assert "broken.safetensors as weights of torchvision for tsm_resnet18" in message
    assert "1 with values that are no finite numbers (fc.weight -> head.fc.weight)" in message
    assert not list(tmp_path.glob("tsm.*"))


def test_numbers_are_numbers_in_the_json_file(published, tmp_path):
    convert(published, tmp_path / "tsm.pdparams", *NARROW, "dropout=5e-1")  # text in YAML, which wants 5.0e-1
    assert json.loads((tmp_path / "tsm.json").read_text())["model"]["dropout"] == 0.5


def test_only_one_classifier_tells_the_number_of_classes():
    three, four = np.zeros(3), np.zeros(4)
    for key in ("fc.bias", "module.new_fc.bias", "head.projection.bias", "module.fc_cls.bias", "pred_b", "head.bias"):
        assert count_classes({key: three, "blocks.0.mlp.fc1.bias": four, "fc_norm.bias": four, "res_b": four}) == 3
    assert count_classes({"verb.head.bias": three, "noun.head.bias": four}) is None
    assert count_classes({"blocks.0.temporal_fc.bias": three, "conv_b": three}) is None


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ("tsm", "state_dict"),
        ("avion", "state_dict"),
        ("pyslowfast", "model_state"),
        ("timesformer", "model_state"),
        ("pyslowfast-caffe2", "blobs"),
        ("videomae", "model"),
        ("videomae", "module"),
        ("paddlevideo", None),
        ("torchvision", None),
        ("openai-clip", None),
    ],
)
def test_where_each_toolkit_keeps_the_weights(tmp_path, source, key):
    weights = {"w": np.ones(2, "float32")}
    contents = weights if key is None else {"epoch": 3, "optimizer": {"state": {}}, key: weights, "cfg": "a: 1"}
    (tmp_path / "x.pth").write_bytes(pickle.dumps(contents, protocol=2))
    assert {name: array.tolist() for name, array in read_source(source, tmp_path / "x.pth").items()} == {"w": [1, 1]}


@pytest.mark.parametrize(
    ("options", "named", "message"),
    [
        ((), {"source": "torch"}, "unknown source 'torch'; did you mean 'torchvision'? Valid names: avion, "),
        ((), {"model": "tsm"}, "unknown model 'tsm'"),
        ((), {"source": "pyslowfast"}, "source 'pyslowfast' cannot fill tsm_resnet18, but these: i3d_nl_resnet50, i3d"),
        (("-o", "width"), {}, "-o width: expected key=value"),
        (("-o", "width=[1"), {}, "-o width=[1: the value is not valid YAML"),
        (("-o", "widht=1"), {}, "model tsm_resnet18: unknown argument 'widht'; did you mean 'width'?"),
        ((), {}, "resnet18.safetensors as weights of torchvision for tsm_resnet18: the 122 arrays do not fill TSM: "),
        (NARROW, {"model": "tsn_resnet34"}, "missing (backbone.layer1.2.conv1.weight, "),
    ],
)
def test_what_cannot_be_converted(published, tmp_path, options, named, message):
    assert message in fails(published, tmp_path / "out.pdparams", *options, **named)
    assert not (tmp_path / "out.pdparams").exists() and not (tmp_path / "out.json").exists()


def test_nothing_is_overwritten(published, tmp_path):
    assert "the name of the new weights must end with .pdparams" in fails(published, published, *NARROW)
    for name in ("out.pdparams", "out.json"):
        (tmp_path / name).write_text("precious")
        assert f"{name} is there already" in fails(published, tmp_path / "out.pdparams", *NARROW)
        (tmp_path / name).unlink()
    assert "none.pth: No such file or directory" in fails(tmp_path / "none.pth", tmp_path / "out.pdparams")
    (tmp_path / "text.pth").write_text("hello")
    assert "text.pth: not a pickle, or damaged" in fails(tmp_path / "text.pth", tmp_path / "out.pdparams")


def test_weights_that_want_converting_say_so(published):
    for read in (read_weights, lambda path: load_weights(create_model("tsn_resnet18", num_classes=2), path)):
        with pytest.raises(WeightsError) as caught:
            read(published)
        command = "python tools/convert_weights.py --source NAME --model NAME "
        assert f"{command}{published} resnet18.pdparams, the source being huggingface or timm" in str(caught.value)


def test_help_lists_the_sources():
    assert convert_weights.NAMES == ", ".join(SOURCES)


def documented_commands():
    text = (Path(__file__).parents[2] / "docs" / "weights.md").read_text().replace("\\\n", " ")
    return re.findall(r"^python tools/convert_weights.py (--source (?!NAME).*)$", text, re.MULTILINE)


def test_every_source_is_documented():
    assert {shlex.split(command)[1] for command in documented_commands()} == set(SOURCES)


@pytest.mark.parametrize("command", documented_commands())
def test_documented_commands_could_run(command):
    args = convert_weights._parse(shlex.split(command))
    find_converter(args.source, args.model)
    arguments = convert_weights._arguments(args.override, args.model, {"fc.bias": np.zeros(7)})
    check_arguments(MODELS[args.model], arguments, where=args.model)
    assert args.output.endswith(".pdparams")
