"""Runs from end to end in the situations that users of video toolkits report most often."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import shutil
import signal
import statistics
import subprocess
import sys
import textwrap
import time
import tomllib
from pathlib import Path

import av
import numpy as np
import paddle
import pytest
from launched import clean_environment, launch_command
from PIL import Image
from small_runs import TOY, build, config, config_file, lines, use_toy, weights

from paddlevideo_fast.cli import predict, test, train
from paddlevideo_fast.data.readers import READERS, build_reader
from paddlevideo_fast.data.samplers import TrainSampler
from paddlevideo_fast.engine.train import train as run_training
from paddlevideo_fast.inference.predictor import Predictor

ROOT = Path(__file__).parents[1]
PROC = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


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


def write_list(motion: Path, target: Path, rows: int, num_classes: int = 8) -> str:
    """Writes the first training videos with their labels modulo ``num_classes``; returns the ``data.train`` of it."""
    pairs = [line.split(" ") for line in (motion / "train.txt").read_text().splitlines()][:rows]
    target.write_text("".join(f"{name} {int(label) % num_classes}\n" for name, label in pairs))
    return f"data.train={{annotations: {target}, root: {motion}}}"


def run(tool: str, *arguments, cwd: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "tools" / f"{tool}.py"), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def error_of(command, *arguments) -> str:
    """Runs a command that must end with status 1 and one message; returns it."""
    with pytest.raises(SystemExit) as caught:
        command.main([str(argument) for argument in arguments])
    assert isinstance(caught.value.code, str) and caught.value.code.startswith("error: ")
    return caught.value.code


# -- files --


def test_bad_rows_of_a_list_are_named_once_and_counted(motion, tmp_path):
    """Through the command, so that what the decoders print by themselves would show too."""
    good = [line.split(" ")[0] for line in (motion / "train.txt").read_text().splitlines()][:2]
    whole = (motion / good[0]).read_bytes()
    with av.open(str(tmp_path / "no_frames.mp4"), "w") as output:
        stream = output.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        output.start_encoding()
    (tmp_path / "empty.mp4").write_bytes(b"")
    (tmp_path / "text.mp4").write_bytes(b"<html>404 not found</html>" * 200)
    (tmp_path / "rotten.mp4").write_bytes(whole[: len(whole) // 2])
    names = [motion / good[0], "empty.mp4", "text.mp4", "no_frames.mp4", "rotten.mp4", motion / good[1]]
    (tmp_path / "six.txt").write_text("".join(f"{name} {number % 8}\n" for number, name in enumerate(names)))
    path = config_file(motion, tmp_path / "run", "data.max_failed_share=1", "epochs=3", "data.num_workers=1")
    done = run(
        "train", "-c", path, "--no-validate", "-o", f"data.train.annotations={tmp_path / 'six.txt'}", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    reasons = ("the file is empty", "not a video", "no video stream|0 frames", "truncated")
    for row, reason in enumerate(reasons, start=2):
        assert len(re.findall(rf"cannot read six.txt:{row}: {tmp_path}/{names[row - 1]}: .*({reason})", said)) == 1
    assert said.count("cannot read") == 4
    assert "12 of 18 reads failed so far and counted with weight 0: 4 records" in said
    assert len(said) < 8000 and "\ufffd" not in said and "mmco" not in said


def test_a_video_as_long_as_one_frame_trains_and_predicts(motion, tmp_path):
    with av.open(str(tmp_path / "one.mp4"), "w") as output:
        stream = output.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        output.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), 90, np.uint8))))
        output.mux(stream.encode(None))
    (tmp_path / "one.txt").write_text("one.mp4 3\n" * 4)
    for sampling in ("segment", "dense", "{name: uniform, frame_stride: 4}"):
        sampling = sampling if sampling.startswith("{") else f"{{name: {sampling}}}"
        overrides = (f"data.train.annotations={tmp_path / 'one.txt'}", f"data.sampling={sampling}", "epochs=1")
        training = build(motion, tmp_path / "run", *overrides)
        run_training(training)
        assert np.isfinite(lines(tmp_path / "run", "train")[-1]["loss"])


# -- readers that are not there --


@pytest.mark.parametrize("module, reader", [("av", "pyav"), ("decord", "decord"), ("cv2", "opencv")])
def test_a_reader_that_is_not_installed_stops_the_run_at_once(motion, tmp_path, monkeypatch, module, reader):
    path = config_file(motion, tmp_path / "run", f"data.reader={reader}")
    monkeypatch.setitem(sys.modules, module, None)
    start = time.monotonic()
    message = error_of(train, "-c", path)
    assert time.monotonic() - start < 5
    assert f"the package {module!r}, which is not installed: pip install" in message
    available = message.partition("readers available here: ")[2]
    assert "frames" in available and reader not in available.split(", ")


@pytest.fixture
def broken_decord(tmp_path, monkeypatch):
    """A decord whose native library does not load."""
    (tmp_path / "broken" / "decord").mkdir(parents=True)
    code = 'raise OSError("libnvrtc.so.13: cannot open shared object file: No such file or directory")\n'
    (tmp_path / "broken" / "decord" / "__init__.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path / "broken"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "decord"]:
        monkeypatch.delitem(sys.modules, name)


def test_the_doctor_names_a_native_library_that_does_not_load(broken_decord, tmp_path, capsys):
    from paddlevideo_fast.cli import doctor

    with pytest.raises(SystemExit):
        doctor.main(["--output", str(tmp_path)])
    report = capsys.readouterr().out
    assert re.search(r"FAIL  decord +is installed but does not load: libnvrtc\.so\.13: cannot open", report)
    (available,) = re.findall("readers available here: (.*)", report)
    assert available.split(", ") == [name for name in READERS if name != "decord"]
    assert re.search("ok    pyav +reads h264", report)


def test_a_native_library_that_does_not_load_ends_the_run_with_one_line(broken_decord, motion, tmp_path):
    message = error_of(train, "-c", config_file(motion, tmp_path / "run", "data.reader=decord"))
    assert "libnvrtc.so.13" in message and "\n" not in message
    assert "decord" not in message.partition("readers available here: ")[2]


# -- numbers of classes and samples that were not thought of --


@pytest.mark.parametrize("num_classes", [2, 4])
def test_fewer_than_five_classes_from_training_to_many_views(motion, tmp_path, num_classes):
    section = write_list(motion, tmp_path / "few.txt", 8, num_classes)
    values = section.partition("=")[2]
    overrides = [f"data.{phase}={values}" for phase in ("valid", "test")]
    few = (*overrides, f"model.num_classes={num_classes}", "data.class_names=null", "epochs=1")
    path = config_file(motion, tmp_path / "run", section, *few, "data.test.num_crops=3", "data.test.num_clips=2")
    train.main(["-c", str(path)])
    assert lines(tmp_path / "run", "valid")[-1]["top5"] == 1
    best = tmp_path / "run" / "checkpoints" / "best.pdparams"
    test.main(["-c", str(path), "-w", str(best)])
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert 0 <= results["top1"] <= results["top5"] == 1 and results["num_views"] == 6


def test_weights_of_other_classes_are_fine_tuned_on_request(motion, tmp_path, caplog):
    eight = build(motion, tmp_path / "eight")
    paddle.save(eight.model.state_dict(), str(tmp_path / "eight.pdparams"))
    three = ["model.num_classes=3", "data.class_names=null", write_list(motion, tmp_path / "three.txt", 8, 3)]
    path = config_file(motion, tmp_path / "run", *three, "data.valid=null")
    arguments = ["-c", path, "-w", tmp_path / "eight.pdparams", "--max-steps", 1]
    message = error_of(train, *arguments)
    assert "head.fc.weight" in message and "reset_head=true" in message
    train.main([str(argument) for argument in [*arguments, "-o", "reset_head=true"]])
    said = (tmp_path / "run" / "log.txt").read_text()
    loaded = len(eight.model.state_dict()) - 2
    assert "left as initialised: head.fc.weight, head.fc.bias" in said and f"loaded {loaded} arrays from" in said


@pytest.mark.parametrize("model", ["{name: tsm_resnet18, num_classes: 8, width: 0.125}", TOY[0].partition("=")[2]])
def test_a_last_batch_of_one_clip(motion, tmp_path, monkeypatch, model):
    """Crops of 32 end in maps of 1x1: with one frame, the last batch gives batch norm a single value a channel."""
    use_toy(monkeypatch)
    frames = 4 if "toy" in model else 1
    more = ("epochs=1", f"data.num_frames={frames}", write_list(motion, tmp_path / "nine.txt", 9), f"model={model}")
    training = build(motion, tmp_path / "run", *more)
    run_training(training)
    assert [row["step"] for row in lines(tmp_path / "run", "train")] == [1, 2, 3]
    assert all(np.isfinite(row["loss"]) for row in lines(tmp_path / "run", "train"))
    assert all(np.isfinite(value).all() for value in weights(training.model).values())


def test_odd_batches_are_mixed(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    mixing = ("augment={mixup_alpha: 0.8, cutmix_alpha: 1.0}", "data.batch_size=3", "epochs=1")
    training = build(motion, tmp_path / "run", *TOY, *mixing)
    seen, plain = [], training.augment

    def augment(batch, mix):
        made = plain(batch, mix)
        seen.append(made["target"].numpy())
        return made

    monkeypatch.setattr(training, "augment", augment)
    run_training(training)
    assert [len(target) for target in seen] == [3, 3, 3, 3, 3, 1]
    for target in seen:
        np.testing.assert_allclose(target.sum(axis=1), 1, rtol=1e-5)
    assert any((target.max(axis=1) < 0.99).any() for target in seen)


# -- what goes to other processes --


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("timeout", ["null", "30"])
def test_whatever_a_reader_needs_can_be_pickled(motion, tmp_path, reader, timeout):
    """As where it goes to a process that is spawned, not forked."""
    everything = (
        "data.train.flip=0.5", "data.train.flip_labels={0: 1, 1: 0}", "augment.color_jitter={hue: 0.1}",
        "augment.erase={probability: 0.5}", f"data.reader={reader}", f"data.read_timeout={timeout}",
    )  # fmt: skip
    training = build(motion, tmp_path / "run", *everything, validate=True)
    for loader in (training.loader, training.validation.loader):
        dataset, keys = loader.dataset, next(iter(loader.sampler))
        copy = pickle.loads(pickle.dumps(dataset))
        assert len(copy) == len(dataset)
        left, right = dataset.read_batch(keys), copy.read_batch(keys)
        assert left["errors"] == right["errors"] and bool(left["errors"]) == (reader == "frames")
        np.testing.assert_array_equal(left["clip"], right["clip"])


LOOP = """
    import os, sys, threading, time; sys.path[:0] = [{root!r}, {root!r} + "/tests"]
    from pathlib import Path
    from paddlevideo_fast.engine import saver
    from paddlevideo_fast.engine.train import train
    from small_runs import build
    run = build(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
    plain, page = saver.Saver.after_epoch, os.sysconf("SC_PAGE_SIZE")
    def children():
        tasks = Path("/proc/self/task").iterdir()
        return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]
    def after_epoch(self, last):
        plain(self, last)
        pids = children()
        memory = sum(int(Path(f"/proc/{{pid}}/statm").read_text().split()[1]) * page for pid in [os.getpid(), *pids])
        readers = sum(thread.name.startswith("reader ") for thread in threading.enumerate())
        blocks = sum(len(list(Path("/dev/shm").glob(f"paddle_{{pid}}_*"))) for pid in [os.getpid(), *pids])
        print("EPOCH", time.perf_counter(), memory, readers, blocks, *pids, flush=True)
    saver.Saver.after_epoch = after_epoch
    train(run)
