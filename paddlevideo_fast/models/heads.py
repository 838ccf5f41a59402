"""Heads of the convolutional networks: feature maps in, logits out; their parameters are `fc.weight` and `fc.bias`."""

from __future__ import annotations

from collections.abc import Sequence

import paddle
from paddle import nn
from paddle.nn import functional as F

from paddlevideo_fast.models.layers import check_choice, check_dropout, check_positive


def _classifier(in_channels: int, num_classes: int, dropout: float, std: float) -> tuple[nn.Dropout, nn.Linear]:
    """Return what drops features and what classifies them: normal weights of a standard deviation, bias 0."""
    check_positive(num_classes=num_classes)
    check_dropout(dropout)
    linear = nn.Linear(in_channels, num_classes)
    nn.initializer.Normal(0.0, std)(linear.weight)
    nn.initializer.Constant(0.0)(linear.bias)
    return nn.Dropout(dropout), linear


class SegmentHead(nn.Layer):
    """Classify every frame by itself and average the logits over the frames of a clip.

    Args:
        in_channels: Channels of the feature map.
        num_classes: Number of logits.
        dropout: Probability of dropping a pooled feature in training.
        std: Standard deviation that the weight starts with; the bias starts at 0.

    Raises:
        ValueError: If an argument is out of range.

    Source: Wang et al., "Temporal Segment Networks", arXiv 1608.00859 (consensus by averaging); initialisation as
    mit-han-lab's `ops/models.py`. Heads that average the features of the frames, after dropout, and classify once
    (PaddleVideo's ppTSM) are the same function, since the classifier is linear.
    """

    def __init__(self, in_channels: int, num_classes: int, dropout: float, std: float = 0.001) -> None:
        super().__init__()
        self.dropout, self.fc = _classifier(in_channels, num_classes, dropout, std)

    def forward(self, features: paddle.Tensor, num_frames: int) -> paddle.Tensor:
        """Return logits [N, num_classes] of features [N * num_frames, C, h, w]."""
        pooled = features.mean(axis=[2, 3])  # [N * T, C]
        logits = self.fc(self.dropout(pooled))
        return logits.reshape([-1, num_frames, logits.shape[-1]]).mean(axis=1)


HEADS = ("adaptive", "convolutional", "convolutional_sigmoid")


class PathwayHead(nn.Layer):
    """Pool each pathway, join them, classify.

    "adaptive" pools whole feature maps. "convolutional" does so in training; in evaluation it pools with the kernel
    of the training crop at stride 1, classifies every position by itself and averages the positions' probabilities.
    It then returns logits (float32) of these averages, so that what evaluation takes of them gives PySlowFast's
    averaged probabilities. On the training crop both heads give the same probabilities. "convolutional" is for labels
    that exclude one another: probabilities are a softmax. "convolutional_sigmoid" is for labels that do not.

    Args:
        in_channels: Channels of each pathway.
        num_classes: Number of logits.
        dropout: Probability of dropping a pooled feature in training.
        head: A name of `HEADS`.
        lengths: For a convolutional head: temporal length of each pathway's feature map at the training clip.
        crop_size: For a convolutional head: side of the training crop in pixels.

    Raises:
        ValueError: If an argument is out of range.

    Source: PySlowFast's `head_helper.py`, ResNetBasicHead; initialisation as its `weight_init_helper.py`: normal with
    standard deviation 0.01, bias 0.
    """

    def __init__(
        self,
        in_channels: Sequence[int],
        num_classes: int,
        *,
        dropout: float,
        head: str,
        lengths: Sequence[int | None],
        crop_size: int,
    ) -> None:
        super().__init__()
        check_choice("head", head, HEADS)
        if crop_size < 32:
            raise ValueError(f"crop_size is {crop_size}; it must be at least 32 pixels, the network's stride")
        self.head, self.kernels = head, None
        if head != "adaptive":
            if None in lengths:
                raise ValueError(f"head={head!r} pools over the training clip's length: it needs num_frames")
            self.kernels = [[length, crop_size // 32, crop_size // 32] for length in lengths]
        self.dropout, self.fc = _classifier(sum(in_channels), num_classes, dropout, std=0.01)

    def forward(self, pathways: Sequence[paddle.Tensor]) -> paddle.Tensor:
        """Return logits [N, num_classes] of feature maps [N, C, T, h, w], one for each pathway.

        Raises:
            ValueError: If a feature map is smaller than the kernel of the convolutional head.
        """
        if self.kernels is None or self.training:
            pooled = paddle.concat([features.mean(axis=[2, 3, 4]) for features in pathways], axis=1)
            return self.fc(self.dropout(pooled))
        maps = [self._pool(features, self.kernels[pathway]) for pathway, features in enumerate(pathways)]
        positions = paddle.concat(maps, axis=1).flatten(2).transpose([0, 2, 1])  # [N, positions, C]
        scores = self.fc(positions).astype("float32")
        if self.head == "convolutional":
            return _log_mean(F.softmax(scores, axis=-1))
        return _log_mean(F.sigmoid(scores)) - _log_mean(F.sigmoid(-scores))  # log-odds

    def _pool(self, features: paddle.Tensor, kernel: list[int]) -> paddle.Tensor:
        size = list(features.shape[2:])
        if paddle.in_dynamic_mode() and any(size[axis] < kernel[axis] for axis in range(3)):
            raise ValueError(
                f"head={self.head!r} pools {kernel} positions (frames, height, width), the feature map has {size}: "
                f"give a crop of at least the training crop, or take head='adaptive'"
            )
        return F.avg_pool3d(features, kernel_size=kernel, stride=1)


def _log_mean(probabilities: paddle.Tensor) -> paddle.Tensor:
    """Return the logarithm of means [N, C] over positions [N, P, C]; that of an underflow to 0 stays finite."""
    return paddle.log(probabilities.mean(axis=1).clip(min=1e-30))
