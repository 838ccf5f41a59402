"""The moving average against its formula."""

from __future__ import annotations

import numpy as np
import paddle
from paddle import nn

from paddlevideo_fast.engine.ema import Ema


def net():
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1D(2))


def test_the_average_follows_its_formula():
    model, average = net(), net()
    ema = Ema(model, average, 0.5)
    expected = model[0].weight.numpy().astype(np.float64)
    np.testing.assert_array_equal(average[0].weight.numpy(), model[0].weight.numpy())
    rng = np.random.default_rng(0)
    for update in range(1, 12):
        values = rng.normal(size=(3, 2)).astype(np.float32)
        model[0].weight.set_value(paddle.to_tensor(values))
        model[1]._mean.set_value(paddle.full([2], float(update)))
        ema.update()
        decay = min(0.5, (1 + update) / (10 + update))  # 2/11, 3/12, ... until 0.5 from the eighth on
        expected = decay * expected + (1 - decay) * values
        np.testing.assert_allclose(average[0].weight.numpy(), expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(average[1]._mean.numpy(), [update, update])  # statistics are copied
    assert ema.updates == 11
    assert decay == 0.5


def test_the_average_has_no_gradients_and_is_apart():
    model, average = net(), net()
    ema = Ema(model, average, 0.9)
    assert all(parameter.stop_gradient for parameter in average.parameters())
    model[0].weight.set_value(paddle.zeros([3, 2]))
    assert average[0].weight.numpy().any()
    model[1]._variance.set_value(paddle.full([2], 7.0))
    ema.copy_statistics()
    np.testing.assert_array_equal(average[1]._variance.numpy(), [7, 7])
    assert average[0].weight.numpy().any()


def test_frozen_weights_are_copied():
    model, average = net(), net()
    model[0].weight.stop_gradient = True
    ema = Ema(model, average, 0.99)
    model[0].weight.set_value(paddle.ones([3, 2]))
    ema.update()
    np.testing.assert_array_equal(average[0].weight.numpy(), np.ones([3, 2]))
