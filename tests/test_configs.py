"""Every config that is shipped builds what it says and takes two training steps, at a small size."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from small_runs import ALONE, lines

from paddlevideo_fast.config import load_config
from paddlevideo_fast.engine.build import build_evaluation, build_task, build_training
from paddlevideo_fast.engine.train import train

CONFIGS = Path(__file__).parents[1] / "configs"
FILES = sorted(path for path in CONFIGS.rglob("*.yaml") if path.parent.name != "quickstart")
CNN = ["model.width=0.125"]
TRANSFORMER = ["model.embed_dim=24", "model.depth=2", "model.num_heads=2"]


def small(path: Path, motion: Path, output_dir: Path) -> list[str]:
    """Options that put the motion data set and a small network into a config."""
    model = yaml.safe_load(path.read_text())["model"]
    return [
        *(TRANSFORMER if path.parent.name in ("vit", "timesformer") else CNN),
        "model.num_classes=8" if "num_classes" in model else "seed=0",
        f"data.train.annotations={motion}/train.txt",
        f"data.valid.annotations={motion}/valid.txt",
        f"data.test.annotations={motion}/test.txt",
        *(f"data.{phase}.{key}" for phase in ("train", "valid", "test") for key in ("root=", "format=auto")),
        "data.reader=fused",
        "data.crop_size=32",
        "data.batch_size=2",
        "data.num_workers=0",
        "log.interval=1",
        "log.visualdl=false",
        f"output_dir={output_dir}",
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_two_steps(path, motion, tmp_path):
    config = load_config(path, small(path, motion, tmp_path / "run"))
    run = build_training(config, path, ALONE, validate=False)
    train(run, max_steps=2)
    assert [row["step"] for row in lines(tmp_path / "run", "train")] == [1, 2]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_views_of_the_published_protocol(path, motion, tmp_path):
    config = load_config(path, small(path, motion, tmp_path / "run"))
    evaluation = build_evaluation(config, "test", path, build_task(config), ALONE)
    expected = yaml.safe_load(path.read_text())["data"]["test"]
    assert evaluation.num_views == expected.get("num_clips", 1) * expected.get("num_crops", 1)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_header_says_how_to_run_and_what_to_expect(path):
    comment = [line for line in path.read_text().splitlines() if line.startswith("#")]
    text = "\n".join(comment)
    for word in ("# Run: ", "# Expect: ", "# Source: ", str(path.relative_to(CONFIGS.parent)), "not re-trained here"):
        assert word in text, f"{path.name}: its header lacks {word!r}"


def test_names_follow_the_model(tmp_path):
    for path in FILES:
        config = yaml.safe_load(path.read_text())
        assert path.stem.startswith(config["model"]["name"])
        assert config["output_dir"] == f"output/{path.stem}"
