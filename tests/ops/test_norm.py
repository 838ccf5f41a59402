"""Batch normalisations: one process, two processes with batches of different size, parts of a batch, frozen.

The file is its own worker: under `python -m paddle.distributed.launch` it runs `worker`, or with four ranks
`group_worker`, and leaves arrays behind.
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
from paddlevideo_fast.models.layers import run_block
from paddlevideo_fast.ops.norm import (
    NORMS,
    AllReduceBatchNorm,
    SubBatchNorm,
    aggregate_splits,
    build_norm,
    load_split_state,
    resolve_sync_norm,
    running_statistics,
    set_splits,
    split_state,
)

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


GROUPS = (slice(0, 3), slice(3, 5))  # of five samples, ranks 0 and 1 normalise three together, ranks 2 and 3 two
SHARES = ((0, 2), (2, 3), (3, 4), (4, 5))  # samples of each rank


def group_worker(folder: Path) -> None:
    paddle.set_default_dtype("float64")
    dist.init_parallel_env()
    rank = dist.get_rank()
    data = inputs()
    layer = build_norm("sub", 3, ndim=3)
    set_splits(paddle.nn.Sequential(layer), splits=1, num_frames=4, sync_ranks=2)
    mine = slice(*SHARES[rank])
    found = run_norm(layer, data["x"][mine], data["upstream"][mine], data["weight"], data["bias"])
    set_splits(paddle.nn.Sequential(layer), splits=1, num_frames=4)
    found["alone"] = layer(paddle.to_tensor(data["x"][mine])).numpy()
    np.savez(folder / f"group{rank}.npz", **found)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> dict[str, dict[str, np.ndarray]]:
    return run_ranks(2, tmp_path_factory.mktemp("two_ranks"))


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory) -> dict[str, dict[str, np.ndarray]]:
    return run_ranks(4, tmp_path_factory.mktemp("four_ranks"))


def run_ranks(ranks: int, folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """Runs the worker for a number of ranks; returns the arrays of each file left behind."""
    root = str(Path(paddlevideo_fast.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    command = [
        sys.executable,
        "-m",
        "paddle.distributed.launch",
        "--nproc_per_node",
        str(ranks),
        "--log_dir",
        str(folder),
    ]
    done = subprocess.run(
        [*command, __file__, str(folder), str(ranks)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
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


@pytest.mark.skipif(paddle.is_compiled_with_cuda(), reason="four gloo ranks need the CPU build")
def test_groups_of_ranks_normalise_together(four_ranks):
    data = inputs()
    for number, samples in enumerate(GROUPS):
        expected = expected_norm(data["x"][samples], data["upstream"][samples], data["weight"], data["bias"])
        ranks = [four_ranks[f"group{2 * number}"], four_ranks[f"group{2 * number + 1}"]]
        for key in ("out", "grad_x"):
            found = np.concatenate([rank[key] for rank in ranks])
            np.testing.assert_allclose(found, expected[key], rtol=1e-10, atol=1e-11)
        for key in ("mean", "variance"):
            for rank in ranks:
                np.testing.assert_allclose(rank[key], expected[key], rtol=1e-10)
    for rank, share in enumerate(SHARES):  # and each rank alone again
        mine = slice(*share)
        expected = expected_norm(data["x"][mine], data["upstream"][mine], data["weight"], data["bias"])
        np.testing.assert_allclose(four_ranks[f"group{rank}"]["alone"], expected["out"], rtol=1e-10, atol=1e-11)


# Made by PySlowFast's SubBatchNorm3d (num_splits=2) in PyTorch, in float64.
GOLDEN = {
    "out": """-1.988213216 1.505583024 -0.459677361 2.379032084 0.758285305 1.587021403 0.38995815 0.942448882
        -1.160152609 1.715452711 0.388250256 -1.602553427 0.937662162 1.436364867 0.355842339 1.103896397
        -0.678039626 2.160669819 0.195409434 -1.114764156 0.482039939 1.310776037 1.863266769 0.666203516
        -0.496551381 3.042655167 1.051851483 -0.9389522 0.438959457 1.187013514 1.935067572 0.605193692""",
    "grad_x": """-1.344012528 -0.066231723 1.262162808 -0.51105445 -0.290152928 0.099548213 0.048212058 0.553564255
        -0.079370709 0.958610396 -0.6775061 0.849926521 0.190351161 -0.002584248 -0.000143116 -0.040194877
        1.264187357 -0.509029901 0.819364631 -0.915386195 0.009661706 0.399362846 -0.384429998 -0.435766153
        -0.588514916 0.382722801 -1.186650307 0.340782314 0.0508181 0.010766339 -0.029285421 -0.179727938""",
    "grad_weight": "2.9828943564498376 -5.660211737707729",
    "grad_bias": "5 -6",
    "means": "0.1125 0.16875 0.06875 0.2625",
    "variances": "2.248214285714286 1.7424107142857141 2.2138392857142857 1.9339285714285714",
    "means_2": "0.23875 0.676875 0.286875 0.57375",
    "variances_2": "7.27875 5.703883928571428 7.3853125 5.1101785714285715",
}
GOLDEN = {name: np.array(text.split(), "float64") for name, text in GOLDEN.items()}


def golden_inputs() -> tuple[np.ndarray, ...]:
    i = np.arange(32)
    x = ((i * 7) % 11 - 4 + 0.5 * ((i * 5) % 3)).reshape(4, 2, 2, 1, 2).astype("float64")
    return x, ((i * 3) % 7 - 3).reshape(x.shape).astype("float64"), np.array([1.5, -0.5]), np.array([0.25, 1.0])


def biased(variances: np.ndarray, steps: int) -> np.ndarray:
    """PyTorch divides a variance by n - 1, here n - 1 = 7 values of a channel in a part, where Paddle divides by n."""
    kept = 0.9**steps
    return kept + (variances - kept) * 7 / 8


def sub_norm_of(splits: int, ndim: int, num_frames: int = 2, channels: int = 2, dtype: str = "float64"):
    layer = build_norm("sub", channels, ndim=ndim)
    layer.to(dtype=dtype)
    set_splits(paddle.nn.Sequential(layer), splits, num_frames)
    return layer


class TestSubBatchNorm:
    def test_against_pyslowfast(self):
        x, upstream, weight, bias = golden_inputs()
        layer = sub_norm_of(2, ndim=3)
        found = run_norm(layer, x, upstream, weight, bias)
        for key in ("out", "grad_x", "grad_weight", "grad_bias"):
            np.testing.assert_allclose(found[key].ravel(), GOLDEN[key], rtol=1e-6, atol=1e-8, err_msg=key)
        means, variances = layer.running_statistics()
        np.testing.assert_allclose(means.numpy(), GOLDEN["means"], rtol=1e-6)
        np.testing.assert_allclose(variances.numpy(), biased(GOLDEN["variances"], 1), rtol=1e-6)
        layer(paddle.to_tensor(x[::-1] * 2))
        np.testing.assert_allclose(means.numpy(), GOLDEN["means_2"], rtol=1e-6)
        np.testing.assert_allclose(variances.numpy(), biased(GOLDEN["variances_2"], 2), rtol=1e-6)

    def test_evaluation_aggregates_as_pyslowfast(self):
        x, _, weight, bias = golden_inputs()
        layer = sub_norm_of(2, ndim=3)
        layer.weight.set_value(weight)
        layer.bias.set_value(bias)
        layer(paddle.to_tensor(x))
        means, variances = layer.running_statistics()
        means.set_value(GOLDEN["means_2"])
        variances.set_value(GOLDEN["variances_2"])
        layer.eval()
        out = layer(paddle.to_tensor(x))
        np.testing.assert_allclose(layer._mean.numpy(), [0.2628125, 0.6253125], rtol=1e-12)
        np.testing.assert_allclose(layer._variance.numpy(), [7.33261025390625, 5.409689941406249], rtol=1e-12)
        golden = """-2.111336567 2.320172569 -0.17255132 3.428049853 0.489506893 1.456884277 0.05956139 0.704479645"""
        np.testing.assert_allclose(out.numpy().ravel()[:8], np.array(golden.split(), float), rtol=1e-8)

    @pytest.mark.parametrize(("clips", "splits"), [(6, 3), (6, 2), (5, 2), (7, 3), (2, 3)])
    @pytest.mark.parametrize("ndim", [2, 3])
    def test_equals_a_norm_for_each_part(self, ndim, clips, splits):
        """Clip i goes to norm i mod splits, all its frames with it."""
        frames = 4
        rng = np.random.default_rng([clips, splits])
        weight, bias = rng.normal(size=3), rng.normal(size=3)
        x, upstream = rng.normal(1.0, 2.0, (2, clips, frames, 3, 5, 2))  # [clips, T, C, H, W]
        layout = (0, 1, 2, 3, 4) if ndim == 2 else (0, 2, 1, 3, 4)
        fold = (clips * frames, 3, 5, 2) if ndim == 2 else (clips, 3, frames, 5, 2)

        layer = sub_norm_of(splits, ndim, frames, channels=3)
        arguments = [array.transpose(layout).reshape(fold) for array in (x, upstream)]
        found = run_norm(layer, *arguments, weight, bias)
        grad_weight, grad_bias = np.zeros(3), np.zeros(3)
        for part in range(splits):
            mine = slice(part, None, splits)
            means, variances = (statistic.numpy().reshape(splits, 3) for statistic in layer.running_statistics())
            if part >= clips:
                np.testing.assert_array_equal(means[part], 0)
                np.testing.assert_array_equal(variances[part], 1)
                continue
            arrays = (array[mine].transpose(0, 2, 1, 3, 4) for array in (x, upstream))
            expected = expected_norm(*arrays, weight, bias)
            for key in ("out", "grad_x"):
                own = found[key].reshape(x.transpose(layout).shape).transpose(layout)[mine].transpose(0, 2, 1, 3, 4)
                np.testing.assert_allclose(own, expected[key], rtol=1e-6, atol=1e-8, err_msg=key)
            np.testing.assert_allclose(means[part], expected["mean"], rtol=1e-6)
            np.testing.assert_allclose(variances[part], expected["variance"], rtol=1e-6)
            grad_weight, grad_bias = grad_weight + expected["grad_weight"], grad_bias + expected["grad_bias"]
        np.testing.assert_allclose(found["grad_weight"], grad_weight, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(found["grad_bias"], grad_bias, rtol=1e-6, atol=1e-8)

    def test_one_part_is_the_ordinary_norm(self):
        data = inputs()
        arguments = [data[key].astype("float32") for key in ("x", "upstream", "weight", "bias")]
        local = run_norm(build_norm("local", 3, ndim=3), *arguments)
        sub = run_norm(sub_norm_of(1, ndim=3, channels=3, dtype="float32"), *arguments)
        for key, value in local.items():
            np.testing.assert_array_equal(sub[key], value)

    def test_a_model_equals_itself_on_each_part(self):
        """Only batch norm looks beyond a clip, so that parts of a batch are batches of their own."""
        clip = paddle.to_tensor(np.random.default_rng(0).normal(size=(4, 3, 4, 32, 32)).astype("float32"))
        paddle.seed(1)
        whole = create_model("tsm_resnet18", num_classes=5, num_segments=4, width=0.125, dropout=0.0, norm="sub")
        set_splits(whole, splits=2, num_frames=4)
        alone = small_tsm("local")
        alone.set_state_dict(whole.state_dict())
        logits = whole(clip).numpy()
        for part in range(2):
            np.testing.assert_allclose(logits[part::2], alone(clip[part::2]).numpy(), rtol=2e-4, atol=2e-6)
        with pytest.raises(ValueError, match="16 frames are not whole clips of 3; see set_splits"):
            set_splits(whole, splits=2, num_frames=3)
            whole(clip)

    def test_change_of_parts(self):
        x = paddle.to_tensor(golden_inputs()[0])
        layer = sub_norm_of(2, ndim=3)
        model = paddle.nn.Sequential(layer, paddle.nn.ReLU())
        layer(x)
        names = list(model.state_dict())
        assert names == ["0.weight", "0.bias", "0._mean", "0._variance"]
        set_splits(model, 2, num_frames=2)  # no change
        np.testing.assert_allclose(layer.running_statistics()[0].numpy(), GOLDEN["means"], rtol=1e-6)
        set_splits(model, 4, num_frames=2)
        mean = [(0.1125 + 0.06875) / 2, (0.16875 + 0.2625) / 2]
        means, variances = layer.running_statistics()
        np.testing.assert_allclose(means.numpy(), mean * 4, rtol=1e-6)
        first = biased(GOLDEN["variances"], 1).reshape(2, 2).mean(0)
        variance = first + np.square([(0.1125 - 0.06875) / 2, (0.16875 - 0.2625) / 2])
        np.testing.assert_allclose(variances.numpy(), np.tile(variance, 4), rtol=1e-6)
        assert list(model.state_dict()) == names
        set_splits(model, 1, num_frames=2)
        np.testing.assert_allclose(layer._mean.numpy(), mean, rtol=1e-6)
        assert layer.running_statistics() == (layer._mean, layer._variance)
        assert split_state(model) == {}

    def test_statistics_that_training_moves(self):
        layers = [build_norm(norm, 2, ndim=3) for norm in ("local", "sub", "frozen")]
        model = paddle.nn.Sequential(*layers)
        set_splits(model, 3, num_frames=2)
        assert [tuple(statistic.shape) for statistic in running_statistics(model)] == [(2,), (2,), (6,), (6,)]

    def test_aggregate_before_saving(self):
        layer = sub_norm_of(2, ndim=3)
        layer(paddle.to_tensor(golden_inputs()[0]))
        np.testing.assert_array_equal(layer._mean.numpy(), 0)
        aggregate_splits(paddle.nn.Sequential(layer))
        np.testing.assert_allclose(layer._mean.numpy(), [0.090625, 0.215625], rtol=1e-6)

    def test_resume(self):
        x = paddle.to_tensor(golden_inputs()[0])
        first, second, other, plain = (paddle.nn.Sequential(sub_norm_of(splits, ndim=3)) for splits in (2, 2, 4, 1))
        first(x)
        state, saved = first.state_dict(), split_state(first)
        assert sorted(saved) == ["0.mean", "0.variance"]
        for model in (second, other, plain):
            model.set_state_dict(state)
            load_split_state(model, saved)
        aggregate_splits(first)
        np.testing.assert_array_equal(first(x).numpy(), second(x).numpy())
        for found, expected in zip(running_statistics(second), running_statistics(first)):
            np.testing.assert_array_equal(found.numpy(), expected.numpy())
        np.testing.assert_allclose(other[0].running_statistics()[0].numpy(), [0.090625, 0.215625] * 4, rtol=1e-6)
        np.testing.assert_allclose(plain[0]._mean.numpy(), [0.090625, 0.215625], rtol=1e-6)

    def test_resume_from_a_state_without_parts(self):
        model = paddle.nn.Sequential(sub_norm_of(2, ndim=3))
        model[0]._mean.set_value(np.array([3.0, 4.0]))
        load_split_state(model, {})
        np.testing.assert_array_equal(model[0].running_statistics()[0].numpy(), [3, 4, 3, 4])
        with pytest.raises(ValueError, match="1.mean is in only one of the two"):
            load_split_state(model, {f"{i}.{kind}": paddle.ones([4]) for i in (0, 1) for kind in ("mean", "variance")})

    @pytest.mark.parametrize("clips", [4, 3])
    def test_recomputing_moves_statistics_once(self, clips):
        found = []
        for recompute in (False, True):
            block = paddle.nn.Sequential(sub_norm_of(2, ndim=3))
            x = paddle.to_tensor(golden_inputs()[0][:clips], stop_gradient=False)
            run_block(block, x, recompute=recompute).square().sum().backward()
            found.append(
                [*(s.numpy() for s in running_statistics(block)), x.grad.numpy(), block[0].weight.grad.numpy()]
            )
        for plain, recomputed in zip(*found):
            np.testing.assert_allclose(recomputed, plain, rtol=1e-12)
        assert np.abs(found[0][0]).min() > 0

    def test_impossible_groups(self):
        model = paddle.nn.Sequential(SubBatchNorm(2))
        with pytest.raises(ValueError, match="one of them 1; got 2 and 2"):
            set_splits(model, 2, num_frames=8, sync_ranks=2)
        with pytest.raises(ValueError, match="1 ranks do not divide into groups of 2"):
            set_splits(model, 1, num_frames=8, sync_ranks=2)


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
    {2: worker, 4: group_worker}[int(sys.argv[2])](Path(sys.argv[1]))
