"""What DALI is given to decode: which files it may be trusted with, their facts for the plans, their bytes.

Nothing here needs DALI or Paddle.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paddlevideo_fast.data.chunks import is_packed
from paddlevideo_fast.data.readers import FrameFolder, Reader, ShardMember, Source, Video, VideoError, build_reader
from paddlevideo_fast.data.readers.frames import FramesReader, list_frames, read_image
from paddlevideo_fast.data.readers.packets import TIMED, PacketIndex, open_stream, scan_packets
from paddlevideo_fast.data.readers.sources import resolve
from paddlevideo_fast.data.video import (
    MAX_FRAMES,
    MAX_PIXELS,
    ChunkSet,
    CropBox,
    DamagedVideoError,
    InexactReaderError,
    Limits,
    VideoInfo,
    View,
    check_views,
    describe_source,
)

INSTALL = "pip install 'nvidia-dali-cuda120>=2.4,<3'"
CPU_CODECS = ("mjpeg", "vp8", "vp9")
CODECS = (*CPU_CODECS, "av1", "h264", "hevc", "mpeg4")
# Weights of red and blue in the luma, by FFmpeg's numbers of colour matrices; ITU-T H.273, table 4.
LUMA = {1: (0.2126, 0.0722), 4: (0.3, 0.11), 5: (0.299, 0.114), 7: (0.212, 0.087), 9: (0.2627, 0.0593)}
BT601 = (2, 5, 6)  # 2 is an untagged file
MAX_KNOWN = 200_000  # files whose facts are kept, at about 500 bytes each

logger = logging.getLogger("paddlevideo_fast")


@dataclass(frozen=True)
class Facts:
    """What a plan and a decision about a source need.

    Attributes:
        info: What the plan is drawn from.
        codec: FFmpeg's name of the codec.
        damage: What is wrong with the file; None if nothing is known to be.
        doubt: Why DALI's frames may be other ones than those of a sequential decode; None if they are the same.
        colours: FFmpeg's number of the colour matrix.
        pictures: Paths of the pictures of a folder; empty for a video file.
    """

    info: VideoInfo
    codec: str
    damage: str | None = None
    doubt: str | None = None
    colours: int = 2
    pictures: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class EncodedClip:
    """One clip for DALI to decode.

    Attributes:
        source: For messages.
        data: Bytes of the video file, the same object for all clips of it that are loaded together, or of each wanted
            picture of a folder once; uint8 [bytes].
        frames: int32 [T], the frame indices of a video, or places in ``data``.
        pictures: Paths of the pictures in ``data``; empty for a video.
        box: The part of the picture to take.
        flip: Mirror left and right, after the crop.
        size: (height, width) of the clip in pixels.
        colours: FFmpeg's number of the colour matrix.
    """

    source: Source
    data: tuple[np.ndarray, ...]
    frames: np.ndarray
    pictures: tuple[str, ...]
    box: CropBox
    flip: bool
    size: tuple[int, int]
    colours: int = 2


class DaliReader(Reader):
    """Examines and loads sources for DALI; opens those it does not take with other readers, one at a time.

    Args:
        threads: DALI's threads for each thread of ``data.num_workers``; 0 takes as many as there are cores.
        fps: Frames per second of the pictures in folders; 0 if it is not known.
        max_pixels: Largest picture, width times height.
        max_frames: Most frames of a video.
        fallback: Name of the reader for the files DALI is not trusted with; None makes these files errors.

    Attributes:
        refusals: How often each reason led to the other reader, in this process.
    """

    name = "dali"
    package = "nvidia.dali"
    may_refuse = True

    def __init__(
        self,
        threads: int = 2,
        fps: float = 0.0,
        max_pixels: int = MAX_PIXELS,
        max_frames: int = MAX_FRAMES,
        fallback: str | None = "pyav",
    ):
        self.threads = threads or len(os.sched_getaffinity(0))
        self.limits, self.fps, self.fallback = Limits(max_pixels, max_frames), fps, fallback
        bounds = {"max_pixels": max_pixels, "max_frames": max_frames}
        self._folders = FramesReader(fps, **bounds)
        self._files = build_reader(fallback or "fused", fallback, **bounds)
        self._known: OrderedDict[tuple, Facts] = OrderedDict()
        self.refusals: Counter[str] = Counter()

    def open(self, source: Source) -> Video:
        """Opens a source without DALI: for predictions, and for what can be used of a damaged file."""
        return (self._folders if _is_folder(source) else self._files).open(source)

    def examine(self, source: Source) -> Facts:
        """Returns the facts about a source, those of a file from memory if it has not changed since it was examined.

        Raises:
            VideoError: It does not exist or is not a video.
            InexactReaderError: DALI is not trusted with it.
        """
        if isinstance(source, ChunkSet) or is_packed(source):
            raise refusal(source, "the video is stored in chunks")
        if _is_folder(source):
            return self._examine_folder(source)
        key = _identity(source)
        facts = self._known.get(key) or self._examine_file(source)
        if key is not None:
            self._known[key] = facts
            with contextlib.suppress(KeyError):  # another thread may have made room
                if len(self._known) > MAX_KNOWN:
                    self._known.popitem(last=False)
        if facts.doubt and not facts.damage:
            raise refusal(source, facts.doubt)
        return facts

    def _examine_file(self, source: Source) -> Facts:
        place = resolve(source)
        index = scan_packets(source, place, self.limits)
        with open_stream(source, place, self.limits) as (_, stream):
            colours = stream.codec_context.colorspace
        doubt = inexactness(index)
        if colours not in (*BT601, *LUMA):
            doubt = doubt or f"colour matrix {colours}"
        return Facts(index.info(), index.codec, index.damage, doubt, colours)

    def _examine_folder(self, source: Source) -> Facts:
        pictures = list_frames(source)
        self.limits.check_count(source, len(pictures))
        _, size = read_image(source, pictures[0], 0)
        self.limits.check_size(source, *size)
        count = len(pictures)
        info = VideoInfo(count, self.fps, *size, count / self.fps if self.fps else 0.0)
        codec = "png" if pictures[0].lower().endswith("png") else "jpeg"
        return Facts(info, codec, pictures=tuple(pictures))

    def note_refusal(self, error: InexactReaderError) -> None:
        """Counts a source that another reader takes, and logs the first of each reason.

        Raises:
            InexactReaderError: There is no other reader.
        """
        if self.fallback is None:
            raise error
        self.refusals[error.reason] += 1
        if self.refusals[error.reason] == 1:
            logger.warning("%s; reading this and all such files with %r", error, self.fallback)


def load(source: Source, facts: Facts, views: Sequence[View], size: tuple[int, int]) -> list[EncodedClip]:
    """Reads the bytes of clips of one record.

    Args:
        source: What ``examine`` took.
        facts: What it found.
        views: Frames, crop and flip of each clip.
        size: (height, width) of the clips in pixels.

    Raises:
        VideoError: A frame or region does not exist, or the file cannot be read.
        DamagedVideoError: A picture of a folder is missing, broken or of another size than the first.
    """
    check_views(source, facts.info, views, size)
    data = () if facts.pictures else (_read_file(source),)
    clips = []
    for view in views:
        frames, pictures = np.asarray(view.indices, np.int32), ()
        if facts.pictures:
            wanted, places = np.unique(frames, return_inverse=True)
            frames, pictures = places.astype(np.int32), tuple(facts.pictures[index] for index in wanted)
            data = tuple(_read_picture(source, facts, index) for index in wanted.tolist())
        box = view.crop or CropBox(0, 0, facts.info.width, facts.info.height)
        clips.append(EncodedClip(source, data, frames, pictures, box, view.flip, size, facts.colours))
    return clips


def _read_file(source: Source) -> np.ndarray:
    place = resolve(source)
    if not isinstance(place, str):
        return np.frombuffer(place.read(), np.uint8)
    try:
        return np.fromfile(place, np.uint8)
    except OSError as error:
        raise VideoError(source, f"cannot be read ({error.strerror})") from error


def _read_picture(source: Source, facts: Facts, index: int) -> np.ndarray:
    data, (width, height) = read_image(source, facts.pictures[index], index)
    shown = facts.info[2:4]
    if (width, height) != shown:
        reason = f"frame {index} is {width}x{height}, the video is {shown[0]}x{shown[1]}"
        raise DamagedVideoError(source, reason, index)
    return np.frombuffer(data, np.uint8)


def inexactness(index: PacketIndex) -> str | None:
    """Returns why DALI's frames of a file may be wrong; None if they are right.

    DALI takes each packet for one shown picture, orders them by time, seeks to what is flagged as a key frame, and
    shows pictures as they are coded.
    """
    if index.codec not in CODECS:
        return f"codec {index.codec}"
    if index.container not in TIMED and (index.container, index.codec) != ("avi", "mjpeg"):
        return f"container {index.container}"  # others carry no times of pictures, or start anywhere
    if index.num_streams > 1:
        return "several video streams"
    if index.doubt():
        return index.doubt()
    if index.resizes:
        return "the size of its pictures may change"
    if index.turns or index.mirrored:
        return "a turned or mirrored picture"
    return index.seek_doubt()


@functools.cache
def recolouring(colours: int) -> np.ndarray | None:
    """Returns what corrects the colours of a video; None where DALI, which takes every file for BT.601, is right.

    Args:
        colours: FFmpeg's number of the colour matrix.

    Returns:
        float32 [3, 3], to be multiplied from the right with RGB rows.

    Source: ITU-T H.273, equations 38 to 40 and those of table 4.
    """
    if colours in BT601:
        return None
    return (_to_rgb(*LUMA[colours]) @ np.linalg.inv(_to_rgb(*LUMA[5]))).T.astype(np.float32)


def _to_rgb(red: float, blue: float) -> np.ndarray:
    """The matrix from luma and the two colour differences to RGB."""
    green = 1 - red - blue
    to_red, to_blue = 2 * (1 - red), 2 * (1 - blue)
    return np.array([[1, 0, to_red], [1, -to_blue * blue / green, -to_red * red / green], [1, to_blue, 0]])


def refusal(source: Source, reason: str) -> InexactReaderError:
    return InexactReaderError(source, f"DALI cannot promise the right frames: {reason}")


def needs_gpu(source: Source, codec: str) -> str:
    """Returns the sentence for a video that DALI decodes on a GPU only."""
    return (
        f"{describe_source(source)}: DALI decodes {codec} on a GPU only, and this run computes on the CPU: "
        "use a GPU, or read with -o data.reader=fused"
    )


def load_dali() -> None:
    """Loads DALI.

    Raises:
        ImportError: It is not installed or does not load; says what to install.
    """
    try:
        importlib.import_module("nvidia.dali")
    except (ImportError, OSError) as error:
        missing = isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("nvidia")
        cause = "is not installed" if missing else f"cannot be loaded ({error})"
        text = f"reader 'dali' needs NVIDIA DALI, which {cause}: {INSTALL} (Linux), or use the 'fused' reader"
        raise ImportError(text) from error


def _is_folder(source: Source) -> bool:
    return isinstance(source, FrameFolder) or (isinstance(source, (str, Path)) and os.path.isdir(source))


def _identity(source: Source) -> tuple | None:
    """Returns what tells a file from an earlier one of the same name; None for memory and what does not exist."""
    place = source.path if isinstance(source, ShardMember) else source
    if not isinstance(place, (str, Path)) or not os.path.exists(place):
        return None
    status = os.stat(place)
    return source, status.st_size, status.st_mtime_ns
