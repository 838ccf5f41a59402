"""Classification metrics on NumPy arrays, and the averaging of views.

Scores are logits or probabilities, higher is better. A tie between classes goes to the lower class number, so a
result never depends on the sort used. Scores that are not numbers are an error, not a low rank.
"""

from __future__ import annotations

import numpy as np


def topk_correct(scores: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """Tells which samples have their label among the ``k`` best scores.

    Args:
        scores: Float [N, C].
        labels: Integer [N] or [N, 1], in 0..C-1.
        k: At least 1; with fewer than ``k`` classes, ``C`` is taken.

    Returns:
        Bool [N].

    Raises:
        ValueError: Shapes do not match, a label is outside 0..C-1, or a score is NaN.
    """
    scores, labels = _check_scores_and_labels(scores, labels)
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    ahead = scores > own
    ahead |= (scores == own) & (np.arange(scores.shape[1]) < labels[:, None])
    return ahead.sum(axis=1) < min(k, scores.shape[1])


def top_k_accuracy(scores: np.ndarray, labels: np.ndarray, k: int) -> float:
    """Returns the share, 0 to 1, of samples whose label is among the ``k`` best scores; see ``topk_correct``."""
    correct = topk_correct(scores, labels, k)
    _check_not_empty(correct)
    return float(correct.mean())


def mean_class_accuracy(scores: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean of the top-1 accuracy of each class, 0 to 1; classes without samples do not count.

    Args:
        scores: Float [N, C], N at least 1.
        labels: Integer [N] or [N, 1], in 0..C-1.

    Source: balanced accuracy of scikit-learn (``balanced_accuracy_score``).
    """
    correct = topk_correct(scores, labels, 1)
    _check_not_empty(correct)
    labels = np.asarray(labels).reshape(-1)
    samples = np.bincount(labels)
    hits = np.bincount(labels, weights=correct)
    return float((hits[samples > 0] / samples[samples > 0]).mean())


def mean_average_precision(scores: np.ndarray, labels: np.ndarray) -> float:
    """Returns the mean over classes of the average precision, 0 to 1, for multi-label classification.

    The average precision is the sum over falling thresholds of (gain in recall) x (precision), without
    interpolation; samples with equal scores enter together. Classes without a positive sample do not count.

    Args:
        scores: Float [N, C].
        labels: [N, C] of 0 and 1 (bool, integer or float).

    Raises:
        ValueError: Shapes do not match, a score is NaN, a label is not 0 or 1, or no class has a positive sample.

    Source: ``average_precision_score`` of scikit-learn on the classes that occur, as PySlowFast scores Charades
    (``slowfast/utils/meters.py``, get_map).
    """
    scores, labels = _check_scores(scores), np.asarray(labels)
    if labels.shape != scores.shape:
        raise ValueError(f"labels must have the shape of scores, {scores.shape}, got {labels.shape}")
    positive = labels == 1
    if not (positive | (labels == 0)).all():
        raise ValueError(f"labels must be 0 or 1, got {labels[~(positive | (labels == 0))][0]}")
    classes = np.flatnonzero(positive.any(axis=0))
    if classes.size == 0:
        raise ValueError("no class has a positive sample: the mean average precision is undefined")
    return float(np.mean([_average_precision(scores[:, c], positive[:, c]) for c in classes]))


def confusion_matrix(predictions: np.ndarray, labels: np.ndarray, num_classes: int) -> np.ndarray:
    """Counts the samples of each pair of label and prediction.

    Args:
        predictions: Integer [N] or [N, 1], in 0..num_classes-1.
        labels: Integer [N] or [N, 1], in 0..num_classes-1.
        num_classes: C.

    Returns:
        int64 [C, C]; row = label, column = prediction.

    Raises:
        ValueError: Lengths differ or a value is outside the range.
    """
    predictions = _check_labels(predictions, num_classes, "predictions")
    labels = _check_labels(labels, num_classes, "labels")
    if len(predictions) != len(labels):
        raise ValueError(f"{len(predictions)} predictions for {len(labels)} labels")
    counts = np.bincount(labels * num_classes + predictions, minlength=num_classes * num_classes)
    return counts.reshape(num_classes, num_classes).astype(np.int64)


def softmax(scores: np.ndarray) -> np.ndarray:
    """Returns the softmax over the last axis, in float64; ``scores`` [..., C], finite or minus infinity."""
    scores = np.asarray(scores, dtype=np.float64)
    exps = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exps / exps.sum(axis=-1, keepdims=True)


def sigmoid(scores: np.ndarray) -> np.ndarray:
    """Returns the logistic function of each score, in float64; no score is too large."""
    return 0.5 * (1.0 + np.tanh(0.5 * np.asarray(scores, dtype=np.float64)))


def average_views(
    scores: np.ndarray,
    index: np.ndarray,
    view: np.ndarray,
    reduce: str = "mean",
    num_views: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Joins the scores of a sample's views into one row, whatever the order the rows arrive in.

    Logits average as logits and probabilities as probabilities: for the mean of probabilities (PySlowFast, VideoMAE)
    hand in ``softmax(logits)``, for the mean of logits (TSM) the logits. PySlowFast takes the maximum of
    ``sigmoid(logits)`` on Charades.

    Args:
        scores: Float [N * V, C], one row a view.
        index: Integer [N * V] or [N * V, 1], the sample of each row.
        view: Integer [N * V] or [N * V, 1], the view of each row, in 0..V-1.
        reduce: "mean" or "max" over the views.
        num_views: V; None takes the highest view seen plus one.

    Returns:
        (samples, scores): int64 [N], the sample numbers, rising; float64 [N, C], their scores.

    Raises:
        ValueError: A sample misses a view or has one twice, or a view is outside 0..V-1, or a score is NaN.
    """
    scores = _check_scores(scores)
    index, view = _flatten(index, "index"), _flatten(view, "view")
    if not (len(scores) == len(index) == len(view)):
        raise ValueError(f"{len(scores)} rows of scores, {len(index)} of index, {len(view)} of view")
    _check_not_empty(scores)
    if reduce not in ("mean", "max"):
        raise ValueError(f'reduce must be "mean" or "max", got {reduce!r}')
    num_views = int(view.max()) + 1 if num_views is None else num_views

    # Sums run in the order of the views, so the result is the same to the last bit for any number of ranks.
    order = np.lexsort((view, index))
    samples, counts = np.unique(index, return_counts=True)
    _check_views(index[order], view[order], samples, counts, num_views)
    stacked = scores[order].astype(np.float64).reshape(len(samples), num_views, -1)
    return samples.astype(np.int64), stacked.mean(axis=1) if reduce == "mean" else stacked.max(axis=1)


def _average_precision(scores: np.ndarray, positive: np.ndarray) -> float:
    order = np.argsort(-scores, kind="stable")
    scores, positive = scores[order], positive[order]
    last_of_tie = np.append(scores[1:] != scores[:-1], True)
    hits = np.cumsum(positive)[last_of_tie]
    precision = hits / (np.flatnonzero(last_of_tie) + 1)
    recall_gain = np.diff(hits, prepend=0) / hits[-1]
    return float((recall_gain * precision).sum())


def _check_views(index: np.ndarray, view: np.ndarray, samples: np.ndarray, counts: np.ndarray, num_views: int) -> None:
    """Raises unless the rows, sorted by sample and view, hold each view of each sample once."""
    outside = (view < 0) | (view >= num_views)
    if outside.any():
        raise ValueError(f"sample {index[outside][0]} has view {view[outside][0]}, outside 0..{num_views - 1}")
    twice = (index[1:] == index[:-1]) & (view[1:] == view[:-1])
    if twice.any():
        raise ValueError(f"sample {index[1:][twice][0]} has view {view[1:][twice][0]} twice")
    short = np.flatnonzero(counts != num_views)
    if short.size:
        sample = samples[short[0]]
        missing = sorted(set(range(num_views)) - set(view[index == sample].tolist()))
        raise ValueError(f"sample {sample} misses view {missing[0]} ({counts[short[0]]} of {num_views} views)")


def _check_scores_and_labels(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    scores = _check_scores(scores)
    labels = _check_labels(labels, scores.shape[1], "labels")
    if len(scores) != len(labels):
        raise ValueError(f"{len(scores)} rows of scores for {len(labels)} labels")
    return scores, labels


def _check_scores(scores: np.ndarray) -> np.ndarray:
    scores = np.asarray(scores)
    if not np.issubdtype(scores.dtype, np.floating):
        scores = scores.astype(np.float64)
    if scores.ndim != 2 or scores.shape[1] == 0:
        raise ValueError(f"scores must have the shape [samples, classes], got {scores.shape}")
    invalid = np.isnan(scores).any(axis=1)
    if invalid.any():
        raise ValueError(f"{int(invalid.sum())} of {len(scores)} rows of scores hold NaN, first row {invalid.argmax()}")
    return scores


def _check_labels(labels: np.ndarray, num_classes: int, name: str) -> np.ndarray:
    labels = _flatten(labels, name)
    outside = (labels < 0) | (labels >= num_classes)
    if outside.any():
        row = int(outside.argmax())
        raise ValueError(f"{name}: row {row} has class {labels[row]}, outside 0..{num_classes - 1}")
    return labels


def _flatten(numbers: np.ndarray, name: str) -> np.ndarray:
    numbers = np.asarray(numbers)
    if not (numbers.ndim == 1 or (numbers.ndim == 2 and numbers.shape[1] == 1)):
        raise ValueError(f"{name} must have the shape [samples] or [samples, 1], got {numbers.shape}")
    if numbers.size and not np.issubdtype(numbers.dtype, np.integer):
        raise ValueError(f"{name} must be integers, got {numbers.dtype}")
    return numbers.reshape(-1).astype(np.int64)


def _check_not_empty(rows: np.ndarray) -> None:
    if len(rows) == 0:
        raise ValueError("no samples to evaluate")
