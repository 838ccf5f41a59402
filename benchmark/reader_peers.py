"""What others do to read a training clip, written from their sources, and the decoding nobody can do without.

clip = PEERS["mmaction2"].read("clip.mp4", View([0, 8, 16], CropBox(10, 0, 200, 200), flip=True))

Each peer opens the file, decodes the frames, takes the box of the view, scales it to ``SIZE`` and mirrors it where the
view says so, in the steps of the original. They decode with one thread, unless the name says "own threads":
PaddleVideo does not tell decord how many to use, which then takes as many as FFmpeg finds fit for the machine.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from PIL import Image

from paddlevideo_fast.data.readers.reader import has_package
from paddlevideo_fast.data.video import CropBox, View

SIZE = 224
SHORT_SIDE = 256
JITTER = (256, 320)  # short sides of JitterScale


def paddlevideo(path: str, view: View, threads: int = 1) -> np.ndarray:
    """PaddleVideo's recipe for ppTSM: PIL pictures, all of each scaled to 341x256, then the box.

    Args:
        path: A video file.
        view: Frame indices, box in pixels of the picture as shown, flip.
        threads: Of the decoder; 0, as in the original, leaves the number to FFmpeg.

    Returns:
        uint8 [T, 224, 224, 3] RGB.

    Source: PaddleVideo, ``configs/recognition/pptsm/pptsm_k400_videos_uniform.yaml``; in
    ``paddlevideo/loader/pipelines`` decode.py (VideoDecoder, decord), sample.py (Sampler), augmentations.py (Scale,
    MultiScaleCrop, RandomFlip, Image2Array without its conversion to float32). The RandomCrop from 256 to 224 that
    follows there is left out: the box is scaled to 224 at once.
    """
    pictures = [Image.fromarray(frame) for frame in _decord_batch(path, view.indices, threads)]
    pictures, (x, y, width, height) = _scale_to_4_by_3(pictures, view.crop)
    pictures = [picture.crop((x, y, x + width, y + height)) for picture in pictures]
    pictures = [picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR) for picture in pictures]
    return np.stack(_flip_pil(pictures, view.flip))


def _scale_to_4_by_3(pictures: list[Image.Image], box: CropBox) -> tuple[list[Image.Image], CropBox]:
    width, height = pictures[0].size
    if min(width, height) == SHORT_SIDE:
        return pictures, box
    long_side = int(SHORT_SIDE * 4.0 / 3.0)
    size = (SHORT_SIDE, long_side) if width <= height else (long_side, SHORT_SIDE)
    scaled = [picture.resize(size, Image.Resampling.BILINEAR) for picture in pictures]
    return scaled, scale_box(box, (width, height), size)


def paddlevideo_cv2(path: str, view: View) -> np.ndarray:
    """PaddleVideo's recipe for TSN: as for ppTSM, but scaled by OpenCV, to and from PIL, keeping the picture's shape.

    Source: PaddleVideo, ``configs/recognition/tsn/tsn_k400_videos.yaml`` and the files named at ``paddlevideo``
    (``backend: 'cv2'`` of Scale and MultiScaleCrop).
    """
    pictures = [Image.fromarray(frame) for frame in _decord_batch(path, view.indices)]
    before = pictures[0].size
    size, box = short_side_size(*before), view.crop
    if min(before) != SHORT_SIDE:
        pictures = [Image.fromarray(resize_cv2(np.asarray(picture), size)) for picture in pictures]
        box = scale_box(box, before, size)
    x, y, width, height = box
    pictures = [picture.crop((x, y, x + width, y + height)) for picture in pictures]
    pictures = [Image.fromarray(resize_cv2(np.asarray(picture), (SIZE, SIZE))) for picture in pictures]
    return np.stack(_flip_pil(pictures, view.flip))


def mmaction2(path: str, view: View) -> np.ndarray:
    """mmaction2's pipeline: the file's bytes to decord, all of each picture scaled to short side 256, then the box.

    Source: mmaction2, ``configs/recognition/slowfast/slowfast_r50_8xb8-4x16x1-256e_kinetics400-rgb.py``; in
    ``mmaction/datasets/transforms`` loading.py (DecordInit, DecordDecode) and processing.py (Resize,
    RandomResizedCrop, Flip), whose mmcv functions are cv2.resize (also where the size is the same) and cv2.flip.
    """
    frames = list(_decord_batch(io.BytesIO(Path(path).read_bytes()), view.indices))
    before = frames[0].shape[1::-1]
    size = short_side_size(*before)
    frames = [resize_cv2(frame, size) for frame in frames]
    x, y, width, height = scale_box(view.crop, before, size)
    frames = [frame[y : y + height, x : x + width] for frame in frames]
    frames = [resize_cv2(frame, (SIZE, SIZE)) for frame in frames]
    return np.stack([cv2.flip(frame, 1, frame) for frame in frames] if view.flip else frames)


def decord_cv2(path: str, view: View) -> np.ndarray:
    """The shortest way with decord: the box of the decoded picture, scaled once by OpenCV."""
    x, y, width, height = view.crop
    clip = np.empty((len(view.indices), SIZE, SIZE, 3), np.uint8)
    for out, frame in zip(clip, _decord_batch(path, view.indices), strict=True):
        picture = resize_cv2(frame[y : y + height, x : x + width], (SIZE, SIZE))
        out[:] = cv2.flip(picture, 1) if view.flip else picture
    return clip


def torchcodec_torchvision(path: str, view: View) -> np.ndarray:
    """torchcodec's decoder with its defaults (exact seeking), then torchvision's v2 transforms on the batch."""
    from torchcodec.decoders import VideoDecoder
    from torchvision.transforms.v2 import functional

    x, y, width, height = view.crop
    frames = VideoDecoder(path, num_ffmpeg_threads=1).get_frames_at(_to_list(view.indices)).data
    clip = functional.resized_crop(frames, y, x, height, width, [SIZE, SIZE], antialias=True)
    clip = functional.horizontal_flip(clip) if view.flip else clip
    return clip.permute(0, 2, 3, 1).contiguous().numpy()


def torchcodec_own(path: str, view: View) -> np.ndarray:
    """torchcodec's decoder with crop and resize as its own transforms, applied while it decodes; flip by torchvision.

    Source: torchcodec, ``torchcodec/transforms/_decoder_transforms.py`` (RandomCrop, Resize); the crop here takes
    the place that the view names instead of a random one.
    """
    from torchcodec.decoders import VideoDecoder
    from torchcodec.transforms import Resize
    from torchvision.transforms.v2 import functional

    steps = [_fixed_crop(view.crop), Resize([SIZE, SIZE])]
    decoder = VideoDecoder(path, num_ffmpeg_threads=1, transforms=steps)
    clip = decoder.get_frames_at(_to_list(view.indices)).data
    clip = functional.horizontal_flip(clip) if view.flip else clip
    return clip.permute(0, 2, 3, 1).contiguous().numpy()


def _fixed_crop(box: CropBox) -> Any:
    from torchcodec.transforms import RandomCrop

    class FixedCrop(RandomCrop):
        def _make_transform_spec(self, input_dims: tuple[int | None, int | None]) -> str:
            return f"crop, {box.height}, {box.width}, {box.x}, {box.y}"

    return FixedCrop([box.height, box.width])


def slowfast_decord(path: str, view: View, threads: int = 1) -> np.ndarray:
    """PaddleVideo's SlowFast pipeline: decord, PIL pictures, all of each scaled, 224 by 224 pixels cut out.

    The short side is the one at which the view's box is 224 pixels wide, held to the range of 256 to 320 that the
    original draws from; what is cut out has the box's centre. For a square box in that range it is the box.

    Source: PaddleVideo, ``configs/recognition/slowfast/slowfast.yaml``; ``paddlevideo/loader/pipelines/``
    decode_sampler.py (DecodeSampler), augmentations.py (JitterScale, MultiCrop, RandomFlip).
    """
    return _jitter_and_crop(list(_decord_batch(path, view.indices, threads)), view)


def slowfast_opencv(path: str, view: View) -> np.ndarray:
    """The same with OpenCV as the decoder, which reads the file to its end and keeps every picture.

    Source: PaddleVideo, ``paddlevideo/loader/pipelines/decode.py`` (VideoDecoder, cv2).
    """
    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
    frames = []
    for _ in range(int(capture.get(cv2.CAP_PROP_FRAME_COUNT))):
        done, frame = capture.read()
        if done:
            frames.append(frame[:, :, ::-1])
    capture.release()
    return _jitter_and_crop([np.ascontiguousarray(frames[index]) for index in view.indices], view)


def _jitter_and_crop(frames: list[np.ndarray], view: View) -> np.ndarray:
    pictures = [Image.fromarray(frame) for frame in frames]
    width, height = pictures[0].size
    short = round(min(max(min(width, height) * SIZE / view.crop.width, JITTER[0]), JITTER[1]))
    zoom = short / min(width, height)
    size = (short, int(height * zoom)) if width < height else (int(width * zoom), short)
    if size != (width, height):
        pictures = [picture.resize(size, Image.Resampling.BILINEAR) for picture in pictures]
    centre = (view.crop.x + view.crop.width / 2, view.crop.y + view.crop.height / 2)
    x, y = (min(max(round(at * zoom - SIZE / 2), 0), side - SIZE) for at, side in zip(centre, size))
    pictures = [picture.crop((x, y, x + SIZE, y + SIZE)) for picture in pictures]
    return np.stack(_flip_pil(pictures, view.flip))


def _decord_batch(place: str | io.BytesIO, indices: Sequence[int], threads: int = 1) -> np.ndarray:
    import decord

    return decord.VideoReader(place, num_threads=threads).get_batch(_to_list(indices)).asnumpy()


def _flip_pil(pictures: list[Image.Image], flip: bool) -> list[Image.Image]:
    return [picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for picture in pictures] if flip else pictures


def _to_list(indices: Sequence[int]) -> list[int]:
    return [int(index) for index in indices]


def resize_cv2(picture: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Scales uint8 [H, W, 3] to (width, height)."""
    return cv2.resize(picture, size, interpolation=cv2.INTER_LINEAR)


