"""The multigrid configs have the published schedules, as PySlowFast's scheduler and learning rate policy give them."""

from __future__ import annotations

from pathlib import Path

import pytest

from paddlevideo_fast.config import load_config
from paddlevideo_fast.engine.schedules import build_learning_rate, build_phases, clip_units

CONFIGS = Path(__file__).parents[2] / "configs"
RANKS = 8

# end, batch, frames, crop, sub-batches of a rank, ranks together, largest stride
KINETICS = [
    *[
        (73, 512, 8, 158, 8, 1, 8),
        (110, 256, 16, 158, 4, 1, 4),
        (142, 128, 16, 224, 2, 1, 4),
        (158, 64, 32, 224, 1, 1, 2),
    ],
    *[(205, 512, 8, 158, 8, 1, 8), (228, 256, 16, 158, 4, 1, 4), (248, 128, 16, 224, 2, 1, 4)],
    *[(259, 64, 32, 224, 1, 1, 2), (291, 512, 8, 158, 8, 1, 8), (308, 256, 16, 158, 4, 1, 4)],
    *[
        (322, 128, 16, 224, 2, 1, 4),
        (329, 64, 32, 224, 1, 1, 2),
        (343, 64, 32, 224, 1, 1, 2),
        (358, 64, 32, 224, 1, 1, 2),
    ],
]
SSV2 = [
    *[(11, 128, 16, 158, 2, 1, None), (16, 64, 32, 158, 1, 1, None), (21, 32, 32, 224, 1, 2, None)],
    *[(24, 16, 64, 224, 1, 4, None), (27, 128, 16, 158, 2, 1, None), (28, 64, 32, 158, 1, 1, None)],
    *[(30, 32, 32, 224, 1, 2, None), (31, 16, 64, 224, 1, 4, None), (33, 16, 64, 224, 1, 4, None)],
]
CHARADES = [
    *[(31, 128, 16, 158, 2, 1, 8), (47, 64, 32, 158, 1, 1, 4), (60, 32, 32, 224, 1, 2, 4), (67, 16, 64, 224, 1, 4, 2)],
    *[(73, 128, 16, 158, 2, 1, 8), (76, 64, 32, 158, 1, 1, 4), (79, 32, 32, 224, 1, 2, 4), (80, 16, 64, 224, 1, 4, 2)],
    *[(83, 16, 64, 224, 1, 4, 2), (86, 16, 64, 224, 1, 4, 2)],
]
RATES = {  # progress in epochs -> learning rate
    "k400_8x8": {0: 0.01, 10: 0.2423529411764706, 34: 0.8, 73: 0.4, 158: 0.08, 342.5: 0.001, 343: 0.0001, 357: 0.0001},
    "ssv2_16x8": {0: 0.0001, 0.19: 0.24, 10.9: 0.24, 11: 0.12, 21: 0.03, 24: 0.024, 31.5: 0.0003},
    "charades_16x8": {0: 0.0001, 2: (0.0001 + 0.3) / 2, 4: 0.3, 31: 0.15, 67: 0.03, 82.9: 0.00375, 83: 0.000375},
}


def config_of(name, *overrides):
    return load_config(CONFIGS / "slowfast" / f"slowfast_resnet50_{name}_multigrid.yaml", overrides)


@pytest.mark.parametrize(
    ("name", "expected"), [("k400_8x8", KINETICS), ("ssv2_16x8", SSV2), ("charades_16x8", CHARADES)]
)
def test_the_phases_are_the_published_ones(name, expected):
    phases = build_phases(config_of(name), RANKS).phases
    found = [
        (p.end, p.batch_size, p.num_frames, p.crop_size, p.bn_splits, p.bn_sync_ranks, p.frame_stride_max)
        for p in phases
    ]
    assert found == expected


@pytest.mark.parametrize("name", RATES)
def test_the_rates_are_the_published_ones(name):
    config = config_of(name)
    rate = build_learning_rate(config, config.data.batch_size * RANKS)
    assert {at: rate(at) for at in RATES[name]} == {at: pytest.approx(lr, rel=1e-9) for at, lr in RATES[name].items()}
    half = build_learning_rate(config, config.data.batch_size * RANKS // 2)
    assert half(40) == pytest.approx(rate(40) / 2)


def test_kinetics_saves_what_is_published():
    schedule = build_phases(config_of("k400_8x8"), RANKS)
    assert schedule.iterations(240_000) == pytest.approx(261_864, abs=1)
    assert round(schedule.iteration_saving, 2) == 3.42


def test_without_multigrid_there_is_one_phase():
    config = config_of("k400_8x8", "multigrid=", "accum_steps=2")
    (phase,) = build_phases(config, RANKS).phases
    assert (phase.end, phase.batch_size, phase.short_cycle) == (239, 128, ((224, 128),))
    assert (phase.bn_splits, phase.bn_sync_ranks) == (1, 1)  # of norm: sub, 8 clips of a rank at a time
    assert build_learning_rate(config, 64)(100) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("path", "units"),
    [
        ("slowfast/slowfast_resnet50_k400_4x16.yaml", (8, 1)),
        ("tsm/tsm_resnet50_k400_8x8.yaml", (1, 1)),
        ("i3d/i3d_resnet50_k400_8x8.yaml", (1, 1)),
        ("timesformer/timesformer_base_patch16_k400_8x32.yaml", (1, 16)),
        ("vit/vit_base_patch16_k400_16x4.yaml", (2, 16)),
    ],
)
def test_what_clips_of_a_model_are_multiples_of(path, units):
    assert clip_units(load_config(CONFIGS / path)) == units
    if "vit" in path:
        assert clip_units(load_config(CONFIGS / path, ["model.name=vit_large_patch14", "model.tubelet_size=1"])) == (
            1,
            14,
        )
