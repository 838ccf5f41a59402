"""Golden phases come from PySlowFast's multigrid.py, lr_policy.py and multigrid_helper.py, run with configs made up.

Each golden row is (end, batch, frames, crop, factor on the learning rate, sub-batches, ranks together, largest stride).
What PySlowFast cannot run is worked out from its formulas in the test.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from paddlevideo_fast.multigrid import MultigridRate, build_schedule, usual_milestones
from paddlevideo_fast.phases import Phase, bn_groups, steady_schedule
from paddlevideo_fast.schedule import ConstantSchedule, CosineSchedule

KINETICS = {"batch_size": 64, "num_frames": 32, "crop_size": 224, "milestones": [94, 154, 196], "epochs": 239}
KINETICS_8 = KINETICS | {"ranks": 8, "frame_stride": 2}
SSV2 = {"batch_size": 16, "num_frames": 64, "crop_size": 224, "milestones": [14, 18], "epochs": 22}
SSV2_8 = SSV2 | {"ranks": 8, "frame_stride": 2}
CHARADES_8 = SSV2_8 | {"milestones": [41, 49], "epochs": 57}

KINETICS_PHASES = [
    (73, 512, 8, 158, 8.0, 8, 1, 8),
    (110, 256, 16, 158, 4.0, 4, 1, 4),
    (142, 128, 16, 224, 2.0, 2, 1, 4),
    (158, 64, 32, 224, 1.0, 1, 1, 2),
    (205, 512, 8, 158, 0.8, 8, 1, 8),
    (228, 256, 16, 158, 0.4, 4, 1, 4),
    (248, 128, 16, 224, 0.2, 2, 1, 4),
    (259, 64, 32, 224, 0.1, 1, 1, 2),
    (291, 512, 8, 158, 0.08, 8, 1, 8),
    (308, 256, 16, 158, 0.04, 4, 1, 4),
    (322, 128, 16, 224, 0.02, 2, 1, 4),
    (329, 64, 32, 224, 0.01, 1, 1, 2),
    (343, 64, 32, 224, 0.01, 1, 1, 2),
    (358, 64, 32, 224, 0.001, 1, 1, 2),
]
SSV2_PHASES = [
    (11, 128, 16, 158, 8.0, 2, 1, 8),
    (16, 64, 32, 158, 4.0, 1, 1, 4),
    (21, 32, 32, 224, 2.0, 1, 2, 4),
    (24, 16, 64, 224, 1.0, 1, 4, 2),
    (27, 128, 16, 158, 0.8, 2, 1, 8),
    (28, 64, 32, 158, 0.4, 1, 1, 4),
    (30, 32, 32, 224, 0.2, 1, 2, 4),
    # the full shape of the second stage is rounded to no epoch at all
    (31, 16, 64, 224, 0.1, 1, 4, 2),
    (33, 16, 64, 224, 0.01, 1, 4, 2),
]
CHARADES_PHASES = [
    (31, 128, 16, 158, 8.0, 2, 1, 8),
    (47, 64, 32, 158, 4.0, 1, 1, 4),
    (60, 32, 32, 224, 2.0, 1, 2, 4),
    (67, 16, 64, 224, 1.0, 1, 4, 2),
    (73, 128, 16, 158, 0.8, 2, 1, 8),
    (76, 64, 32, 158, 0.4, 1, 1, 4),
    (79, 32, 32, 224, 0.2, 1, 2, 4),
    (80, 16, 64, 224, 0.1, 1, 4, 2),
    (83, 16, 64, 224, 0.1, 1, 4, 2),
    (86, 16, 64, 224, 0.01, 1, 4, 2),
]
ONE_MILESTONE = {"batch_size": 32, "num_frames": 16, "crop_size": 128, "milestones": [20], "epochs": 30}
ONE_MILESTONE_PHASES = [
    (23, 256, 4, 91, 8.0, 32, 1, 4),
    (35, 128, 8, 91, 4.0, 16, 1, 2),
    (45, 64, 8, 128, 2.0, 8, 1, 2),
    (50, 32, 16, 128, 1.0, 4, 1, 1),
    (55, 32, 16, 128, 1.0, 4, 1, 1),
    (60, 32, 16, 128, 0.1, 4, 1, 1),
]
OTHER = {"batch_size": 24, "num_frames": 24, "crop_size": 160, "milestones": [25, 40], "epochs": 48, "gamma": 0.5}
OTHER_PHASES = [
    (16, 192, 6, 113, 8.0, 24, 1, 12),
    (24, 96, 12, 113, 4.0, 12, 1, 6),
    (31, 48, 12, 160, 2.0, 6, 1, 6),
    (35, 24, 24, 160, 1.0, 3, 1, 3),
    (44, 192, 6, 113, 4.0, 24, 1, 12),
    (49, 96, 12, 113, 2.0, 12, 1, 6),
    (53, 48, 12, 160, 1.0, 6, 1, 6),
    (55, 24, 24, 160, 0.5, 3, 1, 3),
    (57, 24, 24, 160, 0.5, 3, 1, 3),
    (60, 24, 24, 160, 0.25, 3, 1, 3),
]
THREE_SHAPES = {
    "batch_size": 32,
    "num_frames": 16,
    "crop_size": 112,
    "milestones": [30, 60],
    "epochs": 80,
    "gamma": 0.2,
}
THREE_SHAPES |= {"long_cycle_shapes": [(0.5, 0.5**0.5), (0.5, 1), (1, 1)]}
THREE_SHAPES_PHASES = [
    (22, 128, 8, 79, 4.0, 8, 1, 8),
    (41, 64, 8, 112, 2.0, 4, 1, 8),
    (50, 32, 16, 112, 1.0, 2, 1, 4),
    (72, 128, 8, 79, 0.8, 8, 1, 8),
    (91, 64, 8, 112, 0.4, 4, 1, 8),
    (101, 32, 16, 112, 0.2, 2, 1, 4),
    (110, 32, 16, 112, 0.2, 2, 1, 4),
    (120, 32, 16, 112, 0.04, 2, 1, 4),
]
SMALL = {"batch_size": 8, "num_frames": 16, "crop_size": 96, "milestones": [10, 15], "epochs": 18}
SMALL_PHASES = [
    (8, 64, 4, 68, 8.0, 4, 1, 8),
    (12, 32, 8, 68, 4.0, 2, 1, 4),
    (15, 16, 8, 96, 2.0, 1, 1, 4),
    (17, 8, 16, 96, 1.0, 1, 2, 2),
    (21, 64, 4, 68, 0.8, 4, 1, 8),
    (22, 32, 8, 68, 0.4, 2, 1, 4),
    (24, 16, 8, 96, 0.2, 1, 1, 4),
    (25, 8, 16, 96, 0.1, 1, 2, 2),
    (26, 8, 16, 96, 0.1, 1, 2, 2),
    (27, 8, 16, 96, 0.01, 1, 2, 2),
]


def row(phase: Phase) -> tuple:
    shape = (phase.end, phase.batch_size, phase.num_frames, phase.crop_size)
    return *shape, pytest.approx(phase.lr_multiplier), phase.bn_splits, phase.bn_sync_ranks, phase.frame_stride_max


def ends(schedule) -> list[int]:
    return [phase.end for phase in schedule.phases]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (KINETICS_8, KINETICS_PHASES),
        (SSV2_8, SSV2_PHASES),
        (CHARADES_8, CHARADES_PHASES),
        (ONE_MILESTONE | {"epoch_factor": 2.0}, ONE_MILESTONE_PHASES),
        (OTHER | {"epoch_factor": 1.25, "frame_stride": 3}, OTHER_PHASES),
        (THREE_SHAPES | {"ranks": 2, "frame_stride": 4}, THREE_SHAPES_PHASES),
        (SMALL | {"ranks": 2, "frame_stride": 2}, SMALL_PHASES),
    ],
    ids=["kinetics", "ssv2", "charades", "one_milestone", "other_gamma", "three_shapes", "small"],
)
def test_phases_against_pyslowfast(arguments, expected):
    schedule = build_schedule(**arguments)
    assert [row(phase) for phase in schedule.phases] == expected
    assert schedule.epochs == expected[-1][0]
    assert [phase.start for phase in schedule.phases] == [0, *ends(schedule)[:-1]]


def test_epoch_factor_1():
    schedule = build_schedule(**KINETICS, epoch_factor=1)
    assert ends(schedule) == [49, 73, 95, 105, 136, 152, 166, 172, 194, 205, 215, 219, 229, 239]


def test_short_cycles_against_pyslowfast():
    """Batches of a rank by PySlowFast's sampler, times the ranks."""
    expected = {
        73: [(112, 128), (158, 64), (158, 64)],
        110: [(112, 64), (158, 32), (158, 32)],
        142: [(112, 64), (158, 32), (224, 16)],
        158: [(112, 32), (158, 16), (224, 8)],
    }
    for phase in build_schedule(**KINETICS_8).phases[:4]:
        assert phase.short_cycle == tuple((crop, 8 * batch) for crop, batch in expected[phase.end])
    sides = {(crop, batch) for phase in build_schedule(**OTHER).phases for crop, batch in phase.short_cycle}
    assert sides == {(80, 384), (113, 192), (113, 96), (80, 192), (80, 96), (113, 48), (160, 48), (160, 24)}