def short_side_size(width: int, height: int) -> tuple[int, int]:
    """Returns (width, height) scaled so that the short side is 256, rounded."""
    zoom = SHORT_SIDE / min(width, height)
    return int(width * zoom + 0.5), int(height * zoom + 0.5)


def scale_box(box: CropBox, before: tuple[int, int], after: tuple[int, int]) -> CropBox:
    """Returns where a box lies once the picture of size ``before`` is scaled to ``after``; both (width, height)."""
    across, down = after[0] / before[0], after[1] / before[1]
    x, y = round(box.x * across), round(box.y * down)
    width, height = max(1, round(box.width * across)), max(1, round(box.height * down))
    return CropBox(x, y, min(width, after[0] - x), min(height, after[1] - y))


@dataclass(frozen=True)
class Peer:
    """One way to read a clip.

    Attributes:
        read: Function (path, view) -> uint8 [T, 224, 224, 3].
        packages: Modules it needs beyond those of this project.
    """

    read: Callable[[str, View], np.ndarray]
    packages: tuple[str, ...]

    def available(self) -> bool:
        """Returns whether its packages are there; those of torch must also load their FFmpeg."""
        if not all(has_package(module) for module in self.packages):
            return False
        if "torchcodec" not in self.packages:
            return True
        try:
            import torchcodec.decoders  # noqa: F401
        except (ImportError, RuntimeError, OSError):  # RuntimeError: no FFmpeg library that it knows
            return False
        return True


