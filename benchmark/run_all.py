"""Runs the benchmarks one after another, each in a process of its own; tables go to benchmark/results.

python benchmark/run_all.py [--only NAME,...] [--quick] [--device cpu|gpu]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
NAMES = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(NAMES), metavar="NAME,...", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"), help="where to run (default: cpu)")
    args = parser.parse_args()
    chosen = args.only.split(",")
    unknown = [name for name in chosen if name not in NAMES]
    if unknown:
        parser.error(f"--only {unknown[0]}: no such benchmark; there are {', '.join(NAMES)}")
    options = ["--device", args.device, *(["--quick"] if args.quick else [])]
    failed = []
    for number, name in enumerate(chosen, 1):
        print(f"\n[{number}/{len(chosen)}] {name}", flush=True)
        start = time.perf_counter()
        done = subprocess.run([sys.executable, str(HERE / f"bench_{name}.py"), *options], cwd=HERE.parent)
        print(f"[{number}/{len(chosen)}] {name} took {time.perf_counter() - start:.0f} s", flush=True)
        failed += [name] if done.returncode else []
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