def test_short_cycle_alone():
    """PySlowFast multiplies milestones and epochs and cuts off; the shape, and so batch norm, stays as it is."""
    schedule = build_schedule(**KINETICS_8, long_cycle=False)
    assert [row(phase) for phase in schedule.phases] == [
        (141, 64, 32, 224, 1.0, 1, 1, 2),
        (231, 64, 32, 224, 0.1, 1, 1, 2),
        (294, 64, 32, 224, 0.01, 1, 1, 2),
        (358, 64, 32, 224, 0.001, 1, 1, 2),
    ]
    assert ends(build_schedule(**CHARADES_8, long_cycle=False)) == [61, 73, 85]  # 61.5, 73.5 and 85.5
    assert {phase.short_cycle for phase in schedule.phases} == {((112, 256), (158, 128), (224, 64))}
    assert schedule.iterations(240_000) == pytest.approx(358 * 240_000 / ((256 + 128 + 64) / 3))


def test_long_cycle_alone():
    """PySlowFast's code stops with an IndexError, but its formulas say what is meant.

    The shapes' batches are 8, 4, 2 and 1 times the full one's, without smaller crops beside them. A stage of E epochs
    gives each shape E / 15 steps' worth, so 8, 4, 2 and 1 fifteenths of its epochs; 196 epochs take 4/15 of their
    steps, and the last 43 the same share: 43 * 4/15 epochs. All is stretched to 239 * 1.5 and rounded, sum by sum.
    """
    lengths = [Fraction(stage * share, 15) for stage in (94, 60, 42) for share in (8, 4, 2, 1)]
    lengths.append(Fraction(43 * 4, 15))
    stretch = Fraction(239 * 3, 2) / sum(lengths)
    cumulative = [round(stretch * sum(lengths[: number + 1])) for number in range(len(lengths))]
    fine_tuning = (cumulative[-2] + cumulative[-1]) // 2
    expected = [*cumulative[:-1], fine_tuning, cumulative[-1]]
    assert expected == [87, 130, 152, 162, 218, 245, 259, 266, 305, 324, 334, 339, 348, 358]
    schedule = build_schedule(**KINETICS_8, short_cycle=False)
    assert ends(schedule) == expected
    assert [row(phase)[1:] for phase in schedule.phases] == [row[1:] for row in KINETICS_PHASES]
    assert all(phase.short_cycle == ((phase.crop_size, phase.batch_size),) for phase in schedule.phases)