"""


def epochs_of(motion: Path, folder: Path, *overrides: str) -> list[list[float]]:
    """Trains in a process of its own; for each epoch: when it ended, bytes, reader threads, blocks, child processes."""
    code = textwrap.dedent(LOOP.format(root=str(ROOT)))
    command = [sys.executable, "-c", code, str(motion), str(folder), "log.interval=100", "data.valid=null", *overrides]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return [[float(n) for n in line.split()[1:]] for line in done.stdout.splitlines() if line.startswith("EPOCH")]


@PROC
@pytest.mark.parametrize("timeout", ["null", "30"])
@pytest.mark.parametrize("epochs", [6, pytest.param(30, marks=pytest.mark.slow)])
def test_epochs_cost_no_memory_and_leave_nothing_behind(motion, tmp_path, epochs, timeout):
    more = (write_list(motion, tmp_path / "four.txt", 4), "data.batch_size=2", "data.num_workers=2", f"epochs={epochs}")
    rows = epochs_of(motion, tmp_path / "run", *more, f"data.read_timeout={timeout}")
    assert len(rows) == epochs
    assert {tuple(row[2:4]) for row in rows} == {(2, 0)}  # the same two threads, and nothing in /dev/shm
    pids = {pid for row in rows for pid in row[4:]}
    assert len(pids) == 0 if timeout == "null" else 1 <= len(pids) <= 2  # one a thread, from beginning to end
    memory = [row[1] for row in rows]
    assert max(memory[3:]) - memory[3] < 8e6 or len(rows[3]) < len(rows[-1])  # another child has come
    assert not [pid for pid in pids if is_running(int(pid))]


def is_running(pid: int) -> bool:
    """Whether a process is still there a moment later."""
    deadline = time.monotonic() + 5
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    return Path(f"/proc/{pid}").exists()


@PROC
@pytest.mark.parametrize("timeout", ["null", "30"])
def test_ctrl_c_leaves_no_process_behind(motion, tmp_path, timeout):
    more = ("epochs=1000", "data.num_workers=2", "data.valid=null", f"data.read_timeout={timeout}")
    path = config_file(motion, tmp_path / "run", *more)
    command = [sys.executable, str(ROOT / "tools" / "train.py"), "-c", str(path)]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text().count("\n") > 5):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()[1]
        time.sleep(0.05)
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    pids = [pid for task in tasks for pid in (task / "children").read_text().split()]
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said, said
    assert len(pids) == 0 if timeout == "null" else 1 <= len(pids) <= 2
    assert not [pid for pid in pids if is_running(int(pid))]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["videos", "frames"])
def test_late_epochs_are_as_fast_as_early_ones(motion, tmp_path, kind):
    section = write_list(motion, tmp_path / "list.txt", 16)
    if kind == "frames":
        reader, rows = build_reader("pyav"), []
        for line in (tmp_path / "list.txt").read_text().splitlines():
            folder = tmp_path / "frames" / Path(line.split(" ")[0]).stem
            folder.mkdir(parents=True)
            with reader.open(motion / line.split(" ")[0]) as video:
                for number, picture in enumerate(video.frames()):
                    Image.fromarray(picture).save(folder / f"{number:05d}.jpg")
            rows.append(f"frames/{folder.name} {number + 1} {line.split(' ')[1]}\n")
        (tmp_path / "frames.txt").write_text("".join(rows))
        section = f"data.train={{annotations: {tmp_path / 'frames.txt'}}}"
    more = ("data.num_workers=2", "epochs=20", "data.reader=frames" if kind == "frames" else "data.reader=pyav")
    ends = [row[0] for row in epochs_of(motion, tmp_path / "run", section, *more)]
    spent = np.diff(ends)
    assert statistics.median(spent[-5:]) <= 1.3 * statistics.median(spent[:5])


# -- predictions --


def test_predictions_repeat_themselves(motion, tmp_path):
    settings = config(motion, tmp_path / "run", "data.test.num_crops=3", "data.test.num_clips=2", "model.dropout=0.5")
    training = build(motion, tmp_path / "run", "data.test.num_crops=3", "model.dropout=0.5")
    paddle.save(training.model.state_dict(), str(tmp_path / "w.pdparams"))
    video = motion / (motion / "test.txt").read_text().split(" ")[0]
    predictor = Predictor(settings, "small run", tmp_path / "w.pdparams")
    first = predictor.scores(video)
    np.random.seed(1)
    paddle.seed(1)
    np.testing.assert_array_equal(predictor.scores(video), first)
    again = Predictor(settings, "small run", tmp_path / "w.pdparams").scores(video)
    np.testing.assert_array_equal(again, first)


def test_a_folder_of_good_and_bad_files_is_predicted_to_its_end(motion, tmp_path, capsys):
    paddle.save(build(motion, tmp_path / "run").model.state_dict(), str(tmp_path / "w.pdparams"))
    folder = tmp_path / "跳舞 videos (1)"
    folder.mkdir()
    for row, line in enumerate((motion / "test.txt").read_text().splitlines()[:2]):
        shutil.copy(motion / line.split(" ")[0], folder / f"{row} 100%_done.mp4")
    (folder / "0 bad.mp4").write_bytes(b"")
    path = config_file(motion, tmp_path / "run")
    with pytest.raises(SystemExit) as caught:
        predict.main(["-c", str(path), "-w", str(tmp_path / "w.pdparams"), str(folder), "--topk", "99"])
    assert caught.value.code == 1
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(answer["path"]).name for answer in answers] == ["0 100%_done.mp4", "0 bad.mp4", "1 100%_done.mp4"]
    assert answers[1]["error"] == "the file is empty (0 bytes)"
    for answer in (answers[0], answers[2]):
        scores = [row["score"] for row in answer["topk"]]
        assert len(scores) == 8 and min(scores) >= 0 and sum(scores) == pytest.approx(1, abs=1e-4)


def test_class_names_in_another_order_than_the_weights_are_pointed_out(motion, tmp_path):
    path = config_file(motion, tmp_path / "run", "epochs=1")
    train.main(["-c", str(path)])
    names = (motion / "classes.txt").read_text().split()
    (tmp_path / "reversed.txt").write_text("\n".join(reversed(names)))
    weights_file = tmp_path / "run" / "checkpoints" / "best.pdparams"
    override = [f"data.class_names={tmp_path / 'reversed.txt'}", f"output_dir={tmp_path / 'test'}"]
    test.main(["-c", str(path), "-w", str(weights_file), "-o", *override])
    said = (tmp_path / "test" / "log.txt").read_text()
    warned = [line for line in said.splitlines() if "class names: " in line]
    assert len(warned) == 1 and f"{tmp_path}/reversed.txt calls class 0 {names[-1]!r}" in warned[0]
    assert f"{weights_file.with_suffix('.json')}, beside the weights, calls class 0 {names[0]!r}" in warned[0]


# -- several processes --


def start_ranks(motion: Path, folder: Path, *overrides: str) -> subprocess.Popen:
    """Starts two ranks through the launcher, without waiting for them."""
    path = config_file(motion, folder / "run", "data.num_workers=0", "data.valid=null", *overrides)
    command, pipes = launch_command(ROOT / "tools" / "train.py", "-c", path, folder=folder), subprocess.PIPE
    return subprocess.Popen(
        command, cwd=folder, env=clean_environment(), stdout=pipes, stderr=subprocess.STDOUT, text=True
    )


def test_a_bad_file_on_one_rank_of_an_odd_list_does_not_hang(motion, tmp_path):
    """Seven rows in batches of two; the second rank has one that cannot be read, and the end is shorter for it."""
    section = write_list(motion, tmp_path / "seven.txt", 7)
    rows = (tmp_path / "seven.txt").read_text().splitlines()
    first = next(iter(TrainSampler(7, 2, 4, 32, ranks=2, rank=1)))
    rows[first[0].index] = "gone.mp4 1"
    (tmp_path / "seven.txt").write_text("\n".join(rows) + "\n")
    more = ("epochs=2", "data.batch_size=2", "data.max_failed_share=1", "model.norm=sync")
    process = start_ranks(motion, tmp_path, section, *more)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 0, said[-3000:]
    assert [row["step"] for row in lines(tmp_path / "run", "train")] == [1, 2, 3, 4]
    assert "gone.mp4: does not exist" in (tmp_path / "logs" / "workerlog.1").read_text()


@pytest.mark.slow
def test_two_jobs_on_one_machine_do_not_want_the_same_port(motion, tmp_path):
    jobs = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        jobs.append(start_ranks(motion, tmp_path / str(number), "epochs=1"))
    for number, job in enumerate(jobs):
        said, _ = job.communicate(timeout=120)
        assert job.returncode == 0, said[-3000:]
        assert len(lines(tmp_path / str(number) / "run", "train")) == 2


# -- installations --

EVERY_MODULE = """
import importlib, pkgutil, sys
for name in {hidden!r}:
    sys.modules[name] = None
