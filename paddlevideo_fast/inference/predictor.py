"""Classifying videos that have no label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddlevideo_fast.config import Config, ConfigError
from paddlevideo_fast.data.records import VIDEO_SUFFIXES, VideoRecord
from paddlevideo_fast.data.samplers import SampleKey
from paddlevideo_fast.engine.build import (
    build_augment,
    build_class_names,
    build_dataset,
    build_model,
    build_task,
)
from paddlevideo_fast.engine.precision import Precision
from paddlevideo_fast.models.weights.load import load_weights


class Predictor:
    """A trained model that reads and scores videos exactly as ``tools/test.py`` does.

    Args:
        config: Its ``data.test`` section, or else ``data.valid``, says how clips are cut.
        config_path: Where relative paths start from.
        weights: ``.pdparams`` or ``.pdstate`` file.
    """

    def __init__(self, config: Config, config_path: str | Path, weights: str | Path):
        self.config = config
        self.phase = "test" if config.data.test is not None else "valid"
        self.section = getattr(config.data, self.phase)
        if self.section is None:
            raise ConfigError(f"{config_path}: data.test (or data.valid) says how clips are cut: this key is required")
        self.class_names = build_class_names(config, config_path)
        self.task = build_task(config)
        self.model = build_model(config)
        load_weights(self.model, weights)
        self.model.eval()
        self.forward = Precision(config.amp).wrap(self.model)
        self.augment = build_augment(config, self.phase)

    @paddle.no_grad()
    def scores(self, path: str | Path) -> np.ndarray:
        """Returns the class probabilities of one video, float64 [num_classes], averaged over the views.

        Args:
            path: A video file, or a folder of pictures.

        Raises:
            VideoError: The video cannot be read.
        """
        record = VideoRecord(source=str(path), label=None, origin="input")
        config = self.config
        if Path(path).is_dir():
            config = config.model_copy(update={"data": config.data.model_copy(update={"reader": "frames"})})
        dataset = build_dataset(config, self.phase, [record], self.task)
        crop = self.section.crop_size or self.config.data.crop_size
        num_views = self.section.num_clips * self.section.num_crops
        keys = [SampleKey(0, 0, self.config.data.num_frames, crop, view=view) for view in range(num_views)]
        clips = np.stack([sample["clip"] for sample in dataset.read(keys)])
        size = self.section.batch_size or self.config.data.batch_size
        logits = []
        for start in range(0, num_views, size):
            batch = self.augment({"clip": paddle.to_tensor(clips[start : start + size])})
            logits.append(self.task.evaluate(self.forward(*self.task.inputs(batch)), batch).numpy())
        return self.task.predict(np.concatenate(logits), self.section.average)

    def topk(self, path: str | Path, k: int) -> list[dict[str, Any]]:
        """Returns the ``k`` best classes of one video, best first: ``label``, ``name`` and ``score``, a probability."""
        scores = self.scores(path)
        best = np.argsort(-scores, kind="stable")[:k]
        return [
            {
                "label": int(label),
                "name": self.class_names[label] if self.class_names else None,
                "score": round(float(scores[label]), 6),
            }
            for label in best
        ]


def find_inputs(inputs: Sequence[str]) -> Iterator[str]:
    """Yields the videos among files and folders; a folder is searched for the usual endings, a file is taken as it is.

    A folder of pictures is a video of its own.
    """
    for name in inputs:
        path = Path(name)
        videos = sorted(p for p in path.rglob("*") if p.suffix.lower() in VIDEO_SUFFIXES) if path.is_dir() else []
        yield from map(str, videos or [path])
