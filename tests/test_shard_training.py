"""Training on shards: each is read once an epoch, a run resumes exactly, broken shards cost what is in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_runs import build, lines, watch_records, weights

from paddlevideo_fast.data.annotations import load_annotations
from paddlevideo_fast.data.readers import IsolatedReader, ShardReader
from paddlevideo_fast.engine import train as engine
from paddlevideo_fast.engine.failures import TooManyFailuresError
from paddlevideo_fast.prepare.shards import Options, make_shards

OVERRIDES = ("epochs=3", "data.batch_size=2", "model.dropout=0.5", "data.train.flip=0.5", "data.train.shuffle_shards=2")


@pytest.fixture(scope="module")
def shards(motion, tmp_path_factory):
    folder = tmp_path_factory.mktemp("packed") / "train"
    assert make_shards(str(motion / "train.txt"), str(folder), Options(shard_size=12_000, decode="none")) == 0
    return folder


@pytest.fixture
def copied(shards, tmp_path):
    """Shards of its own for a test that damages them."""
    folder = tmp_path / "shards"
    folder.mkdir()
    for path in shards.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def run_of(motion, folder, shards, *overrides):
    return build(motion, folder, f"data.train.annotations={shards}", *OVERRIDES, *overrides)


def rows(folder):
    return [(line["step"], line["loss"]) for line in lines(folder, "train")]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ((), 3 + 2),  # a window of two, one that comes in, two passed over in the two records of a batch
        (("data.num_workers=2",), 3 + 6),
        (("data.read_timeout=60",), 3 + 2),
    ],
)
def test_each_shard_is_read_once_an_epoch(motion, tmp_path, shards, options, kept):
    run = run_of(motion, tmp_path / "run", shards, *options)
    reader, count = run.dataset.reader, len(list(shards.glob("*.tar")))
    assert count == 12 and isinstance(reader, ShardReader) and reader.num_shards == kept
    places = [int(record.source.path.split("-")[-1].split(".")[0]) for record in run.records]
    assert (run.sampler.shards, run.sampler.shuffle_shards) == (places, 2)
    assert isinstance(reader.reader, IsolatedReader) == ("data.read_timeout=60" in options)
    seen = watch_records(run)
    engine.train(run)
    assert sorted(seen_in(seen, 2)) == list(range(16))
    # Shards that are still there from the epoch before need not be read again.
    assert count + 2 * (count - kept) <= reader.loads <= 3 * count


def seen_in(seen, epoch):
    return [index for _, number, index in seen if number == epoch]


@pytest.mark.parametrize("step", [5, 16])
def test_a_run_on_shards_resumes_exactly(motion, tmp_path, shards, step):
    whole = run_of(motion, tmp_path / "whole", shards)
    seen = watch_records(whole)
    engine.train(whole)
    engine.train(run_of(motion, tmp_path / "cut", shards), max_steps=step)
    resumed = run_of(motion, tmp_path / "cut", shards)
    again = watch_records(resumed)
    engine.train(resumed, resume=True)
    assert again == [row for row in seen if row[0] > step]
    expected = weights(whole.model)
    for name, value in weights(resumed.model).items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")


def test_shards_give_the_clips_of_the_files(motion, tmp_path, shards):
    """A record is drawn as its place in the list says; what is read of it is the same from a shard and from a file."""
    records = load_annotations(shards)
    by_stem = {Path(record.source).stem: record for record in load_annotations(motion / "train.txt")}
    plain = tmp_path / "plain.txt"
    files = [by_stem[Path(record.source.name).stem.split("-")[1]] for record in records]
    plain.write_text("".join(f"{record.source}\t{record.label}\n" for record in files))
    packed = run_of(motion, tmp_path / "a", shards).dataset
    loose = run_of(motion, tmp_path / "b", plain).dataset
    keys = [key for batch in run_of(motion, tmp_path / "c", shards).sampler for key in batch][:8]
    left, right = packed.read_batch(keys), loose.read_batch(keys)
    assert not left["errors"] and not right["errors"]
    for name in ("clip", "target", "index"):
        np.testing.assert_array_equal(left[name], right[name])


def damage(shards):
    """Cuts one shard off in its last video; returns its name, how many of its videos are whole, and of how many."""
    records = load_annotations(shards)
    path = Path(records[0].source.path)
    members = [record.source for record in records if record.source.path == str(path)]
    path.write_bytes(path.read_bytes()[: members[-1].offset + 10])
    return path.name


def test_a_broken_shard_costs_the_videos_in_it(motion, tmp_path, copied, caplog):
    name = damage(copied)
    run = run_of(motion, tmp_path / "run", copied, "data.max_failed_share=0.5", "epochs=1")
    seen = watch_records(run)
    engine.train(run)
    assert len(set(seen_in(seen, 0))) == 15
    assert caplog.text.count("cannot read ") == 1
    assert f"{copied / name}:" in caplog.text and "the shard is cut off: it ends at byte" in caplog.text


def test_a_broken_shard_can_stop_the_run(motion, tmp_path, copied):
    name = damage(copied)
    with pytest.raises(TooManyFailuresError, match=f"data.bad_files is raise.*{name}.*the shard is cut off"):
        engine.train(run_of(motion, tmp_path / "run", copied, "data.bad_files=raise"))


def test_missing_shards_stop_the_run_where_they_are_too_many(motion, tmp_path, copied):
    for path in sorted(copied.glob("*.tar"))[::3]:
        path.unlink()
    with pytest.raises(TooManyFailuresError, match=r"max_failed_share.*shard-0000\d\d.tar.*No such file"):
        engine.train(run_of(motion, tmp_path / "run", copied))


def test_an_evaluation_on_shards(motion, tmp_path, shards):
    run = build(motion, tmp_path / "run", f"data.valid.annotations={shards}", "epochs=1", validate=True)
    assert not isinstance(run.validation.loader.dataset.reader, ShardReader)
    engine.train(run)
    assert lines(tmp_path / "run", "valid")[0]["num_samples"] == 16
