"""Readers, models and accelerations together: every choice beside every other, on one rank and on two.

Each row trains an epoch, or three by multigrid: every record counts once in each, the ranks end with the same weights,
and a run that was cut off and resumed ends where the one never stopped does, to the last bit.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from combinations import EXCLUDED, FACTORS, ROWS, all_pairs, pairwise, run_row
from launched import ROOT, launch, logs
from small_runs import ALONE, same

from paddlevideo_fast.prepare.chunks import make_chunks
from paddlevideo_fast.prepare.cut import Cut
from paddlevideo_fast.prepare.encode import Settings as EncodeSettings
from paddlevideo_fast.prepare.frames import Options as FrameOptions
from paddlevideo_fast.prepare.frames import extract_frames
from paddlevideo_fast.prepare.motion import make_motion_dataset
from paddlevideo_fast.prepare.shards import Options as ShardOptions
from paddlevideo_fast.prepare.shards import make_shards

RECORDS = 5
SINGLE = [(str(number), row) for number, row in enumerate(ROWS) if row["ranks"] == "1"]
DOUBLE = [(str(number), row) for number, row in enumerate(ROWS) if row["ranks"] == "2"]


def name_of(numbered) -> str:
    return f"{numbered[0]}-{numbered[1]['model']}-{numbered[1]['reader']}"


@pytest.fixture(scope="module")
def lists(motion, tmp_path_factory) -> dict[str, Path]:
    """Five records: of the motion data set as videos, frame folders and shards, and as spans of one video in chunks."""
    folder = tmp_path_factory.mktemp("lists")
    rows = folder / "rows.txt"
    rows.write_text("".join(f"{motion}/{line}\n" for line in (motion / "train.txt").read_text().split("\n")[:RECORDS]))
    assert extract_frames(str(rows), str(folder / "frames"), FrameOptions()) == 0
    assert make_shards(str(rows), str(folder / "shards"), ShardOptions(shard_size=12_000, decode="none")) == 0
    long = make_motion_dataset(folder / "long", train=1, valid=0, test=0, size=(48, 64), duration=(3.0, 3.0))
    assert make_chunks(str(long / "videos"), str(folder / "chunks"), Cut(1, EncodeSettings("default", None, 0))) == 0
    spans = folder / "spans.csv"
    parts = "".join(f"train/00000.mp4,{n / 2},{n / 2 + 1},{n}\n" for n in range(RECORDS))
    spans.write_text("path,start,end,label\n" + parts)
    return {
        "VIDEOS": rows,
        "FRAMES": folder / "frames" / "frames.txt",
        "SHARDS": folder / "shards",
        "SPANS": spans,
        "CHUNKS": folder / "chunks",
    }


def test_every_choice_meets_every_other():
    met = {frozenset(pair) for row in ROWS for pair in itertools.combinations(row.items(), 2)}
    assert met == all_pairs(FACTORS, EXCLUDED)
    most = sorted(len(choices) for choices in FACTORS.values())[-2:]
    assert math.prod(most) <= len(ROWS) <= 2 * math.prod(most)


def test_three_switches_need_four_rows():
    assert len(pairwise({name: ("off", "on") for name in "abc"})) == 4


def check(folder: Path, row, ranks: int) -> None:
    arrays = [dict(np.load(folder / f"whole.{rank}.npz")) for rank in range(ranks)]
    assert all(np.isfinite(value).all() for value in arrays[0].values())
    for other in arrays[1:]:
        same(arrays[0], other)
    seen = [entry for rank in range(ranks) for entry in json.loads((folder / f"whole.{rank}.json").read_text())]
    epochs = 1 if row["multigrid"] == "off" else 3
    everything = [(epoch, record) for epoch in range(epochs) for record in range(RECORDS)] * int(row["repeats"])
    assert sorted((epoch, record) for _, epoch, record in seen) == sorted(everything)
    if row["resume"] == "cut in an epoch":
        for rank in range(ranks):
            same(dict(np.load(folder / f"cut.{rank}.npz")), arrays[0])


@pytest.mark.parametrize("numbered", SINGLE, ids=name_of)
def test_on_one_rank(numbered, motion, lists, tmp_path):
    run_row(numbered[1], motion, lists, tmp_path, ALONE)
    check(tmp_path, numbered[1], 1)


@pytest.fixture(scope="module")
def launched(motion, lists, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("launched")
    given = {"ROWS": json.dumps(DOUBLE), "LISTS": json.dumps({name: str(path) for name, path in lists.items()})}
    done = launch(ROOT / "tests" / "ranked_combinations.py", folder=folder, MOTION=str(motion), **given)
    assert done.returncode == 0, done.stdout[-3000:] + logs(folder)
    return folder


@pytest.mark.parametrize("numbered", DOUBLE, ids=name_of)
def test_on_two_ranks(numbered, launched):
    check(launched / numbered[0], numbered[1], 2)
