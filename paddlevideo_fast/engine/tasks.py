"""What a model is trained for. The loop knows no task; a task knows no loop.

A task turns a batch dict into model inputs and one loss per row, and rows of scores into the metrics of a data set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F

from paddlevideo_fast import metrics
from paddlevideo_fast.data.annotations import VideoRecord
from paddlevideo_fast.data.targets import ClassTarget

Batch = dict[str, Any]


class Classification:
    """One label per clip.

    Args:
        num_classes: Classes of the model and the annotations.
        label_smoothing: Share of the target spread over all classes.
    """

    best_metric = "top1"
    monitored = ("top1",)

    def __init__(self, num_classes: int, label_smoothing: float = 0.0):
        if not 0 <= label_smoothing < 1:
            raise ValueError(f"label_smoothing must be from 0 to below 1, got {label_smoothing}")
        self.num_classes, self.label_smoothing = num_classes, label_smoothing

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
            average: "probability" or "logit": what is averaged over the views.
        """
        scores = metrics.softmax(logits) if average == "probability" else logits
        records, scores = metrics.average_views(scores, index, view, num_views=num_views)
        labels = dict(zip(index.tolist(), targets.tolist()))
        labels = np.array([labels[record] for record in records.tolist()], np.int64)
        return {
            "top1": metrics.top_k_accuracy(scores, labels, 1),
            "top5": metrics.top_k_accuracy(scores, labels, 5),
            "mean_class_accuracy": metrics.mean_class_accuracy(scores, labels),
        }

    def predict(self, logits: np.ndarray, average: str) -> np.ndarray:
        """Returns the class probabilities of one video, float64 [num_classes], from the logits of its views [V, C]."""
        if average == "probability":
            return metrics.softmax(logits).mean(axis=0)
        return metrics.softmax(logits.astype(np.float64).mean(axis=0))


TASKS = {"classification": Classification}
