"""Folders of images as videos: numbering, holes, promises, damaged files."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import draw_picture
from PIL import Image

from paddlevideo_fast.data.readers import CropBox, FrameFolder, VideoError, View, build_reader, frames


@pytest.fixture
def folder(tmp_path):
    """A function that writes numbered pictures and returns their folder."""

    def write(numbers, template="img_{:05d}.jpg", name="clip", size=(96, 64)):
        path = tmp_path / name
        path.mkdir(exist_ok=True)
        for number in numbers:
            Image.fromarray(draw_picture(number, *size)).save(path / template.format(number), quality=95)
        return path

    return write


@pytest.mark.parametrize("first", [0, 1, 7])
@pytest.mark.parametrize("template", ["img_{:05d}.jpg", "{:d}.png", "frame-{:02d}.JPEG", "100%_{:06d}.jpg"])
def test_any_start_and_template(folder, first, template):
    path = folder(range(first, first + 12), template)
    (path / "notes.txt").write_text("not a picture")
    for source in (path, str(path), FrameFolder(str(path)), FrameFolder(str(path), template)):
        with build_reader("frames").open(source) as video:
            assert video.info == (12, 0.0, 96, 64, 0.0)
            clip, mirrored = video.read([View([11, 0, 11]), View([4], flip=True)])
        for picture, number in zip(clip, [11, 0, 11], strict=True):
            assert np.abs(picture.astype(int) - draw_picture(first + number)).mean() < 4
        assert np.abs(mirrored[0].astype(int) - draw_picture(first + 4)[:, ::-1]).mean() < 4
    if template.endswith("png"):
        np.testing.assert_array_equal(clip[0], draw_picture(first + 11))


def test_start_and_count_of_an_annotation(folder, caplog):
    path = folder(range(1, 11), "{:d}.png")
    reader = build_reader("frames")
    np.testing.assert_array_equal(reader.read(FrameFolder(str(path), start=3), [0])[0], draw_picture(3))
    assert reader.probe(FrameFolder(str(path), num_frames=6)).num_frames == 6
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "paddlevideo_fast"):
        for _ in range(3):
            assert reader.probe(FrameFolder(str(path), num_frames=14)).num_frames == 10
    assert len(caplog.records) == 1 and "promises 14 frames, the folder has 10" in caplog.text


def test_crop_and_size(folder):
    path = folder(range(3), "{:d}.png")
    box = CropBox(5, 4, 50, 30)
    clip = build_reader("frames").read(path, [2], box, (15, 25))
    cut = Image.fromarray(draw_picture(2)).crop((5, 4, 55, 34)).resize((25, 15), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(clip[0], np.asarray(cut))


def test_duration_from_a_given_rate(folder):
    assert build_reader("frames", fps=10.0).probe(folder(range(5)))[1:5:3] == (10.0, 0.5)


def test_errors_in_words(folder, tmp_path):
    reader = build_reader("frames")
    hole = folder([1, 2, 3, 5, 6, 8], name="hole")
    (tmp_path / "nothing").mkdir()
    mixed = folder([1, 2], name="mixed")
    folder([1, 2], "flow_{:05d}.jpg", "mixed")
    whole = (hole / "img_00001.jpg").read_bytes()
    cases = [
        (hole, "img_00004.jpg is missing .numbers 1 to 8"),
        (FrameFolder(str(hole), "img_{:05d}.jpg", start=0), "img_00000.jpg is missing"),
        (tmp_path / "nothing", "0 frames"),
        (FrameFolder(str(hole), "image_{:d}.jpg"), "no JPEG or PNG files like image_"),
        (FrameFolder(str(hole), "img.jpg"), "must hold one field"),
        (tmp_path / "gone", f"does not exist .looked for {tmp_path}/gone"),
        (hole / "img_00001.jpg", "is a file"),
        (whole, "takes a folder"),
        (mixed, "several kinds of images"),
    ]
    for source, message in cases:
        with pytest.raises(VideoError, match=message):
            reader.probe(source)
    assert reader.probe(FrameFolder(str(mixed), "flow_{:05d}.jpg")).num_frames == 2
    assert reader.probe(FrameFolder(str(hole), num_frames=3)).num_frames == 3


@pytest.mark.parametrize("without_cv2", [False, True])
@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_damaged_pictures_are_named(folder, without_cv2, suffix, monkeypatch):
    if without_cv2:
        monkeypatch.setitem(sys.modules, "cv2", None)
    path = folder(range(4), "{:d}." + suffix)
    whole = (path / f"2.{suffix}").read_bytes()
    for data, message in [
        (whole[: len(whole) // 2], rf"2\.{suffix} is truncated"),
        (b"", rf"2\.{suffix} is empty"),
        (b"hello" * 30, rf"2\.{suffix} is truncated or not a JPEG or PNG"),
    ]:
        (path / f"2.{suffix}").write_bytes(data)
        with build_reader("frames").open(path) as video:
            assert video.read([View([1, 3])])[0].shape == (2, 64, 96, 3)
            with pytest.raises(VideoError, match=message):
                video.read([View([1, 2])])


def test_a_first_picture_that_is_cut_off_is_named_at_once(folder):
    path = folder(range(3))
    first = path / "img_00000.jpg"
    first.write_bytes(first.read_bytes()[:1000])
    with pytest.raises(VideoError, match="img_00000.jpg is truncated or not a JPEG or PNG image .1000 bytes"):
        build_reader("frames").open(path)


def test_opening_decodes_nothing(folder, monkeypatch):
    decoded = []
    plain = frames.decode_image
    monkeypatch.setattr(frames, "decode_image", lambda data: decoded.append(len(data)) or plain(data))
    with build_reader("frames").open(folder(range(9))) as video:
        assert video.info[:4] == (9, 0.0, 96, 64) and not decoded
        video.read([View([8, 3]), View([3])])
    assert len(decoded) == 2


def test_pictures_of_another_size_are_named(folder):
    folder(range(3))
    path = folder([3], size=(90, 60))
    with pytest.raises(VideoError, match="frame 3 is 90x60, the video is 96x64"):
        build_reader("frames").read(path, [0, 3])


def test_orientation_tags_are_ignored(folder):
    path = folder(range(2))
    tags = Image.Exif()
    tags[0x0112] = 6
    Image.fromarray(draw_picture(1)).save(path / "img_00001.jpg", exif=tags, quality=95)
    assert build_reader("frames").read(path, [1]).shape == (1, 64, 96, 3)


def test_works_without_opencv_and_grey_pictures(folder, monkeypatch):
    path = folder(range(2))
    Image.fromarray(draw_picture(1)[..., 0]).save(path / "img_00001.jpg", quality=95)
    with_cv2 = build_reader("frames").read(path, [0, 1])
    monkeypatch.setitem(sys.modules, "cv2", None)
    without = build_reader("frames").read(path, [0, 1])
    assert np.abs(with_cv2.astype(int) - without).mean() < 1 and with_cv2.shape == without.shape


def test_kinds_of_png(tmp_path):
    grey = np.arange(64 * 96, dtype=np.uint16).reshape(64, 96) * 10
    Image.fromarray(grey).save(tmp_path / "0.png")
    Image.fromarray((grey >> 8).astype(np.uint8)).save(tmp_path / "1.png")
    transparent = np.dstack([draw_picture(2), np.full((64, 96), 7, np.uint8)])
    Image.fromarray(transparent).save(tmp_path / "2.png")
    clip = build_reader("frames").read(tmp_path, [0, 1, 2])
    np.testing.assert_array_equal(clip[0], np.repeat((grey >> 8)[..., None], 3, 2))
    np.testing.assert_array_equal(clip[1], clip[0])
    np.testing.assert_array_equal(clip[2], draw_picture(2))


def test_needs_no_video_package(folder):
    code = (
        "import sys\nfor name in ('av', 'decord', 'cv2'): sys.modules[name] = None\n"
        "from paddlevideo_fast.data.readers import build_reader\n"
        f"print(build_reader('frames').read({str(folder(range(3)))!r}, [2]).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == "(1, 64, 96, 3)", done.stderr
