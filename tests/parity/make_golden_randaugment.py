"""Write tests/golden/randaugment.json: what timm's RandAugment operations make of a small picture.

Needs torch and timm:

    python tests/parity/make_golden_randaugment.py
"""

from __future__ import annotations

import hashlib
import inspect
import json
from pathlib import Path

import numpy as np
import PIL
import timm
from PIL import Image
from timm.data import auto_augment

LEVELS = (0.0, 3.3, 7.0, 10.0)
FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


def picture() -> np.ndarray:
    """uint8 [24, 32, 3] in 30..219: texture of every kind, without random numbers."""
    y, x, colour = np.meshgrid(np.arange(24), np.arange(32), np.arange(3), indexing="ij")
    return (30 + (((x * 7 + y * 13 + colour * 50) ^ (x * y // 3)) % 190)).astype(np.uint8)


def record(name: str, level: float, sign: int, interpolation: str) -> list:
    """The argument timm computes, and the mean and SHA-256 of the picture it makes, None where Pillow refuses."""
    hparams = {"img_mean": (128, 128, 128), "interpolation": FILTERS[interpolation]}
    auto_augment.random.random = lambda: 0.25 if sign > 0 else 0.75
    operation = auto_augment.AugmentOp(name, prob=1.0, magnitude=level, hparams=hparams)
    arguments = operation.level_fn(level, hparams) if operation.level_fn else (None,)
    if name.startswith("Posterize") and arguments == (0,):
        return [0, None, None]  # newer Pillow refuses this
    made = np.asarray(operation(Image.fromarray(picture())))
    return [arguments[0], float(made.mean()), hashlib.sha256(made.tobytes()).hexdigest()]


def main() -> None:
    golden = {}
    for increasing, names in ((0, auto_augment._RAND_TRANSFORMS), (1, auto_augment._RAND_INCREASING_TRANSFORMS)):
        for name in names:
            takes_filter = "check_args" in inspect.getsource(auto_augment.NAME_TO_OP[name])
            for level in LEVELS:
                for sign in (1, -1):
                    for interpolation in FILTERS if takes_filter else ("bicubic",):
                        key = f"{name} level={level} sign={sign} inc={increasing} {interpolation}"
                        golden[key] = record(name, level, sign, interpolation)
    made_by = f"timm {timm.__version__}, Pillow {PIL.__version__}"
    rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items())
    path = Path(__file__).parents[1] / "golden" / "randaugment.json"
    path.write_text(f'{{\n  "made by": "{made_by}",\n{rows}\n}}\n')


if __name__ == "__main__":
    main()
