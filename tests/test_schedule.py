"""Golden rates come from PyTorch 2.14, timm 1.0.31, and the schedules of PySlowFast, AVION and VideoMAE."""

from __future__ import annotations

import math

import pytest

from paddlevideo_fast.schedule import SCHEDULES, ConstantSchedule, CosineSchedule, StepSchedule, scaled_lr


def assert_rates(schedule, expected):
    assert {at: schedule(at) for at in expected} == {
        at: pytest.approx(lr, rel=1e-9, abs=1e-18) for at, lr in expected.items()
    }


def test_scaled_lr_is_proportional():
    assert scaled_lr(0.02, 256, 128) == pytest.approx(0.04)  # TSM's README: 0.02 at 128 clips, 0.04 at 256
    assert scaled_lr(1e-3, 512, 256) == pytest.approx(2e-3)
    assert scaled_lr(0.02, 12288, 128) == pytest.approx(1.92)
    with pytest.raises(ValueError, match="reference_batch=0"):
        scaled_lr(0.1, 64, 0)


def test_step_against_pytorch():
    schedule = StepSchedule(0.02, [20, 40])
    assert_rates(
        schedule, {0: 0.02, 19: 0.02, 19.999: 0.02, 20: 0.002, 39: 0.002, 40: 0.0002, 49: 0.0002, 1000: 0.0002}
    )


def test_step_with_warmup_against_pyslowfast():
    schedule = StepSchedule(0.1, [14, 18], warmup_epochs=4, warmup_start_lr=0.0001)
    assert_rates(
        schedule,
        {
            0: 0.0001,
            0.5: 0.0125875,
            2: 0.05005,
            3.75: 0.09375625,
            4: 0.1,
            13.99: 0.1,
            14: 0.01,
            17.5: 0.01,
            18: 0.001,
            21.9: 0.001,
        },
    )


def test_step_warmup_over_a_milestone_ends_at_the_lower_rate():
    assert_rates(StepSchedule(0.1, [2, 18], warmup_epochs=4), {1: 0.0025, 3: 0.0075, 4: 0.01})


def test_step_gamma():
    assert_rates(StepSchedule(0.8, [1, 2, 3], gamma=0.5), {0.5: 0.8, 1: 0.4, 2: 0.2, 3: 0.1})


def test_cosine_against_pytorch():
    schedule = CosineSchedule(0.05, epochs=12, final_lr=0.002)
    assert_rates(
        schedule, {0: 0.05, 2: 0.04678460969082653, 4: 0.038, 6: 0.026, 8: 0.014, 10: 0.00521539030917347, 12: 0.002}
    )


def test_cosine_from_epoch_zero_against_pyslowfast():
    """SlowFast 8x8 R50: 196 epochs, warm-up 34 from 0.01."""
    schedule = CosineSchedule(0.1, 196, warmup_epochs=34, warmup_start_lr=0.01, cosine_after_warmup=False)
    assert_rates(
        schedule,
        {
            0: 0.01,
            0.5: 0.011217016737503931,
            17: 0.05137856907513366,
            33.75: 0.09214862978151535,
            34: 0.09275713815026732,
            50.25: 0.08463992256248996,
            98: 0.05,
            150: 0.012986100146234232,
            195.5: 1.6057032836913621e-06,
        },
    )
    assert schedule(196) == pytest.approx(0, abs=1e-15)


def test_cosine_after_warmup_against_pyslowfast():
    schedule = CosineSchedule(1e-4, 200, final_lr=1e-6, warmup_epochs=30, warmup_start_lr=1e-6)
    assert_rates(
        schedule,
        {
            0: 1e-6,
            0.5: 2.65e-6,
            15: 5.05e-5,
            29.75: 9.9175e-5,
            30: 1e-4,
            50.25: 9.657427088838e-05,
            115: 5.05e-5,
            199.5: 1.00211307068329e-06,
            200: 1e-6,
        },
    )


def test_cosine_after_warmup_against_timm():
    """timm's t_initial leaves the warm-up out (warmup_prefix=True): 20 epochs after 5."""
    schedule = CosineSchedule(1e-3, 25, final_lr=1e-5, warmup_epochs=5, warmup_start_lr=1e-6)
    assert_rates(
        schedule,
        {
            0: 1e-6,
            1: 0.0002008,
            4: 0.0008002,
            5: 0.001,
            6: 0.0009939057285945933,
            12: 0.0007297252973710757,
            20: 0.000154982143312659,
            24: 1.609427140540686e-05,
        },
    )


