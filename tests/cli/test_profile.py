"""Where the time goes: sleeps that are put into a training are found where they were put, and judged rightly."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from launched import ROOT, launch, logs
from PIL import Image
from small_runs import ALONE, TOY, build, config_file, no_failures, same, use_toy, weights

from paddlevideo_fast.cli import profile
from paddlevideo_fast.cli.bottleneck import CROWDED, Measured, judge
from paddlevideo_fast.config import load_config
from paddlevideo_fast.data.readers.fused import FusedReader, FusedVideo
from paddlevideo_fast.engine import profile as engine_profile
from paddlevideo_fast.engine import stopwatch
from paddlevideo_fast.engine.log import RunLog
from paddlevideo_fast.engine.profile import READER_PARTS, STEP_PARTS, pace, profile_training
from paddlevideo_fast.engine.stopwatch import Watch
from paddlevideo_fast.engine.train import train_one_epoch

WORKERS = "data.num_workers"
VIDEOS = "tools/data/prepare_videos.py"
SETTINGS = {
    "reader": "fused", "crop_size": 112, "on_gpu": False, "amp_possible": False, "augments": False, "accum_steps": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    use_toy(monkeypatch)


class Clock:
    """Stands in for the clocks of the profiler: time goes by where a test says so, and nowhere else."""

    def __init__(self):
        self.wall = self.cpu = 0.0

    def pass_time(self, wall: float, cpu: float = 0.0) -> None:
        self.wall, self.cpu = self.wall + wall, self.cpu + cpu

    def perf_counter(self) -> float:
        return self.wall

    def thread_time(self) -> float:
        return self.cpu

    process_time = thread_time

    def around(self, function, wall: float, cpu: float = 0.0):
        """A function that takes so much longer."""

        def delayed(*arguments, **options):
            self.pass_time(wall, cpu)
            return function(*arguments, **options)

        return delayed


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(stopwatch, "time", made)
    monkeypatch.setattr(engine_profile, "time", made)
    return made


def slow_reading(monkeypatch, wait, opening: float = 0.0, decoding: float = 0.0) -> None:
    """Makes the reader wait when it opens a file and before it decodes the first frame of a clip."""
    plain_open, plain_decode = FusedReader.open_file, FusedVideo.decode

    def open_file(self, source):
        wait(opening)
        return plain_open(self, source)

    def decode(self, indices):
        wait(decoding)
        yield from plain_decode(self, indices)

    monkeypatch.setattr(FusedReader, "open_file", open_file)
    monkeypatch.setattr(FusedVideo, "decode", decode)


def measured(**changes) -> Measured:
    """A step of 1.0 s of which 0.6 s are waiting for one thread that reads two batches a step, 0.5 s each."""
    parts = {**dict.fromkeys(STEP_PARTS, 0.0), "data_wait": 0.6, "forward": 0.1, "backward": 0.2, "other": 0.1}
    values = {
        "step": 1.0, "watched": 1.0, "parts": parts, "cpu": 1.2, "batches": 2, "batch_read": 0.5, "pixels_wall": 0.4,
        "pixels_cpu": 0.35, "workers": 1, "cores": 4,
    }  # fmt: skip
    return Measured(**{**values, **changes})


def test_inner_parts_do_not_count_for_outer_ones(clock):
    watch = Watch()
    watch.active = True
    with watch.part("outer") as outermost:
        clock.pass_time(2, 1)
        with watch.part("inner") as inside:
            clock.pass_time(4)
            watch.active = False  # what has begun is counted to its end
        clock.pass_time(1)
    with watch.part("later"):
        clock.pass_time(8)
    assert (outermost, inside) == (True, False)
    assert watch.wall == {"outer": 3, "inner": 4} and watch.cpu == {"outer": 1, "inner": 0}
    assert watch.outermost == {"outer": 1, "inner": 0}


def test_a_device_is_waited_for_around_counted_parts_only():
    waits = []
    watch = Watch(lambda: waits.append(1))
    with watch.part("before"):
        pass
    assert not waits
    watch.active = True
    with watch.part("counted"):
        assert len(waits) == 1
    assert len(waits) == 2


def test_threads_do_not_count_for_each_other():
    watch = Watch()
    watch.active = True
    threads = [threading.Thread(target=watch.around("nap")(time.sleep), args=(0.03,)) for _ in range(3)]
    with watch.part("main"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert watch.outermost["nap"] == 3 and watch.wall["nap"] >= 0.09
    assert watch.wall["main"] >= 0.03


def test_a_slow_reader_is_found(motion, tmp_path, monkeypatch, clock):
    slow_reading(monkeypatch, clock.pass_time, opening=0.01, decoding=0.03)
    run = build(motion, tmp_path / "run", *TOY)
    run.forward = clock.around(run.forward, 0.03, 0.03)
    run.task.monitor = clock.around(run.task.monitor, 0.01, 0.01)
    step, reader = profile_training(run, 8)  # of 4 clips, 40 ms each to read
    assert (step.warmup, step.watched, step.plain, step.workers) == (2, 4, 4, 0)
    assert tuple(step.parts) == STEP_PARTS and tuple(reader.wall) == READER_PARTS
    parts = {**dict.fromkeys(STEP_PARTS, 0.0), "data_wait": 0.16, "forward": 0.03, "other": 0.01}
    assert step.parts == pytest.approx(parts)
    assert (step.watched_seconds, step.plain_seconds, step.cpu_seconds) == pytest.approx((0.2, 0.2, 0.04))
    assert (reader.clips, reader.batches, reader.failed) == (32, 8, 0)
    assert reader.wall == pytest.approx({**dict.fromkeys(READER_PARTS, 0.0), "open": 0.01, "decode": 0.03})
    assert reader.cpu == pytest.approx(dict.fromkeys(READER_PARTS, 0.0))


@pytest.mark.parametrize("part", ["augment", "forward", "backward", "optimizer"])
def test_a_slow_part_of_the_step_is_found(motion, tmp_path, clock, part):
    """Two batches a step: all is done twice, but for the optimiser's work."""
    run = build(motion, tmp_path / "run", *TOY, "data.num_workers=1", "accum_steps=2", "ema={decay: 0.9}")
    if part in ("augment", "forward"):
        setattr(run, part, clock.around(getattr(run, part), 0.1, 0.1))
    elif part == "backward":
        run.precision.scale = clock.around(run.precision.scale, 0.1, 0.1)
    else:
        run.ema.update = clock.around(run.ema.update, 0.2, 0.2)
    step, _ = profile_training(run, 4)
    assert step.parts == pytest.approx({**dict.fromkeys(STEP_PARTS, 0.0), part: 0.2})
    assert step.watched_seconds == pytest.approx(0.2) and step.warmup == 3
    assert step.core_share == pytest.approx(1.0)