import paddlevideo_fast
found = [module.name for module in pkgutil.walk_packages(paddlevideo_fast.__path__, "paddlevideo_fast.")]
for name in found:
    module = importlib.import_module(name)
    assert module.__file__.startswith({folder!r}), module.__file__
assert len(found) > 50, found
"""


def test_every_module_imports_in_silence_without_optional_packages(tmp_path):
    """From a copy elsewhere, as installed: nothing may depend on the checkout or on what pip calls extras."""
    shutil.copytree(ROOT / "paddlevideo_fast", tmp_path / "paddlevideo_fast")
    optional = ["decord", "nvidia", "paddlenlp"]
    code = EVERY_MODULE.format(hidden=optional, folder=str(tmp_path))
    command = [sys.executable, "-W", "ignore", "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_decord_is_an_extra_and_pyav_comes_along():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any(line.startswith("av") for line in project["dependencies"])
    assert not any("decord" in line or "dali" in line for line in project["dependencies"])
    assert all("<" in line for line in project["dependencies"] if line.startswith(("numpy", "paddle")))


def test_no_names_that_numpy_has_dropped():
    """Source: NumPy 1.20 and 2.0 release notes, "Expired deprecations"."""
    dropped = re.compile(r"\bnp\.(int|float|bool|object|str|complex|float_|unicode_|product|cumproduct|in1d|trapz)\b")
    sources = [path for folder in ("paddlevideo_fast", "tools", "benchmark") for path in (ROOT / folder).rglob("*.py")]
    found = {path.name: dropped.findall(path.read_text(encoding="utf-8")) for path in sources}
    assert {name: names for name, names in found.items() if set(names) - {"bool"}} == {}
