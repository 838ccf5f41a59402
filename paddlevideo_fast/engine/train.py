"""The one training loop."""

from __future__ import annotations

import contextlib
import logging
import math
import resource
import time
from collections.abc import Callable
from dataclasses import asdict

import numpy as np
import paddle

from paddlevideo_fast.config import dump_config
from paddlevideo_fast.data.augment_draws import draw_mix
from paddlevideo_fast.data.samplers import Step
from paddlevideo_fast.engine.build import Progress, Training, build_augment
from paddlevideo_fast.engine.checkpoint import (
    CheckpointError,
    optimizer_state,
    set_optimizer_state,
    write_atomically,
)
from paddlevideo_fast.engine.evaluate import evaluate
from paddlevideo_fast.engine.failures import Failures
from paddlevideo_fast.engine.interval import Interval, StepFacts
from paddlevideo_fast.engine.log import RunLog, duration, say_rows
from paddlevideo_fast.engine.optim import trainable
from paddlevideo_fast.engine.tasks import Batch
from paddlevideo_fast.models.weights.load import set_state

logger = logging.getLogger("paddlevideo_fast")

STATE_FORMAT = 1


class NonFiniteLossError(RuntimeError):
    """The loss is not finite; the message names the step, its learning rate and loss scale, and its clips."""


def train(run: Training, resume: bool = False, max_steps: int | None = None) -> Progress:
    """Trains until the configured epochs are done.

    Args:
        run: What :func:`build_training` made.
        resume: Continue from the newest training state of the run's folder.
        max_steps: Stop after this many optimiser steps in all; validates and saves as at the end of an epoch.

    Raises:
        NonFiniteLossError, TooManyFailuresError, LoaderError, CheckpointError: See there.
    """
    if resume:
        restore(run, run.checkpoints.load_newest())
    log = RunLog(run.output_dir if run.ranks.is_first else None, run.config.log.visualdl)
    if run.ranks.is_first:
        text = dump_config(run.config).encode()
        write_atomically(run.output_dir / "config.yaml", lambda file: file.write(text))
        say_rows("run", banner(run))
    failures = Failures(run.config.data.max_failed_share)
    progress, config = run.progress, run.config
    start, first_step = time.perf_counter(), progress.step
    while progress.epoch < config.epochs and not _reached(progress, max_steps):
        train_one_epoch(run, log, failures, max_steps)
        last = progress.epoch == config.epochs or _reached(progress, max_steps)
        if run.validation is not None and (last or progress.epoch % config.valid_every_epochs == 0):
            validate(run, log)
        if last or progress.epoch % config.checkpoint.every_epochs == 0:
            save(run)
    log.close()
    logger.info("done: %d steps in %s", progress.step - first_step, duration(time.perf_counter() - start))
    return progress


def train_one_epoch(run: Training, log: RunLog, failures: Failures, max_steps: int | None) -> None:
    """Takes the optimiser steps from the current position to the end of the epoch, or to ``max_steps``.

    Nothing here waits for the device except where a line is logged, where ``nonfinite.policy`` is "skip", and in a
    loss scaler, which must know whether it stepped.
    """
    config, progress, sampler = run.config, run.progress, run.sampler
    parameters = trainable(run.model)
    run.model.train()
    sampler.seek(progress.epoch, progress.position)
    batches = iter(run.loader)
    interval = Interval(run.ranks)
    for step in sampler.steps():
        rate = run.learning_rate(progress.trained / sampler.records_per_epoch)
        run.optimizer.set_lr(rate)
        # All randomness of a step follows from its number: a resumed run needs no generator state.
        paddle.seed(_seed(config.seed, progress.step, run.ranks.rank))
        step_loss = paddle.zeros([])
        for number, keys in enumerate(step.micro_batches):
            with interval.reading():
                batch = next(batches)
            failures.add(len({key.index for key in keys if key.index >= 0}), batch["errors"])
            batch = augment(run, batch, number)
            is_last = number == len(step.micro_batches) - 1
            with contextlib.nullcontext() if is_last else run.ranks.no_sync(run.parallel_model):
                rows, outputs = run.task.backward(run.forward, batch, _step_mean(run, step, batch))
            interval.add({"loss": rows, **run.task.monitor(outputs, batch)}, batch["weight"])
            step_loss = step_loss + rows.sum()
        progress.step += 1
        progress.position += step.num_records
        interval.finish_step(progress.step, rate, step)
        if config.nonfinite.policy == "skip" and not math.isfinite(run.ranks.sum(step_loss).item()):
            run.optimizer.clear_grad()
            _count_skipped(run, "the loss is not finite")
        elif not run.precision.step(run.optimizer, parameters, config.optimizer.clip_norm):
            progress.skipped += 1  # routine: the scaler has found its limit and lowers the scale
        else:
            progress.trained += step.num_records
            if run.ema:
                run.ema.update()
        ends = progress.position >= sampler.records_per_epoch or _reached(progress, max_steps)
        if ends or progress.step % config.log.interval == 0:
            report(run, log, interval, rate)
        if ends:
            break
    if progress.position >= sampler.records_per_epoch:
        progress.epoch, progress.position = progress.epoch + 1, 0


