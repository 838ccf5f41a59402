"""Weights on disk: every key accounted for, damage named, and nothing executed."""

from __future__ import annotations

import hashlib
import json
import os
import pickle

import numpy as np
import paddle
import pytest
from paddle import nn

from paddlevideo_fast.models import create_model
from paddlevideo_fast.models.weights.load import WeightsError, load_weights, read_weights
from paddlevideo_fast.pickles import UnsafePickleError, load_arrays


def net(width=4):
    return nn.Sequential(nn.Conv2D(3, width, 3), nn.BatchNorm2D(width), nn.Flatten(), nn.Linear(width, 2))


def arrays(model):
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def same(left, right):
    assert left.keys() == right.keys()
    for name in left:
        np.testing.assert_array_equal(left[name], right[name], err_msg=name)


@pytest.fixture
def saved(tmp_path):
    model = net()
    path = tmp_path / "weights.pdparams"
    paddle.save(model.state_dict(), str(path))
    return model, path


def test_every_array_comes_over(saved):
    model, path = saved
    other = net()
    load_weights(other, path)
    same(arrays(other), arrays(model))
    same(read_weights(path), arrays(model))
    assert not other[0].weight.stop_gradient


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_files_of_any_pickle_protocol(tmp_path, protocol):
    model, other = net(), net()
    paddle.save(model.state_dict(), str(tmp_path / "w.pdparams"), protocol=protocol)
    load_weights(other, tmp_path / "w.pdparams")
    same(arrays(other), arrays(model))


def test_half_weights_are_read_as_float(tmp_path):
    model, other = net(), net()
    half = {name: value.astype(np.float16) for name, value in arrays(model).items()}
    paddle.save(half, str(tmp_path / "half.pdparams"))
    load_weights(other, tmp_path / "half.pdparams")
    assert other[0].weight.dtype == paddle.float32
    np.testing.assert_array_equal(other[0].weight.numpy(), half["0.weight"].astype(np.float32))


def test_of_a_training_state_the_averaged_weights_are_taken(tmp_path):
    trained, average, other = arrays(net()), arrays(net()), net()
    for state, expected in (({"model": trained, "ema": average}, average), ({"model": trained, "ema": None}, trained)):
        path = tmp_path / "step.pdstate"
        data = pickle.dumps(state, protocol=4)
        path.write_bytes(data + b"pvf-state-sha256" + hashlib.sha256(data).digest())
        load_weights(other, path)
        same(arrays(other), expected)
    flip(path)
    with pytest.raises(WeightsError, match="step.pdstate: damaged: its checksum does not match"):
        load_weights(other, path)


def flip(path, where=0.5):
    """Flips one bit of a file."""
    data = bytearray(path.read_bytes())
    data[int(len(data) * where)] ^= 1
    path.write_bytes(data)


def write_facts(path, **values):
    """Writes the JSON file that the engine leaves beside weights."""
    data = path.read_bytes()
    about = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(), **values}
    path.with_suffix(".json").write_text(json.dumps({"step": 3, "weights": about}))


def test_damage_that_only_a_checksum_shows(saved):
    model, path = saved
    write_facts(path)
    load_weights(net(), path)
    middle = path.read_bytes().index(model[0].weight.numpy().tobytes()) + 5
    flip(path, (middle + 0.5) / path.stat().st_size)
    before = arrays(other := net())
    with pytest.raises(
        WeightsError,
        match=r"weights.pdparams: not the file that weights.json .* SHA-256 .* copy, .* delete .*weights.json",
    ):
        load_weights(other, path)
    same(arrays(other), before)
    path.with_suffix(".json").unlink()
    load_weights(other, path)  # as weights of unknown origin


