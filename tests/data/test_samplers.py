"""Who reads what and when: everything once, equally many batches on every rank, the same order after a resume."""

from __future__ import annotations

import itertools
import math
import pickle

import numpy as np
import pytest

from paddlevideo_fast.data.samplers import EvalSampler, SampleKey, TrainSampler, shards_in_use
from paddlevideo_fast.phases import Phase, Schedule

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


def cycling(full):
    """Epoch 0: 2 frames, steps of 8 and 4 full batches at 16 and 24 pixels; epochs 1 and 2: 4 frames, 4, 2 and 1."""
    coarse = Phase(0, 1, 4 * full, 2, 24, 4.0, 1, 1, 2, ((16, 8 * full), (24, 4 * full)))
    fine = Phase(1, 3, full, 4, 32, 1.0, 1, 1, 1, ((16, 4 * full), (24, 2 * full), (32, full)))
    return Schedule((coarse, fine), 2)


def of_multigrid(records, batch, ranks, accum, repeats=1, **options):
    schedule = cycling(batch * ranks * accum * repeats)
    return samplers(records, batch, ranks, accum, repeats, schedule=schedule, **options)


MULTIGRID = list(itertools.product((1, 5, 33, 100), (1, 3), (1, 2, 3), (1, 2), (1, 2)))


@pytest.mark.parametrize(("records", "batch", "ranks", "accum", "repeats"), MULTIGRID)
def test_every_record_once_an_epoch_whatever_the_shapes(records, batch, ranks, accum, repeats):
    group, full = of_multigrid(records, batch, ranks, accum, repeats, seed=5), batch * ranks * accum
    for epoch, frames, cycle in ((0, 2, [(16, 8), (24, 4)]), (2, 4, [(16, 4), (24, 2), (32, 1)])):
        for sampler in group:
            sampler.seek(epoch)
        assert in_order_of_records(group, repeats) == np.random.default_rng([5, epoch]).permutation(records).tolist()
        steps, taken = list(zip(*(sampler.steps() for sampler in group), strict=True)), 0
        assert len(steps) == group[0].steps_per_epoch
        for step, (crop, factor) in zip(steps, itertools.cycle(cycle)):
            size = min(factor * full, records - taken)
            assert {(part.num_records, part.num_clips) for part in step} == {(size, size * repeats)}
            keys = [key for part in step for micro in part.micro_batches for key in micro]
            assert {(key.epoch, key.frames, key.crop) for key in keys} == {(epoch, frames, crop)}
            for micro in zip(*(part.micro_batches for part in step), strict=True):  # or a rank would wait for ever
                shares = [len(real([each])) // repeats for each in micro]
                assert max(shares) <= factor * batch and max(shares) - min(shares) <= 1
            taken += size
        assert taken == records
        for sampler in group:
            assert len(sampler) == len(list(sampler))


def in_order_of_records(group, repeats):
    return in_order(group)[::repeats]


@pytest.mark.parametrize("after", [1, 2, 4, 7])
def test_a_short_cycle_goes_on_with_another_number_of_ranks(after):
    first = of_multigrid(150, 2, 4, 1, seed=3)
    for sampler in first:
        sampler.seek(1)
    whole = [list(step) for step in zip(*(sampler.steps() for sampler in first))]
    position = sum(step[0].num_records for step in whole[:after])
    for batch, ranks, accum, repeats in ((8, 1, 1, 1), (2, 2, 2, 1), (1, 2, 2, 2)):
        rest = samplers(150, batch, ranks, accum, repeats, seed=3, schedule=cycling(8))
        for sampler in rest:
            sampler.seek(1, position)
        again = [list(step) for step in zip(*(sampler.steps() for sampler in rest))]
        if repeats == 1:
            assert [step[0].num_clips for step in again] == [step[0].num_clips for step in whole[after:]]
            assert [crop_of(step) for step in again] == [crop_of(step) for step in whole[after:]]
        assert in_order_of_records(rest, repeats) == in_order(first)[position:]


def crop_of(step):
    (crop,) = {key.crop for part in step for micro in part.micro_batches for key in micro}
    return crop


def test_another_full_batch_ends_the_step_under_way_and_goes_on():
    (sampler,) = samplers(40, 3, 1, 1, schedule=cycling(3))  # steps of 12, 6 and 3
    sampler.seek(1, position=14)
    assert [(step.num_records, crop_of([step])) for step in sampler.steps()] == [
        (4, 24),
        (3, 32),
        (12, 16),
        (6, 24),
        (1, 32),
    ]


def test_drop_last_with_shapes():
    (sampler,) = samplers(40, 3, 1, 1, schedule=cycling(3), drop_last=True)
    assert (sampler.records_per_epoch, sampler.steps_per_epoch) == (36, 2)  # 24 and 12
    sampler.seek(1)
    assert (sampler.records_per_epoch, sampler.steps_per_epoch) == (39, 5)  # 12, 6, 3; 12, 6
    assert [len(keys) for keys in sampler] == [12, 6, 3, 12, 6]
    with pytest.raises(ValueError, match=r"23 records do not fill one step of 24 \(24 per rank x 1 ranks x 1 accum"):
        samplers(23, 3, 1, 1, schedule=cycling(3), drop_last=True)


def test_shards_are_shuffled_alike_whatever_the_shapes():
    shards = shards_of(9)
    plain, grid = sharded(shards, 3, 2, 1, 3, seed=4), sharded(shards, 3, 2, 1, 3, seed=4, schedule=cycling(6))
    for sampler in plain + grid:
        sampler.seek(1)
    assert in_order(plain) == in_order(grid)


def test_batches_of_epoch_after_epoch_from_anywhere():
    (sampler,) = samplers(10, 3, 1, 1, schedule=cycling(3))
    expected = []
    for epoch, position in ((1, 6), (2, 0)):
        sampler.seek(epoch, position)
        expected += list(sampler)
    sampler.seek(1, 6)
    batches = sampler.onwards(3)
    sampler.seek(0)
    assert list(batches) == expected and len(expected) == 2
    assert list(sampler.onwards(0)) == []
