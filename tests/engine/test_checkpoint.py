"""Files that appear whole or not at all, damage that is noticed, and optimiser states under stable names."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
from paddle import nn

from paddlevideo_fast.engine import checkpoint as module
from paddlevideo_fast.engine.checkpoint import (
    CheckpointError,
    Checkpoints,
    optimizer_state,
    read_state,
    set_optimizer_state,
    write_atomically,
)
from paddlevideo_fast.models.weights.load import read_weights

ROOT = Path(__file__).parents[2]
STATE = {
    "format": 1,
    "progress": {"step": 3, "best": -math.inf},
    "model": {"weight": paddle.to_tensor([[1.0, 2.0]]), "count": paddle.to_tensor(7)},
    "names": ["a", "ü"],
    "scaler": None,
}


class DiskFullError(OSError):
    pass


def test_a_state_comes_back_as_it_was(tmp_path):
    checkpoints = Checkpoints(tmp_path / "deep" / "checkpoints", 2)
    path = checkpoints.save_state(3, STATE)
    assert path.name == "step_00000003.pdstate"
    state = checkpoints.load_newest()
    np.testing.assert_array_equal(state["model"]["weight"], np.array([[1, 2]], np.float32))
    assert state["model"]["weight"].dtype == np.float32
    assert state["model"]["count"] == 7
    assert state["progress"] == {"step": 3, "best": -math.inf} and type(state["progress"]["best"]) is float
    assert state["names"] == ["a", "ü"] and state["scaler"] is None


def test_the_newest_states_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, 2)
    for step in (8, 9, 10, 100):
        checkpoints.save_state(step, {"step": step})
    assert [path.name for path in checkpoints.states()] == ["step_00000010.pdstate", "step_00000100.pdstate"]
    assert checkpoints.load_newest() == {"step": 100}


def fail_while_writing(monkeypatch, when):
    """Makes the disk full in the middle of a file ("write"), when it is flushed ("fsync") or renamed ("replace")."""
    if when == "write":
        plain = pickle.dump

        def dump(value, file, **options):
            plain(value, file, **options)
            raise DiskFullError("no space left")

        monkeypatch.setattr(module.pickle, "dump", dump)
    else:

        def full(*arguments):
            raise DiskFullError("no space left")

        monkeypatch.setattr(module.os, when, full)


@pytest.mark.parametrize("when", ["write", "fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch, when):
    checkpoints = Checkpoints(tmp_path, 1)
    old = checkpoints.save_state(5, STATE).read_bytes()
    with monkeypatch.context() as patch:
        fail_while_writing(patch, when)
        for step in (5, 6):
            with pytest.raises(DiskFullError):
                checkpoints.save_state(step, {**STATE, "format": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000005.pdstate"]  # no temporary file either
    assert checkpoints.states()[0].read_bytes() == old
    assert checkpoints.load_newest()["format"] == 1


def test_weights_are_written_whole_or_not_at_all(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path, 1)
    model = nn.Linear(2, 3)
    path = checkpoints.save_weights("best", model.state_dict(), {"metrics": {"top1": 0.5, "loss": math.nan}})
    np.testing.assert_array_equal(paddle.load(str(path))["weight"].numpy(), model.weight.numpy())
    strict = json.loads(path.with_suffix(".json").read_text(), parse_constant=lambda name: pytest.fail(name))
    old = path.read_bytes()
    checksum = hashlib.sha256(old).hexdigest()
    assert strict == {"metrics": {"top1": 0.5, "loss": "nan"}, "weights": {"bytes": len(old), "sha256": checksum}}
    monkeypatch.setattr(module.os, "fsync", lambda number: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        checkpoints.save_weights("best", {"weight": paddle.zeros([1])}, {})
    assert path.read_bytes() == old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.json", "best.pdparams"]


DIES = """
import os, signal, sys
from pathlib import Path
import numpy as np
from paddlevideo_fast.engine import checkpoint
checkpoints = checkpoint.Checkpoints(Path(sys.argv[1]), keep=1)
checkpoints.save_weights("best", {"weight": np.full(1000, 1, np.float32)}, {"step": 1})
plain = os.replace
def replace(*names):
    plain(*names)
    os.kill(os.getpid(), signal.SIGKILL)
