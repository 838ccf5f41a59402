"""The packages of the readers: loaded when a reader is made, and one that does not load is told in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from paddlevideo_fast.arguments import ArgumentError
from paddlevideo_fast.data.readers import READERS, build_reader

ROOT = Path(__file__).parents[2]
PACKAGES = {"pyav": "av", "decord": "decord", "opencv": "cv2"}


def run(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("reader", PACKAGES)
def test_a_library_that_does_not_load_is_named_when_the_reader_is_made(reader, tmp_path):
    (tmp_path / f"{PACKAGES[reader]}.py").write_text('raise OSError("libx.so.9: cannot open shared object file")\n')
    said = run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from paddlevideo_fast.data.readers import available_readers, build_reader\n"
        f"try: build_reader({reader!r})\n"
        "except ImportError as error: print(error)\n"
        "print(available_readers())"
    )
    left = [name for name, kind in READERS.items() if kind.package != PACKAGES[reader]]
    if reader == "pyav":  # which lists the packets for all of them
        left = [name for name in READERS if READERS[name].package is None]
    assert len(said) == 2
    assert "which cannot be loaded (libx.so.9: cannot open shared object file): pip install" in said[0]
    assert said[0].endswith(f"readers available here: {', '.join(left)}")
    assert said[1] == str(left)


@pytest.mark.parametrize("call", ["build_reader('decord')", "available_readers()"])
def test_pyav_is_loaded_before_decord(call):
    """Once decord's FFmpeg is loaded, PyAV's libvpx does not open."""
    loaded = run(
        f"import sys; from paddlevideo_fast.data.readers import available_readers, build_reader; {call}\n"
        "print([name for name in sys.modules if name in ('av', 'decord')])"
    )
    assert loaded == ["['av', 'decord']"]


def test_arguments_reach_a_reader_as_it_takes_them():
    reader = build_reader("frames", fps="2.5e1")
    assert reader.fps == 25 and type(reader.fps) is float
    for name, arguments in {"pyav": {"threads": -1}, "fused": {"cache_bytes": -1}, "frames": {"max_pixels": 0}}.items():
        with pytest.raises(ArgumentError, match=f"reader {name}: {next(iter(arguments))} must be at least [01], given"):
            build_reader(name, **arguments)
