"""Batch normalisations: one process, two processes with batches of different size, frozen.

The file is its own worker: under `python -m paddle.distributed.launch` it runs `worker` and leaves arrays behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import paddle
import paddle.distributed as dist
import pytest

import paddlevideo_fast
from paddlevideo_fast.arguments import ArgumentError
from paddlevideo_fast.models import create_model
from paddlevideo_fast.ops.norm import NORMS, AllReduceBatchNorm, build_norm, resolve_sync_norm

SPLIT = 2  # of five samples, rank 0 holds two and rank 1 three


def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        "x": rng.normal(1.5, 2.0, (5, 3, 4, 2, 3)),
        "upstream": rng.normal(size=(5, 3, 4, 2, 3)),
        "weight": rng.normal(size=3),
        "bias": rng.normal(size=3),
        "clip": rng.normal(size=(2, 3, 4, 32, 32)),
        "model_upstream": rng.normal(size=(2, 5)),
    }


def expected_norm(x, upstream, weight, bias) -> dict[str, np.ndarray]:
    """Batch normalisation in training and its gradients, after the paper's algorithm 1, over all samples."""
    axes, shape = (0, 2, 3, 4), (1, -1, 1, 1, 1)
    mean, variance = x.mean(axes), x.var(axes)
    inverse = 1 / np.sqrt(variance + 1e-5)
    normalised = (x - mean.reshape(shape)) * inverse.reshape(shape)
    grad = upstream * weight.reshape(shape)
    grad_x = grad - grad.mean(axes, keepdims=True) - normalised * (grad * normalised).mean(axes, keepdims=True)
    return {
        "out": normalised * weight.reshape(shape) + bias.reshape(shape),
        "grad_x": grad_x * inverse.reshape(shape),
        "grad_weight": (upstream * normalised).sum(axes),
        "grad_bias": upstream.sum(axes),
        "mean": 0.1 * mean,
        "variance": 0.9 + 0.1 * variance,
    }


def run_norm(layer, x, upstream, weight, bias) -> dict[str, np.ndarray]:
    layer.weight.set_value(weight)
    layer.bias.set_value(bias)
    x = paddle.to_tensor(x, stop_gradient=False)
    out = layer(x)
    out.backward(paddle.to_tensor(upstream))
    found = {"out": out, "grad_x": x.grad, "mean": layer._mean, "variance": layer._variance}
    found |= {"grad_weight": layer.weight.grad, "grad_bias": layer.bias.grad}
    return {key: value.numpy() for key, value in found.items()}


def small_tsm(norm: str):
    paddle.seed(7)
    return create_model("tsm_resnet18", num_classes=5, num_segments=4, width=0.125, dropout=0.0, norm=norm)


def run_model(model, clip, upstream) -> dict[str, np.ndarray]:
    """One step's logits, gradients and running statistics; the last by name."""
    logits = model(paddle.to_tensor(clip))
    (logits * paddle.to_tensor(upstream)).sum().backward()
    inner = model._layers if isinstance(model, paddle.DataParallel) else model
    found = {f"grad {name}": p.grad for name, p in inner.named_parameters() if not p.stop_gradient}
    found |= {name: p for name, p in inner.named_parameters() if p.stop_gradient}
    return {"logits": logits.numpy()} | {name: value.numpy() for name, value in found.items()}


