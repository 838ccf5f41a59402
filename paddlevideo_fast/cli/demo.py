"""``tools/demo.py``: the whole way from videos to predictions on the embedded data set."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from paddlevideo_fast.cli.options import add_override, parse

CONFIG = "configs/quickstart/motion_tsm.yaml"
DATA = "data/motion"
NETWORKS = {"tsm": [], "tsn": ["model={name: tsn_resnet18, num_classes: 8, width: 0.25, dropout: 0.2}"]}
SHEET_ROWS = 8


def main(root: Path, argv: list[str] | None = None) -> None:
    """Parses the command line and runs the demo in the project folder ``root``."""
    parser = argparse.ArgumentParser(
        description="Write the motion data set, train a small TSM on it through the launcher, evaluate its best "
        "weights, predict two files, and draw what happened.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--output", default="output/demo", help="folder for runs and pictures, made anew")
    parser.add_argument("--compare", action="store_true", help="also train the same network without the temporal shift")
    add_override(parser, "passed on to every command")
    args = parse(parser, argv)
    root, output = root.resolve(), Path(args.output).resolve()
    shutil.rmtree(output, ignore_errors=True)

    _run(root, ["tools/data/make_motion_dataset.py", DATA])
    names = ["tsm", "tsn"] if args.compare else ["tsm"]
    results = {name: _train_and_test(root, output, name, args.override) for name in names}
    predictions = _predict(root, output / "tsm", args.override)
    _draw(root, output, predictions)
    _print_summary(output, results, predictions)


def _run(root: Path, command: Sequence[str], capture: bool = False) -> str:
    print(f"\n$ python {' '.join(command)}", flush=True)
    done = subprocess.run([sys.executable, *command], cwd=root, text=True, stdout=subprocess.PIPE if capture else None)
    if done.returncode:
        raise SystemExit(f"demo: the command above ended with status {done.returncode}")
    return done.stdout or ""


def _train_and_test(root: Path, output: Path, name: str, overrides: list[str]) -> dict[str, float]:
    folder = output / name
    options = ["-c", CONFIG, "-o", f"output_dir={folder}", *NETWORKS[name], *overrides]
    launch = ["-m", "paddle.distributed.launch", "--log_level", "ERROR", "--log_dir", str(folder / "launch")]
    start = time.perf_counter()
    _run(root, [*launch, "tools/train.py", *options])
    seconds = time.perf_counter() - start
    _run(root, ["tools/test.py", "-w", str(folder / "checkpoints" / "best.pdparams"), *options])
    results = json.loads((folder / "results.json").read_text())
    return {"minutes": seconds / 60, **{key: results[key] for key in ("top1", "num_samples")}}


def _predict(root: Path, folder: Path, overrides: list[str]) -> list[dict]:
    files = [f"{DATA}/{line.split()[0]}" for line in _rows(root)[:2]]
    weights = str(folder / "checkpoints" / "best.pdparams")
    options = ["--topk", "3", "-c", CONFIG, "-w", weights]
    options += ["-o", *overrides] if overrides else []
    lines = _run(root, ["tools/predict.py", *files, *options], capture=True)
    print(lines, end="")
    return [json.loads(line) for line in lines.splitlines()]


def _rows(root: Path) -> list[str]:
    return (root / DATA / "test.txt").read_text().splitlines()


def _draw(root: Path, output: Path, predictions: list[dict]) -> None:
    """Draws the curves of the run, and clips of the test set beside what the model says of them."""
    from paddlevideo_fast.cli.runtime import prepare

    prepare()
    from paddlevideo_fast.config import load_config
    from paddlevideo_fast.data.readers import build_reader
    from paddlevideo_fast.data.sampling import SegmentSampling
    from paddlevideo_fast.inference.predictor import Predictor
    from paddlevideo_fast.plots import SheetRow, plot_contact_sheet, plot_training

    plot_training(output / "tsm" / "metrics.jsonl", output / "training.png")
    os.chdir(root)
    predictor = Predictor(load_config(CONFIG), CONFIG, output / "tsm" / "checkpoints" / "best.pdparams")
    reader = build_reader("fused")
    rows = []
    for line in _rows(root)[:SHEET_ROWS]:
        path, label = line.rsplit(maxsplit=1)
        best = predictor.topk(f"{DATA}/{path}", 1)[0]
        frames = reader.read(f"{DATA}/{path}", SegmentSampling()(reader.probe(f"{DATA}/{path}").num_frames, 8))
        rows.append(SheetRow(frames, best["name"], predictor.class_names[int(label)], best["score"]))
    plot_contact_sheet(rows, output / "contact_sheet.png")


def _print_summary(output: Path, results: dict[str, dict], predictions: list[dict]) -> None:
    words = {"tsm": "TSM, with temporal shift", "tsn": "TSN, the same without it"}
    print(f"\n{'network':<28}{'test top-1':>12}{'clips':>8}{'minutes':>10}")
    for name, result in results.items():
        print(f"{words[name]:<28}{result['top1']:>12.3f}{result['num_samples']:>8}{result['minutes']:>10.1f}")
    print()
    for line in predictions:
        best = line["topk"][0]
        print(f"{line['path']}: {best['name']} ({best['score']:.2f})")
    print(f"\npictures: {output / 'training.png'}\n          {output / 'contact_sheet.png'}")
