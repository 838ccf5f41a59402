"""Classification against NumPy, several labels a clip against PyTorch and scikit-learn."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from paddlevideo_fast.data.records import AnnotationError, VideoRecord
from paddlevideo_fast.engine.tasks import Classification, MultiLabel

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


@pytest.mark.parametrize("average", ["probability", "logit", "max"])
def test_views_are_averaged_and_prediction_agrees(average):
    # Three records of two views, mixed up; view logits chosen so that the two ways of averaging disagree on record 0.
    logits = np.array([[10, 0, 0], [0, 6, 0], [0, 6, 1], [0, 0, 1], [1, 0, 2], [0, 2, 0]], np.float32)
    index, view, targets = np.array([0, 1, 0, 2, 1, 2]), np.array([0, 1, 1, 0, 0, 1]), np.array([0, 1, 0, 2, 1, 2])
    task = Classification(3)
    result = task.summarize(logits, targets, index, view, 2, average)
    rows = logits.astype(np.float64)
    if average != "logit":
        rows = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
    join = np.maximum if average == "max" else lambda one, other: (one + other) / 2
    scores = np.stack([join(rows[0], rows[2]), join(rows[1], rows[4]), join(rows[3], rows[5])])
    hits = scores.argmax(1) == [0, 1, 2]
    assert result["top1"] == pytest.approx(hits.mean())
    assert result["top5"] == 1.0  # fewer classes than five
    assert result["mean_class_accuracy"] == pytest.approx(hits.mean())
    expected = scores[0]
    if average == "logit":
        expected = np.exp(expected) / np.exp(expected).sum()
    predicted = task.predict(logits[[0, 2]], average)
    np.testing.assert_allclose(predicted, expected, rtol=1e-6)
    assert (predicted.sum() == pytest.approx(1)) == (average != "max")


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


SETS = np.array(  # logits of three records of two views
    [
        [2.0, -1.0, 0.5, -3.0],
        [0.0, 1.0, -0.5, 2.0],
        [-1.5, 0.3, 0.2, 0.1],
        [1.0, -2.0, 3.0, -0.7],
        [0.4, 0.9, -1.2, 1.1],
        [-0.6, 0.0, 1.4, -0.2],
    ],
    np.float32,
)
HAS = np.array([[1, 0, 1, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 1, 0, 1], [1, 1, 0, 0], [1, 1, 0, 0]], np.float32)


def test_binary_cross_entropy_of_each_row_against_pytorch():
    """PyTorch 2.14: binary_cross_entropy_with_logits, the mean over the classes; BCEWithLogitsLoss for all."""
    rows = MultiLabel(4).loss(paddle.to_tensor(SETS), {"target": paddle.to_tensor(HAS)}).numpy()
    expected = [0.24071351, 1.27685347, 0.54957601, 1.89799077, 0.62619673, 0.98729785]
    np.testing.assert_allclose(rows, expected, rtol=1e-5)
    assert rows.mean() == pytest.approx(0.92977139, rel=1e-5)
    far = MultiLabel(2).loss(paddle.to_tensor([[200.0, -200.0]]), {"target": paddle.to_tensor([[0.0, 1.0]])})
    assert far.item() == pytest.approx(200)


@pytest.mark.parametrize(("average", "expected"), [("probability", 0.625), ("max", 0.5208333333), ("logit", 2 / 3)])
def test_mean_average_precision_of_joined_views_against_sklearn(average, expected):
    """scikit-learn 1.9.1: average_precision_score, macro, on the mean and maximum of sigmoids and on mean logits."""
    order = np.array([3, 0, 5, 1, 4, 2])
    index, view = np.array([7, 7, 8, 8, 9, 9])[order], np.array([0, 1] * 3)[order]
    result = MultiLabel(4).summarize(SETS[order], HAS[order], index, view, 2, average)
    assert result == {"mAP": pytest.approx(expected, abs=1e-9)}


@pytest.mark.parametrize("average", ["probability", "logit", "max"])
def test_predictions_are_a_probability_for_each_class(average):
    sigmoid = 1 / (1 + np.exp(-SETS[:2].astype(np.float64)))
    expected = {"probability": sigmoid.mean(0), "max": sigmoid.max(0), "logit": 1 / (1 + np.exp(-SETS[:2].mean(0)))}
    np.testing.assert_allclose(MultiLabel(4).predict(SETS[:2], average), expected[average], rtol=1e-6)


def test_several_labels_become_a_vector():
    make = MultiLabel(5).targets({1: 4, 4: 1})
    record = VideoRecord("x.mp4", (1, 3))
    assert make(record, False).tolist() == [0, 1, 0, 1, 0] and make(record, False).dtype == np.float32
    assert make(record, True).tolist() == [0, 0, 0, 1, 1]
    assert make(record._replace(label=0), True).tolist() == [1, 0, 0, 0, 0]
    for nothing in (None, (), ((), ())):
        assert make(record._replace(label=nothing), False).tolist() == [0] * 5


def test_of_labels_by_frame_all_count():
    record = VideoRecord("folder", ((0,), (0, 2), (), (3,)))
    assert MultiLabel(5).targets({})(record, False).tolist() == [1, 0, 1, 1, 0]
    assert MultiLabel(5).targets({2: 1, 1: 2})(record, True).tolist() == [1, 1, 0, 1, 0]


def test_labels_that_a_task_cannot_learn():
    records = [VideoRecord("a.mp4", 1), VideoRecord("b.mp4", (1, 2), origin="train.txt:2")]
    MultiLabel(4).check(records)
    message = (
        r"train.txt:2: label \(1, 2\): task classification takes one class a record; several need task.name: multi"
    )
    with pytest.raises(AnnotationError, match=message):
        Classification(4).check(records)
    with pytest.raises(AnnotationError, match="train.txt:2: label {'verb': 1}: task multi_label takes class ids"):
        MultiLabel(4).check([records[1]._replace(label={"verb": 1})])
