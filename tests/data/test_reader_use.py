"""Readers as training uses them: again and again, backwards, on thousands of files, in forked processes, cut short."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from conftest import RATE, draw_picture, encode, read_number

from paddlevideo_fast.data.crops import EvalCrop
from paddlevideo_fast.data.readers import READERS, CropBox, View, build_reader
from paddlevideo_fast.data.sampling import SAMPLINGS

ROOT = Path(__file__).parents[2]
FILE_READERS = [name for name in READERS if name != "frames"]


def numbers(pictures):
    return [read_number(picture) for picture in pictures]


# -- files whose header misleads --


def with_long_audio(path):
    """A video of 12 pictures, half a second, beside four seconds of sound."""
    with av.open(str(path), "w") as output:
        video, sound = output.add_stream("libx264", rate=RATE), output.add_stream("pcm_s16le", rate=8000, layout="mono")
        video.width, video.height, video.pix_fmt = 96, 64, "yuv420p"
        for index in range(12):
            frame = av.VideoFrame.from_ndarray(draw_picture(index))
            frame.pts, frame.time_base = index, Fraction(1, RATE)
            output.mux(video.encode(frame))
        output.mux(video.encode(None))
        for start in range(0, 32000, 1000):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1000), np.int16), "s16", "mono")
            frame.sample_rate, frame.pts = 8000, start
            output.mux(sound.encode(frame))
    return path


@pytest.mark.parametrize("reader", FILE_READERS)
def test_sound_longer_than_the_pictures_adds_none(reader, tmp_path):
    path = with_long_audio(tmp_path / "sound.mkv")
    with av.open(str(path)) as container:
        assert container.duration / av.time_base > 3.9
    with build_reader(reader).open(path) as video:
        assert video.info.num_frames == 12 and video.info.duration == pytest.approx(0.48, abs=0.05)
        assert numbers(video.read([View(range(12))])[0]) == list(range(12))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("reader", FILE_READERS)
def test_a_recording_without_duration_is_sampled_to_its_end(reader, sampling, tmp_path):
    path = tmp_path / "live.webm"
    times = [index + index // 3 + 2 * (index // 7) for index in range(26)]
    options = {"g": "12", "cpu-used": "8", "deadline": "realtime"}
    encode(path, "libvpx", options=options, times=times, count=26, container_options={"live": "1"})
    with av.open(str(path)) as container:
        assert not container.duration and not container.streams.video[0].frames
    with build_reader(reader).open(path) as video:
        assert video.info.num_frames == 26 and np.isfinite(video.info[1:]).all()
        indices = SAMPLINGS[sampling](num_clips=3)(26, 8, 2)
        if sampling == "segment":
            indices = SAMPLINGS[sampling]()(26, 8)
            assert indices[-1] >= 26 * 7 / 8
        assert numbers(video.read([View(indices)])[0]) == indices.tolist()


@pytest.mark.parametrize("suffix", ["avi", "mkv", "mp4"])
@pytest.mark.parametrize("reader", FILE_READERS)
def test_titles_that_are_not_utf8_are_passed_over(reader, suffix, video_file, tmp_path):
    path = tmp_path / f"titled.{suffix}"
    with av.open(str(video_file("mpeg4.avi"))) as source, av.open(str(path), "w") as output:
        output.metadata["title"] = "XXXXXXXX"
        stream = output.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                output.mux(packet)
    data = path.read_bytes()
    assert data.count(b"XXXXXXXX") == 1
    path.write_bytes(data.replace(b"XXXXXXXX", b"A\x8e\x8c\xffAAAA"))
    with pytest.raises(UnicodeDecodeError), av.open(str(path)) as container:
        container.metadata.get("title")
    assert numbers(build_reader(reader).read(path, [39, 0, 7])) == [39, 0, 7]


# -- order and repetition --


@pytest.mark.parametrize("name", ["plain.mp4", "hevc.mp4", "vp9.webm"])
@pytest.mark.parametrize("reader", FILE_READERS)
def test_one_frame_after_another_back_and_forth(reader, name, video_file):
    order = [38, 14, 38, 0, 20, 14, 39, 1]
    with build_reader(reader).open(video_file(name)) as video:
        assert [read_number(video.read([View([index])])[0][0]) for index in order] == order


@pytest.mark.parametrize("kind", ["file", "memory"])
@pytest.mark.parametrize("reader", FILE_READERS)
def test_the_last_frames_again_and_again(reader, kind, video_file):
    with av.open(str(video_file("plain.mp4"))) as container:  # it has B pictures: the last ones come out of the drain
        assert any(frame.pict_type == av.video.frame.PictureType.B for frame in container.decode(video=0))
    source = video_file("plain.mp4") if kind == "file" else io.BytesIO(video_file("plain.mp4").read_bytes())
    with build_reader(reader).open(source) as video:
        for _ in range(50):
            assert numbers(video.read([View([37, 38, 39])])[0]) == [37, 38, 39]


@pytest.mark.parametrize("name", ["rotated_90.mp4", "rotated_180.mp4", "rotated_270.mp4", "mirrored.mp4"])
@pytest.mark.parametrize("reader", FILE_READERS)
def test_crops_of_turned_videos_are_those_of_the_upright_picture(reader, name, video_file):
    reader = build_reader(reader)
    whole = reader.read(video_file(name), [5])
    height, width = whole.shape[1:3]
    assert (width < height) == (name != "rotated_180.mp4")
    centre, _ = EvalCrop(40)(width, height, 32, 0)
    for box in (centre, CropBox(3, 9, 30, 20)):
        cut = whole[:, box.y : box.y + box.height, box.x : box.x + box.width]
        np.testing.assert_array_equal(reader.read(video_file(name), [5], box), cut)
        np.testing.assert_array_equal(reader.read(video_file(name), [5], box, flip=True), cut[:, :, ::-1])


# -- threads, files and memory --


def script(code, *arguments, timeout=120):
    """Runs code in a process of its own, with what it needs at hand; returns what it printed."""
    start = """
        import os, sys, time
        import av
        from paddlevideo_fast.data.readers import View, build_reader
        def memory():
            return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    """
    code = textwrap.dedent(start) + textwrap.dedent(code)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
@pytest.mark.parametrize("reader", FILE_READERS)
def test_a_decoder_runs_in_one_thread_unless_told_otherwise(reader, video_file):
    code = """
        def threads(**arguments):
            with build_reader(sys.argv[1], fallback=None, **arguments).open(sys.argv[2]) as video:
                video.read([View([30])])
                return len(os.listdir("/proc/self/task"))
        threads()
        idle = len(os.listdir("/proc/self/task"))
        print(threads() - idle, threads(threads=4) - idle)
    """
    own, four = map(int, script(code, reader, video_file("plain.mp4")))
    assert own == (1 if reader == "decord" else 0)  # decord decodes in a thread of its own
    assert four > 2


@pytest.mark.parametrize("reader", [*FILE_READERS, "frames"])
@pytest.mark.parametrize("count", [120, pytest.param(600, marks=pytest.mark.slow)])
def test_more_files_than_may_be_open(reader, count, video_file, tmp_path):
    source = video_file("plain.mp4")
    if reader == "frames":
        from PIL import Image

        source = tmp_path / "pictures"
        source.mkdir()
        Image.fromarray(draw_picture(0)).save(source / "img_00000.png")
    for number in range(count):
        (tmp_path / f"{number}.mp4").symlink_to(source)
    code = """
        import resource
        reader = build_reader(sys.argv[1])
        reader.read(sys.argv[2] + "/0.mp4", [0])
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        for number in range(int(sys.argv[3])):
            reader.read(f"{sys.argv[2]}/{number}.mp4", [0])
        print("all")
    """
    assert script(code, reader, tmp_path, count) == ["all"]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("name", ["long_gop.mp4", "vfr.webm"])
@pytest.mark.parametrize("reader", FILE_READERS)
@pytest.mark.parametrize(("count", "limit"), [(80, 60_000), pytest.param(2000, 20_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_videos_read(reader, name, count, limit, video_file, tmp_path):
    """Bytes a read, good and bad ones in turn; over few reads the allocator's own ups and downs count for more."""
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(video_file("plain.mp4").read_bytes()[:3000])
    code = """
        from paddlevideo_fast.data.readers import VideoError
        reader, count = build_reader(sys.argv[1]), int(sys.argv[4])
        def read(times):
            for _ in range(times):
                reader.read(sys.argv[2], [0, 5, 10, 15, 20, 25, 30, 39])
                try:
                    reader.read(sys.argv[3], [0])
                except VideoError:
                    pass
        read(max(30, count // 4))
        before = memory()
        read(count)
        print((memory() - before) / count)
    """
    (slope,) = map(float, script(code, reader, video_file(name), cut, count))
    assert slope < limit


