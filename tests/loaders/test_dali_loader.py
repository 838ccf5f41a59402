"""The DALI loader: the clips, targets and failures of every other reader.

Planning and the making of batches are tested without DALI, with PyAV and Pillow in its place: then a batch must be
equal to the last bit. The rest needs DALI and runs its CPU operators.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import paddle
import pytest
from conftest import MAKERS, draw_picture, encode, read_number
from PIL import Image
from small_runs import TOY, build, config, config_file, lines, same, use_toy, weights

from paddlevideo_fast.arguments import ArgumentError
from paddlevideo_fast.cli.doctor import check_config, guarded
from paddlevideo_fast.config import ConfigError
from paddlevideo_fast.data.crops import EvalCrop, RandomResizedCrop
from paddlevideo_fast.data.dataset import ClipDataset
from paddlevideo_fast.data.plan import ClipRecipe
from paddlevideo_fast.data.readers import build_reader
from paddlevideo_fast.data.records import VideoRecord
from paddlevideo_fast.data.samplers import EvalSampler, SampleKey, TrainSampler
from paddlevideo_fast.data.sampling import SAMPLINGS
from paddlevideo_fast.data.transforms import crop_resize_flip
from paddlevideo_fast.data.video import (
    ChunkSet,
    CropBox,
    DamagedVideoError,
    FrameFolder,
    InexactReaderError,
    ShardMember,
    VideoError,
    View,
)
from paddlevideo_fast.engine import build as builder
from paddlevideo_fast.loaders import dali_loader, dali_reader
from paddlevideo_fast.loaders.dali_loader import DaliBatches, DaliLoader
from paddlevideo_fast.loaders.dali_reader import DaliReader, EncodedClip, load
from paddlevideo_fast.loaders.thread_loader import LoaderError, ThreadLoader

ROOT = Path(__file__).parents[2]
TAKEN = ("vp9.webm", "vp8.webm", "mjpeg.avi", "vp9_super.webm", "vfr.webm")
REFUSED = {
    "wmv2.wmv": "codec wmv2",
    "raw.h264": "container h264",
    "h264.ts": "container mpegts",
    "two_streams.mkv": "several video streams",
    "vp8_hidden.webm": "it holds hidden pictures",
    "repeated_times.mkv": "time stamps are missing or repeat",
    "rotated_90.mp4": "a turned or mirrored picture",
    "mirrored.mp4": "a turned or mirrored picture",
    "edit_list.mp4": "an edit list hides pictures",
    "hevc_open.mp4": "open groups of pictures",
}


class Draws:
    """A draw of the device augmentation."""

    def __call__(self, rng):
        return rng.random(2).astype(np.float32)


def recipe(train=True, **more):
    sampling = SAMPLINGS["segment"](**({} if train else {"num_clips": more.pop("num_clips", 1)}))
    if train:
        return ClipRecipe(sampling, RandomResizedCrop(), True, flip=0.5, draws={"erase": Draws()}, seed=5)
    return ClipRecipe(sampling, EvalCrop(48, more["num_crops"]), False, **more)


def dataset(sources, reader="pyav", rule=None, use_what_decodes=False):
    records = [VideoRecord(s, n, origin=f"list.txt:{n + 1}") for n, s in enumerate(sources)]
    reader = build_reader(reader) if isinstance(reader, str) else reader

    def target(record, flipped):
        return np.int64(10 * record.label + flipped)

    return ClipDataset(records, rule or recipe(), reader, target, use_what_decodes)


def keys_of(*indices, frames=4, crop=32, epoch=0, repeat=0):
    return [SampleKey(epoch, index, frames, crop, repeat=repeat) for index in indices]


def same_batch(left, right, least_db=None):
    """Asserts that two batches are equal; with ``least_db`` the clips only nearly so, row by row."""
    assert left.keys() == right.keys()
    assert left["errors"] == right["errors"]
    for name in ("target", "index", "view", "weight"):
        assert left[name].dtype == right[name].dtype
        np.testing.assert_array_equal(left[name], right[name])
    assert left["aug"].keys() == right["aug"].keys()
    for name in left["aug"]:
        np.testing.assert_array_equal(left["aug"][name], right["aug"][name])
    left, right = np.asarray(left["clip"]), np.asarray(right["clip"])
    assert left.dtype == right.dtype == np.uint8 and left.shape == right.shape
    if least_db is None:
        np.testing.assert_array_equal(left, right)
        return
    error = ((left.astype(np.float64) - right) ** 2).mean(axis=(1, 2, 3, 4))
    assert (10 * np.log10(255**2 / np.maximum(error, 1e-9)) > least_db).all(), error


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A folder of 12 JPEG pictures."""
    path = tmp_path_factory.mktemp("frames")
    for number in range(12):
        Image.fromarray(draw_picture(number)).save(path / f"img_{number + 1:05d}.jpg", quality=95)
    return path


def copy_folder(folder, target, broken=None, data=b""):
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(data if path.name == broken else path.read_bytes())
    return FrameFolder(str(target))


