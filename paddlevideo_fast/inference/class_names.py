"""Class names of the config against those the weights were trained with."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path

from paddlevideo_fast.models.weights.checksum import facts_beside

logger = logging.getLogger("paddlevideo_fast")


def warn_of_other_names(weights: Path, names: Sequence[str] | None, names_file: str | None) -> None:
    """Warns where the class names are not those that stand beside the weights, with the first difference.

    Args:
        weights: File of weights; the JSON file of the same name says what its classes are called.
        names: Class names in use; None where there are none.
        names_file: Where they come from, for the warning.
    """
    trained = facts_beside(weights).get("class_names")
    if not names or not trained or list(names) == trained:
        return
    pairs = enumerate(itertools.zip_longest(names, trained))
    number, used, known = next((number, *pair) for number, pair in pairs if pair[0] != pair[1])
    logger.warning(
        "class names: %s %s, but %s, beside the weights, %s: names and labels may be those of other classes than the "
        "model learnt",
        names_file, _say(number, used), weights.with_suffix(".json").absolute(), _say(number, known),
    )  # fmt: skip


def _say(number: int, name: str | None) -> str:
    return f"has no class {number}" if name is None else f"calls class {number} {name!r}"
