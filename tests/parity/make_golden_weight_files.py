"""Write tests/golden/weights/: small files in PyTorch's formats, and expected.json with what PyTorch has put into them.

Needs torch and safetensors:

    python tests/parity/make_golden_weight_files.py
"""

from __future__ import annotations

import argparse
import json
from collections import OrderedDict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

FOLDER = Path(__file__).parents[1] / "golden" / "weights"


class Scaled(torch.nn.Module):
    """A module in a module, with a buffer and numbers, to be scripted in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 1), torch.nn.ReLU(), torch.nn.Linear(3, 2))
        self.scale = torch.nn.Parameter(torch.tensor(4.5))
        self.register_buffer("size", torch.tensor(224))
        self.places = 3

    def forward(self, x):
        return self.body(x) * self.scale + self.places


def tensors() -> OrderedDict[str, torch.Tensor]:
    base = torch.arange(24, dtype=torch.float32)
    numbers = torch.tensor([1 / 3, -2.5, 1e-3, 7e4])
    return OrderedDict(
        whole=base.reshape(2, 3, 4),
        transposed=base.reshape(4, 6).t(),
        second_half=base[12:],
        every_other=base[1::2].reshape(3, 4),
        expanded=torch.tensor([5.0]).expand(3),
        parameter=torch.nn.Parameter(numbers),
        half=numbers.clamp(max=6e4).half(),
        bfloat16=numbers.bfloat16(),
        bfloat16_transposed=torch.arange(6).reshape(2, 3).bfloat16().t(),
        double=numbers.double(),
        long=torch.tensor([2**40, -1]),
        bytes=torch.tensor([0, 255], dtype=torch.uint8),
        flags=torch.tensor([True, False]),
        scalar=torch.tensor(0.25),
        empty=torch.zeros(0, 3),
    )


def listed(state) -> dict[str, object]:
    return {key: value.detach().to(torch.float64).tolist() for key, value in state.items()}


def checkpoint() -> dict[str, object]:
    """What training scripts leave around the weights."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return {
        "epoch": 3,
        "args": argparse.Namespace(lr=0.1, folder=Path("somewhere")),
        "cfg": "TRAIN:\n  ENABLE: True\n",
        "best": np.float64(0.5),
        "shape": torch.Size([1, 2]),
        "dtype": torch.float16,
        "device": torch.device("cuda", 0),
        "optimizer": optimizer.state_dict(),
        "scheduler": {"milestones": {1, 2}},
        "state_dict": tensors(),
    }


def main() -> None:
    torch.manual_seed(0)
    FOLDER.mkdir(parents=True, exist_ok=True)
    state = tensors()
    torch.save(state, FOLDER / "zip.pt")
    torch.save(state, FOLDER / "legacy.pth", _use_new_zipfile_serialization=False)
    torch.save(checkpoint(), FOLDER / "checkpoint.pt")
    torch.save(checkpoint(), FOLDER / "checkpoint_legacy.pth", _use_new_zipfile_serialization=False)
    save_file({key: value.detach().contiguous().clone() for key, value in state.items()}, FOLDER / "x.safetensors")
    module = torch.jit.script(Scaled().half())
    torch.jit.save(module, FOLDER / "script.pt")
    expected = {"torch": torch.__version__, "state": listed(state), "script": listed(module.state_dict())}
    (FOLDER / "expected.json").write_text(json.dumps(expected) + "\n")
    for path in sorted(FOLDER.iterdir()):
        print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()
