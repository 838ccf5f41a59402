"""The floors of the house: a file imports only from its own floor or lower ones, imports inside functions included.

A new file in a package stands on the floor of its package. A new top-level file or package, and a new file of data/
that floor 0 needs, has to be placed here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "paddlevideo_fast"

# module, without the package's name -> floor; whatever is not here stands on the floor of its first part
FLOOR_OF_MODULE = {
    "": 0,
    "data": 0,  # its __init__ runs before every file in it
    "data.annotations": 0,
    "data.augment_draws": 0,
    "data.chunks": 0,
    "data.class_names": 0,
    "data.crops": 0,
    "data.dataset_lists": 0,
    "data.egocentric_lists": 0,
    "data.plan": 0,
    "data.records": 0,
    "data.samplers": 0,
    "data.sampling": 0,
    "data.shards": 0,
    "data.targets": 0,
    "data.video": 0,
}
FLOOR_OF_PART = {
    "arguments": 0,
    "config": 0,
    "schema": 0,
    "metrics": 0,
    "multigrid": 0,
    "phases": 0,
    "pickles": 0,
    "schedule": 0,
    "data": 1,
    "ops": 1,
    "models": 2,
    "loaders": 2,
    "engine": 3,
    "cli": 4,
    "inference": 4,
    "plots": 4,
    "prepare": 4,
}

PURE = {"numpy", "pydantic", "yaml"}
READING = PURE | {"av", "cv2", "decord", "PIL"}
COMPUTING = PURE | {"paddle"}
LOADING = READING | COMPUTING | {"nvidia", "paddlenlp"}
ENGINE = LOADING | {"visualdl"}
TOP = ENGINE | {"matplotlib", "onnxruntime", "paddle2onnx"}
THIRD_PARTY = {0: PURE, "data": READING, "ops": COMPUTING, 2: LOADING, 3: ENGINE, 4: TOP}


def floor_of(module: str) -> int | None:
    """Returns the floor of a module named without the package; None where it has none."""
    if module in FLOOR_OF_MODULE:
        return FLOOR_OF_MODULE[module]
    return FLOOR_OF_PART.get(module.split(".")[0])


def module_of(path: Path, root: Path) -> str:
    """Returns the name of a file's module, without the package."""
    parts = list(path.relative_to(root).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, root: Path) -> Iterator[tuple[int, str]]:
    """Yields (line, full dotted name) for each import in a file, wherever it stands."""
    package = [root.name, *path.relative_to(root).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            base = ".".join(part for part in (start, node.module) if part)
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value


def is_file(name: str, root: Path) -> bool:
    path = root.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def why_not(module: str, imported: str, root: Path) -> str | None:
    """Says why a module may not import a name, or None if it may."""
    floor, part = floor_of(module), module.split(".")[0]
    first, _, rest = imported.partition(".")
    if first != root.name:
        allowed = THIRD_PARTY[part if floor == 1 else floor]
        if first in sys.stdlib_module_names or first in allowed:
            return None
        return f"imports {first}, which floor {floor} may not ({', '.join(sorted(allowed))} and the standard library)"
    target = rest
    while target and not is_file(target, root):  # `from a.b import name`: a.b is the module
        target = target.rpartition(".")[0]
    other = floor_of(target)
    if other is None:
        return f"imports {imported}, which has no floor"
    if other > floor:
        return f"is on floor {floor} and imports {imported} from floor {other}"
    if other == floor == 1 and {part, target.split(".")[0]} == {"data", "ops"}:
        return f"imports {imported}: data and ops do not know each other"
    return None


def violations(root: Path) -> list[str]:
    """Returns what breaks the floors in a package, one sentence each."""
    found = []
    for path in sorted(root.rglob("*.py")):
        module = module_of(path, root)
        where = path.relative_to(root.parent)
        if floor_of(module) is None:
            found.append(f"{where} has no floor: place it in tests/test_layering.py")
            continue
        for line, imported in imports_of(path, root):
            reason = why_not(module, imported, root)
            if reason:
                found.append(f"{where}:{line} {reason}")
    return found


def test_every_file_keeps_to_its_floor():
    assert violations(ROOT / PACKAGE) == []


def test_every_placed_module_exists():
    """A name in the table that no file bears is a typing error or a leftover."""
    later = {"multigrid"}
    missing = [name for name in (*FLOOR_OF_MODULE, *FLOOR_OF_PART) if name and not is_file(name, ROOT / PACKAGE)]
    assert set(missing) <= later


@pytest.mark.parametrize(
    ("file", "source", "reason"),
    [
        ("metrics.py", "def f():\n    import paddle", "metrics.py:2 imports paddle, which floor 0 may not"),
        (
            "config.py",
            "from paddlevideo_fast.data.readers import build_reader",
            "imports paddlevideo_fast.data.readers",
        ),
        ("data/plan.py", "from .readers import build_reader", "is on floor 0 and imports"),
        ("data/dataset.py", "import paddle.io", "imports paddle, which floor 1 may not"),
        ("data/dataset.py", "from importlib import import_module\nimport_module('paddle')", "imports paddle"),
        ("data/dataset.py", "from ..ops import norm", "data and ops do not know each other"),
        ("ops/norm.py", "from paddlevideo_fast.data import readers", "data and ops do not know each other"),
        ("ops/norm.py", "import cv2", "imports cv2, which floor 1 may not"),
        ("models/tsm.py", "if True:\n    from paddlevideo_fast.engine import train", "from floor 3"),
        ("engine/train.py", "import matplotlib.pyplot", "imports matplotlib, which floor 3 may not"),
        ("engine/train.py", "from paddlevideo_fast import plots", "from floor 4"),
        ("cli/train.py", "import scipy", "imports scipy, which floor 4 may not"),
        ("helpers.py", "", "helpers.py has no floor"),
        ("extra/thing.py", "", "thing.py has no floor"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, file, source, reason):
    root = tmp_path / PACKAGE
    for name in ("__init__", "metrics", "plots", "data/__init__", "data/readers/__init__", "ops/__init__", "ops/norm"):
        write(root / f"{name}.py", "")
    write(root / "engine/train.py", "import paddle\nimport visualdl\nfrom ..models import tsm")
    write(root / "models/tsm.py", "from paddlevideo_fast.ops import norm\nfrom paddlevideo_fast import metrics")
    assert violations(root) == []
    write(root / file, source)
    found = violations(root)
    assert len(found) == 1, found
    assert reason in found[0]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
