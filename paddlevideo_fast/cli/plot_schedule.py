"""Shows the phases of a multigrid run: a table, and a picture of clips, batches and learning rate over the epochs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from paddlevideo_fast.cli.options import add_override, explain, parse
from paddlevideo_fast.multigrid import CYCLES, LR_SCALINGS, MultigridRate, build_schedule
from paddlevideo_fast.phases import Schedule, aligned, phases_table
from paddlevideo_fast.schedule import ConstantSchedule, CosineSchedule

BESIDE_A_CONFIG = ("config", "override", "ranks", "clips", "output")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints and draws a schedule; returns the exit status."""
    parser = _parser()
    args = parse(parser, argv)
    recipe = {name: value for name, value in vars(args).items() if name not in BESIDE_A_CONFIG}
    if args.config is not None:
        given = [name for name, value in recipe.items() if value != parser.get_default(name)]
        if given:
            parser.error(f"--{given[0].replace('_', '-')}: the config says this; change it with -o")
    elif None in (args.batch_size, args.num_frames, args.epochs):
        parser.error("give -c CONFIG, or the recipe: at least --batch-size, --num-frames and --epochs")
    try:
        if args.config is not None:
            schedule, rate = _of_config(args.config, args.override, args.ranks)
        else:
            schedule, rate = _of_recipe(ranks=args.ranks, **recipe)
        show(schedule, rate, args.clips, args.output)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {explain(error)}\n")
    return 0


def _of_config(path: str, overrides: Sequence[str], ranks: int) -> tuple[Schedule, Callable[[float], float]]:
    from paddlevideo_fast.config import load_config
    from paddlevideo_fast.engine.schedules import build_learning_rate, build_phases

    config = load_config(path, overrides)
    if config.multigrid is None:
        raise config.error("multigrid", "there is none; -o multigrid.long_cycle=true adds it")
    schedule = build_phases(config, ranks)
    return schedule, build_learning_rate(config, schedule.phases[-1].batch_size)


def _of_recipe(
    cosine: bool, lr: float, gamma: float, warmup_epochs: float, warmup_start_lr: float, **arguments: Any
) -> tuple[Schedule, Callable[[float], float]]:
    schedule = build_schedule(gamma=None if cosine else gamma, **arguments)
    warmup = {"warmup_epochs": warmup_epochs, "warmup_start_lr": warmup_start_lr}
    base = CosineSchedule(lr, schedule.epochs, **warmup) if cosine else ConstantSchedule(lr, **warmup)
    return schedule, MultigridRate(schedule, base)


def show(schedule: Schedule, rate: Callable[[float], float], clips_per_epoch: int, output: str) -> None:
    """Prints a schedule's table and draws its picture.

    Args:
        schedule: The phases.
        rate: The learning rate over the epochs.
        clips_per_epoch: Clips of the training list.
        output: PNG to write.
    """
    from paddlevideo_fast.plots import plot_schedule

    print("\n".join(aligned(phases_table(schedule, clips_per_epoch))))
    steps, pixels = schedule.iteration_saving, schedule.compute_saving
    print(f"\n{schedule.epochs} epochs in the place of {schedule.base_epochs}: {steps:.2f} times fewer steps,", end=" ")
    print(f"{pixels:.2f} times fewer pixels")
    plot_schedule(schedule, rate, output)
    print(f"drawn in {output}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Print and draw the phases of multigrid training: those of a config, or for a recipe without it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("-c", "--config", metavar="CONFIG", help="YAML configuration with a multigrid section")
    add_override(parser, "replace a key of the configuration: -o multigrid.epoch_factor=1; values are YAML")
    parser.add_argument("--ranks", type=int, default=1, help="processes")
    parser.add_argument("--clips", type=int, default=240_000, help="clips of an epoch, repeats among them")
    recipe = parser.add_argument_group("without a config, the recipe without multigrid")
    recipe.add_argument("--batch-size", type=int, help="clips of a step, over all ranks")
    recipe.add_argument("--num-frames", type=int, help="frames of a clip")
    recipe.add_argument("--epochs", type=int, help="epochs")
    recipe.add_argument("--crop-size", type=int, default=224, help="side of a clip in pixels")
    recipe.add_argument("--frame-stride", type=int, default=1, help="frames from one to the next")
    help = "epochs at which the rate falls; without any those of the Kinetics-400 recipe, stretched"
    recipe.add_argument("--milestones", type=float, nargs="+", metavar="EPOCH", help=help)
    recipe.add_argument("--gamma", type=float, default=0.1, help="factor on the rate at a milestone")
    recipe.add_argument("--cosine", action="store_true", help="the rate falls along a cosine instead")
    recipe.add_argument("--lr", type=float, default=1.0, help="learning rate")
    recipe.add_argument("--warmup-epochs", type=float, default=0.0, help="length of the linear warm-up")
    recipe.add_argument("--warmup-start-lr", type=float, default=0.0, help="rate it starts with")
    recipe.add_argument("--accum-steps", type=int, default=1, help="batches accumulated for a step")
    grid = parser.add_argument_group("and multigrid")
    grid.add_argument("--long-cycle", action=argparse.BooleanOptionalAction, default=True, help="shapes by the epoch")
    grid.add_argument("--short-cycle", action=argparse.BooleanOptionalAction, default=True, help="crops by the step")
    grid.add_argument("--cycle", choices=CYCLES, default=CYCLES[0], help="long cycles: one a stage of the rate, or one")
    help = "how the rate follows the batch"
    grid.add_argument("--lr-scaling", choices=LR_SCALINGS, default="linear", help=help)
    grid.add_argument("--epoch-factor", type=float, default=1.5, help="epochs over those of the recipe")
    parser.add_argument("--output", default="output/schedule.png", metavar="FILE.png", help="picture to write")
    return parser
