"""A list of made clips in which every record is a file of its own, as in a real data set, and what reads it.

annotations = write_list(Path("scratch"), num_records=64)
dataset = make_dataset(load_annotations(annotations))
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from reader_clips import make_clips

from paddlevideo_fast.data.crops import RandomResizedCrop
from paddlevideo_fast.data.dataset import ClipDataset
from paddlevideo_fast.data.plan import ClipRecipe
from paddlevideo_fast.data.readers import Reader, build_reader
from paddlevideo_fast.data.records import VideoRecord
from paddlevideo_fast.data.samplers import TrainSampler
from paddlevideo_fast.data.sampling import SegmentSampling

VIDEOS = 4  # of different content, copied in turn
FRAMES, SIZE = 8, 224


def write_list(folder: Path, num_records: int, kind: str = "340x256") -> Path:
    """Copies made clips into a folder, one for each record, and returns the list of them."""
    videos = make_clips(kind, VIDEOS)
    rows = []
    for number in range(num_records):
        name = f"{number:04d}.mp4"
        shutil.copyfile(videos[number % VIDEOS], folder / name)
        rows.append(f"{name} {number % 2}\n")
    annotations = folder / "list.txt"
    annotations.write_text("".join(rows))
    return annotations


def make_dataset(records: Sequence[VideoRecord], reader: Reader | None = None) -> ClipDataset:
    """Returns training clips of eight segments, a random box scaled to 224; read by the fused reader unless told."""
    recipe = ClipRecipe(SegmentSampling(), RandomResizedCrop(), train=True, flip=0.5)
    return ClipDataset(records, recipe, reader or build_reader("fused"), lambda record, _: np.int64(record.label))


def make_sampler(num_records: int, batch_size: int, **options) -> TrainSampler:
    """Returns the batches of such clips."""
    return TrainSampler(num_records, batch_size, FRAMES, SIZE, **options)