class StandIn:
    """Does DALI's part with PyAV and Pillow."""

    def __init__(self):
        self.decoded = 0

    def decode(self, clips):
        return [self.decode_one(clip) for clip in clips]

    def decode_one(self, clip):
        self.decoded += 1
        try:
            if clip.pictures:
                frames = [dali_frame(data.tobytes()) for data in clip.data]
                pictures = np.stack([frames[place] for place in clip.frames])
            else:
                pictures = build_reader("pyav").read(clip.data[0].tobytes(), clip.frames)
        except (VideoError, OSError) as error:
            return VideoError(clip.source, f"DALI cannot decode it: {getattr(error, 'reason', error)}")
        return [paddle.to_tensor(crop_resize_flip(pictures, clip.box, clip.size, clip.flip))]


def dali_frame(data):
    from paddlevideo_fast.data.readers.frames import decode_image

    picture = decode_image(data)
    if picture is None:
        raise OSError("broken picture")
    return picture


def batches(data, monkeypatch, **reader):
    """DaliBatches with the stand-in for DALI."""
    stand_in = StandIn()
    monkeypatch.setattr(DaliBatches, "_decoder", lambda self: stand_in)
    made = DaliBatches(data, DaliReader(**reader))
    made.stand_in = stand_in
    return made


# --- without DALI: what it is trusted with, and what it is given


@pytest.mark.parametrize("name", TAKEN)
def test_facts_are_those_of_the_other_readers(video_file, name):
    facts = DaliReader().examine(str(video_file(name)))
    assert facts.info == build_reader("pyav").probe(video_file(name))
    assert (facts.damage, facts.doubt, facts.pictures) == (None, None, ())


@pytest.mark.parametrize("name", REFUSED)
def test_files_in_doubt_are_refused(video_file, name):
    with pytest.raises(InexactReaderError) as caught:
        DaliReader().examine(str(video_file(name)))
    assert str(caught.value) == f"{video_file(name)}: DALI cannot promise the right frames: {REFUSED[name]}"


def test_most_kinds_of_files_are_decided_without_an_exception(video_file):
    for name in MAKERS:
        with contextlib.suppress(InexactReaderError):
            facts = DaliReader().examine(str(video_file(name)))
            assert facts.codec in dali_reader.CODECS


def test_a_file_is_examined_again_only_when_it_has_changed(video_file, tmp_path, monkeypatch):
    seen, scan = [], dali_reader.scan_packets
    monkeypatch.setattr(dali_reader, "scan_packets", lambda *given: seen.append(given[0]) or scan(*given))
    reader, path = DaliReader(), tmp_path / "clip.webm"
    path.write_bytes(video_file("vp9.webm").read_bytes())
    assert reader.examine(str(path)) is reader.examine(str(path))
    assert len(seen) == 1
    path.write_bytes(video_file("vp8.webm").read_bytes())
    assert reader.examine(str(path)).codec == "vp8"
    assert len(seen) == 2


def test_the_cache_of_facts_has_an_end(video_file, tmp_path, monkeypatch):
    monkeypatch.setattr(dali_reader, "MAX_KNOWN", 2)
    reader = DaliReader()
    for number in range(4):
        path = tmp_path / f"{number}.avi"
        path.write_bytes(video_file("mjpeg.avi").read_bytes())
        reader.examine(str(path))
    assert len(reader._known) == 2


def test_limits_hold_before_anything_is_decoded(video_file, folder):
    for source in (str(video_file("vp9.webm")), FrameFolder(str(folder))):
        with pytest.raises(VideoError, match="more than max_pixels=100 allows"):
            DaliReader(max_pixels=100).examine(source)
        with pytest.raises(VideoError, match="more than max_frames=3 allows"):
            DaliReader(max_frames=3).examine(source)


def test_folders_are_counted_and_measured_by_their_headers(folder):
    facts = DaliReader(fps=4.0).examine(FrameFolder(str(folder)))
    assert facts.info == build_reader("frames", fps=4.0).probe(str(folder)) == (12, 4.0, 96, 64, 3.0)
    assert [Path(path).name for path in facts.pictures[:2]] == ["img_00001.jpg", "img_00002.jpg"]


def test_each_wanted_picture_is_loaded_once(folder):
    source = FrameFolder(str(folder))
    (clip,) = load(source, DaliReader().examine(source), [View([7, 2, 2, 9], CropBox(1, 2, 30, 40), True)], (24, 24))
    wanted = [(folder / f"img_{number:05d}.jpg").read_bytes() for number in (3, 8, 10)]
    assert [data.tobytes() for data in clip.data] == wanted
    assert clip.frames.tolist() == [1, 0, 0, 2]
    assert (len(clip.pictures), clip.box, clip.flip, clip.size) == (3, CropBox(1, 2, 30, 40), True, (24, 24))


def test_a_video_is_loaded_as_it_is(video_file):
    source = str(video_file("vp9.webm"))
    facts = DaliReader().examine(source)
    (clip,) = load(source, facts, [View([5, 39, 0])], (24, 24))
    assert clip.data[0].tobytes() == video_file("vp9.webm").read_bytes()
    assert (clip.frames.tolist(), clip.frames.dtype, clip.box) == ([5, 39, 0], np.int32, CropBox(0, 0, 96, 64))
    with pytest.raises(VideoError, match="frame 40 is outside 0..39"):
        load(source, facts, [View([40])], (24, 24))
    with pytest.raises(VideoError, match="is outside the 96x64 picture"):
        load(source, facts, [View([0], CropBox(80, 0, 20, 20))], (24, 24))


