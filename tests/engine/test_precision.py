"""The order of a step in mixed precision, proved with a scaler that keeps a diary, and what a CPU says about it."""

from __future__ import annotations

import logging

import numpy as np
import paddle
import pytest
from small_runs import TOY, build, lines, use_toy, weights

from paddlevideo_fast.config import AmpConfig
from paddlevideo_fast.engine import precision as module
from paddlevideo_fast.engine.precision import Precision
from paddlevideo_fast.engine.train import train

CLIP_NORM, SCALE = 1.0e-3, 1024.0


class DiaryScaler:
    """Scales as Paddle's scaler does and notes what it is asked and how large the gradients are then."""

    def __init__(self, parameters=None, overflow_at=()):
        self.parameters, self.overflow_at = parameters, overflow_at
        self.diary, self.steps, self._found_inf = [], 0, paddle.to_tensor([False])

    def norm(self):
        return float(np.sqrt(sum((p.grad.numpy().astype(np.float64) ** 2).sum() for p in self.parameters)))

    def note(self, what):
        self.diary.append((what, self.norm()))

    def scale(self, loss):
        return loss * SCALE

    def unscale_(self, optimizer):
        self.note("unscale")
        for parameter in self.parameters:
            parameter.grad.set_value(parameter.grad / SCALE)

    def step(self, optimizer):
        self.steps += 1
        self._found_inf = paddle.to_tensor([self.steps in self.overflow_at])
        self.note("step")
        if not self._found_inf.item():
            optimizer.step()

    def update(self):
        self.note("update")

    def state_dict(self):
        return {"scale": np.array([SCALE], np.float32)}


def amp_run(motion, folder, monkeypatch, overflow_at=(), *overrides):
    use_toy(monkeypatch)
    run = build(motion, folder, *TOY, "epochs=1", "optimizer={name: sgd, lr: 0.1}", *overrides)
    scaler = DiaryScaler(list(run.model.parameters()), overflow_at)
    run.precision.scaler = scaler
    return run, scaler


def test_unscale_then_clip_then_step_then_update(motion, tmp_path, monkeypatch):
    plain = build_plain(motion, tmp_path / "plain", monkeypatch)
    run, scaler = amp_run(motion, tmp_path / "amp", monkeypatch, (), f"optimizer.clip_norm={CLIP_NORM}")
    run.model.set_state_dict(plain.model.state_dict())
    train(plain, max_steps=1)
    train(run, max_steps=1)
    assert [what for what, _ in scaler.diary] == ["unscale", "step", "update"]
    scaled, clipped, _ = (norm for _, norm in scaler.diary)
    assert scaled > SCALE * 0.01
    assert clipped == pytest.approx(CLIP_NORM, rel=1e-3)  # clipped after it was unscaled, before the step
    for name, value in weights(plain.model).items():
        np.testing.assert_allclose(weights(run.model)[name], value, rtol=1e-6, atol=1e-8)


def build_plain(motion, folder, monkeypatch):
    use_toy(monkeypatch)
    return build(motion, folder, *TOY, "epochs=1", f"optimizer={{name: sgd, lr: 0.1, clip_norm: {CLIP_NORM}}}")


def test_accumulated_gradients_are_unscaled_once(motion, tmp_path, monkeypatch):
    run, scaler = amp_run(motion, tmp_path, monkeypatch, (), "data.batch_size=2", "accum_steps=4")
    train(run)
    assert [what for what, _ in scaler.diary] == ["unscale", "step", "update"] * 2


def test_an_overflow_moves_neither_weights_nor_rate_nor_average(motion, tmp_path, monkeypatch):
    overrides = ("ema={decay: 0.5}", "schedule={name: cosine}", "nonfinite={policy: stop, limit: 1}")
    run, scaler = amp_run(motion, tmp_path, monkeypatch, (2, 3), *overrides)
    seen, plain = [], type(run.precision).step

    def step(self, optimizer, parameters, clip_norm):
        taken = plain(self, optimizer, parameters, clip_norm)
        seen.append((taken, weights(run.model), run.ema.updates))
        assert all(p.grad is None or not p.grad.numpy().any() for p in parameters)  # nothing is left for the next step
        return taken

    monkeypatch.setattr(type(run.precision), "step", step)
    train(run)
    assert [taken for taken, _, _ in seen] == [True, False, False, True]
    for name in seen[0][1]:
        np.testing.assert_array_equal(seen[0][1][name], seen[2][1][name])
    rates = [row["lr"] for row in lines(tmp_path, "train")]
    assert rates[0] == pytest.approx(0.1)
    assert rates[1] == rates[2] == rates[3] == pytest.approx(0.1 * (1 + np.cos(np.pi / 4)) / 2)
    assert run.ema.updates == 2
    assert (run.progress.step, run.progress.skipped, run.progress.nonfinite, run.progress.trained) == (4, 2, 0, 8)
    assert [row["skipped"] for row in lines(tmp_path, "train")] == [0, 1, 2, 2]


def test_on_the_cpu_it_says_that_it_has_no_effect(monkeypatch, caplog):
    monkeypatch.setattr(module.logger, "propagate", True)
    with caplog.at_level(logging.WARNING):
        precision = Precision(AmpConfig(enabled=True, level="O2"))
    assert "no effect on cpu" in caplog.text
    assert precision.description == "float32" and precision.scaler is None
    model = paddle.nn.Linear(2, 2)
    assert precision.wrap(model) is model
    assert precision.prepare(model, None) == (model, None)
    loss = paddle.ones([1])
    assert precision.scale(loss) is loss


def test_where_it_is_active_the_model_runs_under_auto_cast_with_the_lists(monkeypatch):
    precision = Precision(AmpConfig(enabled=True, dtype="bfloat16", white_list=["conv3d"], black_list=["softmax"]))
    precision.active = True
    asked = []

    class Cast:
        def __init__(self, **arguments):
            asked.append(arguments)

        def __enter__(self):
            asked.append("in")

        def __exit__(self, *exception):
            asked.append("out")

    monkeypatch.setattr(paddle.amp, "auto_cast", Cast)
    assert precision.wrap(lambda x, y: asked.append(x + y) or x * y)(2, 3) == 6
    assert asked == [
        {"custom_white_list": ["conv3d"], "custom_black_list": ["softmax"], "level": "O1", "dtype": "bfloat16"},
        "in",
        5,
        "out",
    ]
    assert precision.description == "bfloat16 O1"
