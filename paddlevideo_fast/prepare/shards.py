"""Packs the videos of a list into tar files with an index: in parallel, resumable, read back before they count."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paddlevideo_fast.data.annotations import load_annotations, load_class_names
from paddlevideo_fast.data.chunks import PACKED
from paddlevideo_fast.data.readers import VideoError, build_reader
from paddlevideo_fast.data.records import VIDEO_SUFFIXES, AnnotationError
from paddlevideo_fast.data.shards import INDEX_NAME, Entry, index_shard, read_index, write_index
from paddlevideo_fast.data.video import describe_source
from paddlevideo_fast.prepare.check import inspect_all
from paddlevideo_fast.prepare.shard_items import Item, cut_into_runs, find_items

WORK_FOLDER, UNFINISHED = ".unfinished", ".unfinished"
SHARD_NAME = "shard-{:06d}.tar"
LONGEST_STEM = 60  # characters of a file name that the name of a member keeps; an old tar header holds 100 bytes


@dataclass(frozen=True)
class Options:
    """How videos are packed.

    Attributes:
        shard_size: Bytes a shard is filled up to; a larger video has a shard of its own.
        shuffle: Mix the videos before they are packed.
        seed: Of that order.
        decode: How closely videos are looked at before: "none", or as ``check_dataset`` does: "first", "sample", "all".

    Raises:
        ValueError: The size is below one byte.
    """

    shard_size: int = 256 * 10**6
    shuffle: bool = True
    seed: int = 0
    decode: str = "first"

    def __post_init__(self) -> None:
        if self.shard_size < 1:
            raise ValueError(f"the shard size must be at least 1 byte, got {self.shard_size}")


Shard = list[tuple[str, Item]]  # the key and the video of each sample


class Progress:
    """Lines on stderr with what is done and how long the rest will take."""

    def __init__(self, total: int, unit: str, scale: float = 1):
        self.total, self.unit, self.scale = total, unit, scale
        self.done, self.start = 0, time.monotonic()
        self.shown = self.start

    def add(self, amount: int) -> None:
        self.done += amount
        now = time.monotonic()
        if self.done < self.total and now - self.shown < 5:
            return
        self.shown = now
        left = (now - self.start) / max(self.done, 1) * (self.total - self.done)
        counts = f"{self.done / self.scale:.4g}/{self.total / self.scale:.4g} {self.unit}"
        print(f"{counts}, {left:.0f} s left", file=sys.stderr)


def make_shards(
    inputs: str,
    output: str,
    options: Options,
    root: str | None = None,
    format: str = "auto",
    classes: str | None = None,
    workers: int = 1,
    timeout: float = 60.0,
) -> int:
    """Packs videos into ``shard-000000.tar`` and so on, and writes the index ``shards.json``.

    Videos that cannot be read are named and left out. A run that was interrupted goes on where it stopped. Nothing is
    written where the videos lie.

    Args:
        inputs: A list or folder, as the training reads it.
        output: Folder to write to, created if need be.
        options: How they are packed.
        root: Folder that relative paths are joined to; None is that of the list.
        format: Of the list.
        classes: File of class names, for lists that name labels.
        workers: Child processes that look at videos, and threads that write shards.
        timeout: Seconds looking at a video may take.

    Returns:
        The number of records left out.

    Raises:
        AnnotationError: The list is wrong, or names folders of frames.
        ValueError: A number is out of range, or the folder holds other shards.
        OSError: The shards cannot be written.
    """
    if workers < 1 or not timeout > 0:
        raise ValueError(f"workers must be at least 1 and timeout above 0 s, got {workers} and {timeout}")
    class_names = load_class_names(classes) if classes else []
    label_map = {name: index for index, name in enumerate(class_names)} or None
    listed = load_annotations(inputs, format, root, len(class_names) or None, label_map, require_labels=False)
    records, bad = cut_into_runs(listed)
    items, faults = find_items(records)
    digest, folder = digest_of([asdict(options), *([*item.identity, item.rows] for item in items)]), Path(output)
    left_out = _left_out_before(folder, digest)
    if left_out is not None:
        print(f"{output}: packed already; {left_out} records left out", file=sys.stderr)
        return left_out
    work = folder / WORK_FOLDER
    work.mkdir(parents=True, exist_ok=True)
    (work / "plan").write_text(digest, encoding="utf-8")
    if options.decode != "none":
        faults |= check_items(items, options.decode, workers, timeout, work / "checked.jsonl")
    good = [item for item in items if item.source not in faults]
    if good:
        shards, lost = write_shards(folder, plan_shards(good, options), workers)
        faults |= lost
    bad += [(record, faults[record.source]) for record in records if record.source in faults]
    for record, reason in bad:
        print(f"BAD {record.origin} {describe_source(record.source)}: {reason}", file=sys.stderr)
    if len(bad) == len(listed):
        raise AnnotationError(f"{inputs}: not one of its {len(listed)} records can be read; nothing is packed")
    names = {shard["name"] for shard in shards}
    for path in folder.glob(SHARD_NAME.format(0).replace("000000", "*")):
        if path.name not in names:  # of an interrupted run to which fewer videos looked bad
            path.unlink()
    write_index(folder / INDEX_NAME, shards, plan=digest, left_out=len(bad))
    shutil.rmtree(work)
    videos, size = sum(len(shard["members"]) for shard in shards), sum(shard["size"] for shard in shards)
    counts = f"{videos} videos in {len(shards)} shards, {size / 1e6:.1f} MB in {output}"
    print(f"{counts}; {len(bad)} records left out", file=sys.stderr)
    return len(bad)


def digest_of(value: Any) -> str:
    """Returns a short digest of something JSON can hold."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _left_out_before(folder: Path, digest: str) -> int | None:
    """Returns how many records an earlier run that came to its end left out; None if there is something to do.

    Raises:
        ValueError: The folder holds shards of other videos or options.
    """
    index, plan = folder / INDEX_NAME, folder / WORK_FOLDER / "plan"
    if index.is_file():
        shards, facts = read_index(index), json.loads(index.read_text(encoding="utf-8"))
        paths = [folder / shard["name"] for shard in shards]
        whole = all(path.is_file() and path.stat().st_size == shard["size"] for path, shard in zip(paths, shards))
        if facts.get("plan") == digest and whole:
            return facts["left_out"]
        what = "shards of another list, or made with other options" if whole else "shards that are damaged"
        raise ValueError(f"{folder} holds {what}: remove it or choose another folder")
    found = plan.read_text(encoding="utf-8") if plan.is_file() else None
    if found not in (None, digest):
        raise ValueError(
            f"{folder} holds the beginnings of shards of another list, of videos that were changed since, or made with "
            "other options: remove it or choose another folder"
        )
    if found is None and any(folder.glob("*.tar")):
        raise ValueError(f"{folder} holds tar files already: choose another folder")
    return None


