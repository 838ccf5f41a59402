"""What the length of a file costs a clip of four frames: one long file against pieces of it.

    python benchmark/bench_chunks.py [--quick]

AVION cuts long videos into 15-second chunks, since its reader pays for a file's length. The video is a synthesised
15-second clip, 512x288, repeated to ten minutes by copying its packets, and cut again in the same way: every length
holds the same pictures, each piece begins with a key frame. A clip lies in the same 15 seconds whatever the length.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, installed or not

import av
import numpy as np
from bench_readers import draw_window, measure_turns, ms
from reader_clips import make_clips
from reader_peers import PEERS
from report import RESULTS, write_report

from paddlevideo_fast.data.crops import RandomResizedCrop
from paddlevideo_fast.data.readers import View, build_reader

WHOLE, CHUNK = 600, 15  # seconds
LENGTHS = (600, 300, 60, 15)


def repeat(source: Path, target: Path, times: int) -> None:
    """Writes a file that holds the packets of another several times, one after the other."""
    with av.open(str(source)) as read, av.open(str(target), "w") as output:
        stream = output.add_stream_from_template(read.streams.video[0])
        packets = [packet for packet in read.demux(video=0) if packet.size]
        length = sum(packet.duration for packet in packets)
        kept = [(bytes(p), p.pts, p.dts, p.duration, p.is_keyframe, p.time_base) for p in packets]
        for turn in range(times):
            for data, pts, dts, duration, is_key, time_base in kept:
                packet = av.Packet(data)
                packet.stream, packet.time_base, packet.is_keyframe = stream, time_base, is_key
                packet.pts, packet.dts, packet.duration = pts + turn * length, dts + turn * length, duration
                output.mux(packet)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--device", default="cpu", choices=("cpu",), help="nothing runs on a device here")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the tables")
    args = parser.parse_args()
    repeats = 7 if args.quick else 21
    (source,) = make_clips("512x288", 1)
    files = {seconds: source.with_name(f"long_{seconds}.mp4") for seconds in LENGTHS}
    for seconds, path in files.items():
        if not path.exists():
            repeat(source, path, seconds // CHUNK)
    rng, crop = np.random.default_rng(0), RandomResizedCrop()
    info = build_reader("fused").probe(source)
    plans = []
    for _ in range(repeats + 1):
        box, _ = crop(info.width, info.height, 224, 0, rng)
        plans.append((int(rng.integers(WHOLE // CHUNK)), View(draw_window(info, rng), box)))

    def read_fused(path: str, view: View) -> np.ndarray:
        with build_reader("fused").open(path) as video:
            return video.read([view], (224, 224))[0]

    def at(read, seconds: int, chunk: int, view: View) -> np.ndarray:
        first = chunk % (seconds // CHUNK) * info.num_frames
        return read(str(files[seconds]), View(np.asarray(view.indices) + first, view.crop))

    kinds = {"fused": read_fused, "decord + cv2": PEERS["decord + cv2"].read}
    reads = {(name, seconds): partial(at, read, seconds) for name, read in kinds.items() for seconds in LENGTHS}
    timings = measure_turns(reads, [[plan] for plan in plans])
    rows = []
    for (name, seconds), taken in timings.items():
        ratio = float(np.median([one.cpu / short.cpu for one, short in zip(taken, timings[name, CHUNK])]))
        rows.append({"reader": name, "length": f"{seconds} s", **ms(taken, 1), "ratio": ratio})
    columns = {
        "reader": "reader",
        "length": "length of a file",
        "cpu": "CPU, ms a clip",
        "wall": "wall, ms a clip",
        "ratio": f"against {CHUNK} s",
    }
    notes = [f"4 frames of a window of 2 to 4 s, a new reader a clip; {repeats} repeats, candidates in turn, medians."]
    write_report("chunks", rows, columns, notes, args.output)


if __name__ == "__main__":
    main()