def test_pictures_that_do_not_belong_are_named(folder, tmp_path):
    other = tmp_path / "other.jpg"
    Image.fromarray(draw_picture(3, 80, 64)).save(other)
    for number, (data, reason) in enumerate(
        [
            (other.read_bytes(), "frame 4 is 80x64, the video is 96x64"),
            (b"no", "is truncated or not a JPEG or PNG image (2 bytes)"),
        ]
    ):
        source = copy_folder(folder, tmp_path / str(number), "img_00005.jpg", data)
        with pytest.raises(DamagedVideoError) as caught:
            load(source, DaliReader().examine(source), [View([0, 4])], (24, 24))
        assert reason in str(caught.value) and caught.value.decodable == 4


def test_the_correction_of_colours():
    """Pure colours of BT.709, through BT.601 by mistake and back; the figures are those of the two standards."""
    assert dali_reader.recolouring(2) is dali_reader.recolouring(5) is dali_reader.recolouring(6) is None
    luma, blue_difference, red_difference = 0.2126, -0.2126 / 1.8556, 0.5  # of pure red
    mistaken = np.array(
        [
            luma + 1.402 * red_difference,
            luma - 0.344136 * blue_difference - 0.714136 * red_difference,
            luma + 1.772 * blue_difference,
        ]
    )
    np.testing.assert_allclose(mistaken @ dali_reader.recolouring(1), [1, 0, 0], atol=2e-6)
    np.testing.assert_allclose(np.ones(3) @ dali_reader.recolouring(9), np.ones(3), atol=1e-6)


# --- without DALI: batches


def test_batches_are_those_of_the_dataset(video_file, folder, monkeypatch):
    names = (*TAKEN, "wmv2.wmv")
    videos = dataset([str(video_file(name)) for name in names])
    made = batches(videos, monkeypatch)
    keys = [*keys_of(0, 1, 2), *keys_of(2, repeat=1), *keys_of(5, 4, epoch=3), *keys_of(~3)]
    same_batch(made.read_batch(keys), videos.read_batch(keys))
    assert made.stand_in.decoded == 6  # all but the one that is refused
    assert made.read_batch(keys)["weight"].tolist() == [1] * 6 + [0]

    folders = dataset([FrameFolder(str(folder)), str(folder)], "frames")
    made = batches(folders, monkeypatch)
    same_batch(made.read_batch(keys_of(1, 0)), folders.read_batch(keys_of(1, 0)))


@pytest.mark.parametrize("views", [(2, 1), (2, 3), (1, 10)])
def test_views_of_an_evaluation(video_file, monkeypatch, views):
    rule = recipe(False, num_clips=views[0], num_crops=views[1])
    data = dataset([str(video_file("vp9.webm")), str(video_file("mjpeg.avi"))], rule=rule)
    made = batches(data, monkeypatch)
    for keys in EvalSampler(2, 5, 4, 32, num_views=views[0] * views[1]):
        same_batch(made.read_batch(keys), data.read_batch(keys))


def test_unreadable_files_have_the_dataset_s_rules(video_file, tmp_path, monkeypatch):
    text = tmp_path / "text.mp4"
    text.write_text("no video")
    sources = [str(video_file("vp9.webm")), str(tmp_path / "gone.mp4"), str(text), str(video_file("vp8.webm"))]
    data = dataset(sources)
    made = batches(data, monkeypatch)
    for indices in ((1, 0, 2, 3), (3, ~1, 0), (1, 2), (2,)):  # the last two have no good row: black clips
        same_batch(made.read_batch(keys_of(*indices)), data.read_batch(keys_of(*indices)))
    batch = made.read_batch(keys_of(1, 0, 2, 3))
    assert batch["weight"].tolist() == [0, 1, 0, 1]
    assert [error.split(" ")[0] for error in batch["errors"]] == ["list.txt:2:", "list.txt:3:"]


def test_what_dali_cannot_decode_is_an_error_of_the_whole_record(video_file, monkeypatch):
    data = dataset([str(video_file("vp9.webm")), str(video_file("vp8.webm"))])
    made = batches(data, monkeypatch)
    plain, failing = StandIn.decode_one, []

    def decode_one(self, clip):
        if "vp8" in str(clip.source) and not failing:
            failing.append(clip)
            return VideoError(clip.source, "DALI cannot decode it: why ever")
        return plain(self, clip)

    monkeypatch.setattr(StandIn, "decode_one", decode_one)
    keys = [*keys_of(0), *keys_of(1), *keys_of(1, repeat=1)]
    batch = made.read_batch(keys)
    assert batch["errors"] == [f"list.txt:2: {video_file('vp8.webm')}: DALI cannot decode it: why ever"]
    assert batch["weight"].tolist() == [1, 0, 0]
    np.testing.assert_array_equal(batch["clip"][1], batch["clip"][0])
    failing.clear()
    data.use_what_decodes = True  # then the other reader says how much can be had: here all
    same_batch(made.read_batch(keys), data.read_batch(keys))