def test_weights_of_another_length_than_their_facts_say(saved):
    _, path = saved
    write_facts(path, bytes=7)
    with pytest.raises(WeightsError, match=rf"it has {path.stat().st_size} bytes instead of 7"):
        load_weights(net(), path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weights": "resnet50"}', '{"license": "MIT"}'])
def test_a_json_file_of_another_kind_proves_nothing(saved, text):
    _, path = saved
    path.with_suffix(".json").write_text(text)
    load_weights(net(), path)


def refuse(tmp_path, state, match):
    """Loading must fail with the message and leave the model alone."""
    path = tmp_path / "other.pdparams"
    if state is not None:
        paddle.save(state, str(path))
    model = net()
    before = arrays(model)
    with pytest.raises(WeightsError, match=match):
        load_weights(model, path)
    same(arrays(model), before)


def test_keys_that_do_not_fit_are_named(tmp_path):
    state = arrays(net())
    without = {name: value for name, value in state.items() if name != "3.bias"}
    refuse(tmp_path, without, r"other.pdparams does not fit Sequential, which has 8 keys: 1 missing \(3.bias\)$")
    refuse(tmp_path, {**state, "4.w": np.zeros(1)}, r"1 unknown to the model \(4.w\)$")
    refuse(tmp_path, {**state, "3.bias": np.zeros(3)}, r"1 of another shape \(3.bias \[3\] for \[2\]\)$")
    refuse(tmp_path, {**without, "4.w": np.zeros(1)}, r"1 missing \(3.bias\); 1 unknown to the model \(4.w\)$")
    other = arrays(net(8))
    refuse(tmp_path, other, r"7 of another shape \(0.weight \[8, 3, 3, 3\] for \[4, 3, 3, 3\], .*, \.\.\.\)$")


def test_files_that_are_no_weights(tmp_path):
    refuse(tmp_path, None, "no such weights file")
    path = tmp_path / "other.pdparams"
    for data in (b"", b"hello", b"\x80\x04", os.urandom(200), b"PK\x03\x04 a zip file"):
        path.write_bytes(data)
        refuse(tmp_path, None, "other.pdparams: not a file of pickled arrays, or damaged")
    path.write_bytes(pickle.dumps([1, 2, 3]))
    refuse(tmp_path, None, "expected a mapping of names to arrays, found list")
    path.write_bytes(pickle.dumps({}))
    refuse(tmp_path, None, "expected a mapping of names to arrays, but it is empty")
    path.write_bytes(pickle.dumps({"a": 3}))
    refuse(tmp_path, None, "expected a mapping of names to arrays, but 'a' is int")
    path.unlink()
    path.mkdir()
    refuse(tmp_path, None, "no such weights file")


def test_the_description_beside_weights_is_not_taken_for_them(saved):
    path = saved[1].with_suffix(".json")
    path.write_text(json.dumps({"weights": {"bytes": 1, "sha256": ""}}))
    with pytest.raises(
        WeightsError, match="weights.json: says what weights are, but holds none; give weights.pdparams"
    ):
        read_weights(path)


def test_a_file_cut_short(saved, tmp_path):
    _, path = saved
    data = path.read_bytes()
    for length in (len(data) - 1, len(data) // 2, 10):
        (tmp_path / "other.pdparams").write_bytes(data[:length])
        refuse(tmp_path, None, "not a file of pickled arrays, or damaged")


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def object_array():
    array = np.empty(1, object)
    array[0] = Call(os.mkdir, "ran")
    return array


@pytest.mark.parametrize(
    "payload",
    [
        lambda: Call(os.mkdir, "ran"),
        lambda: {"weight": np.zeros(2), "x": Call(os.mkdir, "ran")},
        lambda: Call(eval, "__import__('os').mkdir('ran')"),
        lambda: Call(exec, "import os; os.mkdir('ran')"),
        lambda: {"x": Call(getattr, "text", "upper")},
        lambda: {"x": object_array()},
        lambda: {"x": Call(__import__, "os")},
    ],
)
def test_a_malicious_file_is_not_executed(tmp_path, monkeypatch, payload):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other.pdparams").write_bytes(pickle.dumps(payload(), protocol=4))
    refuse(tmp_path, None, r"other.pdparams: asks for (posix|builtins)\.\w+, .* not executed")
    assert not (tmp_path / "ran").exists()


def test_dotted_names_do_not_reach_around_the_list(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = (b"numpy", b"ndarray.__class__")
    data = b"\x80\x04" + b"".join(b"\x8c" + bytes([len(name)]) + name for name in names) + b"\x93."  # STACK_GLOBAL
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(UnsafePickleError, match="asks for numpy.ndarray.__class__"):
        load_arrays(tmp_path / "x")


def test_plain_values_come_back(tmp_path):
    value = {"a": np.arange(3), "b": [1, 2.5, None, True, "ü", b"x"], "c": (1, {"d": np.float32(2)}), "e": {1, 2}}
    (tmp_path / "x").write_bytes(pickle.dumps(value, protocol=4))
    read = load_arrays(tmp_path / "x")
    np.testing.assert_array_equal(read.pop("a"), value.pop("a"))
    assert read == value


def headed(num_classes):
    model = paddle.nn.Sequential(("body", paddle.nn.Linear(3, 4)), ("head", paddle.nn.Linear(4, num_classes)))
    return model


def test_a_head_for_other_classes_is_fitted_on_request_only(tmp_path):
    path = tmp_path / "five.pdparams"
    five, two = headed(5), headed(2)
    paddle.save(five.state_dict(), str(path))
    with pytest.raises(WeightsError, match="All but the head fits: reset_head=true"):
        load_weights(two, path)
    fresh = two.head.weight.numpy().copy()
    load_weights(two, path, reset_head=True)
    np.testing.assert_array_equal(two.body.weight.numpy(), five.body.weight.numpy())
    np.testing.assert_array_equal(two.head.weight.numpy(), fresh)
    with pytest.raises(WeightsError, match="no keys that begin with 'head.'"):
        load_weights(net(), path, reset_head=True)


@pytest.mark.parametrize("prefix", ["module.", "_layers.", "module._layers."])
def test_the_prefix_of_a_wrapper_is_taken_off(tmp_path, prefix):
    trained, other = net(), net()
    path = tmp_path / "wrapped.pdparams"
    paddle.save({prefix + name: value for name, value in trained.state_dict().items()}, str(path))
    load_weights(other, path)
    same(arrays(other), arrays(trained))


def test_weights_of_another_architecture_are_called_so(tmp_path):
    refuse(tmp_path, {"conv1.weight": np.zeros([64, 3, 7, 7])}, "Not one key fits: .* another architecture")


def test_other_arguments_that_shapes_do_not_show_are_told(tmp_path, caplog):
    small = {"num_classes": 2, "embed_dim": 24, "depth": 1, "num_frames": 4, "crop_size": 32}
    path = tmp_path / "vit.pdparams"
    paddle.save(create_model("vit_small_patch16", num_heads=2, **small).state_dict(), str(path))
    path.with_suffix(".json").write_text('{"model": {"name": "vit_small_patch16", "num_heads": 2, "crop_size": 64}}')
    with caplog.at_level("WARNING"):
        load_weights(create_model("vit_small_patch16", num_heads=2, **small), path)
        assert not caplog.records
        load_weights(create_model("vit_small_patch16", num_heads=4, **small), path)
    (record,) = caplog.records
    assert "vit.pdparams: its model had num_heads=2, this one has 4" in record.getMessage()
