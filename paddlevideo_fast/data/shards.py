"""Videos inside plain tar files ("shards"), as the webdataset package reads and writes them.

A sample is the files of one key, which is a file name up to its first dot: ``0007-archery.mp4`` and
``0007-archery.json`` with the fields of its record, or ``0007-archery.cls`` with a class id. An index, ``shards.json``,
says where in the tar files the videos lie, so that a shard is opened without a search.
"""

from __future__ import annotations

import json
import logging
import os
import tarfile
import uuid
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import NoneType
from typing import Any

from paddlevideo_fast.data.chunks import PACKED
from paddlevideo_fast.data.records import VIDEO_SUFFIXES, AnnotationError, Label, Listing, VideoRecord, read_text
from paddlevideo_fast.data.video import NamedBytes, ShardMember, VideoError

INDEX_NAME = "shards.json"
INDEX_FORMAT = 1
FIELDS = ("label", "start", "end", "num_frames", "text")  # of a record, as they stand in an index and in a .json
MAX_TEXT = 2**24  # bytes of a file of fields; a larger one is passed over
HEADER_READERS = 8  # threads that read headers, which on a remote mount is waiting

logger = logging.getLogger("paddlevideo_fast")

Entry = dict[str, Any]


def is_shards(path: Path) -> bool:
    """Returns whether a path is an index of shards, or a folder that holds one or tar files."""
    if not path.is_dir():
        return path.name == INDEX_NAME
    if (path / INDEX_NAME).is_file():
        return True
    return bool(_tar_files(path)) and not any(entry.is_dir() for entry in path.iterdir())  # else a folder of classes


def _tar_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.tar") if path.is_file())


def read_shards(listing: Listing) -> Iterator[VideoRecord]:
    """The records of a folder of shards, or of its index, in the order of shards and of videos in them.

    A shard that is missing or changed is named in a warning; its records are for the readers to refuse.
    """
    folder = listing.path if listing.path.is_dir() else listing.path.parent
    index = folder / INDEX_NAME if listing.path.is_dir() else listing.path
    shards = read_index(index) if index.is_file() else []
    if not shards or any(shard["sha256"] is None for shard in shards):
        shards = _index_anew(Path(listing.root), index, {shard["name"]: shard for shard in shards})
    _warn_of_changes(listing.root, shards)
    for shard in shards:
        path = os.path.join(listing.root, shard["name"])
        for member in shard["members"]:
            source = ShardMember(path, member["name"], member["offset"], member["size"], member.get("crc32"))
            origin = f"{shard['name']}:{member['name']}"
            for row in member["rows"] if isinstance(member["rows"], list) else [member["rows"]]:
                if not _is_row(row):
                    listing.complain(f"{origin}: {str(row)[:200]} does not hold the fields of a record")
                    continue
                label = _to_label(row.get("label"), listing, origin)
                if label is None and listing.require_labels:
                    listing.complain(f"{origin}: no label, which a .json (label) or .cls file beside it would give")
                    continue
                text = tuple(row.get("text") or ())
                yield VideoRecord(source, label, row.get("start"), row.get("end"), row.get("num_frames"), text, origin)


def _is_row(row: Any) -> bool:
    """Returns whether the fields of a row are of the kinds that those of a record are."""
    if not isinstance(row, dict):
        return False
    numbers = all(isinstance(row.get(name), (int, float, NoneType)) for name in ("start", "end"))
    text = row.get("text") or []
    texts = isinstance(text, list) and all(isinstance(part, str) for part in text)
    return numbers and texts and isinstance(row.get("num_frames"), (int, NoneType)) and _is_label(row.get("label"))


def _is_label(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(part, int) for part in value.values())
    if isinstance(value, list):
        parts = [part if isinstance(part, list) else [part] for part in value]
        return all(isinstance(number, int) for part in parts for number in part)
    return isinstance(value, (int, str, NoneType))


def _to_label(value: Any, listing: Listing, origin: str) -> Label:
    """Returns a label as records hold it of one as JSON does."""
    if isinstance(value, str):
        return listing.class_id(value, origin)
    if isinstance(value, list):
        return tuple(tuple(part) if isinstance(part, list) else part for part in value)
    return value


def read_index(path: Path) -> list[Entry]:
    """Reads an index of shards.

    Returns:
        For each shard ``name``, ``size`` in bytes, ``sha256`` (None where the headers alone were read) and ``members``,
        each of them ``name``, ``offset``, ``size``, ``crc32`` where it is known, and ``rows``: the fields of its
        records.

    Raises:
        AnnotationError: It is no index, or one of a later version.
    """
    try:
        content = json.loads(read_text(path))
        found, shards = content["format"], content["shards"]
        members = [member for shard in shards for member in shard["members"]]
        complete = all(shard.keys() >= {"name", "size", "sha256"} for shard in shards)
        complete &= all(member.keys() >= {"name", "offset", "size", "rows"} for member in members)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, AnnotationError):
            raise
        raise AnnotationError(f"{path} is not an index of shards ({type(error).__name__}: {error})") from None
    if found != INDEX_FORMAT or not complete:
        raise AnnotationError(f"{path} is not an index of format {INDEX_FORMAT} (format: {found!r}); remove it")
    return shards


