"""SIGTERM and Ctrl-C to Paddle's launcher: two ranks save once and end, nothing is left, and --resume goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from launched import ROOT, clean_environment, launch, launch_command, logs, processes_of, shared_memory_of
from small_runs import config_file, lines

TRAIN = ROOT / "tools" / "train.py"


def wait_for(condition, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def steps_logged(folder: Path) -> list[int]:
    return [row["step"] for row in lines(folder, "train")] if (folder / "metrics.jsonl").exists() else []


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_run_stopped_through_the_launcher_saves_once_and_goes_on(motion, tmp_path, number):
    run = tmp_path / "run"
    path = config_file(
        motion, run, "epochs=5000", "checkpoint.every_epochs=5000", "data.num_workers=1", "log.interval=2"
    )
    command = launch_command(TRAIN, "-c", path, "--no-validate", folder=tmp_path)
    process = subprocess.Popen(
        command, cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        assert wait_for(lambda: steps_logged(run)[3:], 60)
        ours = processes_of(path)
        assert len(ours) == 3  # the launcher and two ranks
        start = time.monotonic()
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as the terminal does
        else:
            process.send_signal(number)
        output, _ = process.communicate(timeout=60)
    finally:
        for left in processes_of(path):  # of a test that failed; ranks would train on beside all others
            os.kill(left, signal.SIGKILL)
    assert time.monotonic() - start < 30  # what the launcher gives them
    assert process.returncode == number, output  # the launcher's own: not 128 + number
    (state,) = (run / "checkpoints").glob("step_*.pdstate")
    step = int(state.stem.removeprefix("step_"))
    said = logs(tmp_path)
    assert step == steps_logged(run)[-1] and said.count("saved ") == 1
    assert said.count("stopped by SIGTERM; the state is saved") == 2  # which is what the launcher sends its ranks
    assert wait_for(lambda: not processes_of(path), 10)
    assert not shared_memory_of(ours)
    if number == signal.SIGINT:
        return  # to the ranks the two are one; going on is shown once
    done = launch(TRAIN, "-c", path, "--no-validate", "--resume", "--max-steps", step + 4, folder=tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + logs(tmp_path)
    assert steps_logged(run) == list(range(2, step + 5, 2))
    assert (run / "checkpoints" / f"step_{step + 4:08d}.pdstate").exists()