@pytest.mark.slow
def test_more_threads_bring_what_was_foretold(motion, tmp_path, monkeypatch):
    """Reading that only sleeps, 0.1 s a batch: twice the threads, half the time, though there is one core."""
    slow_reading(monkeypatch, time.sleep, decoding=0.025)
    monkeypatch.setattr(profile, "cores", lambda: 1)
    results = {}
    for workers in (1, 2):
        path = config_file(motion, tmp_path / f"run{workers}", *TOY, f"data.num_workers={workers}", "epochs=9")
        args = profile._parse(["-c", str(path), "--steps", "12"])
        results[workers] = profile.measure_training(load_config(path), args, ALONE)
    if min(result["core_share"] for result in results.values()) < CROWDED:
        pytest.skip("other programs take the cores: two runs cannot be compared")
    verdict, seconds = results[1]["verdict"], results[2]["step_seconds"]
    assert verdict["bound"] == "reader" and verdict["wait_share"] > 0.5
    best = verdict["remedies"][0]
    assert (best["key"], best["value"]) == ("data.num_workers", 2)
    assert 0.045 <= seconds < 0.8 * results[1]["step_seconds"]
    assert best["step_seconds"] == pytest.approx(seconds, rel=0.4)


def test_what_is_watched_is_the_plain_training(motion, tmp_path):
    """The weights are the same to the last bit, and nothing stays behind."""
    before = dict(vars(FusedVideo)), dict(vars(FusedReader))
    watched, plain = (
        build(motion, tmp_path / name, *TOY, "data.num_workers=2", "epochs=3") for name in ("watched", "plain")
    )
    loader = watched.loader
    step, _ = profile_training(watched, 3)
    total = step.warmup + 3
    while plain.progress.step < total:
        train_one_epoch(plain, RunLog(None, visualdl=False), no_failures(), max_steps=total)
    same(weights(watched.model), weights(plain.model))
    assert (dict(vars(FusedVideo)), dict(vars(FusedReader))) == before
    assert watched.loader is loader and "backward" not in vars(watched.task)
    assert not (tmp_path / "watched").exists()


