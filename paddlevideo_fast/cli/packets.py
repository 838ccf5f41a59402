"""Shows what the fused reader decodes of a video for some frames."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from paddlevideo_fast.cli.options import explain
from paddlevideo_fast.data.readers import VideoError, build_reader
from paddlevideo_fast.plots import plot_packets


def main(argv: Sequence[str] | None = None) -> int:
    """Prints and draws the pictures of a video by kind, decoded or left out; returns the exit status."""
    parser = argparse.ArgumentParser(
        description="Show which pictures of a video the fused reader decodes for the frames a clip wants.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("video", help="video file")
    parser.add_argument("--segments", type=int, default=8, metavar="N", help="frames, in the middles of N equal parts")
    parser.add_argument("--frames", type=int, nargs="+", metavar="INDEX", help="frames by index, instead")
    parser.add_argument("--output", default="output/packets.png", metavar="FILE.png", help="picture to write")
    args = parser.parse_args(argv)
    if args.segments < 1:
        parser.error(f"--segments must be at least 1, got {args.segments}")
    try:
        decoded, kinds, wanted = examine(args.video, args.frames, args.segments)
        plot_packets(kinds, decoded, wanted, args.output)
    except (VideoError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {explain(error)}\n")
    chosen = [kinds[index] for index in decoded]
    parts = ", ".join(f"{chosen.count(kind)} of {kinds.count(kind)} {kind}" for kind in "IPB" if kind in kinds)
    print(
        f"{len(set(wanted))} frames wanted of {len(kinds)}; decoded: {len(decoded)} ({parts}); drawn in {args.output}"
    )
    return 0


def examine(path: str, frames: Sequence[int] | None, segments: int) -> tuple[list[int], list[str], list[int]]:
    """Returns the indices decoded, the kind of every frame ("I", "P", "B" or "?"), and the indices wanted.

    Raises:
        VideoError: The video cannot be read, is read from its start whatever is wanted, or has no such frame.
    """
    import av

    with build_reader("fused").open(path) as video:
        count = video.info.num_frames
        wanted = frames or [int(index) for index in (np.arange(segments) + 0.5) * count / segments]
        if min(wanted) < 0 or max(wanted) >= count:
            raise VideoError(path, f"frames {wanted} are asked for; it has frames 0..{count - 1}")
        if not video.selective:
            raise VideoError(path, "is read from its start, whatever is wanted: its packets do not tell enough")
        numbers = np.concatenate(video.packets_to_decode(sorted(set(wanted)))).tolist()
        places = {number: index for index, number in enumerate(video.order.tolist())}
    try:
        with av.open(path, metadata_errors="ignore") as container:
            kinds = [av.video.frame.PictureType(frame.pict_type).name for frame in container.decode(video=0)]
    except av.FFmpegError as error:
        raise VideoError(path, f"does not decode to its end: {error.strerror}") from error
    kinds = [kind if kind in ("I", "P", "B") else "?" for kind in kinds]
    return sorted(places[number] for number in numbers if number in places), kinds, wanted
