"""What of a run hangs on its phase; of a run without multigrid there is one."""

from __future__ import annotations

import logging

from paddlevideo_fast.engine.run import Training
from paddlevideo_fast.ops.norm import set_splits

logger = logging.getLogger("paddlevideo_fast")


def enter_phase(run: Training) -> None:
    """Has the batch norms of a run divide batches as its epoch wants; nothing changes where they do already."""
    phase = run.schedule.at(run.progress.epoch)
    for model in (run.model, run.ema.model) if run.ema else (run.model,):
        set_splits(model, phase.bn_splits, phase.num_frames, phase.bn_sync_ranks)


def announce_phase(run: Training) -> None:
    """Logs the phase of an epoch, where there are several."""
    phases = run.schedule.phases
    phase = run.schedule.at(run.progress.epoch)
    if len(phases) > 1 and run.ranks.is_first:
        steps = ", ".join(f"{batch} of {crop}x{crop}" for crop, batch in phase.short_cycle)
        logger.info(
            "phase %d/%d, epochs %d to %d: %d frames, clips of a step: %s",
            phases.index(phase) + 1,
            len(phases),
            phase.start + 1,
            phase.end,
            phase.num_frames,
            steps,
        )