def test_single_cycle():
    """A quarter of the steps at each shape. Stages keep their share of steps: they end at 94, 154 and 196 of 239.

    Steps at the four shapes have 32/3, 16/3, 14/3 and 7/3 batches on average, so that the epochs of a quarter are to
    one another as these; a quarter of 239 is 59.75.
    """
    parts = [(59.75, 32), (34.25, 16), (25.5, 16), (34.5, 14), (25.25, 14), (16.75, 7), (43, 7)]
    stretch = 358.5 / sum(length * clips for length, clips in parts)
    expected = [round(stretch * sum(length * clips for length, clips in parts[: n + 1])) for n in range(6)] + [358]
    schedule = build_schedule(**KINETICS_8, cycle="single")
    assert ends(schedule) == expected == [166, 214, 249, 291, 322, 332, 358]
    assert [phase.lr_multiplier for phase in schedule.phases] == pytest.approx([8, 4, 0.4, 0.2, 0.02, 0.01, 0.001])
    assert schedule.iteration_saving > build_schedule(**KINETICS_8).iteration_saving


def test_the_rate_can_follow_the_square_root_of_the_batch():
    linear, root = build_schedule(**KINETICS_8), build_schedule(**KINETICS_8, lr_scaling="sqrt")
    expected = [8**0.5, 4**0.5, 2**0.5, 1, *(0.1 * grown**0.5 for grown in (8, 4, 2, 1))]
    assert [phase.lr_multiplier for phase in root.phases[:8]] == pytest.approx(expected)
    assert [phase.lr_multiplier for phase in root.phases[-2:]] == pytest.approx([0.01, 0.001])
    alike = [replace(phase, lr_multiplier=other.lr_multiplier) for phase, other in zip(root.phases, linear.phases)]
    assert tuple(alike) == linear.phases  # nothing else differs


