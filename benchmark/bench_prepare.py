"""What encoding a data set anew is worth: bytes, PSNR and the cost of reading clips, for each way of encoding.

    python benchmark/bench_prepare.py [--clips N] [--only ENCODE ...] [--quick]

Clips of 1280x720 are made, encoded as tools/data/prepare_videos.py does, and read by the fused reader and by
PaddleVideo's pipelines. Runs without Paddle; PaddleVideo's pipelines take part where decord is installed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

import av  # noqa: F401  before decord, whose FFmpeg gets in its way
import cv2
import numpy as np
from reader_clips import KINDS, ClipKind, make_clips
from reader_peers import PEERS, SLOWFAST_PEERS
from report import RESULTS, measure, write_report

from paddlevideo_fast.data.readers import View, build_reader
from paddlevideo_fast.prepare.encode import ENCODES, Settings, encode_video
from paddlevideo_fast.prepare.speed import SAMPLINGS, draw_view, read_fused

KIND = "1280x720"
KINDS.setdefault(KIND, ClipKind(1280, 720, 10))
ORIGINAL, BASELINE = "the original, 1280x720", "default"
PADDLEVIDEO = {
    "8 segments": PEERS["PaddleVideo (ppTSM, PIL)"],
    "32 frames, stride 2": SLOWFAST_PEERS["PaddleVideo (SlowFast, decord)"],
}
SHORT = {"8 segments": "w1", "32 frames, stride 2": "w2"}

Read = Callable[[str, View], np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=3, help="files, each read once a repeat")
    parser.add_argument("--repeats", type=int, help="repeats of every measurement (default: 9, with --quick 3)")
    parser.add_argument("--only", nargs="+", default=list(ENCODES), choices=list(ENCODES), help="encodes to measure")
    parser.add_argument("--quick", action="store_true", help="fewer repeats and clips")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"), help="videos are read by the CPU")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the table")
    args = parser.parse_args()
    cv2.setNumThreads(1)
    repeats = args.repeats or (3 if args.quick else 9)
    sources = make_clips(KIND, 1 if args.quick else args.clips)
    rows, files = encode_all(sources, [BASELINE, *(name for name in args.only if name != BASELINE)])
    for sampling in SAMPLINGS:
        add_times(rows, files, sampling, repeats)
    columns = {
        "encode": "encode",
        "bytes": "bytes, of the original",
        "to_default": "bytes, of x264's default",
        "psnr": "PSNR, dB",
        "encoding": "encoding, CPU s a clip",
        "w1": "fused, 8 segments, CPU ms",
        "w1_original": "PaddleVideo on the original",
        "w1_default": "PaddleVideo on `default`",
        "w2": "fused, 32 frames, CPU ms",
        "w2_original": "PaddleVideo on the original",
        "w2_default": "PaddleVideo on `default`",
    }
    notes = [
        f"{len(sources)} clips of 10 s, 30 fps, made here, x264's defaults (crf 23). Encoded anew at short side 256, "
        "crf 23, preset medium, no sound; PSNR of 12 random frames against what the encoder was given.",
        "CPU ms a clip of 8 segments (a random frame each) or 32 frames with stride 2: a random box scaled to 224, "
        "mirrored half the time. A new reader a clip, opening and listing the packets included, one thread.",
        "The columns PaddleVideo: its CPU time over that of fused in this row, ppTSM's recipe for 8 segments and "
        "SlowFast's for 32 frames, one decoder thread (its own choice of threads costs more). It takes "
        f"{_paddlevideo_times(rows, 'original')} on the original, and on `default`, which has a short side of 256 too, "
        f"{_paddlevideo_times(rows, 'default')}.",
        f"{repeats} repeats, candidates in turn, medians.",
    ]
    write_report("prepare", rows, columns, notes, args.output)


def encode_all(sources: Sequence[Path], encodes: Sequence[str]) -> tuple[list[dict], dict[str, list[Path]]]:
    """Encodes the sources in every way; returns the rows, without times, and the files by encode."""
    files = {ORIGINAL: list(sources)}
    rows = [{"encode": ORIGINAL, "bytes": 1.0}]
    before = sum(path.stat().st_size for path in sources)
    for encode in encodes:
        files[encode] = [path.with_name(f"{path.stem}_{encode}.mp4") for path in sources]
        made = []

        def run(encode: str = encode, made: list = made) -> None:
            pairs = zip(sources, files[encode], strict=True)
            made += [encode_video(str(source), str(target), Settings(encode)) for source, target in pairs]

        taken = measure({encode: run}, repeats=1, warmup=0)[encode]
        after = sum(each.num_bytes for each in made)
        rows.append(
            {
                "encode": encode,
                "bytes": after / before,
                "to_default": after / sum(path.stat().st_size for path in files[BASELINE]),
                "psnr": float(np.mean([each.psnr for each in made])),
                "encoding": taken.cpu / len(sources),
            }
        )
        print(f"encoded {encode}", file=sys.stderr, flush=True)
    return rows, files


def add_times(rows: Sequence[dict], files: Mapping[str, Sequence[Path]], sampling: str, repeats: int) -> None:
    """Measures one sampling on the files of every row, and PaddleVideo on the originals and the default encode."""
    candidates: dict[tuple[str, str], Read] = {("fused", encode): read_fused for encode in files}
    if PADDLEVIDEO[sampling].available():
        candidates |= {("PaddleVideo", encode): PADDLEVIDEO[sampling].read for encode in (ORIGINAL, BASELINE)}
    infos = {encode: [build_reader("pyav").probe(path) for path in paths] for encode, paths in files.items()}
    taken: dict[tuple[str, str], list[float]] = {key: [] for key in candidates}
    for repeat in range(repeats + 1):
        turns = {}
        for key, read in candidates.items():
            rng = np.random.default_rng(repeat)  # the same frames, and boxes in proportion, for all
            views = [draw_view(info, SAMPLINGS[sampling], rng) for info in infos[key[1]]]
            turns[key] = partial(read_all, read, files[key[1]], views)
        timings = measure(turns, repeats=1, warmup=0)
        for key, timing in timings.items() if repeat else ():  # the first warms up
            taken[key].append(1000 * timing.cpu / len(files[key[1]]))
    name = SHORT[sampling]
    for row in rows:
        ours = np.array(taken["fused", row["encode"]])
        row[name] = float(np.median(ours))
        for encode, column in ((ORIGINAL, "original"), (BASELINE, "default")):
            theirs = taken.get(("PaddleVideo", encode))
            if theirs:
                if row["encode"] != ORIGINAL or column == "original":
                    row[f"{name}_{column}"] = float(np.median(np.array(theirs) / ours))
                row[f"{name}_paddlevideo_{column}_ms"] = float(np.median(theirs))
    print(f"measured {sampling}", file=sys.stderr, flush=True)


def read_all(read: Read, paths: Sequence[Path], views: Sequence[View]) -> None:
    for path, view in zip(paths, views, strict=True):
        read(str(path), view)


def _paddlevideo_times(rows: Sequence[Mapping], where: str) -> str:
    times = [rows[0].get(f"{name}_paddlevideo_{where}_ms") for name in SHORT.values()]
    return "not measured, decord is missing" if None in times else " and ".join(f"{time:.0f} ms" for time in times)


if __name__ == "__main__":
    main()