def worker(folder: Path) -> None:
    paddle.set_default_dtype("float64")
    dist.init_parallel_env()
    rank = dist.get_rank()
    data = inputs()
    mine = slice(0, SPLIT) if rank == 0 else slice(SPLIT, None)
    layer = AllReduceBatchNorm(3)
    found = run_norm(layer, data["x"][mine], data["upstream"][mine], data["weight"], data["bias"])
    np.savez(folder / f"norm{rank}.npz", **found)
    layer(paddle.to_tensor(data["x"][mine])).sum().backward()  # an input that wants no gradient
    layer.eval()
    np.savez(folder / f"eval{rank}.npz", out=layer(paddle.to_tensor(data["x"][mine])).numpy())
    one = slice(rank, rank + 1)
    model = paddle.DataParallel(small_tsm("sync"))
    np.savez(folder / f"model{rank}.npz", **run_model(model, data["clip"][one], data["model_upstream"][one]))
    if rank == 0:
        np.savez(folder / "model.npz", **run_model(small_tsm("local"), data["clip"], data["model_upstream"]))


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> dict[str, dict[str, np.ndarray]]:
    folder = tmp_path_factory.mktemp("two_ranks")
    root = str(Path(paddlevideo_fast.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", str(folder)]
    done = subprocess.run(
        [*command, __file__, str(folder)], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    logs = "\n".join(path.read_text() for path in folder.glob("workerlog.*"))
    assert done.returncode == 0, logs
    return {path.stem: dict(np.load(path)) for path in folder.glob("*.npz")}


@pytest.mark.skipif(paddle.is_compiled_with_cuda(), reason="two gloo ranks need the CPU build")
class TestTwoRanks:
    def test_forward_and_backward_over_unequal_batches(self, two_ranks):
        data = inputs()
        expected = expected_norm(data["x"], data["upstream"], data["weight"], data["bias"])
        ranks = [two_ranks["norm0"], two_ranks["norm1"]]
        for key in ("out", "grad_x"):
            found = np.concatenate([rank[key] for rank in ranks])
            np.testing.assert_allclose(found, expected[key], rtol=1e-10, atol=1e-11)
        for key in ("grad_weight", "grad_bias"):
            np.testing.assert_allclose(ranks[0][key] + ranks[1][key], expected[key], rtol=1e-10)
        for key in ("mean", "variance"):
            np.testing.assert_array_equal(ranks[0][key], ranks[1][key])
            np.testing.assert_allclose(ranks[0][key], expected[key], rtol=1e-10)

    def test_evaluation_is_local(self, two_ranks):
        assert two_ranks["eval0"]["out"].shape[0] == SPLIT
        assert two_ranks["eval1"]["out"].shape[0] == 5 - SPLIT

    def test_model_of_two_ranks_equals_one_process(self, two_ranks):
        whole, ranks = two_ranks["model"], [two_ranks["model0"], two_ranks["model1"]]
        assert whole.keys() == ranks[0].keys()
        logits = np.concatenate([rank["logits"] for rank in ranks])
        np.testing.assert_allclose(logits, whole["logits"], rtol=1e-9, atol=1e-12)
        for key in whole.keys() - {"logits"}:
            factor = 2 if key.startswith("grad") else 1  # gradients are averaged over ranks, the loss was a sum
            # Paddle's own kernel holds the momentum in single precision, hence 1e-6 for the running statistics.
            rtol, atol = (1e-7, 1e-11) if factor == 2 else (1e-6, 1e-8)
            np.testing.assert_allclose(factor * ranks[0][key], whole[key], rtol=rtol, atol=atol, err_msg=key)


@pytest.mark.parametrize("ndim", [2, 3])
def test_one_process_equals_local(ndim):
    data = inputs()
    x, upstream = (data[key].astype("float32") for key in ("x", "upstream"))
    if ndim == 2:
        x, upstream = x[:, :, 0], upstream[:, :, 0]
    weight, bias = data["weight"].astype("float32"), data["bias"].astype("float32")
    local = run_norm(build_norm("local", 3, ndim=ndim), x, upstream, weight, bias)
    sync = run_norm(AllReduceBatchNorm(3), x, upstream, weight, bias)
    for key, value in local.items():
        np.testing.assert_array_equal(sync[key], value)


def test_local_norm_against_the_formula():
    data = inputs()
    arguments = [data[key].astype("float32") for key in ("x", "upstream", "weight", "bias")]
    found = run_norm(build_norm("local", 3, ndim=3), *arguments)
    expected = expected_norm(*arguments)
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-4, atol=1e-5, err_msg=key)


def test_kinds_share_parameters():
    x = paddle.to_tensor(inputs()["x"].astype("float32"))
    source = build_norm("local", 3, ndim=3)
    source(x)
    source.eval()
    for norm in NORMS:
        layer = build_norm(norm, 3, ndim=3)
        assert list(layer.state_dict()) == ["weight", "bias", "_mean", "_variance"]
        missing, unexpected = layer.set_state_dict(source.state_dict())
        assert not missing and not unexpected
        layer.eval()
        np.testing.assert_array_equal(layer(x).numpy(), source(x).numpy())


def test_frozen_ignores_the_mode():
    layer = build_norm("frozen", 3, ndim=3)
    layer._mean.set_value(np.array([1.0, 2.0, 3.0], "float32"))
    layer._variance.set_value(np.array([4.0, 1.0, 0.25], "float32"))
    layer.train()
    x = paddle.to_tensor(inputs()["x"].astype("float32"), stop_gradient=False)
    out = layer(x)
    out.sum().backward()
    shape = (1, 3, 1, 1, 1)
    deviation = np.sqrt(np.array([4.0, 1.0, 0.25]) + 1e-5).reshape(shape)
    expected = (x.numpy() - np.array([1.0, 2.0, 3.0]).reshape(shape)) / deviation
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(x.grad.numpy(), np.broadcast_to(1 / deviation, x.shape), rtol=1e-5)
    assert layer.weight.grad is None and layer.bias.grad is None
    np.testing.assert_array_equal(layer._mean.numpy(), [1.0, 2.0, 3.0])
    np.testing.assert_array_equal(layer._variance.numpy(), [4.0, 1.0, 0.25])


def test_sync_norm_follows_the_device():
    layer, line = resolve_sync_norm()
    if paddle.get_device().startswith("gpu"):
        assert layer is paddle.nn.SyncBatchNorm
    else:
        assert layer is AllReduceBatchNorm
        assert line == "reference (all-reduce): paddle.nn.SyncBatchNorm has no kernel on 'cpu'"


def test_unknown_norm():
    with pytest.raises(ArgumentError, match="unknown norm 'synch'; did you mean 'sync'"):
        build_norm("synch", 8, ndim=2)


if __name__ == "__main__":
    worker(Path(sys.argv[1]))
