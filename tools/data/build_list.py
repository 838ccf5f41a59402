"""Writes train.txt, valid.txt, test.txt and classes.txt from a folder of class folders or a published annotation."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # this checkout, installed or not


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="SOURCE is a folder of class folders of videos (or of folders of frames), UCF101's trainlist01.txt, "
        "Kinetics' CSV or Something-Something's JSON. A pickle of Ego4D narrations (ego4d_train.pkl) becomes a CSV "
        "of the same name, which is a list by itself; nothing in the pickle is executed.",
    )
    parser.add_argument("source", metavar="SOURCE", help="folder of class folders, or published annotation")
    parser.add_argument("output_dir", metavar="OUTPUT_DIR", help="folder to write the lists to")
    parser.add_argument("--format", default="auto", choices=["auto", "folder", "ucf101", "kinetics_csv", "ssv2_json"])
    parser.add_argument("--root", metavar="DIR", help="folder of the videos (default: that of the annotation)")
    parser.add_argument(
        "--valid",
        type=float,
        metavar="PART",
        help="part of each class for validation (default: the published list beside SOURCE if there is one, or 0.2)",
    )
    parser.add_argument("--test", type=float, default=0.0, metavar="PART", help="part for test (default: 0)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same splits (default: 0)")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    from paddlevideo_fast.cli.options import explain
    from paddlevideo_fast.data.annotations import load_class_names
    from paddlevideo_fast.prepare.lists import build_lists, count_table
    from paddlevideo_fast.prepare.narrations import convert_narrations

    try:
        if options.source.endswith(".pkl"):
            path, rows = convert_narrations(options.source, options.output_dir)
            print(f"{rows} rows in {path}, format ego4d")
            return
        splits = build_lists(
            options.source,
            options.output_dir,
            format=options.format,
            root=options.root,
            valid=options.valid,
            test=options.test,
            seed=options.seed,
        )
        print(count_table(splits, load_class_names(f"{options.output_dir}/classes.txt")))
    except (ValueError, OSError) as error:
        raise SystemExit(f"build_list: {explain(error)}") from None


if __name__ == "__main__":
    main()
