"""Golden figures come from scikit-learn 1.9.1 and PyTorch 2.14 on the same tables."""

from __future__ import annotations

import numpy as np
import pytest

from paddlevideo_fast.metrics import (
    average_views,
    confusion_matrix,
    mean_average_precision,
    mean_class_accuracy,
    softmax,
    top_k_accuracy,
    topk_correct,
)

ROWS, CLASSES = np.arange(60)[:, None], np.arange(7)[None]
SCORES = np.sin(ROWS * 1.7 + CLASSES * CLASSES * 2.3 + ROWS * CLASSES * 0.9)
LABELS = (ROWS[:, 0] ** 2 * 3 + ROWS[:, 0]) % 7  # classes 1, 5 and 6 have no sample
MULTI_LABELS = ((ROWS * 5 + CLASSES * 3) % 7 < 2) & (CLASSES != 3)  # class 3 has no positive


@pytest.mark.parametrize("k, expected", [(1, 10 / 60), (2, 18 / 60), (5, 43 / 60), (7, 1.0), (50, 1.0)])
def test_top_k_against_sklearn(k, expected):
    assert top_k_accuracy(SCORES, LABELS, k) == pytest.approx(expected, abs=1e-12)
    assert top_k_accuracy(SCORES.astype(np.float32), LABELS[:, None], k) == pytest.approx(expected, abs=1e-12)


def test_topk_correct_row_by_row():
    scores = np.array([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])
    assert topk_correct(scores, np.array([1, 1, 0]), 1).tolist() == [True, False, False]
    assert topk_correct(scores, np.array([1, 1, 0]), 2).tolist() == [True, True, False]
    assert topk_correct(scores, np.array([1, 1, 0]), 3).tolist() == [True, True, True]
    assert topk_correct(np.zeros((0, 3)), np.zeros(0, np.int64), 1).tolist() == []


def test_ties_go_to_the_lower_class():
    scores = np.zeros((4, 4), np.float32)
    assert topk_correct(scores, np.arange(4), 1).tolist() == [True, False, False, False]
    assert topk_correct(scores, np.arange(4), 3).tolist() == [True, True, True, False]
    scores = np.array([[0.2, 0.9, 0.9, 0.1]])
    assert topk_correct(scores, np.array([1]), 1)[0] and not topk_correct(scores, np.array([2]), 1)[0]


@pytest.mark.parametrize("num_classes", range(2, 12))
@pytest.mark.parametrize("column", [False, True])
def test_accuracies_are_shares_in_order(num_classes, column):
    rng = np.random.default_rng(num_classes)
    for num_samples in (1, 2, 33):
        scores = rng.standard_normal((num_samples, num_classes)).astype(np.float32)
        labels = rng.integers(0, num_classes, (num_samples, 1) if column else num_samples)
        top1, top5 = (top_k_accuracy(scores, labels, k) for k in (1, 5))
        assert 0 <= top1 <= top5 <= 1
        by_hand = [int(label) in np.argsort(-row)[:5] for row, label in zip(scores, labels.reshape(-1))]
        assert top5 == pytest.approx(np.mean(by_hand))
        if num_classes <= 5:
            assert top5 == 1


def test_mean_class_accuracy_against_sklearn():
    assert mean_class_accuracy(SCORES, LABELS) == pytest.approx(0.17340686274509803, abs=1e-12)


def test_mean_class_accuracy_weighs_classes_alike():
    scores = np.eye(3)[[0, 0, 0, 1]]
    assert mean_class_accuracy(scores, np.array([0, 0, 0, 2])) == pytest.approx(0.5)


def test_mean_average_precision_against_sklearn():
    assert mean_average_precision(SCORES, MULTI_LABELS) == pytest.approx(0.3379131846757532, abs=1e-12)
    first = mean_average_precision(SCORES[:, :1], MULTI_LABELS[:, :1].astype(np.float32))
    assert first == pytest.approx(0.3339924594924044, abs=1e-12)


def test_mean_average_precision_with_ties_against_sklearn():
    assert mean_average_precision(np.round(SCORES * 3), MULTI_LABELS) == pytest.approx(0.29288523478735656, abs=1e-12)


def test_mean_average_precision_by_hand():
    scores = np.array([[0.9], [0.8], [0.7], [0.6]])
    assert mean_average_precision(scores, np.array([[1], [0], [1], [0]])) == pytest.approx((1 + 2 / 3) / 2)
    tied = np.array([[5], [5], [5], [1]], np.uint8)  # one threshold holds three samples
    assert mean_average_precision(tied, np.array([[1], [0], [0], [1]])) == pytest.approx(0.5 / 3 + 0.5 / 2)


