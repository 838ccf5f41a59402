"""What a model is trained for. The loop knows no task; a task knows no loop.

A task turns a batch dict into model inputs and one loss per row, and rows of scores into the metrics of a data set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F

from paddlevideo_fast import metrics
from paddlevideo_fast.data.annotations import AnnotationError, VideoRecord
from paddlevideo_fast.data.targets import ClassTarget

Batch = dict[str, Any]


class Classification:
    """One label per clip.

    Args:
        num_classes: Classes of the model and the annotations.
        label_smoothing: Share of the target spread over all classes.

    Attributes:
        best_metric: What the best weights are chosen by.
        monitored: What ``monitor`` returns.
        convolutional_head: The head of `models.heads` that averages this task's probabilities over positions.
    """

    best_metric = "top1"
    monitored = ("top1",)
    convolutional_head = "convolutional"

    def __init__(self, num_classes: int, label_smoothing: float = 0.0):
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must be from 0 to below 1, got {label_smoothing}")
        self.num_classes, self.label_smoothing = num_classes, label_smoothing

    def check(self, records: Sequence[VideoRecord]) -> None:
        """Raises AnnotationError if a record has a label that this task cannot learn."""
        for record in records:
            if not isinstance(record.label, int | None):
                text = "takes one class a record; several need task.name: multi_label"
                raise AnnotationError(f"{record.origin}: label {_short(record.label)}: task classification {text}")

    def targets(self, flip_labels: dict[int, int]) -> Callable[[VideoRecord, bool], np.ndarray]:
        """Returns what turns a record's label into a target array in the reader threads."""
        return ClassTarget(flip_labels)

    def inputs(self, batch: Batch) -> Sequence[paddle.Tensor]:
        """Returns the model's arguments: the clip, float32 [N, 3, T, H, W]."""
        return (batch["clip"],)

    def loss(self, outputs: paddle.Tensor, batch: Batch) -> paddle.Tensor:
        """Returns the cross entropy of each row, float32 [N].

        Args:
            outputs: Logits [N, num_classes].
            batch: ``target`` int64 [N], or float32 [N, num_classes] where rows were mixed.
        """
        logits, target = outputs.astype("float32"), batch["target"]
        log_probabilities = F.log_softmax(logits, axis=-1)
        if target.ndim == 2:
            return -(target * log_probabilities).sum(axis=-1)
        loss = -paddle.take_along_axis(log_probabilities, target.unsqueeze(1), axis=1).squeeze(1)
        if self.label_smoothing:
            loss = (1 - self.label_smoothing) * loss - self.label_smoothing * log_probabilities.mean(axis=-1)
        return loss

    def backward(self, model: Callable, batch: Batch, scale: Callable) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Adds the gradients of one batch.

        Args:
            model: Called with ``inputs``.
            batch: An augmented batch.
            scale: Turns the rows' losses [N] into the scalar to differentiate.

        Returns:
            The rows' losses [N] and the model's outputs, both detached.
        """
        outputs = model(*self.inputs(batch))
        loss = self.loss(outputs, batch)
        scale(loss).backward()
        return loss.detach(), outputs.detach()

    def monitor(self, outputs: paddle.Tensor, batch: Batch) -> dict[str, paddle.Tensor]:
        """Returns what to watch in training, name -> float32 [N]; nothing where rows were mixed."""
        if batch["target"].ndim == 2:
            return {}
        return {"top1": (outputs.argmax(axis=-1) == batch["target"]).astype("float32")}

    def evaluate(self, outputs: paddle.Tensor, batch: Batch) -> paddle.Tensor:
        """Returns the scores to keep of each row: logits float32 [N, num_classes]."""
        return outputs.astype("float32")

    def summarize(self, logits: np.ndarray, targets: np.ndarray, index, view, num_views: int, average: str) -> Batch:
        """Returns the metrics of a data set.

        Args:
            logits: [R, num_classes], one row a view.
            targets: int64 [R].
            index: int64 [R], the record of each row.
            view: int64 [R], the view of each row.
            num_views: Views of each record.
            average: How views are joined: the mean of "probability" or "logit", or the "max" of the probabilities.
        """
        records, scores = _join_views(logits, metrics.softmax, index, view, num_views, average)
        labels = dict(zip(index.tolist(), targets.tolist()))
        labels = np.array([labels[record] for record in records.tolist()], np.int64)
        return {
            "top1": metrics.top_k_accuracy(scores, labels, 1),
            "top5": metrics.top_k_accuracy(scores, labels, 5),
            "mean_class_accuracy": metrics.mean_class_accuracy(scores, labels),
        }

    def predict(self, logits: np.ndarray, average: str) -> np.ndarray:
        """Returns the class probabilities of one video, float64 [num_classes], from the logits of its views [V, C].

        The maxima over several views, ``average`` "max", do not add up to 1.
        """
        return _predict(logits, metrics.softmax, average)


class MultiLabel(Classification):
    """Any number of labels per clip, each class a decision of its own.

    Args:
        num_classes: Classes of the model and the annotations.

    Source: PySlowFast on Charades: ``BCEWithLogitsLoss`` in training, sigmoid in evaluation, mean average precision.
    """

    best_metric = "mAP"
    monitored = ()
    convolutional_head = "convolutional_sigmoid"

    def __init__(self, num_classes: int):
        super().__init__(num_classes)

    def check(self, records: Sequence[VideoRecord]) -> None:
        """Raises AnnotationError if a record has a label that this task cannot learn."""
        for record in records:
            if isinstance(record.label, dict):
                text = "task multi_label takes class ids without names of tasks"
                raise AnnotationError(f"{record.origin}: label {_short(record.label)}: {text}")

    def targets(self, flip_labels: dict[int, int]) -> Callable[[VideoRecord, bool], np.ndarray]:
        """As in ``Classification``; the target is float32 [num_classes] of 0 and 1."""
        return LabelSetTarget(self.num_classes, flip_labels)

    def loss(self, outputs: paddle.Tensor, batch: Batch) -> paddle.Tensor:
        """Returns the binary cross entropy of each row, float32 [N]: the mean over the classes.

        Args:
            outputs: Logits [N, num_classes].
            batch: ``target`` float32 [N, num_classes].
        """
        logits = outputs.astype("float32")
        return F.binary_cross_entropy_with_logits(logits, batch["target"], reduction="none").mean(axis=-1)

    def monitor(self, outputs: paddle.Tensor, batch: Batch) -> dict[str, paddle.Tensor]:
        """Returns nothing: there is no precision of a single row."""
        return {}

    def summarize(self, logits: np.ndarray, targets: np.ndarray, index, view, num_views: int, average: str) -> Batch:
        """Returns the metrics of a data set; as in ``Classification``, with ``targets`` float [R, num_classes]."""
        records, scores = _join_views(logits, metrics.sigmoid, index, view, num_views, average)
        first = {record: row for row, record in reversed(list(enumerate(index.tolist())))}
        labels = targets[[first[record] for record in records.tolist()]]
        return {"mAP": metrics.mean_average_precision(scores, labels)}

    def predict(self, logits: np.ndarray, average: str) -> np.ndarray:
        """Returns the probability of each class for one video, float64 [num_classes], from its views [V, C]."""
        return _predict(logits, metrics.sigmoid, average)


@dataclass(frozen=True)
class LabelSetTarget:
    """Which of the classes a clip has.

    Attributes:
        num_classes: C.
        flip_labels: Class -> class of the mirrored clip, for classes that name a side.
    """

    num_classes: int
    flip_labels: Mapping[int, int] = field(default_factory=dict)

    def __call__(self, record: VideoRecord, flipped: bool) -> np.ndarray:
        """Returns float32 [C], 1 where the clip has the class; zeros for a record without a label.

        Args:
            record: Its label is a class, a tuple of classes, or a table with a tuple a frame, which all count.
            flipped: The clip was mirrored.
        """
        labels = (record.label,) if isinstance(record.label, int) else record.label or ()
        if labels and isinstance(labels[0], tuple):
            labels = set().union(*labels)
        target = np.zeros(self.num_classes, np.float32)
        target[[self.flip_labels.get(label, label) if flipped else label for label in labels]] = 1
        return target


def _short(label: Any) -> str:
    text = repr(label)
    return text if len(text) < 60 else f"{text[:60]}..."


def _join_views(logits: np.ndarray, activation: Callable, index, view, num_views: int, average: str):
    scores = logits if average == "logit" else activation(logits)
    return metrics.average_views(scores, index, view, "max" if average == "max" else "mean", num_views)


def _predict(logits: np.ndarray, activation: Callable, average: str) -> np.ndarray:
    if average == "logit":
        return activation(logits.astype(np.float64).mean(axis=0))
    return activation(logits).max(axis=0) if average == "max" else activation(logits).mean(axis=0)


TASKS = {"classification": Classification, "multi_label": MultiLabel}
