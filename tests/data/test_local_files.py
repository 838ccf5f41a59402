"""Only the named file is opened: no playlist, pattern, protocol or reference inside a file leads to another one."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from paddlevideo_fast.data.readers import READERS, VideoError, View, build_reader

FILE_READERS = [name for name in READERS if name != "frames"]
IN_OPEN = 0x20  # linux/inotify.h
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs inotify")


class Watch:
    """Tells whether files were opened, by anyone and in any way (Linux inotify)."""

    def __init__(self):
        self.library = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self.library.inotify_init1(os.O_NONBLOCK)

    def add(self, path):
        assert self.library.inotify_add_watch(self.descriptor, os.fsencode(path), IN_OPEN) >= 0
        return path

    def was_opened(self):
        try:
            return bool(os.read(self.descriptor, 4096))
        except BlockingIOError:
            return False


@pytest.fixture
def decoy(tmp_path, video_file):
    """A good video and a good picture that are watched: (watch, video, picture)."""
    video, picture = tmp_path / "decoy.mp4", tmp_path / "img_001.jpg"
    video.write_bytes(video_file("plain.mp4").read_bytes())
    Image.fromarray(np.zeros((64, 96, 3), np.uint8)).save(picture)
    watch = Watch()
    watch.add(video)
    watch.add(picture)
    yield watch, video, picture
    os.close(watch.descriptor)


def test_the_watch_sees_an_opening(decoy):
    watch, video, _ = decoy
    assert not watch.was_opened()
    build_reader("pyav").probe(video)
    assert watch.was_opened() and not watch.was_opened()


PLAYLISTS = {
    "a.m3u8": "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:1.6,\n{video}\n#EXT-X-ENDLIST\n",
    "b.m3u8": "#EXTM3U\n#EXTINF:1.6,\nfile:{video}\n#EXT-X-ENDLIST\n",
    "hls.mp4": '#EXTM3U\n#EXT-X-MAP:URI="{video}"\n#EXTINF:1.6,\n{video}\n#EXT-X-ENDLIST\n',
    "list.ffconcat": "ffconcat version 1.0\nfile {video}\n",
    "list.mp4": "ffconcat version 1.0\nfile decoy.mp4\n",
    "list.txt": "file '{video}'\n",
    "old.pls": "[playlist]\nFile1={video}\nNumberOfEntries=1\n",
    "session.sdp": "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 127.0.0.1\r\nm=video 5004 RTP/AVP 96\r\n",
    "manifest.mpd": '<?xml version="1.0"?>\n<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
    'mediaPresentationDuration="PT1.6S"><Period><AdaptationSet mimeType="video/mp4"><Representation id="1" '
    'bandwidth="1"><BaseURL>{video}</BaseURL></Representation></AdaptationSet></Period></MPD>\n',
    "script.avs": 'FFVideoSource("{video}")\n',
    "script.vpy": "import vapoursynth\n",
    "a.imf": '<?xml version="1.0"?><CompositionPlaylist xmlns="http://www.smpte-ra.org/schemas/2067-3/2016"/>\n',
    "subs.idx": "# VobSub index file, v7\nid: en, index: 0\ntimestamp: 00:00:00:000, filepos: 000000000\n",
    "redirect.asx": '<asx version="3.0"><entry><ref href="{video}"/></entry></asx>\n',
    "smil.smil": '<smil><body><video src="{video}"/></body></smil>\n',
    "filters.txt": "movie={video}\n",
    "link.url": "[InternetShortcut]\nURL=file://{video}\n",
}


@pytest.mark.parametrize("reader", FILE_READERS)
def test_playlists_and_scripts(reader, decoy, tmp_path):
    watch, video, _ = decoy
    for name, text in PLAYLISTS.items():
        path = tmp_path / name
        path.write_text(text.format(video=video))
        with pytest.raises(VideoError, match="playlist|not a video file"):
            build_reader(reader).probe(path)
        with pytest.raises(VideoError, match="playlist|not a video file"):
            build_reader(reader).probe(path.read_bytes())
        assert not watch.was_opened(), name


@pytest.mark.parametrize("reader", FILE_READERS)
def test_protocols_and_patterns(reader, decoy, tmp_path, monkeypatch):
    watch, video, picture = decoy
    monkeypatch.chdir(tmp_path)
    sources = [f"{name}:{video}" for name in ("file", "cache", "crypto", "async", "concat", "concatf", "subfile,,:")]
    sources += [f"concat:{video}|{video}", f"movie={video}", f"{video}?x", f"{video}|{video}"]
    sources += ["http://127.0.0.1:9/decoy.mp4", "rtsp://127.0.0.1:9/x", "data:video/mp4;base64,AAAA", "pipe:0", "-"]
    sources += ["img_%03d.jpg", str(picture.with_name("img_%03d.jpg")), "img_*.jpg", "img_[0-9]*.jpg", "lavfi:testsrc"]
    for source in sources:
        with pytest.raises(VideoError, match="does not exist|only local files"):
            build_reader(reader).probe(source)
        assert not watch.was_opened(), source


@pytest.mark.parametrize("reader", FILE_READERS)
def test_a_file_named_like_a_pattern(reader, decoy, tmp_path, video_file, monkeypatch):
    """FFmpeg would take a name such as img_%03d.jpg for all of img_001.jpg, img_002.jpg, ..."""
    watch, _, _ = decoy
    monkeypatch.chdir(tmp_path)
    for name in ("img_%03d.jpg", "img_%d.png", "img_*.jpg"):
        (tmp_path / name).write_bytes(video_file("plain.mp4").read_bytes())
        try:
            assert build_reader(reader).probe(name).num_frames == 40
        except VideoError as error:
            assert "not a video file" in str(error) or "damaged" in str(error)
        assert not watch.was_opened(), name


def with_reference(data: bytes, kind: bytes, target: Path) -> bytes:
    """Turns the data reference of an mp4's track, which says "in this file", into one to another file.

    Source: ISO/IEC 14496-12, 8.7.2 (url), and QuickTime File Format, "Alias" data references, whose fields are those
    FFmpeg's mov demuxer reads: volume name, file name, levels, and the path as entries 2 and 18.
    """
    place = data.index(b"dref") - 4
    if kind == b"url ":
        entry = b"url " + struct.pack(">I", 0) + str(target).encode() + b"\0"
    else:
        path = str(target).encode()
        record = (
            bytes(10) + bytes([4]) + b"disk".ljust(27, b"\0") + bytes(12) + bytes([9]) + b"decoy.mp4".ljust(63, b"\0")
        )
        record += bytes(16) + struct.pack(">hh", 1, 1) + bytes(16)
        for number, text in ((2, b"disk:" + path.replace(b"/", b":")), (18, path)):
            record += struct.pack(">HH", number, len(text)) + text + bytes(len(text) % 2)
        entry = b"alis" + bytes(4) + record + struct.pack(">hH", -1, 0)
    entry = struct.pack(">I", len(entry) + 4) + entry
    old = struct.unpack(">I", data[place : place + 4])[0]
    box = struct.pack(">I4sII", 16 + len(entry), b"dref", 0, 1) + entry
    out = bytearray(data[:place] + box + data[place + old :])
    for name in (b"moov", b"trak", b"mdia", b"minf", b"dinf"):
        start = out.index(name) - 4
        struct.pack_into(">I", out, start, struct.unpack_from(">I", out, start)[0] + len(box) - old)
    return bytes(out)


@pytest.mark.parametrize("reader", FILE_READERS)
@pytest.mark.parametrize("kind", [b"url ", b"alis"])
def test_references_in_a_movie(reader, kind, decoy, tmp_path, video_file):
    watch, video, _ = decoy
    for suffix in (".mp4", ".mov"):
        path = tmp_path / ("reference" + suffix)
        path.write_bytes(with_reference(video_file("plain.mp4").read_bytes(), kind, video))
        try:
            with build_reader(reader).open(path) as opened:
                opened.read([View([0, 39])])
        except VideoError:
            pass
        assert not watch.was_opened()


def test_the_crafted_reference_is_one(decoy, tmp_path, video_file):
    """FFmpeg follows an alias once it is told to: the test above looks at one that works."""
    watch, video, _ = decoy
    path = tmp_path / "reference.mov"
    path.write_bytes(with_reference(video_file("plain.mp4").read_bytes(), b"alis", video))
    with av.open(str(path), options={"enable_drefs": "1"}) as container:
        next(container.decode(video=0))
    assert watch.was_opened()


@pytest.mark.parametrize("reader", FILE_READERS)
def test_subtitles_in_an_avi(reader, decoy, tmp_path, video_file):
    """A GAB2 chunk is a file within the file, which old versions of FFmpeg took for any format, playlists too."""
    watch, video, _ = decoy
    playlist = f"#EXTM3U\n#EXTINF:1,\nfile:{video}\n#EXT-X-ENDLIST\n".encode()
    chunk = b"GAB2\0" + struct.pack("<HI", 2, 2) + b"\0\0" + struct.pack("<HI", 4, len(playlist)) + playlist
    chunk += bytes(len(chunk) % 2)
    data = bytearray(video_file("mpeg4.avi").read_bytes())
    header = b"strh" + struct.pack("<I", 56) + b"txts" + bytes(16) + struct.pack("<IIII", 1, 25, 0, 1) + bytes(20)
    stream = b"LIST" + struct.pack("<I", 4 + len(header)) + b"strl" + header
    hdrl = data.index(b"hdrl") - 8
    size = struct.unpack_from("<I", data, hdrl + 4)[0]
    struct.pack_into("<I", data, hdrl + 4, size + len(stream))
    struct.pack_into("<I", data, data.index(b"avih") + 32, 2)
    data[hdrl + 8 + size : hdrl + 8 + size] = stream
    movi = data.index(b"movi")
    data[movi + 4 : movi + 4] = b"01sb" + struct.pack("<I", len(chunk)) + chunk
    struct.pack_into("<I", data, movi - 4, struct.unpack_from("<I", data, movi - 4)[0] + 8 + len(chunk))
    path = tmp_path / "subtitles.avi"
    path.write_bytes(bytes(data))
    with build_reader(reader).open(path) as opened:
        opened.read([View([0, opened.info.num_frames - 1])])
    assert not watch.was_opened()


@pytest.mark.parametrize("reader", FILE_READERS)
def test_attachments(reader, decoy, tmp_path):
    watch, video, _ = decoy
    path = tmp_path / "attached.mkv"
    with av.open(str(path), "w") as output:
        stream = output.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        output.add_attachment(str(video), "video/mp4", f"ffconcat version 1.0\nfile {video}\n".encode())
        for number in range(5):
            frame = av.VideoFrame.from_ndarray(np.full((64, 96, 3), number * 40, np.uint8))
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    assert build_reader(reader).read(path, [0, 4]).shape == (2, 64, 96, 3)
    assert not watch.was_opened()


def test_opencv_is_held_to_the_same_containers(decoy, tmp_path):
    """Without the guard its own FFmpeg follows a playlist; PyAV's look at the file alone would not stop that."""
    cv2 = pytest.importorskip("cv2")
    from paddlevideo_fast.data.readers.opencv import _local_files_only

    watch, video, _ = decoy
    playlist = tmp_path / "list.ffconcat"
    playlist.write_text("ffconcat version 1.0\nfile decoy.mp4\n")
    assert cv2.VideoCapture(str(playlist), cv2.CAP_FFMPEG).isOpened() and watch.was_opened()
    with _local_files_only():
        assert not cv2.VideoCapture(str(playlist), cv2.CAP_FFMPEG).isOpened()
    assert not watch.was_opened() and "OPENCV_FFMPEG_CAPTURE_OPTIONS" not in os.environ


def test_a_folder_of_links_reads_images_only(tmp_path, decoy):
    """A frame that is a link is followed, as data sets use links; what it leads to must be an image."""
    folder = tmp_path / "frames"
    folder.mkdir()
    (folder / "0.jpg").symlink_to("/etc/passwd")
    with pytest.raises(VideoError, match="0.jpg is truncated or not a JPEG or PNG"):
        build_reader("frames").probe(folder)


def test_special_files_are_refused(tmp_path):
    """A pipe or a device would hang the reader, or never end."""
    os.mkfifo(tmp_path / "pipe.mp4")
    for reader in FILE_READERS:
        for path in (tmp_path / "pipe.mp4", "/dev/zero"):
            with pytest.raises(VideoError, match="is not a regular file"):
                build_reader(reader).probe(path)
    folder = tmp_path / "frames"
    folder.mkdir()
    os.mkfifo(folder / "0.jpg")
    with pytest.raises(VideoError, match="0.jpg is not a regular file"):
        build_reader("frames").probe(folder)
