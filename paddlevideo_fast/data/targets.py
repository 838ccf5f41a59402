"""What a task wants to know of a record's label."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from paddlevideo_fast.data.annotations import VideoRecord


@dataclass(frozen=True)
class ClassTarget:
    """One class per clip; a record without a label has target -1.

    Attributes:
        flip_labels: Class -> class of the mirrored clip, for classes that name a side.
    """

    flip_labels: Mapping[int, int] = field(default_factory=dict)

    def __call__(self, record: VideoRecord, flipped: bool) -> np.ndarray:
        """Returns the class as an int64 scalar array."""
        label = -1 if record.label is None else record.label
        return np.array(self.flip_labels.get(label, label) if flipped else label, np.int64)