def augment(run: Training, batch: Batch, micro_batch: int) -> Batch:
    """Turns a batch of pixels into model inputs on the device; mixes its rows if the config says so."""
    config = run.config.augment
    rng = np.random.default_rng([run.config.seed, run.progress.step, micro_batch, run.ranks.rank])
    mix = draw_mix(
        rng,
        batch["clip"].shape[0],
        config.mixup_alpha,
        config.cutmix_alpha,
        config.mix_probability,
        config.switch_probability,
    )
    return run.augment(batch, mix)


def _step_mean(run: Training, step: Step, batch: Batch) -> Callable:
    """Makes a row's share in the loss of a step the same on every rank and in every accumulated batch.

    Gradients are averaged over the ranks, so that the sum of all backward passes of a step is the gradient of the
    mean over its clips. An unreadable clip adds nothing to it.
    """
    factor = run.ranks.size / step.num_clips
    return lambda rows: run.precision.scale((rows * batch["weight"]).sum() * factor)


def report(run: Training, log: RunLog, interval: Interval, rate: float) -> None:
    """Logs one line about the steps since the last one; every rank must call it."""
    progress, sampler = run.progress, run.sampler
    values, broken = interval.read()
    values = {"loss": values.pop("loss"), "lr": rate, **values}
    left = run.config.epochs * sampler.records_per_epoch - progress.epoch * sampler.records_per_epoch - progress.position
    values["eta_seconds"] = round(left / sampler.records_per_step * values["batch_cost"])
    values["memory_mb"] = _peak_memory() >> 20
    values["skipped"] = progress.skipped
    log.record("train", progress.epoch + 1, progress.step, values)
    if run.ranks.is_first:
        logger.info(
            "epoch %d/%d step %d (%3.0f%%)  %s  lr %.3g  batch %.3f s  reader %.3f s  %.1f clips/s  eta %s  mem %d MB",
            progress.epoch + 1,
            run.config.epochs,
            progress.step,
            100 * progress.position / sampler.records_per_epoch,
            "  ".join(f"{name} {values[name]:.4f}" for name in ("loss", *run.task.monitored) if name in values),
            rate,
            values["batch_cost"],
            values["reader_cost"],
            values["ips"],
            duration(values["eta_seconds"]),
            values["memory_mb"],
        )
    if run.config.nonfinite.policy == "stop" and not math.isfinite(values["loss"]):
        raise NonFiniteLossError(_describe_break(run, broken, progress.step))


def _describe_break(run: Training, broken: StepFacts | None, step: int) -> str:
    scale = f", loss scale {run.precision.scaler.state_dict()['scale'].item():g}" if run.precision.scaler else ""
    if broken is None:
        return f"the loss is not finite by step {step}, on another rank than {run.ranks.rank}{scale}"
    rows = dict.fromkeys(run.records[key.index] for key in broken.keys if key.index >= 0)
    clips = "\n".join(f"  {record.origin}: {record.source}" for record in rows)
    return (
        f"the loss is not finite since step {broken.number}, learning rate {broken.rate:g}{scale}; no checkpoint has "
        f"been written since. A lower optimizer.lr, optimizer.clip_norm or nonfinite.policy=skip may help. "
        f"The clips of the batch:\n{clips}"
    )


def _count_skipped(run: Training, reason: str) -> None:
    run.progress.skipped += 1
    limit = run.config.nonfinite.limit
    logger.warning("step %d skipped: %s (%d of at most %d)", run.progress.step, reason, run.progress.skipped, limit)
    if run.progress.skipped > limit:
        raise NonFiniteLossError(f"{run.progress.skipped} steps were skipped, more than nonfinite.limit = {limit}")


def validate(run: Training, log: RunLog) -> None:
    """Evaluates on the validation set, logs the result and keeps the best weights."""
    progress, config = run.progress, run.config
    forward = run.precision.wrap(run.evaluated_model)
    result = evaluate(run.evaluated_model, forward, run.task, run.validation, run.ranks, build_augment(config, "valid"))
    epochs_done = progress.epoch if progress.position == 0 else progress.epoch + 1
    log.record("valid", epochs_done, progress.step, {**result.metrics, "num_failed": len(result.failures)})
    value = result.metrics[run.task.best_metric]
    is_best = value > progress.best
    progress.best = max(progress.best, value)
    if not run.ranks.is_first:
        return
    for failure in result.failures:
        logger.warning("not in the validation, cannot be read: %s", failure)
    logger.info(
        "epoch %d/%d valid  %s%s",
        epochs_done,
        config.epochs,
        "  ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in result.metrics.items()),
        "  (best so far)" if is_best else "",
    )
    if is_best:
        path = run.checkpoints.save_weights("best", run.evaluated_model.state_dict(), facts(run, result.metrics))
        logger.info("saved %s", path)


