"""Mutated files through every reader: a clip of the shape asked for or a VideoError, and no crash or hang of the run.

Prints what became of the files with ``pytest -s``; ``-m slow`` runs the large number.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from conftest import draw_picture, encode
from PIL import Image

from paddlevideo_fast.data.readers import READERS, IsolatedReader, VideoError, View, build_reader
from paddlevideo_fast.data.readers.isolated import ChildLostError

SEEDS = {
    "h264.mp4": {"options": {"g": "8"}},
    "h264.mkv": {"options": {"g": "8"}},
    "h264.ts": {"options": {"g": "8"}},
    "h264.h264": {"options": {"g": "8"}},
    "fragmented.mp4": {"options": {"g": "4"}, "container_options": {"movflags": "frag_keyframe+empty_moov"}},
    "hevc.mp4": {
        "codec": "libx265",
        "options": {"x265-params": "log-level=none:keyint=8:pools=none:frame-threads=1"},
    },
    "vp8.webm": {"codec": "libvpx", "options": {"cpu-used": "8", "deadline": "realtime", "g": "8"}},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"cpu-used": "8", "deadline": "realtime", "g": "8"}},
    "av1.mp4": {"codec": "libsvtav1", "options": {"preset": "12", "g": "8"}},
    "mpeg4.avi": {"codec": "mpeg4", "options": {"g": "8", "bf": "1"}},
    "mjpeg.avi": {"codec": "mjpeg", "pix_fmt": "yuvj420p"},
    "mpeg2.mpg": {"codec": "mpeg2video", "options": {"g": "8"}},
    "wmv2.wmv": {"codec": "wmv2", "options": {"g": "8"}},
    "flv1.flv": {"codec": "flv1", "options": {"g": "8"}},
}
NUMBERS = [0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
SIZE = (24, 36)


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Names and bytes of small good files."""
    folder = tmp_path_factory.mktemp("seeds")
    for name, options in SEEDS.items():
        encode(folder / name, count=12, size=(64, 48), **options)
    return {name: (folder / name).read_bytes() for name in SEEDS}


def mutate(data: bytes, other: bytes, random: np.random.Generator) -> bytes:
    """Changes a file in one to three random ways; ``other`` lends pieces."""
    changed = bytearray(data)
    for _ in range(random.integers(1, 4)):
        if len(changed) < 16:
            break
        # Half of the changes fall into the first part, where the headers are.
        end = len(changed) if random.random() < 0.5 else min(len(changed), 1500)
        at = int(random.integers(0, end))
        length = int(random.integers(1, 200))
        match random.integers(0, 9):
            case 0:
                for place in random.integers(0, end, random.integers(1, 30)):
                    changed[place] ^= 1 << random.integers(0, 8)
            case 1:
                changed[at : at + length] = random.bytes(length)
            case 2:
                del changed[at + 8 :]
            case 3:
                changed[at : at + length] = bytes(length)
            case 4:
                del changed[at : at + length]
            case 5:
                changed[at:at] = changed[max(0, at - length) : at]
            case 6:
                changed[at:] = other[at:]
            case 7:
                changed[: at // 2] = other[: at // 2]
            case 8:
                number = int(random.choice(NUMBERS))
                changed[at : at + 4] = number.to_bytes(4, "big" if random.random() < 0.5 else "little")
    return bytes(changed)


def outcome(reader, source) -> str:
    """Reads a clip of four frames and returns what came of it."""
    try:
        with reader.open(source) as video:
            count = video.info.num_frames
            width, height = video.info.width, video.info.height
            assert count >= 1 and width >= 1 and height >= 1, video.info
            assert 0 <= video.info.fps <= 1000 and 0 <= video.info.duration < 1e12, video.info
            (clip,) = video.read([View(np.linspace(0, count - 1, 4).astype(int))], SIZE)
    except VideoError as error:
        assert len(str(error)) < 700 and "\n" not in str(error), error
        return "lost: " + str(error.__cause__) if isinstance(error.__cause__, ChildLostError) else "refused"
    assert isinstance(clip, np.ndarray) and clip.dtype == np.uint8 and clip.shape == (4, *SIZE, 3)
    return "read"


def run(seeds, folder, count, seed):
    """Reads mutated files with every reader; returns the outcomes by reader and the files that took a child down."""
    random = np.random.default_rng(seed)
    names = [name for name in READERS if name != "frames"]
    readers = {name: IsolatedReader(build_reader(name), timeout=20, max_memory=8 << 30) for name in names}
    outcomes, lost = {name: Counter() for name in names}, []
    for number in range(count):
        name, other = random.choice(list(seeds), 2)
        path = folder / f"{number}-{name}"
        path.write_bytes(mutate(seeds[name], seeds[other], random))
        for reader in names:
            try:
                result = outcome(readers[reader], path)
            except Exception as error:
                raise AssertionError(f"{reader} on mutation {number} of {name} (seed {seed}): {error!r}") from error
            outcomes[reader][result.split(":")[0]] += 1
            if result.startswith("lost"):
                lost.append(f"{reader}, mutation {number} of {name}: {result}")
        if not any(f" {number} " in line for line in lost):
            path.unlink()
    for reader, counts in outcomes.items():
        print(f"{reader}: {dict(counts)}")
    print("\n".join(lost))
    return outcomes, lost


def check(outcomes, lost):
    assert not any(line.startswith("pyav") for line in lost), lost
    for counts in outcomes.values():
        total = sum(counts.values())
        assert counts["read"] > total / 10 and counts["refused"] > total / 10 and counts["lost"] < total / 100


def test_mutated_files(seeds, tmp_path):
    check(*run(seeds, tmp_path, 250, seed=1))


@pytest.mark.slow
def test_many_mutated_files(seeds, tmp_path):
    check(*run(seeds, tmp_path, 2000, seed=2))


def test_seeds_are_read(seeds, tmp_path):
    for name, data in seeds.items():
        (tmp_path / name).write_bytes(data)
        for reader in (name for name in READERS if name != "frames"):
            assert outcome(build_reader(reader), tmp_path / name) == "read", name


@pytest.mark.parametrize("suffix, options", [("jpg", {"quality": 90}), ("jpeg", {"progressive": True}), ("png", {})])
def test_mutated_pictures(suffix, options, tmp_path):
    for number in range(4):
        Image.fromarray(draw_picture(number, 48, 40)).save(tmp_path / f"{number}.{suffix}", **options)
    good, other = ((tmp_path / f"{number}.{suffix}").read_bytes() for number in (2, 1))
    reader, random = IsolatedReader(build_reader("frames"), timeout=20, max_memory=4 << 30), np.random.default_rng(3)
    outcomes = Counter()
    for _ in range(150):
        (tmp_path / f"2.{suffix}").write_bytes(mutate(good, other, random))
        outcomes[outcome(reader, tmp_path)] += 1
    print(suffix, dict(outcomes))
    assert set(outcomes) == {"read", "refused"}