PEERS = {
    "PaddleVideo (ppTSM, PIL)": Peer(paddlevideo, ("decord",)),
    "PaddleVideo (ppTSM, PIL), own threads": Peer(partial(paddlevideo, threads=0), ("decord",)),
    "PaddleVideo (TSN, cv2)": Peer(paddlevideo_cv2, ("decord",)),
    "mmaction2": Peer(mmaction2, ("decord",)),
    "decord + cv2": Peer(decord_cv2, ("decord",)),
    "torchcodec + torchvision": Peer(torchcodec_torchvision, ("torchcodec", "torchvision")),
    "torchcodec, own transforms": Peer(torchcodec_own, ("torchcodec", "torchvision")),
}
# Their crop is 224 pixels of the scaled picture: the view's box only if that is such a square.
SLOWFAST_PEERS = {
    "PaddleVideo (SlowFast, OpenCV)": Peer(slowfast_opencv, ()),
    "PaddleVideo (SlowFast, decord)": Peer(slowfast_decord, ("decord",)),
    "PaddleVideo (SlowFast, decord), own threads": Peer(partial(slowfast_decord, threads=0), ("decord",)),
}


@dataclass(frozen=True)
class HeldPackets:
    """The packets of an H.264 file in memory, in the order of the file.

    Attributes:
        extradata: What the container holds for the decoder.
        packets: PyAV's packets.
        pts: Their times, int [N].
        idr: Decoding may start here, bool [N].
        referenced: Other pictures may need this one, bool [N].
    """

    extradata: bytes
    packets: list[av.Packet]
    pts: np.ndarray
    idr: np.ndarray
    referenced: np.ndarray

    def needed(self, indices: Sequence[int]) -> list[int]:
        """Returns which packets the frames need: from the IDR picture before each, without the other disposable ones.

        A picture whose ``nal_ref_idc`` is 0 is never referred to (ITU-T H.264, 7.4.1).
        """
        wanted = set(np.argsort(self.pts, kind="stable")[np.asarray(indices)].tolist())
        starts = [*np.flatnonzero(self.idr).tolist(), len(self.packets)]
        chosen: list[int] = []
        for start, stop in zip(starts, starts[1:]):
            last = max((place for place in wanted if start <= place < stop), default=-1)
            chosen += [place for place in range(start, last + 1) if self.referenced[place] or place in wanted]
        return chosen


