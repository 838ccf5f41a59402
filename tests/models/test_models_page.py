"""docs/models.md: every model and every argument stands there, with the default that the code has."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from paddlevideo_fast.models import MODELS

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()


@pytest.mark.parametrize("name", MODELS)
def test_model_and_arguments_are_there(name):
    family = name.split("_")[0]
    assert re.search(rf"`{family}_", PAGE)
    arguments = set(inspect.signature(MODELS[name]).parameters) - {"non_local", "patch_size"}
    towers = {argument for argument in arguments if re.match("(video|text)_", argument)}
    assert [argument for argument in sorted(arguments - towers) if f"`{argument}" not in PAGE] == []


def test_configs_that_are_named_exist():
    configs = Path(__file__).parents[2] / "configs"
    named = re.findall(r"^\| `((?:tsm|slowfast|i3d|timesformer|vit)/\w+)`", PAGE, re.M)
    assert len(named) >= 13
    assert [name for name in named if not (configs / f"{name}.yaml").is_file()] == []