def write_index(path: Path, shards: Sequence[Entry], **facts: Any) -> None:
    """Writes an index as ``read_index`` reads it, and facts about it; it appears whole or not at all."""
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.unfinished")  # several ranks may write the same
    text = ",\n".join(json.dumps(shard, ensure_ascii=False) for shard in shards)
    try:
        head = json.dumps({"format": INDEX_FORMAT, **facts}, ensure_ascii=False)[:-1]
        unfinished.write_text(f'{head}, "shards": [\n{text}\n]}}\n', encoding="utf-8")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _index_anew(folder: Path, index: Path, known: dict[str, Entry]) -> list[Entry]:
    """Reads the headers of the shards that an index made from headers lacks, and keeps the result beside them."""
    paths = _tar_files(folder)
    if not paths:
        raise AnnotationError(f"{folder} holds no tar files; expected {folder}/NAME.tar or {folder}/{INDEX_NAME}")
    new = [path for path in paths if known.get(path.name, {}).get("size") != path.stat().st_size]
    if not new and len(paths) == len(known):
        return list(known.values())
    logger.info("%s: reading the headers of %d shards that are not in an index", folder, len(new))
    with ThreadPoolExecutor(HEADER_READERS) as pool:
        known = {**known, **{path.name: shard for path, shard in zip(new, pool.map(index_shard, new))}}
    shards = [known[path.name] for path in paths]
    try:
        write_index(index, shards)
    except OSError as error:
        logger.warning("%s: the index is not kept (%s); it is made anew each time", index, error.strerror)
    return shards


def index_shard(path: Path) -> Entry:
    """Returns the entry of a shard from the headers in it; what comes after damage is left out, with a warning."""
    samples: dict[str, Entry] = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for info in archive:
                key, _, kind = os.path.basename(info.name).partition(".")
                if info.isreg() and key:
                    key = os.path.join(os.path.dirname(info.name), key)
                    _note_file(samples.setdefault(key, {"row": {}}), archive, info, kind.lower())
    except (tarfile.TarError, OSError) as error:
        logger.warning("%s: the shard is damaged or cut off (%s); %d samples before that", path, error, len(samples))
    members = []
    for sample in samples.values():
        if "name" in sample:
            row = sample.pop("row")
            members.append({**sample, "rows": row.pop("rows", None) or [row]})
    if len(members) < len(samples):
        logger.warning("%s: %d samples have no video", path, len(samples) - len(members))
    return {"name": path.name, "size": path.stat().st_size, "sha256": None, "members": members}


def _note_file(sample: Entry, archive: tarfile.TarFile, info: tarfile.TarInfo, kind: str) -> None:
    if (f".{kind}" in VIDEO_SUFFIXES or f".{kind}" == PACKED) and "name" not in sample:
        sample.update(name=info.name, offset=info.offset_data, size=info.size)
    elif kind in ("json", "cls", "txt") and info.size <= MAX_TEXT:
        text = archive.extractfile(info).read().decode("utf-8", "replace").strip()
        sample["row"].update(_fields_of(kind, text))


def _fields_of(kind: str, text: str) -> Entry:
    """Returns the fields of a record that a file beside the video gives; none where it cannot be read."""
    if kind == "txt":
        return {"text": [text]}
    if kind == "cls":
        return {"label": int(text) if text.lstrip("-").isdigit() else text}
    try:
        content = json.loads(text)
    except ValueError:
        return {}
    if isinstance(content, int):
        return {"label": content}
    if not isinstance(content, dict):
        return {}
    fields = {name: content[name] for name in (*FIELDS, "rows") if name in content}
    if isinstance(fields.get("text"), str):
        fields["text"] = [fields["text"]]
    return {"label": content["cls"], **fields} if "cls" in content else fields


def _warn_of_changes(root: str, shards: Sequence[Entry]) -> None:
    changed = []
    for shard in shards:
        path = os.path.join(root, shard["name"])
        size = os.path.getsize(path) if os.path.exists(path) else None
        if size != shard["size"]:
            what = "is missing" if size is None else f"has {size} bytes"
            changed.append(f"{path} {what}, {shard['size']} bytes are expected")
    if changed:
        logger.warning(
            "%d of %d shards are not as their index says; what is missing in them will not be read. The first: %s",
            len(changed), len(shards), changed[0],
        )  # fmt: skip


def shard_numbers(records: Sequence[VideoRecord]) -> list[int] | None:
    """Returns the number of the shard each record lies in, counted from 0; None unless all lie in shards."""
    if not all(isinstance(record.source, ShardMember) for record in records):
        return None
    numbers: dict[str, int] = {}
    return [numbers.setdefault(record.source.path, len(numbers)) for record in records]


def read_member(member: ShardMember) -> NamedBytes:
    """Reads one video out of its shard.

    Raises:
        VideoError: The shard is missing, cut off or corrupted; the message names shard and member.
    """
    try:
        with open(member.path, "rb") as shard:
            shard.seek(member.offset)
            data = shard.read(member.size)
    except OSError as error:
        raise VideoError(member, f"the shard cannot be read: {error.strerror}") from error
    return checked_member(member, data, member.offset + len(data))


def checked_member(member: ShardMember, data: bytes | memoryview, end: int) -> NamedBytes:
    """Returns the bytes of a member, named after it, if they are those that were written.

    Args:
        member: Says what is expected.
        data: What was found at its place.
        end: Where the shard, or what could be read of it, ends.

    Raises:
        VideoError: Bytes are missing or others.
    """
    if len(data) < member.size:
        stop = member.offset + member.size
        raise VideoError(member, f"the shard is cut off: it ends at byte {end}, this member at {stop}")
    if member.crc32 is not None and zlib.crc32(data) != member.crc32:
        found = f"CRC-32 {zlib.crc32(data):08x}, written were {member.crc32:08x}"
        raise VideoError(member, f"the shard is corrupted or another one: its bytes have {found}")
    named = NamedBytes(data)
    named.name = f"{member.path}:{member.name}"
    return named
