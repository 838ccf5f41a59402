"""Extracted frames instead of videos: what a clip costs, which JPEG decoder is fastest, and whether packing helps.

    python benchmark/bench_frames.py [--clips N] [--only TABLE ...] [--quick]

Three tables: frames (clips of 8 segments from videos and from extracted frames, the comparison of PaddleVideo's guide),
frames_decoders (JPEG decoders, and how far their pixels are apart) and frames_packed (the files of a clip in a folder,
or in one tar file a video). Runs without Paddle; decord, simplejpeg and PyTurboJPEG take part where they are installed.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

import av
import cv2
import numpy as np
from PIL import Image
from reader_clips import make_clips
from report import RESULTS, Timing, measure, write_report

from paddlevideo_fast.data.crops import RandomResizedCrop
from paddlevideo_fast.data.readers import View, available_readers, build_reader
from paddlevideo_fast.data.readers.frames import decode_image
from paddlevideo_fast.data.sampling import SegmentSampling
from paddlevideo_fast.data.transforms import crop_resize_flip
from paddlevideo_fast.data.video import VideoInfo
from paddlevideo_fast.prepare.frames import Options, extract_frames

SUITES = ("frames", "decoders", "packed")
SEGMENTS, SIZE = 8, 224
STORED = {"quality 95, chroma full": Options(), "quality 85, chroma halved": Options(quality=85)}
# PaddleVideo, docs/zh-CN/tutorials/accelerate.md, ppTSM on UCF101, batch 16, no reader processes, one V100: seconds a
# batch of which the reader takes, and the speed-ups of both
GUIDE = [
    {"source": "PaddleVideo's guide: videos", "guide": "3.249 s a batch, reader 2.832 s"},
    {"source": "PaddleVideo's guide: frames", "guide": "1.008 s a batch, reader 0.591 s: 3.22 and 4.79 times as fast"},
]

Decode = Callable[[bytes], np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=3, help="videos, each read once a repeat")
    parser.add_argument("--only", nargs="+", default=SUITES, choices=SUITES, help="which tables to make")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"), help="frames are read by the CPU")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the tables")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    videos = make_clips("340x256", args.clips)
    repeats = 5 if args.quick else 25
    with tempfile.TemporaryDirectory() as scratch:
        folders = {name: extract(videos, Path(scratch) / str(n), options) for n, (name, options) in
                   enumerate(STORED.items())}  # fmt: skip
        if "frames" in args.only:
            report_frames(videos, folders, repeats, args.output)
        if "decoders" in args.only:
            report_decoders({name: paths[0] for name, paths in folders.items()}, 2 * repeats, args.output)
        if "packed" in args.only:
            report_packed(next(iter(folders.values())), Path(scratch), 3 if args.quick else 7, args.output)


def extract(videos: Sequence[Path], output: Path, options: Options) -> list[Path]:
    """Returns the folders of frames of the videos."""
    names = output.with_suffix(".txt")
    names.write_text("".join(f"{video}\t0\n" for video in videos))
    extract_frames(str(names), str(output), options, workers=1)
    return [(output / str(video).lstrip("/")).with_suffix("") for video in videos]


def draw(info: VideoInfo, rng: np.random.Generator) -> View:
    box, _ = RandomResizedCrop()(info.width, info.height, SIZE, 0, rng)
    return View(SegmentSampling()(info.num_frames, SEGMENTS, rng=rng), box, bool(rng.random() < 0.5))


def read_clip(kind: str, paths: Sequence[Path], rng: np.random.Generator) -> None:
    """Reads a clip of every source with a reader that knows nothing of them from before."""
    for path in paths:
        with build_reader(kind, fallback=None).open(str(path)) as video:
            video.read([draw(video.info, rng)], (SIZE, SIZE))


def read_with_pillow(paths: Sequence[Path], rng: np.random.Generator) -> None:
    """The frames as most training code reads them: listed, opened by Pillow, cut and scaled."""
    for path in paths:
        names = sorted(os.listdir(path))
        with Image.open(path / names[0]) as image:
            view = draw(VideoInfo(len(names), 0.0, *image.size, 0.0), rng)
        for index in view.indices:
            with Image.open(path / names[index]) as image:
                crop_resize_flip(np.asarray(image.convert("RGB"))[None], view.crop, (SIZE, SIZE), view.flip)


def report_frames(videos: Sequence[Path], folders: dict[str, list[Path]], repeats: int, output: Path) -> None:
    """Measures and writes the table of clips from videos and from frames."""
    sources = {f"videos, {name}": (partial(read_clip, name, videos), videos) for name in available_readers()
               if name != "frames"}  # fmt: skip
    for name, paths in folders.items():
        sources[f"frames ({name})"] = partial(read_clip, "frames", paths), paths
    name, paths = next(iter(folders.items()))
    sources[f"frames ({name}), each by Pillow"] = partial(read_with_pillow, paths), paths
    calls = {name: partial(read, rng=np.random.default_rng(0)) for name, (read, _) in sources.items()}
    timings = measure(calls, repeats)
    rows = []
    for name, (_, paths) in sources.items():
        size = sum(file.stat().st_size for path in paths for file in ([path] if path.is_file() else path.iterdir()))
        rows.append(
            {"source": name, **costs(timings[name], len(videos)), "megabytes": size / len(videos) / 1e6,
             "ratio": timings["videos, fused"].cpu / timings[name].cpu,
             "over_decord": timings["videos, decord"].cpu / timings[name].cpu if "videos, decord" in timings else None}
        )  # fmt: skip
    columns = {
        "source": "read from",
        "cpu": "CPU, ms a clip",
        "wall": "wall, ms a clip",
        "ratio": "speed-up over videos, fused (CPU)",
        "over_decord": "over videos, decord",
        "megabytes": "MB a video",
        "guide": "PaddleVideo's guide",
    }
    notes = [
        f"{len(videos)} made videos of 340x256, 10 s, H.264 in groups of up to 250; {SEGMENTS} frames, a box of random "
        f"size scaled to {SIZE}x{SIZE}. {repeats} repeats in turn, medians; all files are in the page cache.",
        "The guide's reader takes videos by decord or OpenCV and frames by Pillow; its figures are of a V100's host.",
    ]
    write_report("frames", rows + GUIDE, columns, notes, output)


def costs(timing: Timing, clips: int) -> dict[str, float]:
    return {"cpu": 1000 * timing.cpu / clips, "wall": 1000 * timing.wall / clips}


def find_decoders() -> tuple[dict[str, Decode], list[str]]:
    """Returns the JPEG decoders that can be used here, and what is missing."""

    def in_opencv(data: bytes, flag: int = cv2.IMREAD_COLOR) -> np.ndarray:
        return cv2.imdecode(np.frombuffer(data, np.uint8), flag | cv2.IMREAD_IGNORE_ORIENTATION)

    def in_ffmpeg(data: bytes) -> np.ndarray:
        decoder = av.CodecContext.create("mjpeg", "r")
        frames = [*decoder.decode(av.Packet(data)), *decoder.decode(None)]
        return frames[0].to_ndarray(format="rgb24")

    decoders: dict[str, Decode] = {
        "Pillow": lambda data: np.array(Image.open(io.BytesIO(data)).convert("RGB")),
        "OpenCV, then to RGB": lambda data: cv2.cvtColor(in_opencv(data), cv2.COLOR_BGR2RGB),
        "the frames reader": decode_image,
        "FFmpeg (PyAV)": in_ffmpeg,
    }
    if hasattr(cv2, "IMREAD_COLOR_RGB"):
        decoders["OpenCV, straight to RGB"] = partial(in_opencv, flag=cv2.IMREAD_COLOR_RGB)
    missing = []
    try:
        import simplejpeg

        decoders["simplejpeg"] = simplejpeg.decode_jpeg
        decoders["simplejpeg, fast DCT and upsampling"] = partial(
            simplejpeg.decode_jpeg, fastdct=True, fastupsample=True
        )
    except ImportError:
        missing.append("simplejpeg is not installed here.")
    try:
        from turbojpeg import TJPF_RGB, TurboJPEG

        decoders["PyTurboJPEG"] = partial(TurboJPEG().decode, pixel_format=TJPF_RGB)
    except (ImportError, RuntimeError, OSError):
        missing.append("PyTurboJPEG or the system's libturbojpeg, which it needs, is not installed here.")
    return decoders, missing


def report_decoders(folders: dict[str, Path], repeats: int, output: Path) -> None:
    """Measures and writes the table of JPEG decoders, on frames spread over one video."""
    decoders, missing = find_decoders()
    rows, sizes = [], []
    for stored, folder in folders.items():
        files = sorted(folder.iterdir())
        images = [files[index].read_bytes() for index in np.linspace(0, len(files) - 1, SEGMENTS).astype(int)]
        sizes.append(f"{stored}: {sum(map(len, images)) / len(images) / 1024:.0f} KiB")
        calls = {name: partial(decode_each, decode, images) for name, decode in decoders.items()}
        timings = measure(calls, repeats, inner=3)
        exact = [decoders["Pillow"](data).astype(int) for data in images]
        for name, timing in timings.items():
            apart = [np.abs(decoders[name](data) - right) for data, right in zip(images, exact)]
            rows.append(
                {"stored": stored, "decoder": name, **costs(timing, 1),
                 "ratio": timings["Pillow"].cpu / timing.cpu,
                 "over_opencv": timings["OpenCV, then to RGB"].cpu / timing.cpu,
                 "most": int(max(each.max() for each in apart)),
                 "mean": float(np.mean([each.mean() for each in apart]))}
            )  # fmt: skip
    columns = {
        "stored": "stored with",
        "decoder": "decoder",
        "cpu": f"CPU, ms for {SEGMENTS} frames",
        "wall": "wall, ms",
        "ratio": "speed-up over Pillow (CPU)",
        "over_opencv": "over OpenCV",
        "most": "most levels from Pillow",
        "mean": "levels on average",
    }
    notes = [f"Frames of 340x256 in memory; {'; '.join(sizes)} each. {repeats} repeats in turn, medians.", *missing]
    write_report("frames_decoders", rows, columns, notes, output)


def decode_each(decode: Decode, images: Sequence[bytes]) -> None:
    for data in images:
        decode(data)


def report_packed(folders: Sequence[Path], scratch: Path, repeats: int, output: Path) -> None:
    """Measures and writes the table of ways to keep the frames of a video: many copies, so that caches do not help."""
    copies = [
        shutil.copytree(folder, scratch / "many" / f"{number}_{folder.name}")
        for number in range(8)
        for folder in folders
    ]
    packed = {folder: pack(folder, scratch / f"{folder.name}.tar") for folder in copies}
    files = [file for folder in copies for file in folder.iterdir()] + [path for path, _ in packed.values()]
    os.sync()

    def picks(rng: np.random.Generator) -> np.ndarray:
        return SegmentSampling()(300, SEGMENTS, rng=rng)

    def from_folder(folder: Path, rng: np.random.Generator) -> list[bytes]:
        names = sorted(os.listdir(folder))
        return [(folder / names[index]).read_bytes() for index in picks(rng)]

    def from_tar(folder: Path, rng: np.random.Generator) -> list[bytes]:
        path, places = packed[folder]
        return read_places(path, [places[index] for index in picks(rng)])

    def from_scanned_tar(folder: Path, rng: np.random.Generator) -> list[bytes]:
        path, _ = packed[folder]
        places = scan(path)
        return read_places(path, [places[index] for index in picks(rng)])

    ways = {
        "a file each, folder listed": from_folder,
        "one tar file, places known": from_tar,
        "one tar file, headers read": from_scanned_tar,
    }
    rows = []
    for cold in (False, True):
        calls = {}
        for name, read in ways.items():
            calls[f"{name} "] = partial(forget if cold else touch, files)  # timed too, and not reported
            calls[name] = lambda read=read: [read(folder, np.random.default_rng(0)) for folder in copies]
        timings = one_after_another(calls, repeats)
        base = timings["a file each, folder listed"]
        rows += [
            {"way": name, "cache": "dropped" if cold else "warm", **costs(timings[name], len(copies)),
             "ratio": base.wall / timings[name].wall}
            for name in ways
        ]  # fmt: skip
    columns = {
        "way": "frames kept as",
        "cache": "page cache",
        "wall": f"wall, ms for {SEGMENTS} frames",
        "cpu": "CPU, ms",
        "ratio": "speed-up over files (wall)",
    }
    notes = [
        f"{len(copies)} folders of 300 frames; the bytes are read, not decoded. {repeats} repeats, medians.",
        "Dropped: the contents of the files, by posix_fadvise; directories and inodes stay known, so what opening a "
        "file costs on a cold or remote file system is not in these figures.",
    ]
    write_report("frames_packed", rows, columns, notes, output)


def one_after_another(calls: dict[str, Callable], repeats: int) -> dict[str, Timing]:
    """Measures calls always in the same order, as each is prepared by the one before."""
    taken = [measure({name: call}, 1, warmup=0)[name] for _ in range(repeats) for name, call in calls.items()]
    by_name = {name: taken[number :: len(calls)] for number, name in enumerate(calls)}
    return {
        name: Timing(
            float(np.median([timing.wall for timing in each])),
            float(np.median([timing.cpu for timing in each])),
            min(timing.wall for timing in each),
            max(timing.wall for timing in each),
        )
        for name, each in by_name.items()
    }


def pack(folder: Path, path: Path) -> tuple[Path, list[tuple[int, int]]]:
    """Writes the files of a folder into a tar file; returns it and where they lie in it."""
    with tarfile.open(path, "w") as archive:
        for file in sorted(folder.iterdir()):
            archive.add(file, file.name)
    return path, scan(path)


def scan(path: Path) -> list[tuple[int, int]]:
    """Returns (offset, size) of the files in a tar file of plain headers, read one by one."""
    places, position = [], 0
    descriptor = os.open(path, os.O_RDONLY)
    while (header := os.pread(descriptor, 512, position)) and header[0]:
        size = int(header[124:135], 8)
        places.append((position + 512, size))
        position += 512 + -(-size // 512) * 512
    os.close(descriptor)
    return places


def read_places(path: Path, places: Sequence[tuple[int, int]]) -> list[bytes]:
    descriptor = os.open(path, os.O_RDONLY)
    found = [os.pread(descriptor, size, offset) for offset, size in places]
    os.close(descriptor)
    return found


def touch(files: Sequence[Path]) -> None:
    for file in files:
        file.read_bytes()


def forget(files: Sequence[Path]) -> None:
    """Drops the contents of files from the page cache."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


if __name__ == "__main__":
    main()