def test_confusion_matrix_against_sklearn():
    expected = np.zeros((7, 7), int)
    expected[[0, 2, 3, 4]] = [
        [2, 4, 3, 4, 3, 0, 2],
        [3, 2, 4, 4, 2, 1, 1],
        [1, 3, 3, 2, 3, 0, 4],
        [1, 2, 1, 1, 2, 0, 2],
    ]
    result = confusion_matrix(SCORES.argmax(1), LABELS[:, None], 7)
    assert result.dtype == np.int64 and np.array_equal(result, expected)


def test_softmax_against_pytorch():
    result = softmax(np.array([[1, 2, 3.5], [1000, 1001, -1000]], np.float32))
    expected = [
        [0.0628900132458675, 0.17095278019779026, 0.7661572065563422],
        [0.26894142136999516, 0.7310585786300049, 0],
    ]
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-300)


def views_of_two_samples():
    scores = np.array([[1, 0], [3, 2], [8, -1], [0, 1], [0, 3], [0, 5]], np.float32)
    return scores, np.array([7, 7, 7, 2, 2, 2]), np.array([0, 1, 2, 0, 1, 2])


def test_average_views_in_any_order():
    scores, index, view = views_of_two_samples()
    for order in ([0, 1, 2, 3, 4, 5], [5, 0, 3, 2, 4, 1]):
        samples, means = average_views(scores[order], index[order], view[order, None])
        assert samples.tolist() == [2, 7]
        np.testing.assert_allclose(means, [[0, 3], [4, 1 / 3]], rtol=1e-7)
        _, highest = average_views(scores[order], index[order], view[order], reduce="max", num_views=3)
        assert highest.tolist() == [[0, 5], [8, 2]]


def test_average_views_is_the_same_to_the_last_bit():
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((40, 3)).astype(np.float32)
    index, view = np.repeat(np.arange(4), 10), np.tile(np.arange(10), 4)
    order = rng.permutation(40)
    assert np.array_equal(
        average_views(scores, index, view)[1], average_views(scores[order], index[order], view[order])[1]
    )


def test_average_views_refuses_gaps_and_repeats():
    scores, index, view = views_of_two_samples()
    with pytest.raises(ValueError, match=r"sample 2 misses view 1 \(2 of 3 views\)"):
        average_views(np.delete(scores, 4, 0), np.delete(index, 4), np.delete(view, 4))
    with pytest.raises(ValueError, match="sample 2 misses view 3"):
        average_views(scores, index, view, num_views=4)
    with pytest.raises(ValueError, match="sample 7 has view 1 twice"):
        average_views(np.vstack([scores, scores[1:2]]), np.append(index, 7), np.append(view, 1))
    with pytest.raises(ValueError, match="sample 7 has view 1 twice"):
        average_views(scores, index, np.array([0, 1, 1, 0, 1, 2]))
    with pytest.raises(ValueError, match="sample 2 has view 2, outside 0..1"):
        average_views(scores, index, view, num_views=2)
    with pytest.raises(ValueError, match="reduce"):
        average_views(scores, index, view, reduce="median")


def test_not_a_number_is_an_error():
    scores = SCORES.copy()
    scores[4, 2] = np.nan
    for call in (
        lambda: topk_correct(scores, LABELS, 1),
        lambda: mean_class_accuracy(scores, LABELS),
        lambda: mean_average_precision(scores, MULTI_LABELS),
        lambda: average_views(scores, np.arange(60), np.zeros(60, int)),
    ):
        with pytest.raises(ValueError, match="1 of 60 rows of scores hold NaN, first row 4"):
            call()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: topk_correct(np.zeros(3), np.zeros(3, int), 1), r"\[samples, classes\], got \(3,\)"),
        (lambda: topk_correct(np.zeros((2, 3)), np.array([0, 3]), 1), "row 1 has class 3, outside 0..2"),
        (lambda: topk_correct(np.zeros((2, 3)), np.array([0, -1]), 1), "row 1 has class -1"),
        (lambda: topk_correct(np.zeros((2, 3)), np.zeros(3, int), 1), "2 rows of scores for 3 labels"),
        (lambda: topk_correct(np.zeros((2, 3)), np.zeros((2, 3)), 1), "labels must have the shape"),
        (lambda: topk_correct(np.zeros((2, 3)), np.zeros(2), 1), "integers, got float64"),
        (lambda: topk_correct(np.zeros((2, 3)), np.zeros(2, int), 0), "k must be at least 1"),
        (lambda: top_k_accuracy(np.zeros((0, 3)), np.zeros(0, int), 1), "no samples"),
        (lambda: mean_average_precision(np.zeros((2, 3)), np.zeros((2, 3))), "no class has a positive"),
        (lambda: mean_average_precision(np.zeros((2, 3)), np.full((2, 3), 2)), "0 or 1, got 2"),
        (lambda: mean_average_precision(np.zeros((2, 3)), np.zeros(2)), "shape of scores"),
        (lambda: confusion_matrix(np.array([0, 4]), np.array([0, 1]), 4), "predictions: row 1 has class 4"),
    ],
)
def test_wrong_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
