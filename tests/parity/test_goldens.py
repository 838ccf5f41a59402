"""Makes the golden files anew from the originals, and holds the kept ones to them.

    PARITY_PYTHON=/path/to/python PARITY_CHECKOUTS=/path/to/folder python -m pytest -m parity

PARITY_PYTHON is an interpreter with torch, torchvision, timm, transformers, einops, fvcore and safetensors (default:
this one), PARITY_CHECKOUTS a folder with checkouts of the originals under the names of their repositories. What a
script needs and cannot have is told, and its test skipped.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.parity

HERE = Path(__file__).parent
PYTHON = os.environ.get("PARITY_PYTHON", sys.executable)
# Script -> the modules and checkouts it needs. Those that need Paddle run in this interpreter.
SCRIPTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "avion": ("torch timm einops", ("AVION",)),
    "clip": ("torch transformers", ("CLIP",)),
    "nonlocal": ("torch fvcore", ("SlowFast", "temporal-shift-module")),
    "paddlevideo": ("paddle", ("PaddleVideo",)),
    "randaugment": ("torch timm", ()),
    "resnet": ("torch torchvision", ("temporal-shift-module",)),
    "slowfast": ("torch fvcore", ("SlowFast",)),
    "slowfast_paddlevideo": ("paddle", ("PaddleVideo",)),
    "timesformer": ("torch einops transformers", ("TimeSformer",)),
    "timesformer_paddlevideo": ("paddle", ("PaddleVideo",)),
    "torchvision": ("torch torchvision", ()),
    "tsm": ("torch torchvision", ("temporal-shift-module",)),
    "vit": ("torch timm einops transformers", ("VideoMAE", "AVION")),
    "weight_files": ("torch safetensors", ()),
}
VERSIONS = ("torch", "torchvision", "timm", "transformers", "made by", "paddle")


def test_every_script_is_listed():
    assert {path.stem.removeprefix("make_golden_") for path in HERE.glob("make_golden_*.py")} == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_originals_give_the_kept_values(name, tmp_path):
    modules, repositories = SCRIPTS[name]
    python = sys.executable if modules == "paddle" else PYTHON
    if subprocess.run([python, "-c", f"import {modules.replace(' ', ', ')}"], capture_output=True).returncode:
        pytest.skip(f"{python} lacks one of: {modules}; name an interpreter that has them in PARITY_PYTHON")
    folder = Path(os.environ.get("PARITY_CHECKOUTS", "checkouts"))
    missing = [repository for repository in repositories if not (folder / repository).is_dir()]
    if missing:
        pytest.skip(
            f"no checkout of {', '.join(missing)} in {folder.absolute()}; name their folder in PARITY_CHECKOUTS"
        )
    shutil.copytree(HERE, tmp_path / "parity")  # a script writes to the folder `golden` beside its own
    (tmp_path / "golden" / "weights").mkdir(parents=True)
    script = tmp_path / "parity" / f"make_golden_{name}.py"
    paths = [str((folder / repository).absolute()) for repository in repositories]
    done = subprocess.run([python, str(script), *paths], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    made = list((tmp_path / "golden").rglob("*.json"))
    assert made
    for path in made:
        kept = HERE.parent / "golden" / path.relative_to(tmp_path / "golden")
        compare(json.loads(path.read_text()), json.loads(kept.read_text()), path.stem)


def compare(made: Any, kept: Any, where: str) -> None:
    """Asserts that two JSON values are the same but for rounding and versions; ``kept`` may have more."""
    if isinstance(made, dict):
        for key in made:
            if key not in VERSIONS:
                compare(made[key], kept[key], f"{where}.{key}")
    elif isinstance(made, list):
        assert len(made) == len(kept), where
        for number, (one, other) in enumerate(zip(made, kept)):
            compare(one, other, f"{where}[{number}]")
    elif isinstance(made, float):
        assert math.isclose(made, kept, rel_tol=1e-3, abs_tol=1e-5), f"{where}: {made} instead of {kept}"
    else:
        assert made == kept, where
