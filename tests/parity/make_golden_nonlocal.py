"""Write tests/golden/nonlocal.json: non-local blocks of PySlowFast and of mit-han-lab's TSM under named weights.

Needs torch and checkouts of https://github.com/facebookresearch/SlowFast and
https://github.com/mit-han-lab/temporal-shift-module:

    python tests/parity/make_golden_nonlocal.py SLOWFAST TSM
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import torch
from named_weights import named_clip, named_weight

CHANNELS, INNER, SHAPE = 12, 8, (2, 12, 3, 6, 7)  # an odd width, which pooling cuts


def load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(block: torch.nn.Module, name: str) -> dict[str, object]:
    """Return names and shapes, output and the gradient of the sum of its squares, in evaluation mode."""
    state = block.state_dict()
    shapes = {key: list(value.shape) for key, value in state.items() if not key.endswith("num_batches_tracked")}
    for key, shape in shapes.items():
        state[key] = torch.from_numpy(named_weight(f"{name}.{key}", tuple(shape)))
    block.load_state_dict(state)
    block.eval()
    x = torch.from_numpy(named_clip(name, SHAPE)).requires_grad_()
    out = block(x)
    (out * out).sum().backward()
    # Sums over the frames of four channels keep the file small.
    return {
        "keys": shapes,
        "out": out[0, :4].sum(1).flatten().tolist(),
        "grad": x.grad[0, :4].sum(1).flatten().tolist(),
    }


def main() -> None:
    slowfast = load(Path(sys.argv[1]) / "slowfast" / "models" / "nonlocal_helper.py")
    tsm = load(Path(sys.argv[2]) / "ops" / "non_local.py")
    golden: dict[str, object] = {"torch": torch.__version__, "shape": SHAPE, "inner": INNER}
    for instantiation in ("softmax", "dot_product"):
        for pool in ([1, 2, 2], [1, 1, 1]):
            name = f"{instantiation}{pool[1]}"
            golden[name] = run(slowfast.Nonlocal(CHANNELS, INNER, pool, instantiation), name)
    golden["mit"] = run(tsm.NONLocalBlock3D(CHANNELS, INNER), "mit")
    path = Path(__file__).parents[1] / "golden" / "nonlocal.json"
    text = json.dumps(golden, default=float)
    path.write_text(json.dumps(_rounded(json.loads(text))) + "\n")


def _rounded(value):
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return {key: _rounded(item) for key, item in value.items()} if isinstance(value, dict) else value


if __name__ == "__main__":
    main()
