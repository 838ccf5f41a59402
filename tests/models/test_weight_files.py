"""Other toolkits' files: what PyTorch and safetensors wrote comes back, and nothing in a file is executed.

The files in tests/golden/weights and what they hold come from tests/parity/make_golden_weight_files.py.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from paddlevideo_fast.models.weights.files import read_contents, read_state
from paddlevideo_fast.models.weights.load import WeightsError
from paddlevideo_fast.pickles import Inert

GOLDEN = Path(__file__).parents[1] / "golden" / "weights"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())
FILES = ["zip.pt", "legacy.pth", "checkpoint.pt", "checkpoint_legacy.pth", "x.safetensors"]


def compare(state, expected):
    assert state.keys() == expected.keys()
    for key, value in state.items():
        np.testing.assert_array_equal(value, np.array(expected[key]).reshape(value.shape), err_msg=key)


@pytest.mark.parametrize("name", FILES)
def test_every_tensor_comes_back(name):
    state = read_state(GOLDEN / name, ["state_dict"])
    compare(state, EXPECTED["state"])
    shapes = {key: array.shape for key, array in state.items()}
    assert (shapes["transposed"], shapes["every_other"], shapes["scalar"], shapes["empty"]) == (
        (6, 4),
        (3, 4),
        (),
        (0, 3),
    )
    # half precision becomes single, all else is as it was
    dtypes = {key: state[key].dtype.name for key in ("half", "bfloat16", "whole", "double", "long", "bytes", "flags")}
    assert list(dtypes.values()) == ["float32", "float32", "float32", "float64", "int64", "uint8", "bool"]


def test_a_scripted_module_becomes_a_state_dict():
    state = read_state(GOLDEN / "script.pt")
    compare(state, EXPECTED["script"])
    assert state["body.0.weight"].shape == (3, 2, 1, 1) and state["body.0.weight"].dtype == np.float32


@pytest.mark.parametrize("name", ["checkpoint.pt", "checkpoint_legacy.pth"])
def test_what_training_scripts_leave_around_the_weights_is_inert(name):
    contents = read_contents(GOLDEN / name)
    assert isinstance(contents["args"], Inert)
    assert contents["args"].origin == "argparse.Namespace" and contents["args"].state["lr"] == 0.1
    assert contents["cfg"].startswith("TRAIN:") and contents["best"] == 0.5 and contents["shape"] == (1, 2)
    assert contents["optimizer"]["state"][0]["exp_avg"].read().shape == (2, 2)


def test_which_of_two_copies_is_taken_is_said(tmp_path, caplog):
    path, weights, average = tmp_path / "x.pth", {"w": np.ones(2, "float32")}, {"w": np.zeros(2, "float32")}
    path.write_bytes(pickle.dumps({"state_dict": weights, "state_dict_ema": average, "optimizer": {}}, protocol=2))
    compare(read_state(path, ["state_dict", "model"]), {"w": [1, 1]})
    assert caplog.messages == ["the weights under 'state_dict' are taken, not those under 'state_dict_ema'"]


def test_tensors_on_another_device_are_read_all_the_same(tmp_path):
    data = (GOLDEN / "legacy.pth").read_bytes()
    on_cpu = b"X\x03\x00\x00\x00cpu"
    assert on_cpu in data
    (tmp_path / "cuda.pth").write_bytes(data.replace(on_cpu, b"X\x06\x00\x00\x00cuda:0"))
    compare(read_state(tmp_path / "cuda.pth"), EXPECTED["state"])


def python2_array(name, values):
    """The opcodes by which Python 2's cPickle writes a name and an array of float32: text as bytes."""
    data = np.array(values, "<f4").tobytes()
    return (
        b"U" + bytes([len(name)]) + name.encode() + b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        b"K\x00\x85U\x01b\x87R(K\x01K" + bytes([len(values)]) + b"\x85cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R"
        b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U" + bytes([len(data)]) + data + b"tb"
    )