def check_items(items: Sequence[Item], decode: str, workers: int, timeout: float, known: Path) -> dict[Any, str]:
    """Looks at videos and returns why some are bad, by their source; what an earlier run saw is kept in ``known``."""
    seen: dict[str, str | None] = {}
    if known.is_file():
        for line in known.read_text(encoding="utf-8").split("\n")[:-1]:  # what follows the last line end was cut off
            identity, reason = json.loads(line)
            seen[json.dumps(identity)] = reason
    names = {file: json.dumps([describe_source(file), *item.identity[1:]]) for item in items for file in item.files}
    reasons = {file: seen.get(name) for file, name in names.items()}
    new = [file for file, name in names.items() if name not in seen]
    progress, reader = Progress(len(new), "videos looked at"), build_reader("pyav")
    with open(known, "a", encoding="utf-8") as kept:
        for file, fact in inspect_all(new, lambda source: reader, decode, workers, timeout):
            reasons[file] = fact.reason
            kept.write(json.dumps([json.loads(names[file]), fact.reason]) + "\n")
            kept.flush()
            progress.add(1)
    faults = {}
    for item in items:
        bad = next((file for file in item.files if reasons[file] is not None), None)
        if bad is not None:
            faults[item.source] = reasons[bad] if bad == item.source else f"{bad}: {reasons[bad]}"
    return faults


def plan_shards(items: Sequence[Item], options: Options) -> list[Shard]:
    """Deals videos to shards, in order or in one drawn from the seed."""
    order = np.random.default_rng(options.seed).permutation(len(items)) if options.shuffle else range(len(items))
    shards: list[Shard] = []
    room = 0
    for number, index in enumerate(order):
        item = items[index]
        if not shards or item.size > room:
            shards.append([])
            room = options.shard_size
        room -= item.size
        shards[-1].append((_key(number, item), item))
    return shards


def _key(number: int, item: Item) -> str:
    """Returns the key of a sample: no two are alike, and it has no dot, which would end it."""
    name = os.path.basename(item.file_name)
    stem = os.path.splitext(name.removesuffix(PACKED))[0]
    stem = re.sub(r"^\d{7}-", "", stem)  # the number of a shard that is packed anew
    return f"{number:07d}-{re.sub(r'[^A-Za-z0-9_-]+', '_', stem)[:LONGEST_STEM]}"