# -- forked processes, as the reader processes of training are --


@pytest.mark.parametrize("threads", [1, 0])
@pytest.mark.parametrize("reader", FILE_READERS)
@pytest.mark.parametrize("count", [30, pytest.param(500, marks=pytest.mark.slow)])
def test_leaving_a_video_early_in_a_forked_process_does_not_hang(reader, threads, count, video_file):
    """The parent has decoded too, so that the child inherits whatever state that leaves."""
    code = """
        reader = build_reader(sys.argv[1], threads=int(sys.argv[3]))
        reader.read(sys.argv[2], [3])
        child = os.fork()
        if child == 0:
            for _ in range(int(sys.argv[4])):
                with reader.open(sys.argv[2]) as video:
                    video.read([View([0, 1, 2])])
                    frames = video.frames()
                    next(frames), next(frames)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert script(code, reader, video_file("plain.mp4"), threads, count, timeout=60) == ["0"]


IMPORTS = {"reader first": "decord, paddle", "framework first": "paddle, decord"}


@pytest.mark.parametrize("order", IMPORTS)
@pytest.mark.parametrize("count", [120, pytest.param(3000, marks=pytest.mark.slow)])
def test_reader_processes_do_not_deadlock_whatever_was_imported_first(order, count, video_file):
    pytest.importorskip("decord")
    code = f"""
        import {IMPORTS[order]}
        import numpy as np
        from paddlevideo_fast.data.annotations import VideoRecord
        from paddlevideo_fast.data.crops import EvalCrop
        from paddlevideo_fast.data.dataset import ClipDataset
        from paddlevideo_fast.data.plan import ClipRecipe
        from paddlevideo_fast.data.samplers import EvalSampler
        from paddlevideo_fast.data.sampling import SegmentSampling
        from paddlevideo_fast.data.targets import ClassTarget
        from paddlevideo_fast.loaders.thread_loader import ThreadLoader
        count = int(sys.argv[2])
        recipe = ClipRecipe(SegmentSampling(), EvalCrop(32), train=False)
        records = [VideoRecord(sys.argv[1], number % 8, origin="list") for number in range(count)]
        dataset = ClipDataset(records, recipe, build_reader("decord", fallback=None), ClassTarget({{}}))
        dataset.read_batch(next(iter(EvalSampler(count, 4, 8, 32))))
        loader = ThreadLoader(dataset, EvalSampler(count, 4, 8, 32), 2, timeout=30)
        print(sum(int((batch["weight"].numpy() == 1).sum()) for batch in loader))
    """
    assert script(code, video_file("plain.mp4"), count, timeout=120) == [str(count)]