def test_blobs_of_caffe2_written_by_python_2(tmp_path):
    blobs = b"}(" + python2_array("conv1_w", [1.5, -2.0]) + python2_array("lr", [0.1]) + b"u"
    (tmp_path / "c2.pkl").write_bytes(b"\x80\x02}(U\x05blobs" + blobs + b"U\x03cfgU\x04a: 1u.")
    state = read_state(tmp_path / "c2.pkl", ["blobs"])
    compare(state, {"conv1_w": [1.5, -2.0], "lr": [np.float32(0.1)]})


class PaddleTensor:
    """Pickles as Paddle 2 writes a tensor outside a state dict: a pair of its name and its values."""

    def __init__(self, name, values):
        self.values = (name, values)

    def __reduce__(self):
        return tuple, (self.values,)


@pytest.mark.parametrize("protocol", [2, 4])
def test_paddles_files_of_several_times(tmp_path, protocol):
    path = tmp_path / "paddle.pdparams"
    half = np.array([0.5], np.float16)
    names = {"fc.weight": "linear_0.w_0"}
    state = {"fc.weight": np.eye(2, dtype="float32"), "half": half, "StructuredToParameterName@@": names}
    path.write_bytes(pickle.dumps(state, protocol=protocol))
    compare(read_state(path), {"fc.weight": [[1, 0], [0, 1]], "half": [0.5]})
    assert read_state(path)["half"].dtype == np.float32
    pair = PaddleTensor("linear_0.w_0", np.ones(3, "float32"))
    path.write_bytes(pickle.dumps({"fc.bias": pair}, protocol=protocol))
    compare(read_state(path), {"fc.bias": [1, 1, 1]})


