"""The one training loop."""

from __future__ import annotations

import contextlib
import itertools
import logging
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import paddle

from paddlevideo_fast.config import dump_config
from paddlevideo_fast.data.augment_draws import draw_mix
from paddlevideo_fast.data.samplers import Step
from paddlevideo_fast.engine.banner import banner, phases
from paddlevideo_fast.engine.build import build_augment
from paddlevideo_fast.engine.checkpoint import write_atomically
from paddlevideo_fast.engine.evaluate import evaluate
from paddlevideo_fast.engine.failures import Failures
from paddlevideo_fast.engine.interval import Interval
from paddlevideo_fast.engine.log import RunLog, duration, say_metrics, say_rows
from paddlevideo_fast.engine.nonfinite import NonFiniteLossError, count_skipped, explain_break, is_finite
from paddlevideo_fast.engine.optim import trainable
from paddlevideo_fast.engine.phase import announce_phase, enter_phase
from paddlevideo_fast.engine.run import Progress, Training
from paddlevideo_fast.engine.saver import Saver, agree_on_statistics
from paddlevideo_fast.engine.state import facts, restore
from paddlevideo_fast.engine.stop import StopRequest
from paddlevideo_fast.engine.tasks import Batch
from paddlevideo_fast.ops.norm import running_statistics

logger = logging.getLogger("paddlevideo_fast")

_RUN_FILES = ("checkpoints", "metrics.jsonl", "visualdl", "config.yaml", "results.json")


def train(
    run: Training, resume: bool = False, max_steps: int | None = None, stop: StopRequest | None = None
) -> Progress:
    """Trains until the epochs of the run are done.

    Args:
        run: What :func:`build_training` made.
        resume: Continue from the newest training state of the run's folder.
        max_steps: Stop after this many optimiser steps in all; saves and validates as at the end of an epoch.
        stop: Looked at between steps; with several ranks, where a log line is due.

    Raises:
        StoppedOnRequestError: ``stop`` was asked for; the state is saved.
        NonFiniteLossError, TooManyFailuresError, LoaderError, EvaluationError, CheckpointError: See there.
    """
    log_bytes = restore(run, run.checkpoints.load_newest()) if resume else None
    if run.ranks.is_first:
        run.output_dir.mkdir(parents=True, exist_ok=True)
        if not resume:
            set_aside(run.output_dir)
        text = dump_config(run.config).encode()
        write_atomically(run.output_dir / "config.yaml", lambda file: file.write(text))
        say_rows("run", banner(run))
        for line in phases(run):
            logger.info("  %s", line)
    progress, config = run.progress, run.config
    failures = Failures(config.data.max_failed_share, stop_at_first=config.data.bad_files == "raise")
    start, first_step = time.perf_counter(), progress.step
    with RunLog(run.output_dir if run.ranks.is_first else None, config.log.visualdl, keep=log_bytes) as log:
        saver = Saver(run, log, stop or StopRequest())
        while True:
            if progress.unvalidated and run.validation is not None:
                validate(run, log)
            progress.unvalidated = False
            if progress.epoch >= run.epochs or _reached(progress, max_steps):
                break
            if progress.step == first_step or run.ends_phase:
                announce_phase(run)
            train_one_epoch(run, log, failures, saver, max_steps)
            failures.check_epoch(run.ranks.gather)
            if failures.summary():
                logger.warning("%s", failures.summary())
            # The state is saved before the validation, which a resumed run then catches up on.
            last = progress.epoch >= run.epochs or _reached(progress, max_steps)
            due = last or run.ends_phase or progress.epoch % config.valid_every_epochs == 0
            progress.unvalidated = due and run.validation is not None
            if run.precise_bn and (progress.unvalidated or saver.is_due_after_epoch(last)):
                refine_statistics(run)
            saver.after_epoch(last)
    logger.info("done: %d steps in %s", progress.step - first_step, duration(time.perf_counter() - start))
    return progress


def set_aside(output_dir: Path) -> None:
    """Moves what an earlier run left in the folder to ``earlier_N`` in it, so that the two do not mix."""
    found = [path for name in _RUN_FILES if (path := output_dir / name).exists()]
    if not found:
        return
    number = next(n for n in itertools.count(1) if not (output_dir / f"earlier_{n}").exists())
    target = output_dir / f"earlier_{number}"
    target.mkdir()
    for path in found:
        path.rename(target / path.name)
    logger.warning("moved the checkpoints and metrics of an earlier run to %s", target.absolute())


