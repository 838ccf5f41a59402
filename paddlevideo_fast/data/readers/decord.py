"""decord's decoder, behind a guard that refuses the files whose frames it gets wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from paddlevideo_fast.data.readers.chunked import FileReader
from paddlevideo_fast.data.readers.packets import PacketIndex, scan_packets
from paddlevideo_fast.data.readers.reader import Video, load_package
from paddlevideo_fast.data.readers.sources import resolve
from paddlevideo_fast.data.video import MAX_FRAMES, MAX_PIXELS, InexactReaderError, Limits, Source

CONTAINERS = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
BATCH = 32  # frames held at a time
CODECS = ("h264", "hevc", "vp8", "vp9")


class DecordReader(FileReader):
    """Reads mp4, mov, mkv and webm files with H.264, HEVC, VP8 or VP9 through decord.

    Whether the frames are exact is judged from the packets, listed by PyAV; files in doubt are refused, and so are
    reads in which decord reports a frame it could not decode. A picture that its decoder drops without a report goes
    unnoticed: decord does not tell the times of what it returns.

    Args:
        threads: Decoder threads; 0 lets decord choose.
        max_pixels: Largest picture, width times height.
        max_frames: Most frames of a file.
    """

    name = "decord"
    package = "decord"
    may_refuse = True

    def __init__(self, threads: int = 1, max_pixels: int = MAX_PIXELS, max_frames: int = MAX_FRAMES):
        self.threads, self.limits = threads, Limits(max_pixels, max_frames)

    def open_file(self, source: Source) -> DecordVideo:
        return DecordVideo(source, self.threads, self.limits)


class DecordVideo(Video):
    def __init__(self, source: Source, threads: int, limits: Limits):
        load_package("av", "decord")  # first: after decord's FFmpeg is loaded, PyAV's libvpx does not open
        decord = load_package("decord", "decord")
        self.source = source
        place = resolve(source)
        index = scan_packets(source, place, limits)
        reason = inexactness(index)
        if reason is not None:
            raise refusal(source, reason)
        self.codec, self.container = index.codec, index.container
        decord.logging.set_level(decord.logging.QUIET)
        if not isinstance(place, str):
            place.seek(0)
        try:
            # A recovered frame is a copy of another one: the least tolerance makes decord say so.
            self._frames = decord.VideoReader(place, num_threads=threads, fault_tol=1e-9)
        except (decord.DECORDError, RuntimeError, AssertionError) as error:
            raise refusal(source, "it does not open the file") from error
        count = len(index.shown_pts)
        if len(self._frames) != count:
            raise refusal(source, "it counts another number of frames")
        self.info = index.info()

    def pictures(self, indices: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        import decord
        from decord._ffi.base import DECORDLimitReachedError

        for start in range(0, len(indices), BATCH):
            wanted = list(indices[start : start + BATCH])
            try:
                batch = self._frames.get_batch(wanted).asnumpy()
            except (decord.DECORDError, DECORDLimitReachedError, RuntimeError) as error:
                raise refusal(self.source, "it does not decode a wanted frame") from error
            if batch.shape[1:3] != (self.info.height, self.info.width):
                raise refusal(self.source, "it shows pictures of another size")
            yield from zip(wanted, batch, strict=True)

    def close(self) -> None:
        self._frames = None


def inexactness(index: PacketIndex) -> str | None:
    """Returns why decord's frames of a file may be wrong; None if they are right.

    decord seeks to a key frame by its time, takes the key frame's position in the file for its position in
    presentation order, and counts on from there. That is right where each packet is one shown picture with a time of
    its own and no picture is shown before a key frame that precedes it in the file.
    """
    if index.container not in CONTAINERS:
        return f"container {index.container}"
    if index.codec not in CODECS:
        return f"codec {index.codec}"
    if index.num_streams > 1:
        return "several video streams"
    if index.damage:
        return "the file is damaged"
    if index.doubt():
        return index.doubt()
    if index.resizes:  # it is read by the pyav reader, whose decoder knows the limit of the size
        return "the size of its pictures may change"
    if index.mirrored:
        return "a mirrored picture"
    return index.seek_doubt()


def refusal(source: Source, reason: str) -> InexactReaderError:
    return InexactReaderError(source, f"decord cannot promise the right frames: {reason}; use the 'pyav' reader")
