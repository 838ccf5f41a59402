"""The demo's training, one acceleration after the other: what each adds, end to end.

    python benchmark/bench_cumulative.py [-c CONFIG] [--steps 12] [--quick] [--device cpu|gpu]

1. as PaddleVideo reads: decord and PIL in the training thread, normalised on the host, float32 to the device
2. + workers      data.num_workers: 2
3. + fused        data.reader: fused
4. + prepared     the videos re-encoded once by tools/data/prepare_videos.py
5. + device       augment on the device: a quarter of the bytes, nothing normalised on the host

The variants take turns, all with the same clips, model and optimiser. The videos are those of bench_readers, 640x360
and ten seconds long, as a data set of their own: the clips of the demo are too small for reading to matter.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

import numpy as np
from reader_clips import make_clips
from reader_peers import paddlevideo
from report import RESULTS, measure, write_report

from paddlevideo_fast.cli.runtime import prepare

ROOT = Path(__file__).resolve().parents[1]
MEAN, STD = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)


class PaddleVideoReader:
    """Reads as PaddleVideo's pipeline does; what a plan needs to know comes from the fused reader's memory."""

    def __init__(self, reader):
        self._reader = reader

    def open(self, source):
        video = self._reader.open(source)
        video.read = lambda views, size: [paddlevideo(str(source), view, threads=0) for view in views]
        return video


class HostNormalised:
    """A dataset whose batches are normalised on the host, as float32, beside the bytes the loop goes on with."""

    def __init__(self, dataset):
        self._dataset = dataset

    def __getattr__(self, name):
        return getattr(self._dataset, name)

    def read_batch(self, keys):
        batch = self._dataset.read_batch(keys)
        pixels = batch["clip"].astype(np.float32) / 255
        batch["pixels"] = np.ascontiguousarray(((pixels - MEAN) / STD).transpose(0, 4, 1, 2, 3))
        return batch


def make_run(config: Path, work: Path, name: str, options: list[str], plain_reader: bool, on_host: bool):
    """Returns a training whose parts are exchanged where a variant needs it."""
    from paddlevideo_fast.config import load_config
    from paddlevideo_fast.engine import build
    from paddlevideo_fast.engine.distributed import Ranks

    settings = [*options, "log.interval=1000000", f"output_dir={work / name}", "data.valid=null", "data.test=null"]
    settings += ["data.batch_size=4", "data.crop_size=112", "data.reader=fused"]
    run = build.build_training(load_config(config, settings), config, Ranks(0, 1), validate=False)
    dataset = run.loader.dataset
    if plain_reader:
        dataset.reader = PaddleVideoReader(dataset.reader)
    if not on_host:
        return run
    loader = build.ThreadLoader(HostNormalised(dataset), run.sampler, run.loader.num_workers, run.loader.timeout)
    device_augment = run.augment

    def augment(batch, mix=None):
        targets = device_augment({**batch, "clip": batch["clip"][:, :1, :8, :8]}, mix)  # for its soft targets only
        return {**targets, "clip": batch["pixels"]}

    return replace(run, loader=loader, augment=augment)


class NoLog:
    """Stands in for the run's log."""

    def record(self, phase, epoch, step, values) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-c", "--config", default=ROOT / "configs/quickstart/motion_tsm.yaml", help="what to train")
    parser.add_argument("--steps", type=int, default=8, help="steps a measurement")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"), help="where to train (default: cpu)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the tables")
    args = parser.parse_args()
    prepare()
    import paddle

    from paddlevideo_fast.engine import train
    from paddlevideo_fast.engine.failures import Failures

    paddle.set_device(args.device)
    logging.getLogger("paddlevideo_fast").setLevel(logging.WARNING)
    work = args.output / "cumulative_run"
    work.mkdir(parents=True, exist_ok=True)
    original, prepared = work / "original.txt", work / "prepared" / "original.txt"
    paths = make_clips("640x360", 3)
    original.write_text("".join(f"{path.absolute()} {number % 2}\n" for number, path in enumerate(paths * 64)))
    if not prepared.exists():
        small = work / "three.txt"
        small.write_text("".join(f"{path.name} 0\n" for path in paths))
        tool = [sys.executable, str(ROOT / "tools/data/prepare_videos.py"), str(small), str(work / "prepared")]
        subprocess.run([*tool, "--root", str(paths[0].parent)], check=True)
        files = [work / "prepared" / path.name for path in paths]
        prepared.write_text("".join(f"{path.absolute()} {number % 2}\n" for number, path in enumerate(files * 64)))

    def variant(name: str, workers: int, listed: Path, plain_reader: bool, on_host: bool):
        options = [f"data.train.annotations={listed}", f"data.num_workers={workers}"]
        run = make_run(Path(args.config), work, name, options, plain_reader, on_host)
        failures = Failures(run.config.data.max_failed_share)

        def steps() -> None:
            run.progress.epoch = run.progress.position = 0
            train.train_one_epoch(run, NoLog(), failures, max_steps=run.progress.step + args.steps)

        return steps, run.global_batch

    variants = {
        "as PaddleVideo reads": variant("plain", 0, original, True, True),
        "+ workers": variant("workers", 2, original, True, True),
        "+ fused": variant("fused", 2, original, False, True),
        "+ prepared": variant("prepared", 2, prepared, False, True),
        "+ device augmentation": variant("device", 2, prepared, False, False),
    }
    repeats = 3 if args.quick else 5
    synchronise = paddle.device.synchronize if args.device == "gpu" else None
    timings = measure({name: steps for name, (steps, _) in variants.items()}, repeats, synchronise=synchronise)
    first = next(iter(timings.values()))
    rows, before = [], first
    for name, timing in timings.items():
        clips = args.steps * variants[name][1]
        row = {"variant": name, "ips": clips / timing.wall, "cpu": 1000 * timing.cpu / clips}
        rows.append({**row, "step": before.wall / timing.wall, "total": first.wall / timing.wall})
        before = timing
    columns = {
        "variant": "variant",
        "ips": "clips/s",
        "cpu": "CPU, ms a clip",
        "step": "speed-up over the row above",
        "total": "over the first",
    }
    notes = [f"{args.steps} steps of 4 clips a measurement, variants in turn, {repeats} rounds, medians."]
    write_report("cumulative", rows, columns, notes, args.output)


if __name__ == "__main__":
    main()