def train_one_epoch(
    run: Training, log: RunLog, failures: Failures, saver: Saver | None = None, max_steps: int | None = None
) -> None:
    """Takes the optimiser steps from the current position to the end of the epoch, or to ``max_steps``.

    Nothing here waits for the device except where a line is logged, where ``nonfinite.policy`` is "skip", and in a
    loss scaler, which must know whether it stepped.
    """
    config, progress, sampler = run.config, run.progress, run.sampler
    parameters = trainable(run.model)
    skips = config.nonfinite.policy == "skip"
    enter_phase(run)
    statistics = running_statistics(run.model) if skips else []
    run.model.train()
    sampler.seek(progress.epoch, progress.position)
    batches = run.batches()
    interval = Interval(run.ranks)
    for step in sampler.steps():
        rate = run.learning_rate(run.rate_progress)
        run.optimizer.set_lr(rate)
        # All randomness of a step follows from its number: a resumed run needs no generator state.
        paddle.seed(_seed(config.seed, progress.step, run.ranks.rank))
        step_loss, before = paddle.zeros([]), [statistic.clone() for statistic in statistics]
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
        if skips and not is_finite(run, step_loss, parameters):
            run.optimizer.clear_grad()
            for statistic, value in zip(statistics, before):
                statistic.set_value(value)
            count_skipped(run, rate, sum(step.micro_batches, []))
        elif not run.precision.step(run.optimizer, parameters, config.optimizer.clip_norm):
            progress.skipped += 1  # routine: the scaler has found its limit and lowers the scale
        else:
            progress.trained += step.num_records
            if run.ema:
                run.ema.update()
        ends = progress.position >= sampler.records_per_epoch or _reached(progress, max_steps)
        if ends or progress.step % config.log.interval == 0 or (saver and saver.is_due()):
            report(run, log, interval, rate)
            if saver and not ends:
                saver.after_line()
        if ends:
            break
    if progress.position >= sampler.records_per_epoch:
        run.finish_epoch(batches)
    agree_on_statistics(run)


def refine_statistics(run: Training) -> None:
    """Gives the model that is evaluated precise batch norm statistics; every rank must call it."""
    model, progress = run.evaluated_model, run.progress
    paddle.seed(_seed(run.config.seed, progress.step, run.ranks.rank))
    run.precise_bn.update(model, run.precision.wrap(model), progress.last_epoch)


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
    """Logs one line about the steps since the last one; every rank must call it.

    Raises:
        NonFiniteLossError: The policy is to stop, and a loss or a weight is not finite.
    """
    progress, sampler, steps = run.progress, run.sampler, interval.steps
    values, loss_is_finite, broken = interval.read()
    pixels = run.schedule.pixels_left(run.epochs_done) * sampler.records_per_epoch * sampler.repeats
    values["eta_seconds"] = round(pixels * values.pop("seconds_per_pixel"))
    shape = interval.shape if run.config.multigrid else {}
    values = {"loss": values.pop("loss"), "lr": rate, **shape, **values}
    values["memory_mb"] = _peak_memory() >> 20
    values["skipped"] = progress.skipped
    log.record("train", progress.epoch + 1, progress.step, values)
    if run.ranks.is_first:
        logger.info(
            "epoch %d/%d step %d (%3.0f%%)  %s%s  lr %.3g  batch %.3f s  reader %.3f s  %.1f clips/s  eta %s  "
            "mem %d MB",
            progress.epoch + 1,
            run.epochs,
            progress.step,
            100 * progress.position / sampler.records_per_epoch,
            "  ".join(f"{name} {values[name]:.4f}" for name in ("loss", *run.task.monitored) if name in values),
            "  {clips} of {frames}x{crop}x{crop}".format(**shape) if shape else "",
            rate,
            values["batch_cost"],
            values["reader_cost"],
            values["ips"],
            duration(values["eta_seconds"]),
            values["memory_mb"],
        )
    if run.config.nonfinite.policy == "stop":
        problem = explain_break(run, loss_is_finite, broken, steps)
        if problem:
            raise NonFiniteLossError(problem)


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
        run.epochs,
        say_metrics(result.metrics),
        "  (best so far)" if is_best else "",
    )
    if is_best:
        path = run.checkpoints.save_weights("best", run.evaluated_model.state_dict(), facts(run, result.metrics))
        logger.info("saved %s", path)


def _reached(progress: Progress, max_steps: int | None) -> bool:
    return max_steps is not None and progress.step >= max_steps


def _seed(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def _peak_memory() -> int:
    """Bytes: the most that was allocated on the GPU, or this process's largest resident size."""
    if paddle.device.get_device().startswith("gpu"):
        return paddle.device.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