def hold_packets(path: str) -> HeldPackets:
    """Reads the packets of an H.264 file with a time for every picture.

    Raises:
        ValueError: Another codec.
    """
    with av.open(path) as container:
        stream = container.streams.video[0]
        if stream.codec_context.name != "h264":
            raise ValueError(f"{path}: its codec is {stream.codec_context.name}; the floor is measured on h264 files")
        extradata = stream.codec_context.extradata or b""
        packets = [packet for packet in container.demux(stream) if packet.size]
        slices = [slice_headers(bytes(packet), extradata) for packet in packets]
    return HeldPackets(
        extradata=extradata,
        packets=packets,
        pts=np.array([packet.pts for packet in packets]),
        idr=np.array([any(head & 31 == 5 for head in heads) for heads in slices]),
        referenced=np.array([any(head >> 5 & 3 for head in heads) for heads in slices]),  # nal_ref_idc
    )


def slice_headers(chunk: bytes, extradata: bytes) -> list[int]:
    """Returns the first byte of every slice (NAL unit types 1 to 5) of an H.264 packet.

    Source: ITU-T H.264, 7.3.1 (the byte) and annex B (start codes); ISO/IEC 14496-15, 5.3.3 (lengths before units).
    """
    if extradata[:1] == b"\1":
        width, heads, position = (extradata[4] & 3) + 1, [], 0
        while position + width < len(chunk):
            heads.append(chunk[position + width])
            position += width + int.from_bytes(chunk[position : position + width], "big")
    else:
        heads = [unit[0] for unit in chunk.split(b"\0\0\1")[1:] if unit]
    return [head for head in heads if 1 <= head & 31 <= 5]


def decode_needed(held: HeldPackets, indices: Sequence[int], keep: bool = False) -> list[av.VideoFrame]:
    """Decodes the packets that the frames need with a decoder of its own, and nothing else.

    Args:
        held: The packets of a file.
        indices: Frame indices.
        keep: Return the frames.

    Returns:
        The wanted frames in presentation order, as decoded; empty unless ``keep``.

    Raises:
        RuntimeError: A wanted frame did not come out.
    """
    decoder = av.CodecContext.create("h264", "r")
    decoder.extradata, decoder.thread_count = held.extradata or None, 1
    times = set(np.sort(held.pts)[np.asarray(indices)].tolist())
    kept, missing = [], set(times)
    for packet in [*(held.packets[place] for place in held.needed(indices)), None]:
        for frame in decoder.decode(packet):
            missing.discard(frame.pts)
            if keep and frame.pts in times:
                kept.append(frame)
    if missing:
        raise RuntimeError(f"frames at {sorted(missing)} were not decoded from the packets they need")
    return kept