def test_cosine_by_the_step_against_avion():
    """AVION's table for 10 epochs of 7 steps, warm-up of one epoch; its warm-up proper is a step shorter."""
    schedule = CosineSchedule(3e-5, 10, final_lr=1e-5, warmup_epochs=1, warmup_start_lr=1e-6)
    table = {
        7: 3e-5,
        8: 2.998756921218922e-05,
        20: 2.7971325072229226e-05,
        38: 2.024930691738073e-05,
        69: 1.0012430787810777e-05,
    }
    assert_rates(schedule, {step / 7: lr for step, lr in table.items()})


def test_cosine_by_the_step_against_videomae():
    """VideoMAE's fine-tuning table at batch 512: 1e-3 and 1e-6 at 256, 100 epochs of 10 steps, warm-up of 5 from 0."""
    schedule = CosineSchedule(1e-3, 100, final_lr=1e-6, warmup_epochs=5)
    scale = scaled_lr(1.0, 512, 256)
    table = {50: 0.002, 51: 0.001999994537548027, 300: 0.0016776042900541158, 525: 0.0010010000000000002}
    for step, lr in {**table, 999: 2.0054624519729723e-06}.items():
        assert scale * schedule(step / 10) == pytest.approx(lr, rel=1e-9)
    assert schedule(0) == 0


def test_the_two_cosines_differ_after_the_warmup():
    late, early = (CosineSchedule(1.0, 100, warmup_epochs=40, cosine_after_warmup=after) for after in (True, False))
    assert late(70) == pytest.approx(0.5)
    assert early(70) == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.7)))
    assert late(40) == 1.0 and early(40) == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.4)))


def test_cosine_stays_at_the_final_rate():
    schedule = CosineSchedule(0.1, 10, final_lr=0.003)
    assert schedule(10) == pytest.approx(0.003) and schedule(15) == pytest.approx(0.003)


def test_constant():
    assert_rates(ConstantSchedule(3e-5), {0: 3e-5, 4.9: 3e-5})
    assert_rates(
        ConstantSchedule(0.3, warmup_epochs=2, warmup_start_lr=0.1), {0: 0.1, 1: 0.2, 1.5: 0.25, 2: 0.3, 9: 0.3}
    )


@pytest.mark.parametrize(
    "schedule",
    [
        StepSchedule(0.3, [3, 7], warmup_epochs=1.5, warmup_start_lr=0.01),
        CosineSchedule(0.3, 9, 0.001, 2, 0.01),
        CosineSchedule(0.3, 9, 0.001, 2, 0.01, cosine_after_warmup=False),
    ],
)
def test_warmup_meets_what_follows(schedule):
    end = schedule.warmup_epochs
    assert schedule(end - 1e-9) == pytest.approx(schedule(end), rel=1e-6)
    assert schedule(0) == pytest.approx(0.01)


def test_equal_schedules_give_equal_rates_whatever_was_asked_before():
    first, second = (CosineSchedule(0.1, 12, 0.001, 3, 0.01) for _ in range(2))
    whole_run = [first(step / 7) for step in range(7 * 12)]
    assert [second(step / 7) for step in range(40, 84)] == whole_run[40:]
    assert first == second


def test_table_holds_the_three():
    assert SCHEDULES == {"step": StepSchedule, "cosine": CosineSchedule, "constant": ConstantSchedule}


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: StepSchedule(0.1, [20, 10]), "rise"),
        (lambda: StepSchedule(0.1, [0, 10]), "above 0"),
        (lambda: StepSchedule(-0.1, [10]), "base_lr"),
        (lambda: StepSchedule(0.1, [10], gamma=0), "gamma"),
        (lambda: CosineSchedule(0.1, 5, warmup_epochs=5), "epochs must be above warmup_epochs"),
        (lambda: CosineSchedule(0.1, 5, final_lr=0.2), "final_lr"),
        (lambda: CosineSchedule(math.nan, 5), "base_lr"),
        (lambda: ConstantSchedule(0.1, warmup_epochs=-1), "warmup_epochs"),
        (lambda: ConstantSchedule(0.1, warmup_start_lr=-1), "warmup_start_lr"),
        (lambda: ConstantSchedule(0.1)(-0.5), "progress_epochs"),
        (lambda: ConstantSchedule(0.1)(math.nan), "progress_epochs"),
    ],
)
def test_impossible_values_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
