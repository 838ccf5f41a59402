"""OpenCV's FFmpeg back end, read forward without seeking, behind a guard."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from paddlevideo_fast.data.readers.chunked import FileReader
from paddlevideo_fast.data.readers.packets import DEMUXERS, TIMED, PacketIndex, scan_packets
from paddlevideo_fast.data.readers.reader import Video, load_package
from paddlevideo_fast.data.readers.sources import resolve
from paddlevideo_fast.data.video import MAX_FRAMES, MAX_PIXELS, InexactReaderError, Limits, Source

OPTIONS = "OPENCV_FFMPEG_CAPTURE_OPTIONS"


class OpencvReader(FileReader):
    """Reads files through ``cv2.VideoCapture``, from the first picture to the last wanted one.

    How many frames there are is judged from the packets, listed by PyAV; files in doubt are refused, and so is
    memory (bytes, file objects), which the back end does not open.

    Args:
        threads: Decoder threads; 0 lets FFmpeg choose.
        max_pixels: Largest picture, width times height.
        max_frames: Most frames of a file.
    """

    name = "opencv"
    package = "cv2"
    may_refuse = True

    def __init__(self, threads: int = 1, max_pixels: int = MAX_PIXELS, max_frames: int = MAX_FRAMES):
        self.threads, self.limits = threads, Limits(max_pixels, max_frames)

    def open_file(self, source: Source) -> OpencvVideo:
        return OpencvVideo(source, self.threads, self.limits)


class OpencvVideo(Video):
    def __init__(self, source: Source, threads: int, limits: Limits):
        # Read once, when OpenCV first opens a video; 8 is FFmpeg's "fatal".
        os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "8")
        load_package("cv2", "opencv")
        load_package("av", "opencv")
        self.source, self._threads, self._capture = source, threads, None
        self._place = resolve(source)
        if not isinstance(self._place, str):
            raise refusal(source, "it opens files only, not memory")
        index = self._index = scan_packets(source, self._place, limits)
        reason = inexactness(index)
        if reason is not None:
            raise refusal(source, reason)
        self.codec, self.container = index.codec, index.container
        self.info = index.info()
        try:
            self._restart()
            if self._retrieve().shape[:2] != (self.info.height, self.info.width):
                raise refusal(source, "it shows pictures of another size")
        except BaseException:
            self.close()
            raise

    def _restart(self) -> None:
        import cv2

        self.close()
        with _local_files_only():
            self._capture = cv2.VideoCapture(self._place, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, self._threads])
        self._position = -1
        if not self._capture.isOpened():
            raise refusal(self.source, "it does not open the file")
        self._grab(0)
        self._start = self._capture.get(cv2.CAP_PROP_POS_MSEC)

    def _grab(self, index: int) -> None:
        while self._position < index:
            if not self._capture.grab():
                raise refusal(self.source, "it ends before the last frame")
            self._position += 1

    def _check_time(self, index: int) -> None:
        """OpenCV passes over data that does not decode; the time of a picture shows that some are missing."""
        import cv2

        if self._index.container not in TIMED:
            return
        times = self._index.shown_pts
        wanted = float((times[index] - times[0]) * self._index.time_base) * 1000
        gap = float(np.diff(times).min() * self._index.time_base) * 1000 if len(times) > 1 else 1.0
        if abs(self._capture.get(cv2.CAP_PROP_POS_MSEC) - self._start - wanted) > gap / 2:
            raise refusal(self.source, "pictures are missing from what it shows")

    def _retrieve(self) -> np.ndarray:
        import cv2

        done, picture = self._capture.retrieve()
        if not done:
            raise refusal(self.source, "it does not decode a wanted frame")
        return cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)

    def pictures(self, indices: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
        for index in indices:
            if index < self._position:
                self._restart()
            self._grab(index)
            self._check_time(index)
            yield index, self._retrieve()

    def close(self) -> None:
        if self._capture is not None:
            self._capture.release()
        self._capture = None


@contextmanager
def _local_files_only() -> Iterator[None]:
    """Holds OpenCV's FFmpeg to the containers and the protocol that PyAV's is held to, while a file is opened."""
    before = os.environ.get(OPTIONS)
    os.environ[OPTIONS] = f"protocol_whitelist;file|format_whitelist;{DEMUXERS}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[OPTIONS]
        else:
            os.environ[OPTIONS] = before


def inexactness(index: PacketIndex) -> str | None:
    """Returns why OpenCV's frames of a file may be wrong; None if they are right."""
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
    if index.discard.any():
        return "an edit list hides pictures"
    return None


def refusal(source: Source, reason: str) -> InexactReaderError:
    return InexactReaderError(source, f"opencv cannot promise the right frames: {reason}; use the 'pyav' reader")