def test_a_training_longer_than_configured_begins_anew(motion, tmp_path):
    run = build(motion, tmp_path / "run", *TOY, "epochs=1")
    step, _ = profile_training(run, 9)
    assert step.watched + step.plain == 9 and run.progress.epoch < 1


def test_folders_of_frames_and_files_that_are_gone(motion, tmp_path):
    rows = []
    for number in range(7):
        folder = tmp_path / "frames" / f"clip_{number}"
        folder.mkdir(parents=True)
        for index in range(1, 7):
            Image.new("RGB", (48, 40), (20 * number, 30 * index, 9)).save(folder / f"img_{index:05d}.jpg")
        rows.append(f"{folder} 6 {number}")
    (tmp_path / "list.txt").write_text("\n".join([*rows, f"{tmp_path / 'gone'} 6 7"]) + "\n")
    overrides = ("data.reader=frames", f"data.train={{annotations: {tmp_path / 'list.txt'}, format: frames}}")
    run = build(motion, tmp_path / "run", *TOY, *overrides, "data.max_failed_share=1.0")
    step, reader = profile_training(run, 4)
    assert reader.failed == 3  # in three epochs of two steps
    assert reader.wall["decode"] > 0 and reader.wall["convert"] > 0 and reader.wall["demux"] == 0
    assert reader.clips == 16


def test_the_formulas_by_hand():
    """Limits: compute 0.4, reading 2 x 0.5 / 1 = 1.0, cores 1.2 / 4 = 0.3."""
    verdict = judge(measured(), SETTINGS)
    assert verdict["limits"] == pytest.approx({"compute": 0.4, "reading": 1.0, "cpu": 0.3})
    assert verdict["predicted_step_seconds"] == 1.0 and verdict["bound"] == "reader"
    more, smaller = verdict["remedies"]
    # three threads: max(0.4, 1.0 / 3, 0.3); two are 25 % longer. Without pixels: max(0.4, 2 x 0.1, 0.5 / 4)
    assert (more["key"], more["value"], more["step_seconds"], more["at_best"]) == ("data.num_workers", 3, 0.4, False)
    assert (smaller["key"], smaller["value"], smaller["at_best"]) == ("tools/data/prepare_videos.py", 128, True)
    assert smaller["step_seconds"] == pytest.approx(0.4)
    assert verdict["text"].startswith(
        "reader-bound: 60% of the step goes by waiting for data. A step takes 1.000 s; data.num_workers=3 would take "
        "it to about 0.400 s; "
    )
    # A core for half of the time: 4 / 0.5 - 2 = 6 other threads. Four readers and the main thread have 5 of 11 shares
    # in 4 cores, the most there can be, and need 1.2 s of them. With no one else: max(0.5 x 0.4, 0.5 x 0.2, 0.5 / 4)
    more, smaller = judge(measured(core_share=0.5), SETTINGS)["remedies"]
    assert (more["value"], more["step_seconds"]) == (4, pytest.approx(1.2 / (4 * 5 / 11)))
    assert smaller["step_seconds"] == pytest.approx(0.2)
    alone = judge(measured(workers=0, step=1.4), SETTINGS)  # nobody reads ahead: 0.4 + 1.0
    assert alone["predicted_step_seconds"] == pytest.approx(1.4) and alone["feed_ratio"] is None