def test_ideal_savings():
    """By PySlowFast's scheduler 261.9 thousand steps in place of 896.3 thousand, of 240 thousand clips an epoch."""
    schedule = build_schedule(**KINETICS_8)
    assert schedule.iterations(240_000) == pytest.approx(261_864, abs=1)
    assert schedule.iteration_saving == pytest.approx(896_250 / 261_864, rel=1e-5)
    assert round(schedule.iteration_saving, 2) == 3.42
    assert round(schedule.compute_saving, 2) == 3.43


def test_pixels_per_clip():
    phase = build_schedule(**KINETICS_8).phases[2]
    assert phase.pixels_per_clip == pytest.approx(16 * (4 * 112**2 + 2 * 158**2 + 224**2) / 7)
    assert phase.mean_batch == pytest.approx(128 * 7 / 3)


def test_at():
    schedule = build_schedule(**KINETICS_8)
    assert [schedule.at(epoch).end for epoch in (0, 72, 72.999, 73, 157, 158, 342, 343, 357, 358, 1000)] == [
        *(73, 73, 73, 110, 158, 205, 343, 358, 358, 358, 358)
    ]
    assert [build_schedule(**SSV2).at(epoch).end for epoch in (29, 30, 31)] == [30, 31, 33]
    with pytest.raises(ValueError, match="epoch must be at least 0, got -1"):
        schedule.at(-1)


def test_rate_against_pyslowfast():
    """The warm-up is 34 epochs long, as without multigrid, and rises to the rate multigrid has then."""
    rate = MultigridRate(build_schedule(**KINETICS_8), ConstantSchedule(0.1, warmup_epochs=34, warmup_start_lr=0.01))
    golden = {0: 0.01, 10: 0.2423529411764706, 33.9: 0.7976764705882353, 34: 0.8, 72.99: 0.8, 73: 0.4}
    golden |= {158: 0.08, 342.5: 0.001, 343: 0.0001, 357: 0.0001}
    assert {at: rate(at) for at in golden} == {at: pytest.approx(lr, rel=1e-9) for at, lr in golden.items()}


