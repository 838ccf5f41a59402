"""Classifying videos that have no label."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle

from paddlevideo_fast.config import Config, ConfigError, ReaderConfig
from paddlevideo_fast.data.readers import READERS
from paddlevideo_fast.data.readers.frames import IMAGE
from paddlevideo_fast.data.records import VIDEO_SUFFIXES, VideoRecord
from paddlevideo_fast.data.samplers import SampleKey
from paddlevideo_fast.data.video import VideoError
from paddlevideo_fast.engine.build import (
    build_augment,
    build_class_names,
    build_dataset,
    build_model,
    build_task,
    check_evaluation,
    count_classes,
    weights_file,
)
from paddlevideo_fast.engine.precision import Precision
from paddlevideo_fast.inference.class_names import warn_of_other_names
from paddlevideo_fast.models.weights.load import load_weights


class Predictor:
    """A trained model that reads and scores videos exactly as ``tools/test.py`` does.

    Args:
        config: Its ``data.test`` section, or else ``data.valid``, says how clips are cut.
        config_path: Where relative paths start from.
        weights: ``.pdparams`` or ``.pdstate`` file.
    """

    def __init__(self, config: Config, config_path: str | Path, weights: str | Path):
        weights = weights_file(weights, "weights")
        self.config = config = count_classes(config, config_path)
        self.phase = "test" if config.data.test is not None else "valid"
        self.section = getattr(config.data, self.phase)
        if self.section is None:
            text = "data.test (or data.valid) says how clips are cut: this key is required"
            raise ConfigError(f"{config.origin('data')}: {text}")
        self.class_names = build_class_names(config, config_path)
        warn_of_other_names(weights, self.class_names, config.data.class_names)
        self.task = build_task(config)
        self.model = build_model(config)
        load_weights(self.model, weights)
        check_evaluation(config, self.phase, self.model)
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
        if self.config.data.reader.name == "frames" and Path(path).is_file():
            raise VideoError(path, "is a file, but data.reader is 'frames': -o data.reader=pyav reads videos")
        config = _with_frames_reader(self.config) if Path(path).is_dir() else self.config
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


def _with_frames_reader(config: Config) -> Config:
    """Returns the config with the reader of folders; the arguments it shares with the config's reader stay."""
    given, known = config.data.reader, inspect.signature(READERS["frames"]).parameters
    kept = {argument: value for argument, value in given.arguments.items() if argument in known}
    reader = given if given.name == "frames" else ReaderConfig(name="frames", **kept)
    return config.model_copy(update={"data": config.data.model_copy(update={"reader": reader})})


def find_inputs(inputs: Sequence[str]) -> Iterator[str]:
    """Yields the videos among files and folders, a file as it is written.

    A folder stands for the files in it, at any depth, whose names end as those of videos do; where there are none,
    for the folders of numbered pictures in it. Each of these, or the folder itself, is a video of its own.
    """
    for name in inputs:
        files = [Path(folder, file) for folder, _, names in os.walk(name) for file in names]
        videos = sorted(file for file in files if file.suffix.lower() in VIDEO_SUFFIXES)
        folders = sorted({file.parent for file in files if IMAGE.match(file.name)})
        yield from map(str, videos or folders) if videos or folders else [name]
