"""Classification against NumPy."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from paddlevideo_fast.data.records import VideoRecord
from paddlevideo_fast.engine.tasks import Classification

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(5, 4)).astype(np.float32) * 3
LABELS = np.array([0, 3, 1, 1, 2])


def log_softmax(logits):
    logits = logits.astype(np.float64)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def loss_of(task, target):
    return task.loss(paddle.to_tensor(LOGITS), {"target": paddle.to_tensor(target)}).numpy()


def test_cross_entropy_of_each_row():
    expected = -log_softmax(LOGITS)[np.arange(5), LABELS]
    np.testing.assert_allclose(loss_of(Classification(4), LABELS), expected, rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.1, 0.5])
def test_label_smoothing_equals_soft_targets(smoothing):
    soft = np.full([5, 4], smoothing / 4)
    soft[np.arange(5), LABELS] += 1 - smoothing
    expected = -(soft * log_softmax(LOGITS)).sum(axis=1)
    np.testing.assert_allclose(loss_of(Classification(4, smoothing), LABELS), expected, rtol=1e-5)
    # mixed rows arrive as soft targets with the smoothing in them already
    np.testing.assert_allclose(loss_of(Classification(4, smoothing), soft.astype(np.float32)), expected, rtol=1e-5)


def test_large_logits_stay_finite():
    logits = paddle.to_tensor([[1000.0, -1000.0]])
    loss = Classification(2).loss(logits, {"target": paddle.to_tensor([1])})
    assert 64 <= loss.item() <= 2000  # Paddle's CPU kernel cuts differences of logits at 64


def test_backward_scales_once_and_returns_detached_rows():
    layer = paddle.nn.Linear(3, 4)
    clip = paddle.to_tensor(RNG.normal(size=(5, 3)).astype(np.float32))
    batch = {"clip": clip, "target": paddle.to_tensor(LABELS)}
    rows, outputs = Classification(4).backward(layer, batch, lambda rows: (rows * 10).sum())
    assert rows.stop_gradient and outputs.stop_gradient and rows.shape == [5]
    probabilities = np.exp(log_softmax(outputs.numpy()))
    probabilities[np.arange(5), LABELS] -= 1
    np.testing.assert_allclose(layer.bias.grad.numpy(), 10 * probabilities.sum(axis=0), rtol=1e-4, atol=1e-5)


def test_monitor_tells_the_hits():
    batch = {"target": paddle.to_tensor(LABELS)}
    hits = Classification(4).monitor(paddle.to_tensor(LOGITS), batch)["top1"].numpy()
    np.testing.assert_array_equal(hits, LOGITS.argmax(1) == LABELS)
    assert Classification(4).monitor(paddle.to_tensor(LOGITS), {"target": paddle.zeros([5, 4])}) == {}


@pytest.mark.parametrize("average", ["probability", "logit"])
def test_views_are_averaged_and_prediction_agrees(average):
    # Three records of two views, mixed up; view logits chosen so that the two ways of averaging disagree on record 0.
    logits = np.array([[10, 0, 0], [0, 6, 0], [0, 6, 1], [0, 0, 1], [1, 0, 2], [0, 2, 0]], np.float32)
    index, view, targets = np.array([0, 1, 0, 2, 1, 2]), np.array([0, 1, 1, 0, 0, 1]), np.array([0, 1, 0, 2, 1, 2])
    task = Classification(3)
    result = task.summarize(logits, targets, index, view, 2, average)
    rows = logits.astype(np.float64)
    if average == "probability":
        rows = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
    scores = np.stack([(rows[0] + rows[2]) / 2, (rows[1] + rows[4]) / 2, (rows[3] + rows[5]) / 2])
    hits = scores.argmax(1) == [0, 1, 2]
    assert result["top1"] == pytest.approx(hits.mean())
    assert result["top5"] == 1.0  # fewer classes than five
    assert result["mean_class_accuracy"] == pytest.approx(hits.mean())
    expected = scores[0]
    if average == "logit":
        expected = np.exp(expected) / np.exp(expected).sum()
    predicted = task.predict(logits[[0, 2]], average)
    np.testing.assert_allclose(predicted, expected, rtol=1e-6)
    assert predicted.sum() == pytest.approx(1)


def test_targets_of_records():
    record = VideoRecord("x.mp4", 2)
    make = Classification(4).targets({2: 3, 3: 2})
    assert make(record, False) == 2 and make(record, True) == 3
    assert make(record._replace(label=0), True) == 0
    assert make(record._replace(label=None), True) == -1
    assert make(record, True).dtype == np.int64


def test_a_smoothing_outside_its_range():
    with pytest.raises(ValueError, match="from 0 to below 1, got 1.0"):
        Classification(4, 1.0)