def facts(run: Training, metrics: dict | None = None) -> dict:
    """What stands beside weights: the model, its classes and how far it was trained."""
    model = run.config.model
    return {
        "model": {"name": model.name, **model.arguments},
        "class_names": run.class_names,
        "epoch": run.progress.epoch,
        "step": run.progress.step,
        "metrics": metrics or {},
    }


def save(run: Training) -> None:
    """Writes the training state and the last weights, from the first rank."""
    if run.ranks.is_first:
        path = run.checkpoints.save_state(run.progress.step, training_state(run))
        run.checkpoints.save_weights("last", run.evaluated_model.state_dict(), facts(run))
        logger.info("saved %s", path)
    run.ranks.barrier()


def training_state(run: Training) -> dict:
    """Returns everything a resumed run needs, as nested dicts of tensors, numbers and strings."""
    return {
        "format": STATE_FORMAT,
        "progress": asdict(run.progress),
        "num_records": len(run.records),
        "class_names": run.class_names,
        "model": run.model.state_dict(),
        "optimizer": optimizer_state(run.optimizer, run.model),
        "scaler": run.precision.scaler.state_dict() if run.precision.scaler else None,
        "ema": run.ema.model.state_dict() if run.ema else None,
        "ema_updates": run.ema.updates if run.ema else 0,
    }


def restore(run: Training, state: dict) -> None:
    """Puts a training state back.

    Raises:
        CheckpointError: The state belongs to another model, data set or version.
    """
    own = run.model.state_dict()
    problems = {
        "format": (state.get("format"), STATE_FORMAT),
        "records": (state.get("num_records"), len(run.records)),
        "averaged weights": (state.get("ema") is not None, run.ema is not None),
        "model keys": (len(state.get("model", ())), len(own)),
    }
    wrong = [f"its {name}: {there}, this run's: {here}" for name, (there, here) in problems.items() if there != here]
    if wrong:
        raise CheckpointError(f"the training state is of another run; {'; '.join(wrong)}")
    set_state(own, state["model"])
    set_optimizer_state(run.optimizer, run.model, state["optimizer"])
    if run.precision.scaler and state["scaler"]:
        run.precision.scaler.load_state_dict(state["scaler"])
    if run.ema:
        set_state(run.ema.model.state_dict(), state["ema"])
        run.ema.updates = state["ema_updates"]
    run.progress.__init__(**state["progress"])


def banner(run: Training) -> dict[str, str]:
    """Returns what runs, on what, and which fast paths are on or why they are off."""
    config, sampler = run.config, run.sampler
    data, rate = config.data, run.learning_rate(config.epochs * 0.0)
    peak = max(run.learning_rate(epoch / 10) for epoch in range(10 * config.epochs + 1))
    reference = config.optimizer.reference_batch
    rule = f" = {config.optimizer.lr:g} x {run.global_batch} / {reference}" if reference else ", not scaled to the batch"
    weights = sum(p.size for p in trainable(run.model))
    return {
        "model": f"{config.model.name}, {weights / 1e6:.2f} M trained weights, {len(run.class_names or [])} class names",
        "clips": f"{data.num_frames} frames of {data.crop_size}x{data.crop_size}, {data.sampling.name} sampling",
        "devices": f"{run.ranks.size} x {paddle.device.get_device()}, paddle {paddle.__version__}",
        "global batch": (
            f"{run.global_batch} clips = {data.batch_size} per rank x {run.ranks.size} ranks x {config.accum_steps} "
            f"accumulated x {sampler.repeats} repeats"
        ),
        "learning rate": f"{config.schedule.name}, starts at {rate:.4g}, peak {peak:.4g}{rule}",
        "epochs": f"{config.epochs} of {sampler.steps_per_epoch} steps over {len(run.records)} records",
        "reader": f"{data.reader}, falls back to {data.fallback}; {data.num_workers} processes",
        "precision": run.precision.description,
        **{f"fast path: {name}": how for name, how in getattr(run.model, "fast_paths", {}).items()},
        "output": str(run.output_dir.absolute()),
    }


def _reached(progress: Progress, max_steps: int | None) -> bool:
    return max_steps is not None and progress.step >= max_steps


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def _peak_memory() -> int:
    """Bytes: the most that was allocated on the GPU, or this process's largest resident size."""
    if paddle.device.get_device().startswith("gpu"):
        return paddle.device.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
