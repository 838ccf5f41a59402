"""A run stopped anywhere and resumed ends bit for bit where one never stopped ends."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from small_runs import build, config_file, lines, weights

from paddlevideo_fast.engine import saver
from paddlevideo_fast.engine import train as engine
from paddlevideo_fast.engine.checkpoint import CheckpointError, Checkpoints, read_state
from paddlevideo_fast.engine.stop import StoppedOnRequestError, StopRequest

ROOT = Path(__file__).resolve().parents[1]
CLOCK = ("batch_cost", "reader_cost", "ips", "eta_seconds", "memory_mb")  # what no two runs share

# 16 records in steps of 4 (2 x 2 accumulated), 3 epochs: 12 steps. Everything that carries state is on.
EVERYTHING = (
    "epochs=3",
    "data.batch_size=2",
    "accum_steps=2",
    "ema.decay=0.9",
    "model.dropout=0.5",
    "optimizer.clip_norm=1.0",
    "augment.mixup_alpha=0.8",
    "augment.erase.probability=0.5",
    "data.train.flip=0.5",
    "checkpoint.every_steps=3",
    "log.interval=2",
)
LAST_STEP = 12


class PowerCutError(BaseException):
    """Ends a run without giving it a chance to save."""


@pytest.fixture(scope="module")
def unbroken(motion, tmp_path_factory):
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    run = build(motion, folder, *EVERYTHING, validate=True)
    engine.train(run)
    return run, folder


def numbers(folder: Path) -> list[dict]:
    """The lines of metrics.jsonl without what depends on the clock."""
    return [{key: value for key, value in line.items() if key not in CLOCK} for line in lines(folder)]


def cut_power_at(monkeypatch, step: int, inside: str) -> None:
    """Ends the run in the step after ``step``, in a backward pass, a line, an update of the EMA or a validation."""
    owner, name = {
        "backward": (engine, "augment"),
        "line": (engine, "report"),
        "validation": (engine, "validate"),
    }[inside]
    plain = getattr(owner, name)

    def cut(run, *rest):
        if run.progress.step >= step:
            raise PowerCutError
        return plain(run, *rest)

    monkeypatch.setattr(owner, name, cut)


def stop_points() -> list[tuple[int, str]]:
    draw = random.Random(0)
    return [(draw.randint(4, LAST_STEP - 1), draw.choice(["backward", "line", "validation"])) for _ in range(8)]


@pytest.mark.parametrize(("step", "inside"), stop_points())
def test_a_run_cut_off_anywhere_ends_as_one_never_stopped(motion, tmp_path, monkeypatch, unbroken, step, inside):
    whole, whole_folder = unbroken
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        cut_power_at(patch, step, inside)
        with pytest.raises(PowerCutError):
            engine.train(build(motion, folder, *EVERYTHING, validate=True))
    paddle.seed(1234)  # nothing may hang on the generator's state
    np.random.seed(1234)
    run = build(motion, folder, *EVERYTHING, validate=True)
    engine.train(run, resume=True)

    assert run.progress == whole.progress
    for mine, theirs in ((run.model, whole.model), (run.ema.model, whole.ema.model)):
        expected = weights(theirs)
        for name, value in weights(mine).items():
            np.testing.assert_array_equal(value, expected[name], err_msg=name)
    assert numbers(folder) == numbers(whole_folder)
    newest, expected = (
        read_state(path / "checkpoints" / f"step_{LAST_STEP:08d}.pdstate") for path in (folder, whole_folder)
    )
    for name, value in expected["optimizer"].items():
        np.testing.assert_array_equal(newest["optimizer"][name], value, err_msg=name)


def test_twice_cut_off_in_a_row(motion, tmp_path, monkeypatch, unbroken):
    folder = tmp_path / "run"
    for step, resume in ((4, False), (7, True)):
        with monkeypatch.context() as patch:
            cut_power_at(patch, step, "backward")
            with pytest.raises(PowerCutError):
                engine.train(build(motion, folder, *EVERYTHING, validate=True), resume=resume)
    run = build(motion, folder, *EVERYTHING, validate=True)
    engine.train(run, resume=True)
    assert numbers(folder) == numbers(unbroken[1])
    expected = weights(unbroken[0].model)
    assert all(np.array_equal(value, expected[name]) for name, value in weights(run.model).items())


def test_the_curves_of_a_resumed_run_have_each_step_once(motion, tmp_path, monkeypatch, unbroken):
    from visualdl import LogReader

    folder, overrides = tmp_path / "run", (*EVERYTHING, "log.visualdl=true", "log.interval=1")
    for step, resume in ((5, False), (8, True)):  # from the states of 3 and 6 on
        with monkeypatch.context() as patch:
            cut_power_at(patch, step, "backward")
            with pytest.raises(PowerCutError):
                engine.train(build(motion, folder, *overrides, validate=True), resume=resume)
    engine.train(build(motion, folder, *overrides, validate=True), resume=True)
    (file,) = (folder / "visualdl").iterdir()
    curves = LogReader(file_path=str(file))
    loss, valid = (curves.get_data("scalar", tag) for tag in ("train/loss", "valid/top1"))
    assert [point.id for point in loss] == list(range(1, LAST_STEP + 1))
    assert [point.value for point in loss] == pytest.approx([row["loss"] for row in lines(folder, "train")], rel=1e-6)
    assert [point.id for point in valid] == [4, 8, 12]
    assert [point.value for point in valid] == [row["top1"] for row in lines(unbroken[1], "valid")]


def test_a_stop_on_request_saves_once_between_two_steps(motion, tmp_path, unbroken):
    folder = tmp_path / "run"
    stop = StopRequest()
    run = build(motion, folder, *EVERYTHING, validate=True)
    plain = run.task.backward

    def ask(*args):
        if run.progress.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(*args)

    run.task.backward = ask
    with stop.listening(), pytest.raises(StoppedOnRequestError) as raised:
        engine.train(run, stop=stop)
    assert raised.value.signal_number == signal.SIGTERM
    assert [path.name for path in run.checkpoints.states()][-1] == "step_00000005.pdstate"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL  # as it was before

    resumed = build(motion, folder, *EVERYTHING, validate=True)
    engine.train(resumed, resume=True)
    expected = weights(unbroken[0].model)
    assert all(np.array_equal(value, expected[name]) for name, value in weights(resumed.model).items())


def test_minutes(motion, tmp_path, monkeypatch):
    clock = iter(range(0, 100000, 31))
    monkeypatch.setattr(saver, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    overrides = ("epochs=1", "data.batch_size=2", "checkpoint.every_minutes=1", "checkpoint.keep=99")
    run = build(motion, tmp_path / "run", *overrides)
    engine.train(run)
    steps = [int(path.stem.removeprefix("step_")) for path in run.checkpoints.states()]
    assert steps[0] == 2 and len(steps) >= 3 and steps[-1] == 8  # 31 s a look: the second one is past a minute


SAVES = """
import os, random, signal, sys, time, numpy as np
from pathlib import Path
from paddlevideo_fast.engine.checkpoint import Checkpoints
checkpoints, draw = Checkpoints(Path(sys.argv[1]), keep=2), random.Random(1)
for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        for step in range(1, 100000):
            checkpoints.save_state(step, {"step": step, "weights": np.full(200_000, step, np.float32)})
    time.sleep(draw.uniform(0.02, 0.3))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("killed", flush=True)
