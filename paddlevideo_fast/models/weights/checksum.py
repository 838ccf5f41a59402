"""Checksums of weights and training states, so that a damaged file is recognised before it is used."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any, BinaryIO

logger = logging.getLogger("paddlevideo_fast")

_MAGIC = b"pvf-state-sha256"
_CHUNK = 1 << 20


class ChecksumError(ValueError):
    """A file is not as it was written; the message names it."""


class HashingFile:
    """Passes writes on and hashes them on the way."""

    def __init__(self, file: BinaryIO):
        self._file, self._hash = file, hashlib.sha256()

    def write(self, data) -> int:
        self._hash.update(data)
        return self._file.write(data)

    def trailer(self) -> bytes:
        """What a file ends with that :func:`check_trailer` is to recognise."""
        return _MAGIC + self._hash.digest()


def check_trailer(path: Path) -> None:
    """Compares a training state with the checksum at its end.

    Raises:
        ChecksumError: They differ.
    """
    length = len(_MAGIC) + hashlib.sha256().digest_size
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size - length
        if size < 0 or _MAGIC + _digest(file, size).digest() != file.read():
            raise ChecksumError(f"{path}: damaged: its checksum does not match its contents")


def describe(data: memoryview) -> dict[str, Any]:
    """Returns what :func:`check_beside` compares: bytes and SHA-256 of a weights file."""
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def check_beside(path: Path) -> None:
    """Compares weights with the checksum in the JSON file of the same name; where there is none, all is well.

    Raises:
        ChecksumError: They differ; the message says what to do.
    """
    beside, facts = path.with_suffix(".json"), facts_beside(path)
    if beside.exists() and not facts:
        logger.warning("%s: not JSON; the weights beside it are not checked", beside)
    expected = facts.get("weights")
    if not isinstance(expected, dict) or not path.exists():
        return
    size = path.stat().st_size
    found = f"it has {size} bytes instead of {expected.get('bytes')}"
    if size == expected.get("bytes"):
        with open(path, "rb") as file:
            if _digest(file, size).hexdigest() == expected.get("sha256"):
                return
        found = "its SHA-256 is another"
    raise ChecksumError(
        f"{path}: not the file that {beside.name} describes: {found}. It is damaged, or of another save: take it from "
        f"a copy, or, if it is as you want it, delete {beside}"
    )


def facts_beside(path: Path) -> dict[str, Any]:
    """Returns what the JSON file of the same name says of weights; nothing where there is none, or another kind."""
    try:
        facts = json.loads(path.with_suffix(".json").read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _digest(file: BinaryIO, remaining: int):
    digest = hashlib.sha256()
    while remaining > 0 and (chunk := file.read(min(_CHUNK, remaining))):
        digest.update(chunk)
        remaining -= len(chunk)
    return digest