checkpoint.os.replace = replace
checkpoints.save_weights("best", {"weight": np.full(1000, 2, np.float32)}, {"step": 2})
"""


def test_a_kill_between_the_two_names_leaves_weights_that_load(tmp_path):
    done = subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], cwd=ROOT, capture_output=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert not (tmp_path / "best.json").exists()  # rather than one about the weights of step 1
    assert (read_weights(tmp_path / "best.pdparams")["weight"] == 2).all()
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save_state(2, {"step": 2})
    assert checkpoints.load_newest() == {"step": 2}
    path = checkpoints.save_weights("best", {"weight": paddle.full([3], 3.0)}, {"step": 3})
    assert json.loads(path.with_suffix(".json").read_text())["step"] == 3
    assert (read_weights(path)["weight"] == 3).all()


def test_a_stop_at_any_call_leaves_weights_and_facts_that_agree(tmp_path, monkeypatch):
    class StopError(BaseException):
        pass

    class Calls:
        """The module os, which stops at one of the calls that change names."""

        def __init__(self, left):
            self.left = left

        def __getattr__(self, name):
            return getattr(os, name)

        def replace(self, *names):
            self.count()
            os.replace(*names)
            self.count()

        def count(self):
            self.left -= 1
            if self.left == 0:
                raise StopError

    seen = []
    for stop in (1, 2, 3, 4, 5):
        checkpoints = Checkpoints(tmp_path / str(stop), 1)
        path = checkpoints.save_weights("last", {"weight": paddle.zeros([4])}, {"step": 0})
        with monkeypatch.context() as patch:
            patch.setattr(module, "os", Calls(stop))
            with contextlib.suppress(StopError):
                checkpoints.save_weights("last", {"weight": paddle.ones([4])}, {"step": 1})
        beside = path.with_suffix(".json")
        step = json.loads(beside.read_text())["step"] if beside.exists() else None
        weight = int(read_weights(path)["weight"][0])
        assert step in (None, weight)
        seen.append((weight, step))
    assert seen == [(0, None), (1, None), (1, None), (1, 1), (1, 1)]


def test_a_resumed_run_does_not_go_on_with_damaged_best_weights(tmp_path):
    checkpoints = Checkpoints(tmp_path, 1)
    checkpoints.save_state(2, {"step": 2})
    path = checkpoints.save_weights("best", {"weight": paddle.zeros([1000])}, {"step": 2})
    assert checkpoints.load_newest() == {"step": 2}
    damage(path, "bit")
    with pytest.raises(CheckpointError, match=r"best.pdparams: not the file that best.json describes.*delete both"):
        checkpoints.load_newest()


def test_the_file_is_flushed_before_it_gets_its_name(tmp_path, monkeypatch):
    calls = []
    plain_sync, plain_replace = os.fsync, os.replace
    monkeypatch.setattr(module.os, "fsync", lambda number: (calls.append("fsync"), plain_sync(number)))
    monkeypatch.setattr(module.os, "replace", lambda *names: (calls.append("replace"), plain_replace(*names)))
    write_atomically(tmp_path / "file", lambda file: file.write(b"all of it"))
    assert calls == ["fsync", "replace"]
    assert (tmp_path / "file").read_bytes() == b"all of it"


def damage(path, kind):
    data = bytearray(path.read_bytes())
    if kind == "bit":
        data[len(data) // 2] ^= 1
    elif kind == "cut":
        del data[len(data) // 2 :]
    elif kind == "empty":
        data.clear()
    elif kind == "tail":
        data += b"more"
    elif kind == "trailer":
        data[-1] ^= 255
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["bit", "cut", "empty", "tail", "trailer"])
def test_damage_is_named_and_the_state_before_it_offered(tmp_path, kind):
    checkpoints = Checkpoints(tmp_path, 3)
    checkpoints.save_state(4, STATE)
    newest = checkpoints.save_state(8, STATE)
    damage(newest, kind)
    with pytest.raises(
        CheckpointError, match=r"step_00000008.pdstate: damaged.*delete it: step_00000004.pdstate is next"
    ):
        checkpoints.load_newest()
    newest.unlink()
    assert checkpoints.load_newest()["format"] == 1
    damage(checkpoints.states()[0], kind)
    with pytest.raises(
        CheckpointError, match=r"step_00000004.pdstate: damaged: its checksum does not match its contents$"
    ):
        checkpoints.load_newest()


def test_without_a_state_it_says_where_it_looked(tmp_path):
    with pytest.raises(CheckpointError, match=f"{tmp_path}/nothing: no training state"):
        Checkpoints(tmp_path / "nothing", 1).load_newest()


class Evil:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_a_state_that_asks_for_code_is_not_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Checkpoints(tmp_path, 1).save_state(1, {"a": Evil()})
    with pytest.raises(CheckpointError, match=r"step_00000001.pdstate: asks for posix.mkdir.*not executed"):
        read_state(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("kind", [paddle.optimizer.Momentum, paddle.optimizer.AdamW])
def test_optimizer_states_carry_over_to_a_model_built_later(kind):
    def step(model, optimizer, count):
        for _ in range(count):
            model(paddle.ones([2, 3])).square().sum().backward()
            optimizer.step()
            optimizer.clear_grad()

    paddle.seed(0)
    first = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    one = kind(0.01, parameters=first.parameters())
    step(first, one, 3)
    state, weights = optimizer_state(one, first), {k: v.numpy().copy() for k, v in first.state_dict().items()}
    moments = ("velocity_0",) if kind is paddle.optimizer.Momentum else ("moment1_0", "moment2_0")
    for name in ("0.weight", "0.bias", "1.weight", "1.bias"):
        assert {f"{name}_{moment}" for moment in moments} <= state.keys()
    nn.Linear(1, 1)  # moves Paddle's generated names on
    second = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    assert second[0].weight.name != first[0].weight.name
    second.set_state_dict(weights)
    two = kind(0.01, parameters=second.parameters())
    set_optimizer_state(two, second, module.to_numpy(state))
    step(first, one, 2)
    step(second, two, 2)
    for name, value in first.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), second.state_dict()[name].numpy())
