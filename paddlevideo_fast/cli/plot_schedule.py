"""Shows the phases of a multigrid run: a table, and a picture of clips, batches and learning rate over the epochs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from paddlevideo_fast.cli.options import explain
from paddlevideo_fast.multigrid import CYCLES, MultigridRate, Schedule, build_schedule
from paddlevideo_fast.schedule import ConstantSchedule, CosineSchedule


def main(argv: Sequence[str] | None = None) -> int:
    """Prints and draws a schedule; returns the exit status."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        schedule = build_schedule(
            batch_size=args.batch_size,
            num_frames=args.num_frames,
            crop_size=args.crop_size,
            milestones=args.milestones,
            epochs=args.epochs,
            gamma=None if args.cosine else args.gamma,
            long_cycle=args.long_cycle,
            short_cycle=args.short_cycle,
            epoch_factor=args.epoch_factor,
            ranks=args.ranks,
            accum_steps=args.accum_steps,
            frame_stride=args.frame_stride,
            cycle=args.cycle,
        )
        warmup = {"warmup_epochs": args.warmup_epochs, "warmup_start_lr": args.warmup_start_lr}
        base = (
            CosineSchedule(args.lr, schedule.epochs, **warmup) if args.cosine else ConstantSchedule(args.lr, **warmup)
        )
        show(schedule, MultigridRate(schedule, base), args.clips, args.output)
    except (ValueError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {explain(error)}\n")
    return 0


def show(schedule: Schedule, rate: MultigridRate, clips_per_epoch: int, output: str) -> None:
    """Prints a schedule's table and draws its picture.

    Args:
        schedule: The phases.
        rate: The learning rate over the epochs.
        clips_per_epoch: Clips of the training list.
        output: PNG to write.
    """
    from paddlevideo_fast.plots import plot_schedule

    print(aligned(phases_table(schedule, clips_per_epoch)))
    steps, pixels = schedule.iteration_saving, schedule.compute_saving
    print(f"\n{schedule.epochs} epochs in the place of {schedule.base_epochs}: {steps:.2f} times fewer steps,", end=" ")
    print(f"{pixels:.2f} times fewer pixels")
    plot_schedule(schedule, rate, output)
    print(f"drawn in {output}")


def phases_table(schedule: Schedule, clips_per_epoch: int) -> list[tuple[str, ...]]:
    """Describes each phase in a row of words, after a row of titles.

    ``lr x`` is the factor on the base learning rate, ``parts`` the sub-batches of batch norm, ``ranks`` those it takes
    together, ``steps`` counts all epochs of the phase, and ``pixels`` is its share in the pixels of the run.
    """
    titles = ("epochs", "frames", "stride up to", "crop", "batch", "lr x", "parts", "ranks", "steps", "pixels")
    pixels = [phase.epochs * phase.pixels_per_clip for phase in schedule.phases]
    rows = [
        (
            f"{phase.start}-{phase.end}",
            f"{phase.num_frames}",
            f"{phase.frame_stride_max}",
            "/".join(str(crop) for crop, _ in phase.short_cycle),
            "/".join(str(batch) for _, batch in phase.short_cycle),
            f"{phase.lr_multiplier:.4g}",
            f"{phase.bn_splits}",
            f"{phase.bn_sync_ranks}",
            f"{phase.epochs * phase.num_steps(clips_per_epoch)}",
            f"{share / sum(pixels):.1%}",
        )
        for phase, share in zip(schedule.phases, pixels)
    ]
    return [titles, *rows]


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Returns a table as text, its columns to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths)) for row in rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Print and draw the phases of multigrid training for a recipe without it.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    recipe = parser.add_argument_group("the recipe without multigrid")
    recipe.add_argument("--batch-size", type=int, required=True, help="clips of a step, over all ranks")
    recipe.add_argument("--num-frames", type=int, required=True, help="frames of a clip")
    recipe.add_argument("--epochs", type=int, required=True, help="epochs")
    recipe.add_argument("--crop-size", type=int, default=224, help="side of a clip in pixels")
    recipe.add_argument("--frame-stride", type=int, default=1, help="frames from one to the next")
    help = "epochs at which the rate falls; without any those of the Kinetics-400 recipe, stretched"
    recipe.add_argument("--milestones", type=float, nargs="+", metavar="EPOCH", help=help)
    recipe.add_argument("--gamma", type=float, default=0.1, help="factor on the rate at a milestone")
    recipe.add_argument("--cosine", action="store_true", help="the rate falls along a cosine instead")
    recipe.add_argument("--lr", type=float, default=1.0, help="learning rate")
    recipe.add_argument("--warmup-epochs", type=float, default=0.0, help="length of the linear warm-up")
    recipe.add_argument("--warmup-start-lr", type=float, default=0.0, help="rate it starts with")
    recipe.add_argument("--clips", type=int, default=240_000, help="clips of an epoch")
    recipe.add_argument("--ranks", type=int, default=1, help="processes")
    recipe.add_argument("--accum-steps", type=int, default=1, help="batches accumulated for a step")
    grid = parser.add_argument_group("multigrid")
    grid.add_argument("--long-cycle", action=argparse.BooleanOptionalAction, default=True, help="shapes by the epoch")
    grid.add_argument("--short-cycle", action=argparse.BooleanOptionalAction, default=True, help="crops by the step")
    grid.add_argument("--cycle", choices=CYCLES, default=CYCLES[0], help="long cycles: one a stage of the rate, or one")
    grid.add_argument("--epoch-factor", type=float, default=1.5, help="epochs over those of the recipe")
    parser.add_argument("--output", default="output/schedule.png", metavar="FILE.png", help="picture to write")
    return parser