def write_zip(path, data, **members):
    """Writes a pickle the way torch.save does."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        for name, content in members.items():
            archive.writestr(f"archive/data/{name}", content)


def torch_pickle(size, stride, offset=0, storage=b"ctorch\nFloatStorage\n"):
    """{"w": tensor} in the opcodes of PyTorch, over storage 0 of 4 elements."""
    numbers = [b"(" + b"".join(b"J" + struct.pack("<i", x) for x in group) + b"t" for group in (size, stride)]
    reference = b"(X\x07\x00\x00\x00storage" + storage + b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
    tensor = reference + b"J" + struct.pack("<i", offset) + b"".join(numbers) + b"\x89N"
    return b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n(" + tensor + b"tRs."


def test_the_small_writer_writes_what_pytorch_reads_so(tmp_path):
    path = tmp_path / "x.pt"
    write_zip(path, torch_pickle([2, 2], [1, 2]), **{"0": np.arange(4, dtype="<f4").tobytes()})
    compare(read_state(path), {"w": [[0, 2], [1, 3]]})


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [([5], [1], 0), ([4], [1], 1), ([2], [4], 0), ([2], [-1], 3), ([-2], [1], 0), ([1], [1], -1), ([2, 2], [1], 0)],
)
def test_no_tensor_reaches_outside_its_storage(tmp_path, size, stride, offset):
    path = tmp_path / "x.pt"
    write_zip(path, torch_pickle(size, stride, offset), **{"0": bytes(16)})
    with pytest.raises(WeightsError, match="x.pt: w: its values lie outside storage 0, which has 4"):
        read_state(path)


def test_a_storage_of_an_unknown_kind_is_named(tmp_path):
    path = tmp_path / "x.pt"
    write_zip(path, torch_pickle([4], [1], storage=b"ctorch\nQInt8Storage\n"), **{"0": bytes(16)})
    with pytest.raises(WeightsError, match="x.pt: w: numbers of the unknown kind torch.QInt8Storage"):
        read_state(path)


def damaged(path, target, kind):
    data = bytearray(path.read_bytes())
    if kind == "flipped":  # one bit of the numbers: only a checksum tells
        data[data.index(np.arange(24, dtype="<f4").tobytes()) + 6] ^= 1
    target.write_bytes(data if kind == "flipped" else data[: int(len(data) * kind)])
    return target


@pytest.mark.parametrize("part", [0.05, 0.3, 0.6, 0.9, 0.999])
@pytest.mark.parametrize("name", [*FILES, "script.pt"])
def test_a_file_cut_short_is_named(tmp_path, name, part):
    path = damaged(GOLDEN / name, tmp_path / name, part)
    with pytest.raises(WeightsError, match=rf"{name}: .*(damaged|cut short)"):
        read_state(path, ["state_dict"])


def test_a_flipped_bit_in_a_zip_file_is_found(tmp_path):
    path = damaged(GOLDEN / "zip.pt", tmp_path / "zip.pt", "flipped")
    with pytest.raises(WeightsError, match="zip.pt: whole: damaged: the checksum of the 96 bytes at"):
        read_state(path)


def test_files_that_hold_no_weights(tmp_path):
    path = tmp_path / "x.pt"
    for data, message in (
        (b"", "not a pickle, or damaged"),
        (b"hello", "not a pickle, or damaged .*; it begins with the text 'hello': a web page, an index or a pointer"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid",
            "it begins with the text 'version https://git-lfs.github.com",
        ),
        (b"\x80\x02]q", "not a pickle, or damaged [^;]*$"),
        (pickle.dumps([1, 2]), "expected a mapping of names to arrays, found list"),
        (pickle.dumps({}), "expected a mapping of names to arrays, found nothing"),
        (pickle.dumps({"epoch": "3", "net": {}}), "epoch: expected an array, found str; it holds epoch, net"),
        (
            pickle.dumps({"net": {"w": 1}}),
            "it holds net; weights are looked for under state_dict: save them so, or alone",
        ),
        (pickle.dumps({"w": Path("x")}), r"w: expected an array, found an object of pathlib\.\w+, which was not made"),
        (pickle.dumps({"w": np.array([None])}), "w: expected an array, found ndarray"),
        (struct.pack("<Q", 14) + b'{"w":{"a":1}} ', "a safetensors file whose header is damaged at w"),
        (struct.pack("<Q", 14) + b'{"w":{"a":1]} ', "a safetensors file whose header is damaged .Expecting"),
        (struct.pack("<Q", 100) + b'{"w":{"a":1}} ', "cut short"),
    ):
        path.write_bytes(data)
        with pytest.raises(WeightsError, match=f"x.pt: .*{message}"):
            read_state(path, ["state_dict"])
    write_zip(path, b"\x80\x02]q\x00.")
    with pytest.raises(WeightsError, match="found list"):
        read_state(path)
    shutil.make_archive(str(tmp_path / "other"), "zip", GOLDEN)
    with pytest.raises(WeightsError, match="other.zip: a zip file, but not one of PyTorch's"):
        read_state(tmp_path / "other.zip")
    with pytest.raises(WeightsError, match="none.pt: No such file or directory"):
        read_state(tmp_path / "none.pt")


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


MALICE = [
    lambda: Call(os.mkdir, "ran"),
    lambda: Call(os.system, "mkdir ran"),
    lambda: Call(eval, "__import__('os').mkdir('ran')"),
    lambda: Call(exec, "import os; os.mkdir('ran')"),
    lambda: Call(getattr, Call(__import__, "os"), "mkdir"),
]


@pytest.mark.parametrize("form", ["plain", "zip"])
@pytest.mark.parametrize("payload", MALICE)
def test_malice_is_not_executed(tmp_path, monkeypatch, payload, form):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "evil.pt"
    array = np.ones(2, "float32")
    for contents in ({"args": payload(), "state_dict": {"w": array}}, {"state_dict": {"w": payload(), "v": array}}):
        data = pickle.dumps(contents, protocol=2)
        if form == "zip":
            write_zip(path, data)
        else:
            path.write_bytes(data)
        if "args" in contents:
            compare(read_state(path, ["state_dict"]), {"w": [1, 1]})
        else:
            with pytest.raises(WeightsError, match=r"evil.pt: w: .* an object of \w+\.\w+, which was not made"):
                read_state(path, ["state_dict"])
        assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(Call(os.mkdir, "ran")))  # it would have been
    assert (tmp_path / "ran").exists()
