"""What gets installed: the wheel holds every file of the package, and the lists of requirements agree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
PACKAGE = "paddlevideo_fast"


def run_python(code: str, *arguments: str, cwd: Path = ROOT) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built by the backend that pip would call, from a copy so that nothing is left in the checkout."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / PACKAGE, copy / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    target = tmp_path_factory.mktemp("wheel")
    code = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
    name = run_python(code, str(target), cwd=copy).splitlines()[-1]
    return zipfile.ZipFile(target / name)


def test_wheel_holds_every_file(wheel):
    source = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / PACKAGE).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert source - packed == set(), "not packed: a folder without __init__.py, or data missing in package-data"
    assert packed - source == set()


def test_wheel_metadata(wheel):
    name = next(name for name in wheel.namelist() if name.endswith("METADATA"))
    metadata = wheel.read(name).decode()
    version = run_python(f"import {PACKAGE}; print({PACKAGE}.__version__)")
    assert f"Version: {version}" in metadata
    assert "License-Expression: Apache-2.0" in metadata
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
    extras = set(re.findall(r"Provides-Extra: (\S+)", metadata))
    assert {"cpu", "decord", "dali", "text", "dev"} <= extras


def pins_of(name: str) -> dict[str, list[str]]:
    """Reads a requirements file: package -> the lines that pin it."""
    pins = {}
    for line in (ROOT / name).read_text().splitlines():
        line = line.partition("#")[0].strip()
        if line and not line.startswith("--"):
            pins.setdefault(re.match(r"[\w.-]+", line)[0].lower(), []).append(line)
    return pins


def test_every_requirement_is_pinned():
    for name in ("requirements.txt", "requirements-gpu.txt", "requirements-dev.txt"):
        for lines in pins_of(name).values():
            assert all(re.match(r"[\w.-]+==[\w.]+(;|$)", line) for line in lines), lines


def test_gpu_and_cpu_lists_differ_in_paddle_only():
    cpu, gpu = pins_of("requirements.txt"), pins_of("requirements-gpu.txt")
    version = cpu.pop("paddlepaddle")[0].partition("==")[2]
    assert gpu.pop("paddlepaddle-gpu") == [f"paddlepaddle-gpu=={version}"]
    assert cpu == gpu


def test_pins_lie_in_the_ranges_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pins = pins_of("requirements.txt") | pins_of("requirements-dev.txt")
    for text in (*project["dependencies"], *extras["cpu"], *extras["decord"], *extras["dev"]):
        wanted = Requirement(text)
        for line in pins[wanted.name.lower()]:
            version = str(Requirement(line).specifier).removeprefix("==")
            assert wanted.specifier.contains(version), f"{line} is outside {wanted}"


IMPORT_AND_WATCH = """
import signal, sys
before = {number: signal.getsignal(number) for number in signal.valid_signals()}
opened = []
sys.addaudithook(lambda event, args: opened.append((str(args[0]), args[1])) if event == "open" else None)
import paddlevideo_fast
opened = [(path, mode) for path, mode in opened if not path.endswith((".py", ".pyc")) or mode not in ("r", "rb", None)]
heavy = {"paddle", "av", "cv2", "decord", "numpy", "pydantic", "visualdl", "matplotlib"} & set(sys.modules)
after = {number: signal.getsignal(number) for number in signal.valid_signals()}
print(opened, sorted(heavy), before == after)
"""


def test_importing_the_package_does_nothing():
    environment = "import sys; sys.dont_write_bytecode = True\n"
    assert run_python(environment + IMPORT_AND_WATCH) == "[] [] True"
