"""What the first bytes of a packet tell about its picture, without decoding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paddlevideo_fast.data.readers.pictures import jpeg_frame_header

# Codecs in which one packet is one picture, or in which an exception can be seen from the packet's first bytes.
PACKET_CODECS = ("h264", "hevc", "av1", "vp8", "vp9", "mpeg4", "mjpeg")
# Codecs in which some pictures can be told to be nobody's reference.
LAYERED_CODECS = ("h264", "hevc", "mpeg4")


def unit_places(data: bytes | memoryview, width: int) -> Iterator[tuple[int, int]]:
    """Yields (first, end) of each H.264 or HEVC unit in a packet; the last may be cut off.

    Args:
        data: A packet.
        width: Bytes of the length before each unit, from ``length_width``; 0 for start codes.

    Source: ISO/IEC 14496-15, 5.3.3 (length prefixes) and ITU-T H.264 annex B (start codes).
    """
    if not width:
        data = bytes(data)
        place = data.find(b"\0\0\1")
        while place >= 0:
            following = data.find(b"\0\0\1", place + 3)
            yield place + 3, following if following >= 0 else len(data)
            place = following
        return
    place, length = width, len(data)
    while place < length:
        end = place + int.from_bytes(data[place - width : place], "big")
        yield place, min(end, length)
        place = end + width


def length_width(codec: str, extradata: bytes) -> int:
    """Returns the bytes of the length before each unit; 0 if units are marked by start codes."""
    place = {"h264": 4, "hevc": 21}.get(codec, len(extradata))
    return (extradata[place] & 3) + 1 if extradata[:1] == b"\1" and len(extradata) > place else 0


def has_idr(data: bytes, width: int) -> bool:
    """Returns whether an H.264 packet holds a slice of an IDR picture (NAL unit type 5)."""
    return any(data[first] & 31 == 5 for first, end in unit_places(data, width) if end > first)


def picture_layer(codec: str, data: bytes | memoryview, width: int) -> int:
    """Returns the temporal layer of a picture, or its complement ``~layer`` if others of its layer may refer to it.

    Pictures of a layer refer to their own and to lower ones: one of the highest layer that its own layer does not
    refer to can be left out. Known for H.264, HEVC and MPEG-4, of which only HEVC has more than layer 0.

    Args:
        codec: FFmpeg's name.
        data: A packet.
        width: Bytes of the length before each unit, from ``length_width``; 0 for start codes.

    Source: ITU-T H.264, 7.4.1 (nal_ref_idc); ITU-T H.265, table 7-1 (even types below 16 are sub-layer non-reference
    pictures) and 7.3.1.2 (temporal id); ISO/IEC 14496-2, 6.3.5 (vop_coding_type).
    """
    if codec == "mpeg4":
        data = bytes(data)
        start = data.find(b"\0\0\1\xb6")
        return 0 if start >= 0 and len(data) > start + 4 and data[start + 4] >> 6 == 2 else ~0
    if codec not in ("h264", "hevc"):
        return ~0
    layer, referenced = -1, False
    for first, end in unit_places(data, width):
        if codec == "h264" and end > first and 1 <= data[first] & 31 <= 5:
            layer, referenced = 0, referenced or data[first] & 0x60
        elif codec == "hevc" and end > first + 1 and data[first] >> 1 & 63 < 32:
            layer = max(layer, (data[first + 1] & 7) - 1)
            referenced = referenced or data[first] >> 1 & 63 >= 16 or data[first] & 2
    return ~max(layer, 0) if referenced or layer < 0 else layer


def size_header(codec: str, data: bytes, width: int) -> bytes | None:
    """Returns the bytes of a packet that fix the size of pictures from here on; None if it has none.

    Two packets with the same bytes have pictures of the same size. Known for H.264 and HEVC (sequence parameter sets),
    MPEG-4 (video object layer), JPEG (frame header), VP8 and VP9 (key frames).
    """
    if codec in ("h264", "hevc"):
        shift, mask, kind = (0, 31, 7) if codec == "h264" else (1, 63, 33)
        units = [data[first:end] for first, end in unit_places(data, width) if end > first]
        return b"".join(unit.rstrip(b"\0") for unit in units if unit[0] >> shift & mask == kind) or None
    if codec == "mpeg4":
        start = data.find(b"\0\0\1\x20")
        return data[start : data.find(b"\0\0\1", start + 4)] if start >= 0 else None
    if codec == "mjpeg":
        return jpeg_frame_header(data)
    if codec == "vp8" and data and not data[0] & 1:
        return data[6:10]
    if codec == "vp9" and data and data[1:4] == b"\x49\x83\x42":  # the sync code of a key frame of profiles 0 to 2
        return data[4:8] + bytes([data[8] & 0xE0]) if len(data) > 8 else data
    return None


def stream_irregularity(codec: str, stream: Any) -> str | None:
    """Returns why the packets of a stream may not be one shown picture each; None if they are."""
    if codec not in PACKET_CODECS:
        return f"packets of {codec} need not be one picture each"
    if codec in ("h264", "hevc") and int(stream.codec_context.field_order) > 1:  # 0 unknown, 1 progressive
        return "interlaced: a packet may hold one field only"
    return None


def packet_irregularity(codec: str, packet: Any) -> str | None:
    """Returns why a packet may not be one shown picture; None if it is."""
    if codec == "vp8":
        return None if bytes(packet)[0] & 0x10 else "it holds hidden pictures"
    if codec == "vp9":
        return "it holds hidden pictures" if is_hidden_vp9(bytes(packet)) else None
    if codec == "mpeg4" and (packet.size < 20 or bytes(packet).count(b"\0\0\1\xb6") != 1):
        return "packed or skipped MPEG-4 pictures"
    return None


def is_hidden_vp9(data: bytes) -> bool:
    """Returns whether a packet with a single VP9 frame has ``show_frame`` unset.

    Source: VP9 bitstream specification, section 6.2 (uncompressed header) and annex B (superframes).
    """
    if data[-1] & 0xE0 == 0xC0:  # a superframe: by its definition it ends with the one picture that is shown
        return False
    bits = f"{data[0]:08b}{data[1]:08b}" if len(data) > 1 else f"{data[0]:08b}00000000"
    position = 4 + (bits[2:4] == "11")
    if bits[position] == "1":  # show_existing_frame
        return False
    return bits[position + 2] == "0"