def test_cosine_takes_the_batch_factor_alone():
    schedule = build_schedule(**KINETICS_8 | {"gamma": None})
    assert ends(schedule) == [row[0] for row in KINETICS_PHASES]
    assert [phase.lr_multiplier for phase in schedule.phases] == [8, 4, 2, 1] * 3 + [1, 1]
    rate = MultigridRate(schedule, CosineSchedule(0.1, schedule.epochs, warmup_epochs=34, warmup_start_lr=0.01))
    # half a cosine from epoch 34 to 358: a quarter of it at 115, the middle at 196, three quarters at 277
    expected = {0: 0.01, 17: 0.405, 34: 0.8, 115: 0.2 * 0.8535533906, 196: 0.8 * 0.5, 277: 0.8 * 0.1464466094, 358: 0}
    assert {at: rate(at) for at in expected} == {at: pytest.approx(lr, abs=1e-10) for at, lr in expected.items()}


def test_usual_milestones():
    assert usual_milestones(239) == [94, 154, 196]
    assert usual_milestones(20) == [8, 13, 16]
    assert usual_milestones(2) == [1]
    assert build_schedule(**KINETICS | {"milestones": None}) == build_schedule(**KINETICS)


class TestSteps:
    phase = build_schedule(**KINETICS_8).phases[2]  # 512 clips at 112 pixels, 256 at 158, 128 at 224

    def test_place_in_the_cycle_follows_from_the_clips_consumed(self):
        positions = {0: (112, 512), 512: (158, 256), 768: (224, 128), 896: (112, 512), 896 * 5 + 768: (224, 128)}
        for position, (crop, batch) in positions.items():
            assert self.phase.step_at(position) == (crop, batch, batch)

    def test_rest_of_a_step(self):
        assert self.phase.step_at(500) == (112, 512, 12)
        assert self.phase.step_at(896 + 513) == (158, 256, 255)

    @pytest.mark.parametrize("clips", [1, 511, 512, 513, 768, 769, 895, 896, 897, 2000, 240_000])
    def test_number_of_steps(self, clips):
        position = steps = 0
        while position < clips:
            position += self.phase.step_at(position)[2]
            steps += 1
        assert self.phase.num_steps(clips) == steps

    @pytest.mark.parametrize(
        ("clips", "whole"),
        [(511, 0), (512, 512), (767, 512), (768, 768), (895, 768), (896, 896), (900, 896), (1500, 1408)],
    )
    def test_whole_steps(self, clips, whole):
        assert self.phase.whole_steps(clips) == whole

    def test_one_shape(self):
        phase = build_schedule(**KINETICS_8, short_cycle=False).phases[0]
        assert phase.step_at(1024) == (158, 512, 512)
        assert [phase.num_steps(clips) for clips in (0, 1, 512, 513)] == [0, 1, 1, 2]


def test_clips_of_a_transformer_are_whole_patches():
    """158 is 9.9 patches of 16: 160, whose batches are 224**2 / 160**2 = 1.96 times as large, rounded, times frames."""
    schedule = build_schedule(**KINETICS_8, frames_unit=2, crop_unit=16)
    assert [phase.short_cycle for phase in schedule.phases[:4]] == [
        ((112, 1024), (160, 512), (160, 512)),
        ((112, 512), (160, 256), (160, 256)),
        ((112, 512), (160, 256), (224, 128)),
        ((112, 256), (160, 128), (224, 64)),
    ]
    assert [phase.num_frames for phase in schedule.phases[:4]] == [8, 16, 16, 32]
    small = build_schedule(**KINETICS | {"num_frames": 6, "crop_size": 32}, frames_unit=2, crop_unit=16)
    assert [(phase.num_frames, phase.crop_size) for phase in small.phases[:4]] == [(2, 16), (4, 16), (4, 32), (6, 32)]


def test_without_the_short_cycle():
    schedule = build_schedule(**KINETICS_8).without_short_cycle(parts=2)
    assert [phase.short_cycle for phase in schedule.phases[:4]] == [
        ((158, 256),),
        ((158, 128),),
        ((224, 64),),
        ((224, 32),),
    ]
    assert schedule.epochs == 358