"""


def test_a_process_killed_inside_saves_leaves_a_good_state(tmp_path):
    newest = 0
    command = [sys.executable, "-c", SAVES, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        for _ in range(6):
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "killed\n"
            for path in Checkpoints(tmp_path, 2).states():
                state = read_state(path)  # every file under its name is whole
                assert (state["weights"] == state["step"]).all()
                newest = max(newest, state["step"])
        process.stdin.close()
    assert newest > 0


def test_a_full_disk_leaves_the_last_state(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.save_state(1, {"weights": np.ones(1000, np.float32)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a file that may not grow, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(OSError, match="step_00000002"):
            checkpoints.save_state(2, {"weights": np.ones(1_000_000, np.float32)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001.pdstate"]
    assert checkpoints.load_newest()["weights"].sum() == 1000


def test_a_damaged_state_is_named_and_the_one_before_offered(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (1, 2):
        path = checkpoints.save_state(step, {"step": step, "weights": np.zeros(1000, np.float32)})
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match="step_00000002.pdstate.*damaged.*step_00000001.pdstate"):
        checkpoints.load_newest()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_the_command_stopped_by_a_signal_and_resumed(motion, tmp_path, number):
    """The same through tools/train.py, with reader processes: what the shell sees, and that nothing is left behind."""
    overrides = ("epochs=40", "data.num_workers=1", "checkpoint.every_steps=2")
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    path = config_file(motion, stopped, *overrides)
    command = [sys.executable, "tools/train.py", "-c", str(path), "--no-validate"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 120
    while not list((stopped / "checkpoints").glob("step_0000000[4-9]*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[number], output
    steps = int(max((stopped / "checkpoints").glob("step_*")).stem.removeprefix("step_")) + 3
    subprocess.run([*command, "--resume", "--max-steps", str(steps)], cwd=ROOT, check=True, capture_output=True)
    if number != signal.SIGKILL:
        return  # the weights of every kind of stop are compared above; here once, with kill -9
    unbroken = [sys.executable, "tools/train.py", "-c", str(path), "--no-validate", "--max-steps", str(steps)]
    subprocess.run([*unbroken, "-o", f"output_dir={whole}"], cwd=ROOT, check=True, capture_output=True)
    states = [read_state(folder / "checkpoints" / f"step_{steps:08d}.pdstate") for folder in (stopped, whole)]
    for name, value in states[0]["model"].items():
        np.testing.assert_array_equal(value, states[1]["model"][name], err_msg=name)
    assert numbers(stopped) == numbers(whole)
    assert json.loads((stopped / "checkpoints" / "last.json").read_text())["step"] == steps
