"""What a training run says of itself before it starts."""

from __future__ import annotations

import paddle

from paddlevideo_fast.engine.build import READER_KINDS, Training
from paddlevideo_fast.engine.optim import trainable
from paddlevideo_fast.phases import aligned, phases_table


def banner(run: Training) -> dict[str, str]:
    """Returns what runs, on what, and which fast paths are on or why they are off."""
    config, sampler = run.config, run.sampler
    data, start = config.data, run.learning_rate(0.0)
    peak = max(run.learning_rate(epoch / 10) for epoch in range(10 * run.epochs + 1))
    reference = config.optimizer.reference_batch
    rule = ", not scaled to the batch"
    if reference:
        rule = f" = {config.optimizer.lr:g} x {run.global_batch} / {reference} (batch the rate was tuned for)"
    most = "up to " if config.multigrid else ""
    weights = sum(p.size for p in trainable(run.model)) / 1e6
    refuses = READER_KINDS[data.reader.name].may_refuse and data.fallback not in (None, data.reader.name)
    fallback = f", falls back to {data.fallback}" if refuses else ""
    return {
        "model": f"{config.model.name}, {weights:.2f} M trained weights, {len(run.class_names or [])} class names",
        "clips": f"{most}{data.num_frames} frames of {data.crop_size}x{data.crop_size}, {data.sampling.name} sampling",
        "devices": f"{run.ranks.size} x {paddle.device.get_device()}, paddle {paddle.__version__}",
        "global batch": (
            f"{run.global_batch} clips = {data.batch_size} per rank x {run.ranks.size} ranks x {config.accum_steps} "
            f"accumulated x {sampler.repeats} repeats"
        ),
        "learning rate": f"{config.schedule.name}, starts at {start:.4g}, peak {peak:.4g}{rule}",
        "epochs": f"{_epochs(run)} over {len(run.records)} records",
        "reader": f"{data.reader.name}{fallback}; {data.num_workers} threads",
        "precision": run.precision.description,
        **{f"fast path: {name}": how for name, how in getattr(run.model, "fast_paths", {}).items()},
        "output": str(run.output_dir.absolute()),
    }


def phases(run: Training) -> list[str]:
    """Returns the lines of a table of the phases, and what they save; nothing without multigrid."""
    if run.config.multigrid is None:
        return []
    schedule, clips = run.schedule, len(run.records) * run.sampler.repeats
    saving = (
        f"{schedule.epochs} epochs in the place of {schedule.base_epochs}: {schedule.iteration_saving:.2f} times fewer "
        f"steps, {schedule.compute_saving:.2f} times fewer pixels"
    )
    return [*aligned(phases_table(schedule, clips)), saving]


def _epochs(run: Training) -> str:
    if run.config.multigrid is None:
        return f"{run.epochs} of {run.sampler.steps_per_epoch} steps"
    return f"{run.epochs} in {len(run.schedule.phases)} phases"
