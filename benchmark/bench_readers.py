"""What reading a training clip costs: this project's readers, what others do, and the decoding nobody can do without.

    python benchmark/bench_readers.py [--videos DIR] [--clips N] [--only TABLE ...] [--quick]

Three tables: readers (clips of the usual samplings), reader_decoders (the decoder comparison of PaddleVideo's guide)
and reader_jpeg (decoders of extracted frames). Runs without Paddle; torchcodec takes part where it can be imported.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

import av  # noqa: F401  before decord, whose FFmpeg gets in its way
import cv2
import numpy as np
from PIL import Image
from reader_clips import RATE, make_clips
from reader_peers import PEERS, SIZE, SLOWFAST_PEERS, Peer, decode_needed, hold_packets
from report import RESULTS, Timing, measure, write_report

from paddlevideo_fast.data.crops import RandomResizedCrop, RandomShortSideCrop
from paddlevideo_fast.data.readers import READERS, available_readers, build_reader
from paddlevideo_fast.data.readers.frames import decode_image
from paddlevideo_fast.data.readers.packets import scan_packets
from paddlevideo_fast.data.readers.sources import resolve
from paddlevideo_fast.data.sampling import SegmentSampling, UniformSampling
from paddlevideo_fast.data.video import Limits, VideoError, VideoInfo, View

OURS, FLOOR, REFERENCE = "fused", "the needed packets, decoded", "pyav"
READ_FOLDERS = ("frames",)  # readers of folders of images
# PaddleVideo, docs/zh-CN/tutorials/accelerate.md: milliseconds a video, speed-up
GUIDE = {"PaddleVideo (SlowFast, OpenCV)": (209.65, "1"), "PaddleVideo (SlowFast, decord)": (137.88, "1.52")}
SUITES = ("clips", "decoders", "jpeg")

Read = Callable[[str, View], np.ndarray]
Turn = Sequence[tuple[str, View]]


@dataclass(frozen=True)
class Gate:
    """What the fused reader is held to against one other candidate, W1, W2 and W3 in turn.

    Attributes:
        bounds: The other's CPU time over the fused reader's, at least; with ``ceiling`` the fused reader's over the
            other's, at most.
        ceiling: See ``bounds``.
    """

    bounds: tuple[float, float, float]
    ceiling: bool = False

    def judge(self, workload: str, ours: Sequence[Timing], other: Sequence[Timing]) -> dict[str, object]:
        """Returns the cells ratio, range, gate and met of a row."""
        bound = self.bounds[("W1", "W2", "W3").index(workload)]
        cells = compare(ours, other) if self.ceiling else compare(other, ours)
        met = cells["ratio"] <= bound if self.ceiling else cells["ratio"] >= bound
        return {**cells, "gate": f"{'<=' if self.ceiling else '>='} {bound}", "met": "yes" if met else "no"}


def compare(one: Sequence[Timing], other: Sequence[Timing]) -> dict[str, object]:
    """Returns the CPU time of one candidate over that of another: median over the repeats, and their middle half.

    The two of a repeat are divided by each other: they read the same clips, and under the same load of the machine.
    """
    low, ratio, high = np.quantile([a.cpu / b.cpu for a, b in zip(one, other, strict=True)], (0.25, 0.5, 0.75))
    return {"ratio": float(ratio), "range": f"{low:.2f}-{high:.2f}"}


AGAINST_PADDLEVIDEO = Gate((1.75, 2.1, 1.6))
GATES = {
    "PaddleVideo (ppTSM, PIL)": AGAINST_PADDLEVIDEO,
    "PaddleVideo (ppTSM, PIL), own threads": AGAINST_PADDLEVIDEO,
    "PaddleVideo (TSN, cv2)": AGAINST_PADDLEVIDEO,
    "PaddleVideo (SlowFast, decord)": AGAINST_PADDLEVIDEO,
    "PaddleVideo (SlowFast, decord), own threads": AGAINST_PADDLEVIDEO,
    "mmaction2": Gate((1.5, 1.4, 1.4)),
    "decord + cv2": Gate((1.5, 1.4, 1.4)),
    "torchcodec + torchvision": Gate((1.35, 1.5, 1.25)),
    "torchcodec, own transforms": Gate((1.35, 1.5, 1.25)),
    FLOOR: Gate((1.15, 1.5, 1.15), ceiling=True),
}


def draw_segments(info: VideoInfo, rng: np.random.Generator) -> np.ndarray:
    """W1: one random frame of each of 8 segments, as TSN and TSM sample."""
    return SegmentSampling()(info.num_frames, 8, rng=rng)


def draw_dense(info: VideoInfo, rng: np.random.Generator) -> np.ndarray:
    """W2: 32 frames with stride 2, as SlowFast samples."""
    return UniformSampling(frame_stride=2)(info.num_frames, 32, rng=rng)


def draw_window(info: VideoInfo, rng: np.random.Generator) -> np.ndarray:
    """W3: 4 frames of a narrated moment, a window of 2 to 4 seconds, as AVION samples."""
    length = min(info.num_frames, round(rng.uniform(2, 4) * (info.fps or 30)))
    start = rng.integers(info.num_frames - length + 1)
    return start + SegmentSampling()(length, 4, rng=rng)


@dataclass(frozen=True)
class Workload:
    """A way to sample, on one kind of clip."""

    name: str
    kind: str
    draw: Callable[[VideoInfo, np.random.Generator], np.ndarray]


WORKLOADS = (
    Workload("W1", "340x256", draw_segments),
    Workload("W1", "640x360", draw_segments),
    Workload("W2", "340x256", draw_dense),
    Workload("W2", "640x360", draw_dense),
    Workload("W3", "512x288", draw_window),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=Path, metavar="DIR", help="measure on these files instead of made ones")
    parser.add_argument("--clips", type=int, default=3, help="files of each kind, each read once a repeat")
    parser.add_argument("--repeats", type=int, help="repeats of every measurement (default: 9, with --quick 3)")
    parser.add_argument("--only", nargs="+", default=SUITES, choices=SUITES, help="which tables to make")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"), help="videos are read by the CPU")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the tables")
    args = parser.parse_args()
    use_one_thread()
    repeats = args.repeats or (3 if args.quick else 9)
    if args.videos:
        own, left_out = find_videos(args.videos, args.clips)
        files = dict.fromkeys((workload.kind for workload in WORKLOADS), own) | {"own": own}
        workloads = [Workload(w.name, "own", w.draw) for w in WORKLOADS if w.kind != "640x360"]  # each once
        about = [f"Clips: {', '.join(path.name for path in own)}; left out: {left_out}."]
    else:
        files = {kind: make_clips(kind, args.clips) for kind in dict.fromkeys(w.kind for w in WORKLOADS)}
        workloads, about = list(WORKLOADS), [describe_clips(files)]
    about += [f"{repeats} repeats, candidates in turn, medians.", describe_packages()]
    if "clips" in args.only:
        report_clips(workloads, files, repeats, about, args.output)
    if "decoders" in args.only:
        report_decoders(list(dict.fromkeys(files["340x256"] + files["640x360"])), repeats, about, args.output)
    if "jpeg" in args.only:
        report_jpeg(files["340x256"][0], 4 * repeats, about[1:], args.output)


def use_one_thread() -> None:
    cv2.setNumThreads(1)
    if PEERS["torchcodec + torchvision"].available():
        import torch

        torch.set_num_threads(1)


def find_videos(folder: Path, count: int) -> tuple[list[Path], str]:
    """Returns up to ``count`` H.264 files whose frames every candidate counts alike, and which were left out."""
    chosen, left_out = [], []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if len(chosen) == count:
            break
        try:
            index = scan_packets(str(path), resolve(str(path)), Limits())
        except VideoError as error:
            left_out.append(f"{path.name} ({error.reason})")
            continue
        doubt = index.doubt() or ("an edit list" if index.discard.any() else None)
        doubt = doubt or (f"codec {index.codec}" if index.codec != "h264" else None)
        doubt = doubt or ("key frames that are not IDR pictures" if index.unsafe_keys else None)
        left_out += [f"{path.name} ({doubt})"] if doubt else []
        chosen += [] if doubt else [path]
    if not chosen:
        raise SystemExit(f"--videos {folder}: no H.264 file to measure on; left out: {', '.join(left_out) or 'none'}")
    return chosen, ", ".join(left_out) or "none"


def describe_clips(files: Mapping[str, Sequence[Path]]) -> str:
    """Returns what the made clips are: bit rate and share of pictures that no other refers to."""
    parts = []
    for kind, paths in files.items():
        held = [hold_packets(str(path)) for path in paths]
        seconds = sum(len(each.packets) for each in held) / RATE
        rate = sum(packet.size for each in held for packet in each.packets) * 8 / 1000 / seconds
        spare = 1 - np.concatenate([each.referenced for each in held]).mean()
        parts.append(f"{len(paths)} of {kind} ({rate:.0f} kbit/s, {100 * spare:.0f} % of the pictures not referred to)")
    return "Clips: made here, 30 fps, x264's defaults (crf 23, preset medium, groups of 250), " + ", ".join(parts) + "."


def describe_packages() -> str:
    names = ("av", "decord", "opencv-python-headless", "Pillow", "torch", "torchvision", "torchcodec", "simplejpeg")
    found = []
    for name in names:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return "Packages: " + ", ".join(found) + "."


def our_readers() -> dict[str, Read]:
    """Returns the readers of video files that can be used here, each as a function of (path, view)."""

    def read(name: str, path: str, view: View) -> np.ndarray:
        reader = build_reader(name, fallback=None)  # a new one: nothing is known from the clip before
        return reader.read(path, view.indices, view.crop, (SIZE, SIZE), view.flip)

    return {name: partial(read, name) for name in available_readers() if name not in READ_FOLDERS}


def peer_reads(peers: Mapping[str, Peer]) -> dict[str, Read]:
    return {name: peer.read for name, peer in peers.items() if peer.available()}


def floor_read(paths: Iterable[Path]) -> Read:
    """Returns the floor as a function of (path, view), its packets read into memory beforehand."""
    held = {str(path): hold_packets(str(path)) for path in paths}
    return lambda path, view: decode_needed(held[path], view.indices)


def draw_turns(paths: Sequence[Path], draw: Callable, crop: Callable, count: int) -> list[Turn]:
    """Draws what is read in each turn: a clip of every file."""
    rng = np.random.default_rng(0)
    infos = {str(path): build_reader(REFERENCE).probe(path) for path in paths}

    def view(info: VideoInfo) -> View:
        box, _ = crop(info.width, info.height, SIZE, 0, rng)
        return View(draw(info, rng), box, bool(rng.random() < 0.5))

    return [[(path, view(info)) for path, info in infos.items()] for _ in range(count)]


def measure_turns(reads: Mapping[str, Read], turns: Sequence[Turn]) -> dict[str, list[Timing]]:
    """Measures every candidate on the same turns, the first of them to warm up; seconds a turn, one entry a turn."""

    def one_turn(read: Read, turn: Turn) -> None:
        for path, view in turn:
            read(path, view)

    timings: dict[str, list[Timing]] = {name: [] for name in reads}
    for number, turn in enumerate(turns):
        names = list(reads)[:: 1 if number % 2 else -1]
        taken = measure({name: partial(one_turn, reads[name], turn) for name in names}, repeats=1, warmup=0)
        for name in names if number else ():
            timings[name].append(taken[name])
    return timings


def differences(reads: Mapping[str, Read], turn: Turn) -> dict[str, float]:
    """Returns how far each candidate's clips are from the reference reader's: mean absolute difference in levels."""
    wanted = [reads[REFERENCE](path, view).astype(np.int16) for path, view in turn]
    return {
        name: float(np.mean([np.abs(read(*item) - clip).mean() for item, clip in zip(turn, wanted, strict=True)]))
        for name, read in reads.items()
    }


def report_clips(workloads, files, repeats: int, about: Sequence[str], output: Path) -> None:
    """Measures and writes the table of readers and peers."""
    rows = []
    for workload in workloads:
        paths = files[workload.kind]
        turns = draw_turns(paths, workload.draw, RandomResizedCrop(), repeats + 1)
        reads = {**our_readers(), **peer_reads(PEERS)}
        far = differences(reads, turns[0])
        if workload.name == "W2":  # PaddleVideo's own pipeline for it
            reads |= {name: read for name, read in peer_reads(SLOWFAST_PEERS).items() if "decord" in name}
        timings = measure_turns({**reads, FLOOR: floor_read(paths)}, turns)
        for name, taken in timings.items():
            row = {"workload": workload.name, "clips": workload.kind, "candidate": name, **ms(taken, len(paths))}
            if OURS in timings and name in GATES:
                row |= GATES[name].judge(workload.name, timings[OURS], taken)
            elif OURS in timings and name != OURS:
                row |= compare(taken, timings[OURS])
            rows.append({**row, "difference": far.get(name)})
        print(f"measured {workload.name} on {workload.kind}", file=sys.stderr, flush=True)
    columns = {
        "workload": "workload",
        "clips": "clips",
        "candidate": "candidate",
        "cpu": "CPU, ms a clip",
        "wall": "wall, ms a clip",
        "ratio": f"{OURS} against it (CPU)",
        "range": "middle half of the repeats",
        "gate": "gate",
        "met": "met",
        "difference": f"difference from {REFERENCE}, levels",
    }
    missing = [name for name, peer in PEERS.items() if not peer.available()]
    notes = [
        "W1: 8 segments, a random frame of each; W2: 32 frames, stride 2; W3: 4 frames of a window of 2 to 4 s. Box "
        "drawn as RandomResizedCrop does (area 0.08 to 1, shape 3/4 to 4/3), scaled to 224, mirrored half the time; "
        "uint8 RGB out. Every repeat has draws of its own, the same for all candidates; PaddleVideo's SlowFast "
        "pipeline cuts a square of its own about the box's centre.",
        "A new reader a clip, opening and probing included, one thread, no fallback. PaddleVideo's "
        "recipes cannot set decord's threads and leave them to FFmpeg: the rows 'own threads' are what users pay on "
        "this machine, the others the same work without the cost of threads.",
        f"{OURS} against it: the other's CPU time over that of {OURS}, divided in each repeat, the median of the "
        "repeats; in the row of the floor the other way round. "
        "The floor starts from packets in memory and converts nothing.",
        f"Not installed here: {', '.join(missing) or 'nothing'}."
        + ("" if OURS in READERS else f" There is no reader {OURS!r}, so no ratio is given."),
        *about,
    ]
    write_report("readers", rows, columns, notes, output)


def report_decoders(paths: Sequence[Path], repeats: int, about: Sequence[str], output: Path) -> None:
    """Measures and writes the guide's comparison of decoders, with this project's readers beside."""
    turns = draw_turns(paths, draw_dense, RandomShortSideCrop(), repeats + 1)
    reads = {**peer_reads(SLOWFAST_PEERS), **our_readers()}
    far, timings = differences(reads, turns[0]), measure_turns(reads, turns)
    slowest = timings[next(iter(SLOWFAST_PEERS))]
    rows = []
    for name, taken in timings.items():
        row = {"decoder": name, **ms(taken, len(paths)), **compare(slowest, taken), "difference": far[name]}
        row["guide_ms"], row["guide"] = GUIDE.get(name, (None, None))
        rows.append(row)
    columns = {
        "decoder": "decoder",
        "cpu": "CPU, ms a video",
        "wall": "wall, ms a video",
        "ratio": "speed-up over OpenCV (CPU)",
        "range": "middle half of the repeats",
        "guide_ms": "guide, ms a video",
        "guide": "guide, speed-up",
        "difference": f"difference from {REFERENCE}, levels",
    }
    notes = [
        "SlowFast's sampling, 32 frames with stride 2: all of each picture scaled to a short side of 256 to 320, a box "
        "of 224 cut from it, mirrored half the time; this project's readers take the same box at once. One thread.",
        "The guide (PaddleVideo, docs/zh-CN/tutorials/accelerate.md): OpenCV 4.2.0 and decord 0.4.2, 200 videos of "
        "Kinetics-400, one process. Its code for OpenCV is not published: here the whole file is read, as "
        "PaddleVideo's VideoDecoder does.",
        *about,
    ]
    write_report("reader_decoders", rows, columns, notes, output)


def report_jpeg(path: Path, repeats: int, about: Sequence[str], output: Path) -> None:
    """Measures and writes the table of JPEG decoders, on 8 frames of a clip."""
    with build_reader(REFERENCE).open(path) as video:
        frames = video.read([View(SegmentSampling()(video.info.num_frames, 8))])[0]
    images = [cv2.imencode(".jpg", frame[:, :, ::-1])[1].tobytes() for frame in frames]
    decoders = {
        "Pillow": lambda data: np.asarray(Image.open(io.BytesIO(data)).convert("RGB")),
        "cv2.imdecode": lambda data: cv2.cvtColor(
            cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB
        ),
        "the frames reader": decode_image,
    }
    try:
        import simplejpeg

        decoders["simplejpeg"] = simplejpeg.decode_jpeg
    except ImportError:
        about = ["simplejpeg is not installed here.", *about]
    calls = {name: lambda decode=decode: [decode(data) for data in images] for name, decode in decoders.items()}
    timings = measure(calls, repeats, inner=5)
    rows = []
    for name, timing in timings.items():
        far = np.mean([np.abs(decoders[name](data).astype(int) - frame).mean() for data, frame in zip(images, frames)])
        ratio = timings["Pillow"].cpu / timing.cpu
        rows.append({"decoder": name, **ms([timing], 1), "ratio": ratio, "difference": float(far)})
    columns = {
        "decoder": "decoder",
        "cpu": "CPU, ms for 8 frames",
        "wall": "wall, ms for 8 frames",
        "ratio": "speed-up over Pillow (CPU)",
        "difference": "difference from the frames encoded, levels",
    }
    height, width = frames.shape[1:3]
    size = sum(map(len, images)) / len(images) / 1024
    notes = [f"Frames of {width}x{height}, OpenCV's default quality (95), {size:.1f} KiB each, in memory.", *about]
    write_report("reader_jpeg", rows, columns, notes, output)


def ms(timings: Sequence[Timing], clips: int) -> dict[str, float]:
    """Returns the cells cpu and wall of a row, in milliseconds a clip: medians."""
    cpu, wall = (statistics.median(getattr(timing, kind) for timing in timings) for kind in ("cpu", "wall"))
    return {"cpu": 1000 * cpu / clips, "wall": 1000 * wall / clips}


if __name__ == "__main__":
    main()
