"""What has to be settled in the environment before Paddle is loaded.

Nothing here imports paddle; a command calls :func:`prepare` first, then imports the engine.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

NOTHING_TO_ACT_ON = (
    "No ccache found",
    "When training, we now always track global mean and variance",
    r"Current global rank \d+ is not in group",  # each rank, of the groups of others that fleet makes
)


def prepare() -> list[str]:
    """Chooses the CPU settings of this process.

    Returns:
        One sentence for each choice, to log once logging is set up.
    """
    for nothing_to_act_on in NOTHING_TO_ACT_ON:
        warnings.filterwarnings("ignore", message=nothing_to_act_on)
    os.environ.setdefault("GLOG_minloglevel", "1")  # Paddle's native code: from warnings on
    notes = []
    if "MKL_DEBUG_CPU_TYPE" not in os.environ and _cpu_vendor() == "AuthenticAMD":
        os.environ["MKL_DEBUG_CPU_TYPE"] = "5"
        notes.append(
            "AMD processor: MKL_DEBUG_CPU_TYPE=5 is set, since the MKL inside Paddle takes a slow path there "
            "(products and convolutions 2.2-2.8 times faster; set it to another value to decide yourself)"
        )
    return notes


def _cpu_vendor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")
