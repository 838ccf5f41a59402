"""The commands as a user types them: what they leave behind, their exit status, and errors of one clear line."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import pytest
import yaml
from small_runs import build, config_file, lines

from paddlevideo_fast.cli import predict, test, train
from paddlevideo_fast.config import load_config

ROOT = Path(__file__).parents[2]


def run(tool: str, *arguments, cwd: Path) -> subprocess.CompletedProcess:
    """Runs ``tools/<tool>.py`` in a folder that is not the project's."""
    command = [sys.executable, str(ROOT / "tools" / f"{tool}.py"), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.fixture(autouse=True)
def own_logging():
    """Commands set the package's logger up for a process of their own."""
    logger = logging.getLogger("paddlevideo_fast")
    before = logger.handlers[:], logger.propagate, logger.level
    yield
    for handler in logger.handlers:
        if handler not in before[0]:
            handler.close()
    logger.handlers[:], logger.propagate = before[:2]
    logger.setLevel(before[2])


@pytest.fixture(scope="module")
def trained(motion, tmp_path_factory):
    """One small run through ``tools/train.py`` with two reader processes: (config, output folder, what it printed)."""
    folder = tmp_path_factory.mktemp("commands") / "run"
    path = config_file(motion, folder, "data.num_workers=2", "epochs=1", "data.test.num_crops=3")
    done = run("train", "-c", path, "-o", "log.visualdl=true", "--seed", 5, cwd=folder.parent)
    assert done.returncode == 0, done.stderr
    return path, folder, done


def fails(command, *arguments) -> str:
    """Runs a command that must end with status 1 and a message, not a traceback; returns the message."""
    with pytest.raises(SystemExit) as caught:
        command.main([str(argument) for argument in arguments])
    assert isinstance(caught.value.code, str) and caught.value.code.startswith("error: ")
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value.code


def test_training_leaves_what_it_promises(trained):
    path, folder, done = trained
    names = {entry.name for entry in folder.iterdir()}
    assert names == {"config.yaml", "log.txt", "metrics.jsonl", "checkpoints", "visualdl"}
    assert {entry.name for entry in (folder / "checkpoints").iterdir()} == {
        "step_00000004.pdstate", "best.pdparams", "best.json", "last.pdparams", "last.json",
    }  # fmt: skip
    assert load_config(folder / "config.yaml").seed == 5
    assert [row["step"] for row in lines(folder, "train")] == [1, 2, 3, 4]
    facts = json.loads((folder / "checkpoints" / "best.json").read_text())
    assert facts["model"] == {"name": "tsm_resnet18", "num_classes": 8, "width": 0.125, "dropout": 0.0}
    assert facts["class_names"][0] == "pan_left" and facts["metrics"]["num_samples"] == 8
    for word in ("global batch", "learning rate", "temporal_shift", "precision", "reader", "done: 4 steps"):
        assert word in done.stdout and word in (folder / "log.txt").read_text()
    assert str(load_config(path).data.train.annotations) in done.stdout  # where the data were found
    assert "Traceback" not in done.stderr


def test_test_and_predict_agree(trained, motion, tmp_path):
    path, folder, _ = trained
    weights = folder / "checkpoints" / "best.pdparams"
    done = run("test", "-c", path, "-w", weights, "-o", f"output_dir={tmp_path / 'test'}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "test" / "results.json").read_text())
    assert {"top1", "top5", "num_samples", "num_views", "loss", "mean_class_accuracy", "failed"} == results.keys()
    assert (results["num_samples"], results["num_views"], results["failed"]) == (8, 3, [])

    rows = [row.split(" ") for row in (motion / "test.txt").read_text().splitlines()]
    videos = [motion / name for name, _ in rows]
    done = run("predict", "-c", path, "-w", weights, *videos, "--topk", 8, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]  # nothing else is printed there
    assert [answer["path"] for answer in answers] == [str(video) for video in videos]
    labels = [int(label) for _, label in rows]
    ranks = [[best["label"] for best in answer["topk"]].index(label) for answer, label in zip(answers, labels)]
    assert np.mean([rank == 0 for rank in ranks]) == results["top1"]
    assert np.mean([rank < 5 for rank in ranks]) == results["top5"]
    assert all(sum(best["score"] for best in answer["topk"]) == pytest.approx(1, abs=1e-4) for answer in answers)


def test_predict_goes_on_after_a_bad_file(trained, motion, tmp_path, capsys):
    path, folder, _ = trained
    name = (motion / "test.txt").read_text().split(" ")[0]
    (tmp_path / "in" / "sub").mkdir(parents=True)
    os.symlink(motion / name, tmp_path / "in" / "sub" / "z.mp4")
    (tmp_path / "in" / "bad ü.mp4").write_bytes(b"no video")
    (tmp_path / "in" / "notes.txt").write_text("skip me")
    with pytest.raises(SystemExit) as caught:
        predict.main(
            ["-c", str(path), "-w", str(folder / "checkpoints" / "last.pdparams"), str(tmp_path / "in"), "gone.mp4"]
        )
    assert caught.value.code == 1
    captured = capsys.readouterr()
    bad, good, gone = [json.loads(line) for line in captured.out.splitlines()]
    assert bad["path"].endswith("bad ü.mp4") and "not a video file" in bad["error"]
    assert good["path"].endswith("sub/z.mp4") and len(good["topk"]) == 5 and good["topk"][0]["name"]
    assert gone["path"] == "gone.mp4" and "does not exist" in gone["error"]
    assert "2 inputs could not be read" in captured.err


def test_predict_prints_its_lines_alone_on_stdout(trained, motion, tmp_path):
    path, folder, _ = trained
    weights = folder / "checkpoints" / "best.pdparams"
    video = motion / (motion / "test.txt").read_text().split(" ")[0]
    options = ["-o", "model.num_classes=", "data.test.num_crops=1", video, "--topk", 1, "http://a.b//c.mp4"]
    done = run("predict", "-c", path, "-w", weights, *options, cwd=tmp_path)
    good, away = [json.loads(line) for line in done.stdout.splitlines()]
    assert good["path"] == str(video) and len(good["topk"]) == 1
    assert away == {"path": "http://a.b//c.mp4", "error": "only local files are read; download it first"}
    for message in ("loaded", "model.num_classes: 8, the class names in", "1 inputs could not be read"):
        assert message in done.stderr
    assert re.search(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d INFO ", done.stderr, re.MULTILINE)


def test_a_folder_is_no_weights(trained, motion, tmp_path):
    path, folder, _ = trained
    words = f"{folder} is a folder; name a file in it: {folder}/checkpoints/best.pdparams, "
    assert f"-w: {words}" in fails(test, "-c", path, "-w", folder)
    assert f"weights: {words}" in fails(predict, "-c", path, "-w", folder, "x.mp4")
    output = f"output_dir={tmp_path / 'run'}"
    assert f"command line: weights: {words}" in fails(train, "-c", path, "-w", folder, "-o", output)


def test_resuming_with_other_epochs_warns_of_the_jump(motion, tmp_path):
    folder = tmp_path / "run"
    path = config_file(motion, folder, "data.valid=null", "epochs=2")
    train.main(["-c", str(path), "--max-steps", "1"])
    train.main(["-c", str(path), "--resume", "--max-steps", "2"])
    assert "other settings" not in (folder / "log.txt").read_text()
    train.main(["-c", str(path), "--resume", "--max-steps", "3", "-o", "epochs=4"])
    # half a cosine from 0.05: half of it after one epoch of two, (1 + cos(pi / 4)) / 2 of it after one of four
    words = "epochs was 2 and is 4; after 1 epochs the learning rate was to be 0.025 and is now 0.04268"
    assert f"resuming with other settings: {words}" in (folder / "log.txt").read_text()


def test_predict_needs_no_data_of_the_training(trained, motion, tmp_path, capsys):
    path, folder, _ = trained
    values = yaml.safe_load(path.read_text())
    for phase in ("train", "valid", "test"):
        values["data"][phase]["annotations"] = "/nowhere.txt"
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(values))
    video = motion / (motion / "test.txt").read_text().split(" ")[0]
    state = folder / "checkpoints" / "step_00000004.pdstate"
    predict.main(["-c", str(tmp_path / "other.yaml"), "-w", str(state), str(video)])
    assert len(json.loads(capsys.readouterr().out)["topk"]) == 5


def test_test_names_what_it_could_not_read(trained, motion, tmp_path):
    path, folder, _ = trained
    listing = tmp_path / "holes.txt"
    listing.write_text((motion / "test.txt").read_text() + "gone.mp4 2\n")
    weights = folder / "checkpoints" / "best.pdparams"
    test_data = [f"data.test.annotations={listing}", f"data.test.root={motion}", f"output_dir={tmp_path / 'out'}"]
    message = fails(test, "-c", path, "-w", weights, "-o", *test_data)
    assert "1 records could not be read and are in no metric" in message and "holes.txt:9: " in message
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["num_samples"] == 8 and len(results["failed"]) == 1


def test_validation_goes_unless_it_is_asked_not_to(motion, tmp_path):
    path = config_file(motion, tmp_path / "run")
    train.main(["-c", str(path), "--no-validate", "--max-steps", "1"])
    assert not lines(tmp_path / "run", "valid")
    train.main(["-c", str(path), "--resume", "--validate", "--max-steps", "2"])
    assert [row["step"] for row in lines(tmp_path / "run")] == [1, 2, 2]
    assert len(lines(tmp_path / "run", "valid")) == 1


def test_resume_takes_a_folder_as_it_is_written(motion, tmp_path):
    folder = tmp_path / "run #1: [x]"
    path = config_file(motion, folder)
    train.main(["-c", str(path), "--max-steps", "1"])
    train.main(
        ["-c", str(path), "-o", "output_dir=elsewhere", "--resume", str(folder), "--max-steps", "2", "--no-validate"]
    )
    assert [row["step"] for row in lines(folder, "train")] == [1, 2]
    assert not Path("elsewhere").exists()


def test_training_can_start_from_weights(trained, motion, tmp_path):
    _, folder, _ = trained
    weights = folder / "checkpoints" / "last.pdparams"
    run = build(motion, tmp_path / "run", f"weights={weights}")
    for name, value in paddle.load(str(weights)).items():
        np.testing.assert_array_equal(run.model.state_dict()[name].numpy(), value.numpy())


def test_amp_is_a_switch(motion, tmp_path):
    path = config_file(motion, tmp_path / "run", "data.valid=null")
    train.main(["-c", str(path), "--amp", "--max-steps", "1"])
    assert load_config(tmp_path / "run" / "config.yaml").amp.enabled
    assert "amp.enabled has no effect on cpu" in (tmp_path / "run" / "log.txt").read_text()


def other_weights(folder, kind):
    """Weights that do not do: returns their path."""
    path = folder / f"{kind}.pdparams"
    if kind == "missing":
        return path
    if kind == "wider":
        from paddlevideo_fast.models import create_model

        paddle.save(create_model("tsm_resnet18", num_classes=8, width=0.25).state_dict(), str(path))
    elif kind == "text":
        path.write_text("these are no weights")
    elif kind == "evil":

        class Evil:
            def __reduce__(self):
                return os.mkdir, (str(folder / "ran"),)

        path.write_bytes(pickle.dumps({"weight": Evil()}))
    return path


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", "no such weights file"),
        ("wider", "of another shape"),
        ("text", "not a file of pickled arrays, or damaged"),
        ("evil", "not executed"),
    ],
)
def test_weights_that_do_not_do(motion, tmp_path, kind, message):
    weights = other_weights(tmp_path, kind)
    path = config_file(motion, tmp_path / "run")
    assert message in fails(test, "-c", path, "-w", weights)
    assert message in fails(predict, "-c", path, "-w", weights, "x.mp4")
    if kind != "missing":
        assert message in fails(train, "-c", path, "-w", weights)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-c", "none.yaml"], "none.yaml: cannot be read: No such file or directory"),
        (["-c", "{}", "-o", "epoch=3"], "epoch: unknown key (given 3); did you mean 'epochs'?"),
        (["-c", "{}", "-o", "epochs"], "expected key=value"),
        (["-c", "{}", "-o", "model.name=tsm"], "-o model.name=tsm: model.name: unknown model 'tsm'"),
        (
            ["-c", "{}", "-o", "epochs=1", "model.width=abc"],
            "error: -o model.width=abc: model.width (tsm_resnet18): wi",
        ),
        (["-c", "{}", "-o", "data.train.annotations=none.txt"], "none.txt: "),
        (["-c", "{}", "-o", "model.num_classes=3", "data.class_names=null"], "num_classes=3"),
        (["-c", "{}", "--resume"], "there is no folder"),
        (["-c", "{}", "--resume", "."], "no training state (step_*.pdstate) to resume from"),
        (["-c", "{}", "-w", "none.pdparams"], "none.pdparams"),
        (["-c", "{}", "--seed", "-1"], "seed: input should be greater than or equal to 0, given -1"),
    ],
)
def test_what_cannot_be_trained(motion, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    path = config_file(motion, tmp_path / "run")
    assert message in fails(train, *[str(path) if argument == "{}" else argument for argument in arguments])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--max-steps", "0"], "--max-steps 0: must be at least 1"), (["--valid"], "unrecognized"), ([], "-c/--config")],
)
def test_options_that_make_no_sense(capsys, arguments, message):
    with pytest.raises(SystemExit) as caught:
        train.main([*(["-c", "x"] if arguments else []), *arguments])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


def test_a_run_whose_files_are_all_gone_says_so(motion, tmp_path):
    listing = tmp_path / "gone.txt"
    listing.write_text("".join(f"gone_{number}.mp4 {number % 8}\n" for number in range(16)))
    path = config_file(motion, tmp_path / "run", f"data.train.annotations={listing}")
    message = fails(train, "-c", path)
    assert "all of the first 8 records failed" in message and "gone.txt:" in message and "does not exist" in message


def test_a_full_disk_is_one_line(motion, tmp_path, monkeypatch):
    path = config_file(motion, tmp_path / "run", "data.valid=null")
    from paddlevideo_fast.engine import checkpoint

    def full(number):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    assert "No space left on device" in fails(train, "-c", path, "--max-steps", "1")


def test_a_command_that_fails_has_status_one_and_no_traceback(motion, tmp_path):
    path = config_file(motion, tmp_path / "run", "model.width=0.3")
    done = run("train", "-c", path, cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith(f"error: {path}: model.width (tsm_resnet18): width is 0.3: ")