@pytest.mark.parametrize(
    ("changes", "settings", "words", "keys"),
    [
        ({"cpu": 3.99}, {}, "more data.num_workers would not help: the cores are busy", [VIDEOS]),
        ({"cpu": 0.9, "cores": 1}, {}, "would not help: there is a thread a core", [VIDEOS]),
        ({"watched": 1.6, "batch_read": 0.2, "pixels_wall": 0.1}, {}, "help: computing alone takes as long", []),
        ({"cpu": None}, {}, "children read", [VIDEOS, WORKERS]),
        ({}, {"reader": "pyav"}, "no estimate: measure it", [WORKERS, VIDEOS, "data.reader"]),
        ({}, {"reader": "frames"}, "extract_frames", [WORKERS, "tools/data/extract_frames.py"]),
        ({"step": 2.0}, {}, "take the estimates with caution", [WORKERS, VIDEOS]),
        ({"core_share": 0.5}, {}, "had a core for 50% of its time", [WORKERS, VIDEOS]),
    ],
)
def test_remedies_for_reading(changes, settings, words, keys):
    verdict = judge(measured(**changes), {**SETTINGS, **settings})
    assert words in verdict["text"]
    assert [remedy["key"] for remedy in verdict["remedies"]] == keys
    assert all((ROOT / key).is_file() for key in keys if key.startswith("tools/"))


@pytest.mark.parametrize(
    ("changed", "settings", "bound", "words"),
    [
        ({"forward": 0.9}, {}, "compute", "the reader could feed 2.0 times as much. A step takes 1.000 s; no key was"),
        ({"communication": 0.5, "forward": 0.4}, {}, "exchange", "accum_steps=2 halves the exchanges: at best 0.750 s"),
        ({"augment": 0.4, "forward": 0.5}, {"augments": True}, "compute", "0.600 s without any, at best"),
        ({"forward": 0.9}, {"amp_possible": True}, "compute", "amp.enabled=true"),
    ],
)
def test_verdicts_where_reading_is_not_the_limit(changed, settings, bound, words):
    parts = {**dict.fromkeys(STEP_PARTS, 0.0), "other": 0.1, **changed}
    verdict = judge(measured(parts=parts, batch_read=0.25), {**SETTINGS, **settings})
    assert verdict["bound"] == bound and words in verdict["text"]


def test_the_command_writes_what_it_promises(motion, tmp_path, capsys):
    path = config_file(motion, tmp_path / "run", *TOY, "epochs=4")
    profile.main(["-c", str(path), "--steps", "4", "-o", "data.num_workers=1", "log.interval=100"])
    result = json.loads((tmp_path / "run" / "profile.json").read_text())
    assert list(result) == [
        "mode", "config", "device", "ranks", "cores", "reader", "num_workers", "batches_per_step", "clips_per_step",
        "steps", "step_seconds", "profiled_step_seconds", "clips_per_second", "process_cpu_seconds", "core_share",
        "parts", "clip", "batch_read_seconds", "verdict", "formulas",
    ]  # fmt: skip
    assert list(result["clip"]) == ["clips", "unreadable", "wall_seconds", "cpu_seconds", "wall", "cpu"]
    assert list(result["verdict"]) == [
        "bound", "wait_share", "feed_ratio", "limits", "predicted_step_seconds", "remedies", "text",
    ]  # fmt: skip
    assert sum(result["parts"].values()) == pytest.approx(result["profiled_step_seconds"])
    assert result["clips_per_second"] == pytest.approx(4 / result["step_seconds"])
    assert Image.open(tmp_path / "run" / "profile.png").size[0] > 1000
    printed = capsys.readouterr().out
    for word in (*STEP_PARTS, *READER_PARTS, "bound: ", "profile.json"):
        assert word in printed
    assert {entry.name for entry in (tmp_path / "run").iterdir()} == {"profile.json", "profile.png", "log.txt"}


