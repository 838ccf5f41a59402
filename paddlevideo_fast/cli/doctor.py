"""``tools/doctor.py``: what works on this machine, what does not, and what would cure it."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import os
import platform
import resource
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from paddlevideo_fast.cli.options import add_override, explain, parse
from paddlevideo_fast.cli.runtime import prepare

if TYPE_CHECKING:
    from paddlevideo_fast.schema import DataConfig

MARKS = {"ok": "ok  ", "note": "note", "warn": "WARN", "fail": "FAIL"}
PACKAGES = {
    "paddlepaddle": "pip install -r requirements.txt",
    "paddlepaddle-gpu": "pip install -r requirements-gpu.txt",
    "numpy": "pip install -r requirements.txt",
    "av": "pip install av",
    "decord": "pip install decord (x86-64 Linux and Windows)",
    "opencv-python-headless": "pip install opencv-python-headless",
    "visualdl": "pip install visualdl",
}
OPTIONAL = ("paddlepaddle-gpu", "decord")
CODECS = {"h264": "libx264", "hevc": "libx265", "vp9": "libvpx-vp9", "av1": "libsvtav1", "mpeg4": "mpeg4"}
QUIET = {"libx265": {"x265-params": "log-level=none"}}
LEAST_SHM = 1 << 30
LEAST_FILES = 1024
LEAST_DISK = 5 << 30
LOOKED_AT = 32  # rows of each list, spread over it
NAMED = 5  # of those that cannot be read


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        mark: "ok", "note" (for information), "warn" (works, but slowly or not for long) or "fail".
        name: What was looked at.
        detail: What was found and, where it is wrong, the cure.
    """

    mark: str
    name: str
    detail: str


def main(argv: list[str] | None = None) -> None:
    """Parses the command line, examines the machine and prints a report; exit status 1 if anything failed."""
    parser = argparse.ArgumentParser(
        description="Say what works on this machine and what would cure the rest: versions, devices, readers and "
        "codecs, shared memory, threads, limits, disk. With -c, also try a configuration up to one forward pass.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--output", default="output", metavar="DIR", help="folder whose disk and rights are checked")
    parser.add_argument("-c", "--config", default=None, help="configuration to try; nothing is trained or written")
    add_override(parser, "as in tools/train.py")
    args = parse(parser, argv)
    if args.override and not args.config:
        parser.error("-o changes a configuration: give one with -c")

    notes = prepare()
    groups: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("versions", check_versions),
        ("devices", lambda: check_devices(notes)),
        ("readers and codecs", check_readers),
        ("limits", lambda: check_limits(Path(args.output))),
    ]
    if args.config:
        groups.append((f"configuration {args.config}", lambda: check_config(args.config, args.override)))
    logger = logging.getLogger("paddlevideo_fast")
    level = logger.level
    logger.setLevel(logging.ERROR)  # the report says it all
    try:
        marks = sum((report(title, check) for title, check in groups), Counter())
    finally:
        logger.setLevel(level)
    if marks["fail"]:
        print("\nsomething needs a cure: see FAIL above")
        raise SystemExit(1)
    print(f"\nready, with {marks['warn']} to look at: see WARN above" if marks["warn"] else "\nready")


def report(title: str, check: Callable[[], Iterator[Finding]]) -> Counter[str]:
    """Prints the findings of a check and returns how many there are of each mark."""
    print(f"\n{title}")
    marks: Counter[str] = Counter()
    for finding in guarded(title, check):
        marks[finding.mark] += 1
        print(f"  {MARKS[finding.mark]}  {finding.name:<24} {finding.detail}", flush=True)
    return marks