def _suffix(name: str) -> str:
    if name.endswith(PACKED):
        return PACKED
    suffix = os.path.splitext(name)[1].lower()
    return suffix if suffix in VIDEO_SUFFIXES else ".mp4"


def write_shards(folder: Path, shards: Sequence[Shard], workers: int) -> tuple[list[Entry], dict[Any, str]]:
    """Writes the shards that are not there yet.

    Returns:
        Their entries in the index, and why some videos were lost on the way, by their source.

    Raises:
        OSError: There is no room, or writing fails.
    """
    work, done, todo, lost = folder / WORK_FOLDER, {}, {}, {}
    for number, shard in enumerate(shards):
        name = SHARD_NAME.format(number)
        digest = digest_of([[key, *item.identity] for key, item in shard])
        kept = work / f"{name}.json"
        entry = json.loads(kept.read_text(encoding="utf-8")) if kept.is_file() else {}
        if entry.get("digest") == digest and (folder / name).is_file():
            done[name] = entry["shard"]
        else:
            todo[name] = shard, digest
    needed = sum(item.size for shard, _ in todo.values() for _, item in shard)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(f"{folder}: {needed / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free")
    progress = Progress(needed, "MB packed", 1e6)
    with ThreadPoolExecutor(workers) as pool:
        futures = {pool.submit(write_shard, folder / name, todo[name][0]): name for name in todo}
        try:
            for future in as_completed(futures):
                name = futures[future]
                done[name], missing = future.result()
                if missing:
                    lost |= missing  # should this run be interrupted, the next one tries again
                else:
                    _write_json(work / f"{name}.json", {"digest": todo[name][1], "shard": done[name]})
                progress.add(sum(item.size for _, item in todo[name][0]))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [done[name] for name in sorted(done) if done[name]["members"]], lost


def _write_json(path: Path, value: Any) -> None:
    unfinished = path.with_name(path.name + UNFINISHED)
    unfinished.write_text(json.dumps(value), encoding="utf-8")
    os.replace(unfinished, path)


def write_shard(path: Path, shard: Shard) -> tuple[Entry, dict[Any, str]]:
    """Writes one shard and reads it back; it appears under its name only when it is whole.

    Returns:
        Its entry in the index, and why some videos are not in it, by their source.

    Raises:
        OSError: What is read back is not what was written.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    members, lost = [], {}
    try:
        with open(unfinished, "wb") as file:
            for key, item in shard:
                try:
                    data = item.read()
                except (OSError, VideoError) as error:
                    lost[item.source] = getattr(error, "reason", None) or str(error)
                    continue
                name = key + _suffix(item.file_name)
                offset = _put(file, name, data)
                text = json.dumps(item.rows[0] if len(item.rows) == 1 else {"rows": item.rows})
                _put(file, f"{key}.json", text.encode())
                entry = {"name": name, "offset": offset, "size": len(data), "crc32": zlib.crc32(data)}
                members.append({**entry, "rows": item.rows})
            file.write(bytes(2 * tarfile.BLOCKSIZE))
            file.flush()
            os.fsync(file.fileno())
        checksum = _read_back(unfinished, members)
        entry = {"name": path.name, "size": unfinished.stat().st_size, "sha256": checksum, "members": members}
        if members:
            os.replace(unfinished, path)
        return entry, lost
    finally:
        unfinished.unlink(missing_ok=True)


def _put(file: Any, name: str, data: bytes) -> int:
    """Appends a file to a tar file; returns where its bytes begin."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    file.write(info.tobuf(tarfile.PAX_FORMAT))
    offset = file.tell()
    file.write(data)
    file.write(bytes(-len(data) % tarfile.BLOCKSIZE))
    return offset


def _read_back(path: Path, members: Sequence[Entry]) -> str:
    """Returns the SHA-256 of a shard on the disk after comparing all that is in it with what was to be written."""
    checksum, place = hashlib.sha256(), 0
    found = [{**member, "crc32": 0} for member in index_shard(path)["members"]]
    with open(path, "rb") as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # from the disk, not from memory
        for member in found:
            checksum.update(file.read(member["offset"] - place))
            data = file.read(member["size"])
            member["crc32"], place = zlib.crc32(data), member["offset"] + len(data)
            checksum.update(data)
        checksum.update(file.read())
    if found != list(members):
        raise OSError(f"{path}: what is read back is not what was written; the disk or the mount is at fault")
    return checksum.hexdigest()