@pytest.mark.parametrize("use", [False, True])
def test_damaged_files_are_refused_or_used_as_elsewhere(video_file, folder, tmp_path, monkeypatch, use):
    cut = tmp_path / "cut.mp4"
    options = {"g": "12", "cpu-used": "8", "deadline": "realtime"}
    encode(cut, "libvpx-vp9", options=options, container_options={"movflags": "faststart"})
    cut.write_bytes(cut.read_bytes()[: cut.stat().st_size * 2 // 3])
    data = dataset([str(cut), str(video_file("vp9.webm"))], use_what_decodes=use)
    batch = batches(data, monkeypatch).read_batch(keys_of(0, 1))
    same_batch(batch, data.read_batch(keys_of(0, 1)))
    assert batch["weight"].tolist() == [float(use), 1.0]
    source = copy_folder(folder, tmp_path / "broken", "img_00005.jpg", b"no")
    frames = dataset([source, FrameFolder(str(folder))], "frames", use_what_decodes=use)
    keys = keys_of(0, 1, frames=12)
    same_batch(batches(frames, monkeypatch).read_batch(keys), frames.read_batch(keys))


def test_refused_files_are_counted_logged_once_or_errors(video_file, monkeypatch, caplog):
    data = dataset([str(video_file(name)) for name in ("rotated_90.mp4", "mirrored.mp4", "vp9.webm")])
    with caplog.at_level("WARNING", "paddlevideo_fast"):
        made = batches(data, monkeypatch)
        same_batch(made.read_batch(keys_of(0, 1, 2)), data.read_batch(keys_of(0, 1, 2)))
    reason = "DALI cannot promise the right frames: a turned or mirrored picture"
    assert made.reader.refusals == {reason: 2}
    assert caplog.messages == [f"{video_file('rotated_90.mp4')}: {reason}; reading this and all such files with 'pyav'"]
    batch = batches(data, monkeypatch, fallback=None).read_batch(keys_of(0, 2))
    assert batch["errors"] == [f"list.txt:1: {video_file('rotated_90.mp4')}: {reason}"]


def test_chunks_are_read_by_the_other_reader(video_file):
    packed = ShardMember("shard-000000.tar", "0000000-v.chunks.tar", 512, 10)
    for source in (ChunkSet(str(video_file("vp9.webm").parent)), packed):
        with pytest.raises(InexactReaderError, match="the video is stored in chunks"):
            DaliReader().examine(source)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["plain.mp4", "hevc.mp4", "av1.mp4", "mpeg4.avi"])
def test_a_video_that_needs_a_gpu_stops_the_run_in_one_sentence(video_file, monkeypatch, workers, name):
    monkeypatch.setattr(dali_loader, "load_dali", lambda: None)
    data = dataset([str(video_file(name))])
    if name == "mpeg4.avi":  # AVI has no times of pictures, so it is left to the other reader
        assert batches(data, monkeypatch).read_batch(keys_of(0))["errors"] == []
        return
    loader = DaliLoader(data, DaliReader(), TrainSampler(1, 1, 4, 32), workers, 30)
    codec = {"plain.mp4": "h264", "hevc.mp4": "hevc", "av1.mp4": "av1"}[name]
    with pytest.raises(LoaderError) as caught:
        list(loader)
    assert str(caught.value) == (
        f"{video_file(name)}: DALI decodes {codec} on a GPU only, and this run computes on the CPU: "
        "use a GPU, or read with -o data.reader=fused"
    )


# --- without DALI: the config


def test_without_dali_the_config_is_refused_with_the_install_command(motion, tmp_path, monkeypatch):
    use_toy(monkeypatch)
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(ConfigError) as caught:
        build(motion, tmp_path / "run", *TOY, "data.reader=dali")
    assert "data.reader (dali): reader 'dali' needs NVIDIA DALI, which " in str(caught.value)
    assert "pip install 'nvidia-dali-cuda120>=2.4,<3'" in str(caught.value)
    assert "'fused'" in str(caught.value)


def test_the_doctor_names_dali_only_for_a_config_that_asks_for_it(motion, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    path = config_file(motion, tmp_path / "run")
    for override, count in (([], 0), (["data.reader=dali"], 1)):
        found = [
            f for f in guarded("config", lambda given=override: check_config(str(path), given)) if f.mark == "fail"
        ]
        assert len(found) == count
        assert all(dali_reader.INSTALL in finding.detail for finding in found)


@pytest.mark.parametrize(
    ("override", "error", "message"),
    [
        ("data.read_timeout=5", ConfigError, "data.read_timeout: DALI decodes the files of a batch together"),
        ("data.reader.thread=2", ArgumentError, r"data.reader.thread \(dali\): unknown argument 'thread'; did you me"),
        (
            "data.reader.threads=-1",
            ArgumentError,
            r"data.reader.threads \(dali\): threads must be at least 0",
        ),
        (
            "data.reader.fallback=fused",
            ConfigError,
            "data.reader.fallback: remove this key; its value, 'pyav'",
        ),
        ("data.reader=dalli", ArgumentError, "unknown data.reader 'dalli'; did you mean 'dali'"),
    ],
)
def test_what_the_config_cannot_ask_of_dali(motion, tmp_path, monkeypatch, override, error, message):
    monkeypatch.setattr(builder, "load_dali", lambda: None)
    settings = config(motion, tmp_path, "data.reader={name: dali}", override)
    with pytest.raises(error, match=message):
        builder.build_configured_reader(settings)


def test_limits_and_fallback_reach_the_reader(motion, tmp_path, monkeypatch):
    monkeypatch.setattr(builder, "load_dali", lambda: None)
    settings = ("data.reader={name: dali, threads: 3, fps: 8}", "data.max_pixels=99", "data.fallback=null")
    reader = builder.build_configured_reader(config(motion, tmp_path, *settings))
    assert (reader.threads, reader.fps, reader.limits.max_pixels, reader.fallback) == (3, 8.0, 99, None)
    assert DaliReader(threads=0).threads >= 1


def test_a_config_for_dali_predicts_with_the_fallback(video_file, folder):
    reader = DaliReader()
    for source, other in ((str(video_file("plain.mp4")), "pyav"), (str(folder), "frames")):
        np.testing.assert_array_equal(reader.read(source, [3, 1]), build_reader(other).read(source, [3, 1]))


# --- with DALI

LEAST_DB = 38.0  # what the tests of the other readers ask of scaled boxes


@pytest.fixture
def dali():
    return pytest.importorskip("nvidia.dali")


@pytest.fixture
def decode(dali):
    """Decodes clips by DALI on the CPU."""
    from paddlevideo_fast.loaders.dali_pipeline import DaliDecoder

    decoder = DaliDecoder("cpu", 2)

    def run(*clips):
        outcomes = decoder.decode(clips)
        return [o if isinstance(o, VideoError) else paddle.concat(o).numpy() for o in outcomes]

    return run


@pytest.mark.parametrize("name", TAKEN)
def test_frames_are_to_the_last_bit_those_of_a_sequential_decode(video_file, decode, name):
    source, box = str(video_file(name)), CropBox(3, 1, 93, 63)
    wanted = [5, 3, 3, 39, 0, 17]
    facts = DaliReader().examine(source)
    plain, cut = decode(
        *load(source, facts, [View(wanted)], (64, 96)), *load(source, facts, [View(wanted, box, True)], (63, 93))
    )
    reference = build_reader("pyav").read(source, wanted)
    assert [read_number(picture) for picture in plain] == wanted
    np.testing.assert_array_equal(plain, reference)
    np.testing.assert_array_equal(cut, crop_resize_flip(reference, box, None, True))


def test_pictures_are_to_the_last_bit_those_of_the_frames_reader(folder, decode):
    source, box = FrameFolder(str(folder)), CropBox(11, 7, 61, 51)
    (clip,) = decode(*load(source, DaliReader().examine(source), [View([7, 2, 2, 9], box, True)], (51, 61)))
    np.testing.assert_array_equal(clip, build_reader("frames").read(str(folder), [7, 2, 2, 9], box, None, True))


def test_kinds_of_pictures(decode, tmp_path):
    """Grey, indexed, transparent, turned by EXIF, 16 bit: as the frames reader shows them, 16 bit to one level."""
    colours, exif = draw_picture(9), Image.Exif()
    exif[0x112] = 6
    image = Image.fromarray(colours)
    kinds = {
        "grey.jpg": (image.convert("L"), {}),
        "turned.jpg": (image, {"exif": exif}),
        "progressive.jpg": (image, {"progressive": True}),
        "indexed.png": (image.convert("P"), {}),
        "transparent.png": (image.convert("RGBA"), {}),
        "deep.png": (Image.fromarray(colours[..., 0].astype(np.uint16) * 257), {}),
    }
    for name, (picture, options) in kinds.items():
        path = tmp_path / name[:-4]
        path.mkdir()
        picture.save(path / f"img_1{name[-4:]}", **options)
        (clip,) = decode(*load(str(path), DaliReader().examine(str(path)), [View([0])], (64, 96)))
        difference = np.abs(clip.astype(int) - build_reader("frames").read(str(path), [0])).max()
        assert difference <= (1 if name == "deep.png" else 0), name


def test_scaled_boxes_are_within_rounding_of_pillow_s(folder, decode):
    """300 boxes of every shape, down to a third and up to eight times, of a picture full of edges."""
    source, rng, clips = FrameFolder(str(folder)), np.random.default_rng(0), []
    facts = DaliReader().examine(source)
    for _ in range(300):
        width, height = (int(n) for n in rng.integers(4, [97, 65]))
        x, y = (int(n) for n in rng.integers([97 - width, 65 - height]))
        clips += load(source, facts, [View([8], CropBox(x, y, width, height), bool(rng.random() < 0.5))], (32, 32))
    picture = build_reader("frames").read(str(folder), [8])
    differences = []
    for clip, made in zip(clips, decode(*clips)):
        reference = crop_resize_flip(picture, clip.box, clip.size, clip.flip)
        differences.append((made.astype(np.float64) - reference) ** 2)
    decibels = 10 * np.log10(255**2 / np.maximum(np.mean(differences, axis=(1, 2, 3, 4)), 1e-9))
    assert decibels.min() > LEAST_DB
    assert np.sqrt(differences).mean() < 0.25


def test_clips_of_one_video_share_one_decode(video_file, decode, monkeypatch):
    """Three clips of a video and one of another in one run: in any order, repeated, of any length, each its own box."""
    from paddlevideo_fast.loaders import dali_pipeline

    ran, plain = [], dali_pipeline.DaliDecoder._run
    monkeypatch.setattr(dali_pipeline.DaliDecoder, "_run", lambda self, n, s: ran.append((n, s)) or plain(self, n, s))
    source, other = str(video_file("vp9.webm")), str(video_file("mjpeg.avi"))
    views = [
        View([30, 2, 2, 17], CropBox(0, 0, 48, 48)),
        View([5, 30], CropBox(48, 16, 48, 48), True),
        View([39, 0, 7], CropBox(20, 8, 48, 48)),
    ]
    clips = load(source, DaliReader().examine(source), views, (48, 48))
    clips += load(other, DaliReader().examine(other), views[:1], (48, 48))
    made = decode(*clips)
    references = build_reader("pyav").open(source).read(views, (48, 48))
    references += build_reader("pyav").open(other).read(views[:1], (48, 48))
    for clip, reference in zip(made, references, strict=True):
        np.testing.assert_array_equal(clip, reference)
    (_, nothing), (num_views, samples) = ran
    assert (nothing, num_views, len(samples)) == ([], 3, 2)
    assert samples[0]["frames"].tolist() == [0, 2, 5, 7, 17, 30, 39]
    assert samples[1]["frames"].tolist() == [2, 17, 30]


@pytest.mark.parametrize("colours", [(1, 1), (1, 2), (5, 2), (9, 1)])
def test_colours_are_those_the_file_is_tagged_with(tmp_path, dali, colours):
    """DALI takes every file for BT.601, which is 3 levels off for BT.709 and 18 at most."""
    path, rule = tmp_path / "clip.webm", ClipRecipe(SAMPLINGS["segment"](), EvalCrop(64), False)
    encode(path, "libvpx-vp9", options={"g": "12", "cpu-used": "8", "deadline": "realtime"}, colours=colours)
    data = dataset([str(path)], rule=rule)
    keys = keys_of(0, frames=8, crop=64)  # not scaled
    made, reference = DaliBatches(data, DaliReader()).read_batch(keys), data.read_batch(keys)
    difference = np.abs(made["clip"].numpy().astype(int) - reference["clip"])
    assert difference.mean() < (0.4 if colours[0] in (1, 9) else 1e-9)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_the_batches_of_the_other_readers(video_file, dali, workers):
    data = dataset([str(video_file(name)) for name in (*TAKEN, "wmv2.wmv")])
    sampler = TrainSampler(6, 4, 4, 32, repeats=2, seed=3)
    loader = DaliLoader(data, DaliReader(), sampler, workers, 60)
    for epoch in (0, 1):
        sampler.seek(epoch)
        keys, made = list(sampler), list(loader)
        assert len(keys) == len(made) == 2
        for wanted, batch in zip(keys, made):  # fetched before they are compared: each keeps its own memory
            assert all(isinstance(batch[name], paddle.Tensor) for name in ("clip", "target", "index", "weight"))
            arrays = {k: v.numpy() if isinstance(v, paddle.Tensor) else v for k, v in batch.items()}
            arrays["aug"] = {k: v.numpy() for k, v in batch["aug"].items()}
            same_batch(arrays, data.read_batch(wanted), LEAST_DB)


def test_a_loader_of_folders(folder, dali):
    data = dataset([FrameFolder(str(folder)), str(folder)], "frames")
    sampler = TrainSampler(2, 2, 6, 24, seed=1)
    loader = DaliLoader(data, DaliReader(), sampler, 1, 60)
    (batch,) = list(loader)
    np.testing.assert_array_equal(batch["index"].numpy(), [key.index for key in next(iter(sampler))])
    reference = data.read_batch(next(iter(sampler)))
    error = ((batch["clip"].numpy().astype(float) - reference["clip"]) ** 2).mean(axis=(1, 2, 3, 4))
    assert (10 * np.log10(255**2 / error) > LEAST_DB).all()


def test_shapes_change_from_batch_to_batch(video_file, folder, dali):
    data = dataset([str(video_file("vp9.webm")), str(video_file("mjpeg.avi")), FrameFolder(str(folder))], "pyav")
    mixed = DaliReader()
    data.reader = mixed
    made = DaliBatches(data, mixed)
    for frames, crop, count in ((4, 32, 3), (8, 16, 6), (2, 48, 1), (5, 33, 4), (4, 32, 2)):
        keys = keys_of(*(number % 3 for number in range(count)), frames=frames, crop=crop)
        batch = made.read_batch(keys)
        assert batch["clip"].shape == [count, frames, crop, crop, 3]
        same_batch(batch, data.read_batch(keys), LEAST_DB)


class ChangingShapes:
    """Batches as multigrid deals them out: frames, crop and number of clips are others in each step."""

    STEPS = ((8, 112, 2), (4, 80, 5), (8, 64, 6), (4, 112, 4), (2, 56, 12), (8, 112, 1))

    def __init__(self, num_records):
        order = np.random.default_rng(4).permutation(40 * num_records) % num_records
        self.batches, done = [], 0
        for frames, crop, count in self.STEPS:
            self.batches.append(keys_of(*order[done : done + count].tolist(), frames=frames, crop=crop))
            done += count

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("reader", ["frames", "pyav"])
def test_a_loader_follows_a_sampler_that_changes_the_shape(video_file, folder, tmp_path, dali, reader, workers):
    other = copy_folder(folder, tmp_path / "other")
    videos = [str(video_file("mjpeg.avi")), str(video_file("vp9.webm"))]
    data = dataset([FrameFolder(str(folder)), other] if reader == "frames" else videos, reader)
    sampler = ChangingShapes(2)
    made = list(DaliLoader(data, DaliReader(), sampler, workers, 60))
    expected = list(ThreadLoader(data, sampler, workers, 60))
    assert [batch["clip"].shape for batch in made] == [[n, t, side, side, 3] for t, side, n in ChangingShapes.STEPS]
    for left, right in zip(made, expected, strict=True):
        for batch in (left, right):
            batch["aug"] = {name: value.numpy() for name, value in batch["aug"].items()}
        arrays = ({k: v.numpy() if isinstance(v, paddle.Tensor) else v for k, v in b.items()} for b in (left, right))
        same_batch(*arrays, LEAST_DB)


def test_ranks_share_an_epoch_and_a_resumed_one_goes_on(video_file, dali):
    data = dataset([str(video_file(TAKEN[number % 3])) for number in range(10)])
    seen, tails = [], []
    for rank in (0, 1):
        sampler = TrainSampler(10, 2, 4, 32, ranks=2, rank=rank, seed=2)
        loader = DaliLoader(data, DaliReader(), sampler, 1, 60)
        whole = list(loader)
        seen += [index for batch in whole for index in batch["index"].tolist() if index >= 0]
        sampler.seek(0, 4)
        tails.append([batch["clip"].numpy() for batch in loader])
        assert len(tails[-1]) == 2
        for left, right in zip(tails[-1], whole[1:]):
            np.testing.assert_array_equal(left, right["clip"].numpy())
    assert sorted(seen) == list(range(10))


def test_views_by_dali(video_file, dali):
    rule = recipe(False, num_clips=2, num_crops=10)
    data = dataset([str(video_file("vp8.webm")), str(video_file("vp9.webm"))], rule=rule)
    sampler = EvalSampler(2, 7, 4, 32, num_views=20)
    for keys, batch in zip(sampler, DaliLoader(data, DaliReader(), sampler, 2, 60), strict=True):
        np.testing.assert_array_equal(batch["view"].numpy(), [key.view for key in keys])
        error = (batch["clip"].numpy().astype(float) - data.read_batch(keys)["clip"]) ** 2
        assert (10 * np.log10(255**2 / error.mean(axis=(1, 2, 3, 4))) > LEAST_DB).all()


def test_what_does_not_decode_is_named_and_the_rest_is_not_touched(video_file, folder, tmp_path, dali):
    damaged = bytearray(video_file("mjpeg.avi").read_bytes())
    damaged[len(damaged) // 2 : len(damaged) // 2 + 300] = bytes(300)
    (tmp_path / "damaged.avi").write_bytes(damaged)
    jpeg = (folder / "img_00005.jpg").read_bytes()
    broken = copy_folder(folder, tmp_path / "broken", "img_00005.jpg", jpeg[: len(jpeg) // 2])
    sources = [str(video_file("vp9.webm")), str(tmp_path / "damaged.avi"), FrameFolder(str(folder)), broken]
    reader = DaliReader()
    data = dataset(sources, reader)
    made = DaliBatches(data, reader)
    batch = made.read_batch(keys_of(0, 1, 2, 3, 0, frames=40))
    assert batch["weight"].tolist() == [1, 0, 1, 0, 1]
    assert batch["clip"].shape == [5, 40, 32, 32, 3]
    assert len(batch["errors"]) == 2
    assert batch["errors"][0].startswith(f"list.txt:2: {tmp_path}/damaged.avi: DALI cannot decode it: ")
    assert batch["errors"][1].startswith(f"list.txt:4: {broken.path}: ")
    assert "img_00005.jpg" in batch["errors"][1]
    good = made.read_batch(keys_of(0, 2, frames=40))
    for row, other in ((0, 0), (1, 0), (2, 1), (4, 0)):
        np.testing.assert_array_equal(batch["clip"][row], good["clip"][other])
    black = made.read_batch(keys_of(1, 3, frames=40))
    assert black["weight"].tolist() == [0, 0] and black["clip"].shape == (2, 40, 32, 32, 3)
    assert not black["clip"].any()


def test_a_file_shorter_or_smaller_than_was_found_is_an_error(video_file, decode):
    """What DALI would fill with black, or cut elsewhere, if it were let."""
    data = np.fromfile(video_file("vp9.webm"), np.uint8)
    frames, box = np.array([2, 39], np.int32), CropBox(0, 0, 96, 64)
    beyond = EncodedClip("beyond.webm", (data.copy(),), np.array([2, 45], np.int32), (), box, False, (32, 32))
    larger = EncodedClip("larger.webm", (data.copy(),), frames, (), CropBox(10, 10, 96, 64), False, (32, 32))
    fine = EncodedClip("fine.webm", (data,), frames, (), box, False, (32, 32))
    outcomes = decode(fine, beyond, fine, larger)
    assert str(outcomes[1]).startswith("beyond.webm: DALI cannot decode it: Unexpected out-of-bounds frame index 45")
    assert str(outcomes[3]).startswith("larger.webm: DALI cannot decode it: Slice can't be placed out of bounds")
    np.testing.assert_array_equal(outcomes[0], outcomes[2])
    assert [read_number(p) for p in decode(EncodedClip("x", (data,), frames, (), box, False, (64, 96)))[0]] == [
        2,
        39,
    ]


def write_lists(folder: Path, video_file) -> None:
    """Writes lists of eight videos of two classes for training runs."""
    rows = "".join(f"{video_file(TAKEN[number % 3])} {number % 2}\n" for number in range(8))
    for phase in ("train", "valid", "test"):
        (folder / f"{phase}.txt").write_text(rows)
    (folder / "classes.txt").write_text("a\nb\n")


def test_a_training_run_has_the_losses_of_another_reader(video_file, tmp_path, dali, monkeypatch):
    from paddlevideo_fast.engine.train import train

    use_toy(monkeypatch)
    write_lists(tmp_path, video_file)
    settings = ("model={name: toy, num_classes: 2}", "data.train.flip=0.5", "augment.color_jitter={hue: 0.1}")
    for reader in ("dali", "pyav"):
        for workers in (0, 2):
            run = build(
                tmp_path, tmp_path / f"{reader}{workers}", *settings, f"data.reader={reader}",
                f"data.num_workers={workers}", validate=True,
            )  # fmt: skip
            train(run)
    found = {name: lines(tmp_path / name) for name in ("dali0", "dali2", "pyav0", "pyav2")}
    losses = {name: [row["loss"] for row in rows] for name, rows in found.items()}
    assert len(losses["dali0"]) >= 6  # four steps and two validations
    assert losses["dali0"] == losses["dali2"]
    np.testing.assert_allclose(losses["dali0"], losses["pyav0"], rtol=2e-3)


MULTIGRID = (
    "epochs=3",
    "multigrid={cycle: single, epoch_factor: 1, milestones: [1], long_cycle_shapes: [[0.5, 0.5], [1, 1]]}",
    "multigrid.sub_batch=2",
    "model.norm=sub",
    "data.batch_size=1",
    "optimizer.lr=0.001",  # small steps, so that rounding in the colours stays rounding in the losses
)


def test_multigrid_trains_and_resumes_in_the_middle_of_a_short_cycle(video_file, tmp_path, dali):
    from paddlevideo_fast.engine.train import train

    write_lists(tmp_path, video_file)

    def run(reader: str, folder: str):
        options = ("model.num_classes=2", f"data.reader={reader}", "data.num_workers=2", "checkpoint.every_steps=1")
        return build(tmp_path, tmp_path / folder, *MULTIGRID, *options)

    whole = run("dali", "dali")
    train(whole)
    train(run("pyav", "pyav"))
    rows = {reader: lines(tmp_path / reader, "train") for reader in ("dali", "pyav")}
    shapes, other = ([(row["clips"], row["frames"], row["crop"]) for row in rows[reader]] for reader in rows)
    assert shapes == other
    assert {shape[1:] for shape in shapes} == {(2, 16), (4, 16), (4, 23), (4, 32)}
    losses, other = ([row["loss"] for row in rows[reader]] for reader in rows)
    np.testing.assert_allclose(losses, other, rtol=1e-2)

    middle = 1 + next(number for number, shape in enumerate(shapes) if shape[2] == 23)
    train(run("dali", "cut"), max_steps=middle)
    resumed = run("dali", "cut")
    train(resumed, resume=True)
    assert resumed.progress.step == len(shapes) > middle
    same(weights(resumed.model), weights(whole.model))


@pytest.mark.parametrize("ending", ["break", "sys.exit(3)"])
def test_a_process_ends_in_the_middle_of_an_epoch(video_file, dali, ending):
    script = textwrap.dedent(f"""
        import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}, {str(ROOT / "tests/loaders")!r}]
        from test_dali_loader import DaliLoader, DaliReader, TrainSampler, dataset
        loader = DaliLoader(
            dataset([{str(video_file("vp9.webm"))!r}] * 40), DaliReader(), TrainSampler(40, 4, 8, 32), 2, 60
        )
        for number, batch in enumerate(loader):
            if number == 2:
                {ending}
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == {"break": 0, "sys.exit(3)": 3}[ending], done.stderr
    assert "Traceback" not in done.stderr and "Error" not in done.stderr