def test_the_pace_of_loaders(clock):
    class Batches:
        def __init__(self, wall: float, cpu: float):
            self.costs = wall, cpu

        def __iter__(self):
            for _ in range(4):
                clock.pass_time(*self.costs)
                yield

    one, two = pace({1: Batches(0.08, 0.02), 2: Batches(0.05, 0.03)}, num_clips=16)
    assert vars(one) == pytest.approx({"workers": 1, "clips_per_second": 50, "cpu_per_clip": 0.005})
    assert vars(two) == pytest.approx({"workers": 2, "clips_per_second": 80, "cpu_per_clip": 0.0075})


def test_paced_tells_how_many_workers_feed_a_step(motion, tmp_path, monkeypatch, capsys):
    slow_reading(monkeypatch, time.sleep, decoding=0.01)  # a batch of 4 clips takes 40 ms at least
    path = config_file(motion, tmp_path / "run", *TOY)
    command = ["-c", str(path), "--paced", "--steps", "3", "--workers", "2", "1", "--output", str(tmp_path / "out")]
    profile.main([*command, "--step-time", "30"])
    result = json.loads((tmp_path / "out" / "profile.json").read_text())
    one, two = result["paces"]
    assert (one["workers"], two["workers"], result["batches"]) == (1, 2, 4)
    assert one["clips_per_second"] <= 100 and two["clips_per_second"] <= 200
    assert one["feeds_step_seconds"] == pytest.approx(4 / one["clips_per_second"])
    assert result["step_time"] == {"step_seconds": 30.0, "clips_per_second": pytest.approx(4 / 30), "workers": 1}
    assert "data.num_workers=1 delivers that" in capsys.readouterr().out
    out_of_reach = {"step_seconds": 0.001, "clips_per_second": 4000.0, "workers": None}
    said = profile.pace_table({**result, "step_time": out_of_reach})[-1]
    assert "takes 4000.0 clips/s: no number of workers here delivers that, the most is " in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "1"], "--steps 1: must be at least 2"),
        (["--workers", "2"], "go with --paced"),
        (["--paced", "--workers", "0"], "--workers 0: must be at least 1"),
        (["--paced", "--step-time", "0"], "--step-time 0.0: must be above 0"),
    ],
)
def test_options_that_make_no_sense(arguments, message, capsys):
    with pytest.raises(SystemExit) as caught:
        profile.main(["-c", "any.yaml", *arguments])
    assert caught.value.code == 2 and message in capsys.readouterr().err


def test_a_wrong_config_is_one_line(motion, tmp_path):
    path = config_file(motion, tmp_path / "run", "model.width=0.3")
    with pytest.raises(SystemExit, match="error: .*model.width"):
        profile.main(["-c", str(path)])


@pytest.mark.parametrize("name", ["cProfile", "profile"])
def test_the_standard_library_keeps_its_profile(name, tmp_path):
    """Python puts the folder of a tool first on its path, and the name of this tool is one of the library's."""
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r}); import {name}, profile; print(profile.Profile)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "<class 'profile.Profile'>", done.stderr
    inside = subprocess.run(
        [sys.executable, "-c", f"import {name}, profile; print(profile.Profile)"],
        cwd=ROOT / "tools",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert inside.stdout.strip() == "<class 'profile.Profile'>", inside.stderr


def test_two_ranks_train_as_they_do_unwatched(motion, tmp_path):
    done = launch(ROOT / "tests" / "ranked_profile.py", motion, folder=tmp_path)
    assert done.returncode == 0, logs(tmp_path)
    for rank in (0, 1):
        result = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert result["steps"] == 6 and result["apart"] < 1e-6
        assert result["parts"]["communication"] > 0 and result["parts"]["rank_wait"] > 0


@pytest.mark.slow
def test_the_first_of_two_ranks_reports(motion, tmp_path):
    path = config_file(motion, tmp_path / "run", "epochs=4", "data.num_workers=1")
    done = launch(ROOT / "tools" / "profile.py", "-c", path, "--steps", 4, folder=tmp_path)
    assert done.returncode == 0, logs(tmp_path)
    result = json.loads(Path(tmp_path / "run" / "profile.json").read_text())
    assert result["ranks"] == 2 and result["cores"] == 1 and result["parts"]["communication"] > 0
    assert logs(tmp_path).count("reading a clip") == 1
