"""Who reads what and when: everything once, equally many batches on every rank, the same order after a resume."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest

from paddlevideo_fast.data.samplers import EvalSampler, SampleKey, TrainSampler, shards_in_use

GRID = list(itertools.product((1, 2, 7, 16, 33), (1, 3, 8), (1, 2, 3), (1, 2, 4), (1, 2)))


def samplers(records, batch, ranks, accum, repeats=1, **options):
    return [
        TrainSampler(records, batch, 4, 32, repeats=repeats, accum_steps=accum, ranks=ranks, rank=rank, **options)
        for rank in range(ranks)
    ]


def real(batches):
    return [key for batch in batches for key in batch if key.index >= 0]


@pytest.mark.parametrize(("records", "batch", "ranks", "accum", "repeats"), GRID)
def test_an_epoch_takes_every_record_once(records, batch, ranks, accum, repeats):
    group = samplers(records, batch, ranks, accum, repeats, seed=5)
    for epoch in (0, 3):
        for sampler in group:
            sampler.seek(epoch)
        steps = [list(sampler.steps()) for sampler in group]
        keys = [key for rank in steps for step in rank for key in real(step.micro_batches)]
        assert sorted((key.index, key.repeat) for key in keys) == sorted(
            itertools.product(range(records), range(repeats))
        )
        assert {(key.epoch, key.frames, key.crop, key.view) for key in keys} == {(epoch, 4, 32, 0)}
        per_step = batch * ranks * accum
        assert {len(rank) for rank in steps} == {math.ceil(records / per_step)} == {group[0].steps_per_epoch}
        for number, step in enumerate(zip(*steps)):
            size = min(per_step, records - number * per_step)
            assert {part.num_records for part in step} == {size}
            assert {part.num_clips for part in step} == {size * repeats}
            assert len({len(part.micro_batches) for part in step}) == 1  # or a rank would wait for ever
            assert sum(len(real(part.micro_batches)) for part in step) == size * repeats
            for micro in zip(*(part.micro_batches for part in step)):
                assert all(1 <= len(keys) <= batch * repeats for keys in micro)
                shares = [len(real([keys])) // repeats for keys in micro]
                assert max(shares) - min(shares) <= 1  # as even as can be
        for sampler in group:
            assert len(sampler) == len(list(sampler)) == sum(len(s.micro_batches) for s in sampler.steps())


def test_the_order_is_a_permutation_of_seed_and_epoch():
    (sampler,) = samplers(50, 8, 1, 1, seed=11)
    seen = []
    for epoch in (0, 1, 2, 0):
        sampler.seek(epoch)
        seen.append([key.index for key in real(sampler)])
        assert seen[-1] == np.random.default_rng([11, epoch]).permutation(50).tolist()
    assert seen[0] == seen[3] != seen[1]
    (other,) = samplers(50, 8, 1, 1, seed=12)
    assert [key.index for key in real(other)] != seen[0]


def in_order(group):
    """The records in the order in which all ranks together consume them: step by step, batch by batch, rank by rank."""
    found = []
    for step in zip(*(sampler.steps() for sampler in group)):
        for micro in zip(*(part.micro_batches for part in step)):
            found += [key.index for key in real(micro)]
    return found


@pytest.mark.parametrize("after", [0, 1, 2, 3])
def test_another_number_of_ranks_continues_the_same_order(after):
    first = samplers(61, 2, 4, 2, seed=3)  # steps of 16 records
    for sampler in first:
        sampler.seek(1)
    whole = in_order(first)
    position = sum(step.num_records for step in itertools.islice(first[0].steps(), after))
    assert position == 16 * after
    for batch, ranks, accum in ((3, 1, 1), (5, 2, 1), (1, 3, 4)):
        rest = samplers(61, batch, ranks, accum, seed=3)
        for sampler in rest:
            sampler.seek(1, position)
        assert whole[:position] + in_order(rest) == whole == np.random.default_rng([3, 1]).permutation(61).tolist()
        assert len(rest[0]) == len(list(rest[0]))


def test_dropping_the_last_step():
    group = samplers(50, 4, 2, 2, drop_last=True)
    assert group[0].records_per_epoch == 48 and group[0].steps_per_epoch == 3
    assert in_order(group) == np.random.default_rng([0, 0]).permutation(50)[:48].tolist()
    with pytest.raises(
        ValueError, match=r"10 records do not fill one step of 16 \(4 per rank x 2 ranks x 2 accumulated"
    ):
        samplers(10, 4, 2, 2, drop_last=True)


def test_a_rank_without_a_record_reads_one_of_another_rank_for_nothing():
    group = samplers(5, 2, 3, 1)  # one step: 2, 2 and 1
    assert [[len(keys) for keys in sampler] for sampler in group] == [[2], [2], [1]]
    order = np.random.default_rng([0, 0]).permutation(8).tolist()
    group = samplers(8, 2, 3, 1)  # a full step, and one of two records
    assert [list(sampler)[1] for sampler in group] == [
        [SampleKey(0, order[6], 4, 32)],
        [SampleKey(0, order[7], 4, 32)],
        [SampleKey(0, ~order[6], 4, 32)],
    ]


def test_the_repeats_of_a_record_are_neighbours():
    (sampler,) = samplers(6, 2, 1, 1, repeats=3)
    for keys in sampler:
        assert [key.repeat for key in keys] == [0, 1, 2] * 2
        assert [key.index for key in keys] == [keys[0].index] * 3 + [keys[3].index] * 3


@pytest.mark.parametrize(
    ("records", "batch", "ranks", "views"), list(itertools.product((1, 5, 8), (1, 3, 8), (1, 2, 6), (1, 30)))
)
def test_an_evaluation_takes_every_view_once(records, batch, ranks, views):
    group = [EvalSampler(records, batch, 4, 32, num_views=views, ranks=ranks, rank=rank) for rank in range(ranks)]
    keys = [key for sampler in group for keys in sampler for key in keys]
    assert sorted((key.index, key.view) for key in keys) == sorted(itertools.product(range(records), range(views)))
    for sampler in group:
        assert len(sampler) == len(list(sampler))
        fit = max(1, batch // views) * views  # whole records: all views of one share a decode
        assert all(len(keys) == fit for keys in list(sampler)[:-1])
        assert all(len(keys) % views == 0 and len(keys) <= fit for keys in sampler)
    counts = [sum(map(len, sampler)) for sampler in group]
    assert max(counts) - min(counts) <= views


def test_keys_travel_between_processes():
    key = SampleKey(3, 4, 8, 224, 5, 1)
    assert pickle.loads(pickle.dumps(key)) == key


SHARDED = list(itertools.product((1, 3, 4, 9, 23), (1, 2, 4, 8)))


def shards_of(count, seed=1):
    """Shards of 1 to 40 records each, in the order records of shards have."""
    return np.repeat(np.arange(count), np.random.default_rng(seed).integers(1, 41, count))


def sharded(shards, batch, ranks, accum, window, **options):
    return samplers(len(shards), batch, ranks, accum, shards=shards, shuffle_shards=window, **options)


@pytest.mark.parametrize(("count", "window"), SHARDED)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_shards_are_shuffled_inside_a_sliding_window(count, window, ranks):
    shards = shards_of(count)
    group = sharded(shards, 3, ranks, 2, window, seed=4)
    orders = []
    for epoch in (0, 1):
        for sampler in group:
            sampler.seek(epoch)
        orders.append(in_order(group))
        assert sorted(orders[-1]) == list(range(len(shards)))
        touched = shards[orders[-1]].tolist()
        open_at = np.zeros(len(touched), int)
        for number in range(count):
            first, last = touched.index(number), len(touched) - 1 - touched[::-1].index(number)
            open_at[first : last + 1] += 1
        assert open_at.max() <= min(window, count)
        if window < count:
            assert open_at[: len(touched) // 2].mean() > window / 2  # and they are mixed
    assert len(shards) < 4 or orders[0] != orders[1]


def test_a_window_of_all_shards_gives_every_order_alike():
    shards, counts = np.array([0, 0, 1]), dict.fromkeys(itertools.permutations(range(3)), 0)
    (sampler,) = sharded(shards, 1, 1, 1, 2, seed=0)
    for epoch in range(1200):
        sampler.seek(epoch)
        counts[tuple(in_order([sampler]))] += 1
    assert min(counts.values()) > 150 and max(counts.values()) < 250  # 200 each, give or take four deviations


@pytest.mark.parametrize("after", [0, 1, 3, 7])
def test_shards_resume_anywhere_with_another_number_of_ranks(after):
    shards = shards_of(11)
    first = sharded(shards, 2, 4, 2, 3, seed=3)
    for sampler in first:
        sampler.seek(1)
    whole = in_order(first)
    position = sum(step.num_records for step in itertools.islice(first[0].steps(), after))
    for batch, ranks, accum in ((3, 1, 1), (5, 2, 1), (1, 3, 4)):
        rest = sharded(shards, batch, ranks, accum, 3, seed=3)
        for sampler in rest:
            sampler.seek(1, position)
        assert whole[:position] + in_order(rest) == whole
    (again,) = sharded(shards, 2, 1, 1, 4, seed=3)
    again.seek(1)
    assert in_order([again]) != whole


@pytest.mark.parametrize(("size", "window", "ahead"), [(20, 4, 1), (20, 4, 16), (20, 4, 45), (5, 2, 33), (7, 1, 8)])
def test_the_shards_to_keep_are_enough_for_readers_that_lag_behind(size, window, ahead):
    """Shards are forgotten in the order of their last use; records are read out of order, up to ``ahead`` of them."""
    shards = np.repeat(np.arange(40), size)
    (sampler,) = sharded(shards, 1, 1, 1, window, seed=2)
    order, rng = shards[in_order([sampler])], np.random.default_rng(0)
    late = np.argsort(np.arange(len(order)) + rng.uniform(0, ahead, len(order)), kind="stable")
    kept, reads = [], 0
    for shard in order[late].tolist():
        if shard in kept:
            kept.remove(shard)
        else:
            reads += 1
        kept = [*kept, shard][-shards_in_use(shards, window, ahead) :]
    assert 40 <= reads <= 41
    assert shards_in_use(np.array([0, 0, 1, 1]), 4, 100) == 2
