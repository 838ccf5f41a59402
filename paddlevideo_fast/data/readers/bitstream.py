"""What the first bytes of a packet tell about its picture, without decoding."""

from __future__ import annotations

from typing import Any

from paddlevideo_fast.data.readers.pictures import jpeg_frame_header

# Codecs in which one packet is one picture, or in which an exception can be seen from the packet's first bytes.
PACKET_CODECS = ("h264", "hevc", "av1", "vp8", "vp9", "mpeg4", "mjpeg")


def nal_units(data: bytes, width: int) -> list[bytes]:
    """Splits H.264 or HEVC data into its units.

    Args:
        data: A packet.
        width: Bytes of the length before each unit, as in mp4; 0 for start codes.

    Source: ISO/IEC 14496-15, 5.3.3 (length prefixes) and ITU-T H.264 annex B (start codes).
    """
    if not width:
        return [unit.rstrip(b"\0") for unit in data.split(b"\0\0\1")[1:]]
    units, position = [], 0
    while position + width < len(data):
        size = int.from_bytes(data[position : position + width], "big")
        units.append(data[position + width : position + width + size])
        position += width + size
    return units


def length_width(codec: str, extradata: bytes) -> int:
    """Returns the bytes of the length before each unit; 0 if units are marked by start codes."""
    place = {"h264": 4, "hevc": 21}[codec]
    return (extradata[place] & 3) + 1 if extradata[:1] == b"\1" and len(extradata) > place else 0


def has_idr(data: bytes, extradata: bytes) -> bool:
    """Returns whether an H.264 packet holds a slice of an IDR picture (NAL unit type 5)."""
    return any(unit[:1] and unit[0] & 31 == 5 for unit in nal_units(data, length_width("h264", extradata)))


def size_header(codec: str, data: bytes, extradata: bytes) -> bytes | None:
    """Returns the bytes of a packet that fix the size of pictures from here on; None if it has none.

    Two packets with the same bytes have pictures of the same size. Known for H.264 and HEVC (sequence parameter sets),
    MPEG-4 (video object layer), JPEG (frame header), VP8 and VP9 (key frames).
    """
    if codec in ("h264", "hevc"):
        wanted = {"h264": lambda unit: unit[0] & 31 == 7, "hevc": lambda unit: unit[0] >> 1 & 63 == 33}[codec]
        units = nal_units(data, length_width(codec, extradata))
        return b"".join(unit for unit in units if unit and wanted(unit)) or None
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