def test_pixels_left():
    """A clip of each shape has frames x side x side pixels; a quarter of an epoch sees a quarter of them."""
    schedule = build_schedule(**SMALL, short_cycle=False)
    pixels = {(4, 68): 4 * 68**2, (8, 68): 8 * 68**2, (8, 96): 8 * 96**2, (16, 96): 16 * 96**2}
    epochs = [(phase.epochs, pixels[phase.num_frames, phase.crop_size]) for phase in schedule.phases]
    assert schedule.pixels_left(0) == sum(length * each for length, each in epochs)
    first = epochs[0][0]
    assert schedule.pixels_left(first - 0.25) == pytest.approx(0.25 * epochs[0][1] + schedule.pixels_left(first))
    assert schedule.pixels_left(schedule.epochs) == 0


def test_a_run_without_multigrid_is_one_phase():
    schedule = steady_schedule(64, 32, 224, epochs=7, ranks=8, frame_stride=2)
    assert schedule.phases == (Phase(0, 7, 64, 32, 224, 1.0, 1, 1, 2, ((224, 64),)),)
    phase = steady_schedule(64, 32, 224, epochs=7, ranks=2, accum_steps=2).phases[0]
    assert (phase.bn_splits, phase.bn_sync_ranks, phase.num_steps(130)) == (2, 1, 3)
    assert schedule.iteration_saving == schedule.compute_saving == 1


def test_crops_of_the_short_cycle_are_not_above_the_phase():
    """PySlowFast would make batches of no clip: half the full crop has a quarter of its pixels, 0.7 of it half."""
    schedule = build_schedule(**KINETICS_8, long_cycle_shapes=[(1, 0.5), (1, 1)])
    assert schedule.phases[0].short_cycle == ((112, 256), (112, 256))
    assert schedule.phases[0].batch_size == 256


@pytest.mark.parametrize(
    ("batch_per_rank", "ranks", "expected"),
    [
        *((64, 8, (8, 1)), (16, 1, (2, 1)), (8, 4, (1, 1)), (4, 8, (1, 2)), (2, 8, (1, 4)), (1, 8, (1, 8))),
        # PySlowFast's ratio is no whole number
        *((12, 1, (1, 1)), (20, 1, (2, 1)), (3, 8, (1, 2))),
        # PySlowFast stops: 28 clips in 3 parts, 8 ranks in fives, 2 ranks in fours
        *((28, 1, (2, 1)), (1, 6, (1, 6)), (2, 6, (1, 3)), (2, 2, (1, 2)), (2, 1, (1, 1))),
    ],
)
def test_groups_of_batch_norm(batch_per_rank, ranks, expected):
    assert bn_groups(batch_per_rank, ranks) == expected


def test_batch_norm_sees_accumulated_batches_one_by_one():
    schedule = build_schedule(**KINETICS, ranks=4, accum_steps=2, sub_batch=4)
    assert [phase.bn_splits for phase in schedule.phases[:4]] == [16, 8, 4, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"long_cycle": False, "short_cycle": False}, "needs long_cycle, short_cycle or both"),
        ({"ranks": 3}, "64 clips does not divide into 3 ranks x 1 accumulated batches; 63 or 66 would"),
        ({"batch_size": 4, "ranks": 8}, "4 clips does not divide into 8 ranks x 1 accumulated batches; 8 would"),
        ({"milestones": [94, 94]}, r"must rise between 0 and epochs \(239\), got \[94, 94\]"),
        ({"milestones": [94, 300]}, r"must rise between 0 and epochs \(239\), got \[94, 300\]"),
        ({"milestones": []}, "need a milestone to fine-tune after"),
        ({"cycle": "twice"}, "one of repeated, single, got 'twice'"),
        ({"epoch_factor": 0}, "epoch_factor must be above 0"),
        ({"long_cycle_shapes": [(0.5, 1)]}, r"must end with the full shape, \(1, 1\)"),
        ({"long_cycle_shapes": [(2, 2), (1, 1)]}, r"\(2, 2\) is larger than the full one"),
        ({"num_frames": 1}, r"\(0.25, .*\) of 1 frames at 224 has 0 frames"),
        ({"milestones": [5], "epochs": 6, "epoch_factor": 0.2}, "end before the full shape has its turn"),
    ],
)
def test_what_makes_no_schedule(change, message):
    with pytest.raises(ValueError, match=message):
        build_schedule(**KINETICS | change)
