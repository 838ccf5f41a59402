"""Narrations of Ego4D from the pickles they are handed on in, as CSV; nothing of a pickle is executed."""

from __future__ import annotations

import csv
import json
import math
import numbers
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paddlevideo_fast.data.egocentric_lists import EGO4D_COLUMNS
from paddlevideo_fast.data.records import AnnotationError
from paddlevideo_fast.pickles import UnsafePickleError, load_arrays


def convert_narrations(source: str | os.PathLike, output_dir: str | os.PathLike) -> tuple[Path, int]:
    """Writes a pickled list of (video, start, end, narration or narrations, ...) as ``<name>.csv``.

    Args:
        source: The pickle, such as LaViLa's ``ego4d_train.pkl``.
        output_dir: Folder to write to, created if need be.

    Returns:
        The file written, format ``ego4d``, and its rows.

    Raises:
        UnsafePickleError: The pickle asks for anything but plain values.
        AnnotationError: It is no such list; names the item.
        ValueError: It is damaged.
    """
    source = Path(source)
    try:
        items = load_arrays(source)
    except UnsafePickleError as error:
        if "pandas" in str(error):
            raise UnsafePickleError(f"{error}; EPIC-Kitchens publishes the same list as CSV: take that") from None
        raise
    if not isinstance(items, (list, tuple)) or not items:
        raise AnnotationError(f"{source} is not a list of (video, start, end, narration), but {type(items).__name__}")
    target = Path(output_dir) / f"{source.stem}.csv"
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(target.name + ".unfinished")
    with open(unfinished, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(EGO4D_COLUMNS)
        writer.writerows(_rows(source, items))
    os.replace(unfinished, target)
    return target, len(items)


def _rows(source: Path, items: Any) -> Iterator[list[str]]:
    for number, item in enumerate(items):
        if not isinstance(item, (list, tuple)) or len(item) < 4 or not isinstance(item[0], str):
            raise AnnotationError(f"{source}: item {number} is not (video, start, end, narration): {str(item)[:80]}")
        video, start, end, narration = item[:4]
        if not all(isinstance(second, numbers.Real) and math.isfinite(second) for second in (start, end)):
            raise AnnotationError(f"{source}: item {number}: start and end must be seconds, got {start!r} and {end!r}")
        texts = [narration] if isinstance(narration, str) else narration
        if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
            raise AnnotationError(f"{source}: item {number}: narration must be text or texts, got {narration!r:.80}")
        plain = len(texts) == 1 and not texts[0].startswith("[")
        cell = texts[0] if plain else json.dumps(list(texts), ensure_ascii=False)
        yield [video, repr(float(start)), repr(float(end)), cell]