def guarded(title: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yields the findings of a check; what it raises becomes a finding too, so that the report goes on."""
    try:
        yield from check()
    except Exception as error:  # a doctor reports whatever it meets
        yield Finding("fail", title, f"{type(error).__name__}: {explain(error)}")


def check_versions() -> Iterator[Finding]:
    """Looks for the packages, and whether their native libraries load."""
    yield Finding("ok", "python", f"{platform.python_version()} on {platform.platform()}")
    for package, cure in PACKAGES.items():
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            if package == "paddlepaddle" and _installed("paddlepaddle-gpu"):
                continue
            mark = "note" if package in OPTIONAL else "fail"
            yield Finding(mark, package, f"not installed; {cure}")
        else:
            yield Finding("ok", package, version)
    for module in ("av", "decord", "cv2"):
        if importlib.util.find_spec(module) is None:
            continue
        try:
            importlib.import_module(module)
        except (ImportError, OSError, RuntimeError) as error:
            yield Finding("fail", module, f"is installed but does not load: {' '.join(str(error).split())}")


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def check_devices(notes: list[str]) -> Iterator[Finding]:
    """Looks at what Paddle computes on."""
    import paddle

    count = paddle.device.cuda.device_count() if paddle.device.is_compiled_with_cuda() else 0
    yield Finding("ok", "paddle device", f"{paddle.device.get_device()}, {count} GPUs")
    if _installed("paddlepaddle-gpu") and count == 0:
        yield Finding(
            "warn", "GPU", "the GPU wheel is installed, but Paddle sees no GPU: check nvidia-smi and the driver"
        )
    for index in range(count):
        properties = paddle.device.cuda.get_device_properties(index)
        memory = properties.total_memory >> 30
        yield Finding("ok", f"GPU {index}", f"{properties.name}, {memory} GB, sm{properties.major}{properties.minor}")
    cores = len(os.sched_getaffinity(0))
    yield Finding("ok", "processors", f"{cores} usable of {os.cpu_count()}, load {os.getloadavg()[0]:.1f}")
    threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    cure = "; more than one thread a process was slower on the CPU" if threads > 1 else ""
    yield Finding("warn" if threads > cores else "ok", "OMP_NUM_THREADS", f"{threads}{cure}")
    for note in notes:
        yield Finding("ok", "settings", note)


def check_readers() -> Iterator[Finding]:
    """Encodes a few frames with each codec and reads them with each reader, without its fallback."""
    import numpy as np
    from PIL import Image

    from paddlevideo_fast.data.readers import READERS, InexactReaderError, VideoError, build_reader

    with tempfile.TemporaryDirectory() as folder:
        clips = dict(_make_clips(Path(folder)))
        for name in READERS:
            if name == "frames":
                continue
            try:
                reader = build_reader(name, fallback=None)
            except ImportError as error:
                yield Finding("note", name, str(error))
                continue
            good, bad = [], []
            for codec, path in clips.items():
                try:
                    shape = reader.read(path, [3, 0]).shape
                    (good if shape == (2, 64, 64, 3) else bad).append(codec)
                except InexactReaderError:
                    bad.append(f"{codec} (left to the fallback)")
                except VideoError as error:
                    bad.append(f"{codec} ({error})")
            rest = f"; not {', '.join(bad)}" if bad else ""
            yield Finding("ok" if good else "fail", name, f"reads {', '.join(good) or 'nothing'}{rest}")
        missing = [codec for codec in CODECS if codec not in clips]
        if missing:
            yield Finding("note", "untried codecs", f"{', '.join(missing)}: PyAV has no encoder here")
        Image.fromarray(np.zeros([16, 16, 3], np.uint8)).save(Path(folder) / "img_00001.png")
        build_reader("frames").read(folder, [0])
        yield Finding("ok", "frames", "reads folders of JPEG and PNG")


def _make_clips(folder: Path) -> Iterator[tuple[str, str]]:
    import av
    import numpy as np

    os.environ.setdefault("SVT_LOG", "0")  # the AV1 encoder's own switch
    rng = np.random.default_rng(0)
    for codec, encoder in CODECS.items():
        path = folder / f"{codec}.mp4"
        try:
            with av.open(str(path), "w") as container:
                stream = container.add_stream(encoder, rate=10, options=QUIET.get(encoder, {}))
                stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
                for _ in range(6):
                    frame = av.VideoFrame.from_ndarray(rng.integers(0, 256, (64, 64, 3), np.uint8), format="rgb24")
                    container.mux(stream.encode(frame))
                container.mux(stream.encode(None))
        except (av.FFmpegError, ValueError):
            continue
        yield codec, str(path)


def check_limits(output: Path) -> Iterator[Finding]:
    """Looks at shared memory, open files, disk, and whether the output folder can be written."""
    try:
        shm = shutil.disk_usage("/dev/shm")
        cure = "" if shm.free >= LEAST_SHM else "; several GPUs talk through it: docker run --shm-size=8g"
        mark = "ok" if shm.free >= LEAST_SHM else "warn"
        yield Finding(mark, "/dev/shm", f"{shm.free >> 20} MB free of {shm.total >> 20}{cure}")
    except OSError as error:
        yield Finding("warn", "/dev/shm", f"{error.strerror}; several GPUs talk through it")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= LEAST_FILES
    yield Finding(
        "ok" if enough else "warn", "open files", f"{soft} of at most {hard}" + ("" if enough else "; ulimit -n 4096")
    )
    folder = output.absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    mark = "ok" if free >= LEAST_DISK else "warn"
    yield Finding(mark, "disk", f"{free >> 30} GB free for {output.absolute()}")
    if not os.access(folder, os.W_OK):
        yield Finding("fail", "output folder", f"{folder} cannot be written by this user")


def check_config(path: str, overrides: list[str]) -> Iterator[Finding]:
    """Tries a configuration: lists, class names, rows from all over each list, one forward pass."""
    import numpy as np
    import paddle

    from paddlevideo_fast.config import load_config
    from paddlevideo_fast.data.samplers import SampleKey
    from paddlevideo_fast.engine import build

    config = build.count_classes(load_config(path, overrides), path)
    yield Finding("ok", "keys", "all known, all of the right type")
    task = build.build_task(config)
    names = build.build_class_names(config, path)
    yield Finding("ok", "class names", f"{len(names)}" if names else "none given; predictions will have numbers only")
    model = build.build_model(config)
    model.eval()
    weights = sum(p.size for p in model.parameters())
    yield Finding("ok", "model", f"{config.model.name}, {weights / 1e6:.1f} M weights")
    for name, how in getattr(model, "fast_paths", {}).items():
        yield Finding("ok", f"fast path {name}", how)
    for phase in ("train", "valid", "test"):
        if getattr(config.data, phase) is None:
            yield Finding("note", f"data.{phase}", "not given")
            continue
        records = build.build_records(config, phase, path)
        dataset = build.build_dataset(config, phase, records, task)
        crop = getattr(getattr(config.data, phase), "crop_size", None) or config.data.crop_size
        rows = np.unique(np.linspace(0, len(records) - 1, LOOKED_AT).astype(int)).tolist()
        batch = dataset.read_batch([SampleKey(0, row, config.data.num_frames, crop) for row in rows])
        for error in batch["errors"][:NAMED]:
            yield Finding("warn", f"data.{phase}", f"cannot read {error}")
        if batch["errors"]:
            yield judge_rows(phase, len(batch["errors"]), len(rows), config.data)
        shape = "x".join(map(str, batch["clip"].shape[1:]))
        yield Finding("ok", f"data.{phase}", f"{len(records)} records, {len(rows)} looked at; a clip is {shape} bytes")
        with paddle.no_grad():
            clip = build.build_augment(config, phase)({"clip": paddle.to_tensor(batch["clip"][:2])})
            outputs = model(*task.inputs(clip))
        yield Finding("ok", f"data.{phase}", f"two clips through the model: {list(outputs.shape)}")


def judge_rows(phase: str, unreadable: int, looked_at: int, data: DataConfig) -> Finding:
    """Says what a run does where all rows of a list are like those looked at, some of which cannot be read."""
    counts, share = f"{unreadable} of {looked_at} rows looked at cannot be read", unreadable / looked_at
    clean = "tools/data/check_dataset.py LIST --clean GOOD writes a list of the good ones"
    allowed = f"data.max_failed_share = {data.max_failed_share:g}"
    if unreadable == looked_at:
        outcome = "nothing could be read; a wrong root is the usual reason"
    elif phase != "train":
        return Finding("warn", f"data.{phase}", f"{counts}: they are in no metric; {clean}")
    elif data.bad_files == "raise":
        outcome = f"training stops at the first (data.bad_files = raise); {clean}"
    elif share > data.max_failed_share:
        outcome = f"training stops if {share:.0%} of all fail, more than {allowed} allows; {clean}"
    else:
        return Finding("warn", f"data.{phase}", f"{counts}: they count with weight 0, as {allowed} allows; {clean}")
    return Finding("fail", f"data.{phase}", f"{counts}: {outcome}")
