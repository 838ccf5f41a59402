"""Reading other toolkits' weight files to NumPy: PyTorch's formats without PyTorch, and no pickle is executed.

Half precision becomes float32; every other dtype stays as it is.
"""

from __future__ import annotations

import json
import logging
import math
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from paddlevideo_fast.models.weights.load import WeightsError
from paddlevideo_fast.pickles import Inert, load_inert

logger = logging.getLogger("paddlevideo_fast")

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # torch/serialization.py
PADDLE_NAMES = "StructuredToParameterName@@"
BFLOAT16 = "bfloat16"
TORCH_STORAGES = {
    "DoubleStorage": "<f8",
    "FloatStorage": "<f4",
    "HalfStorage": "<f2",
    "BFloat16Storage": BFLOAT16,
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
    "ComplexFloatStorage": "<c8",
    "ComplexDoubleStorage": "<c16",
}
SAFETENSORS_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": BFLOAT16,
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}


@dataclass(frozen=True)
class Span:
    """Bytes of a file, and their CRC-32 where it is known."""

    path: Path
    offset: int
    length: int
    crc: int | None = None

    def __post_init__(self) -> None:
        if min(self.offset, self.length) < 0 or self.offset + self.length > self.path.stat().st_size:
            raise WeightsError("cut short: it ends before its last array does")

    @cached_property
    def data(self) -> np.ndarray:
        """The bytes, read once."""
        data = np.fromfile(self.path, np.uint8, self.length, offset=self.offset)
        if self.crc is not None and zlib.crc32(data) != self.crc:
            raise WeightsError(f"damaged: the checksum of the {self.length} bytes at {self.offset} is another")
        return data


@dataclass(frozen=True)
class StoredTensor:
    """A tensor whose values are still on disk.

    Attributes:
        spans: The file's storages by key, complete once the file has been read.
        key: Which one the values are in.
        dtype: NumPy's name of the dtype, or "bfloat16"; something else where it is unknown.
        offset: First element.
        size, stride: In elements.
    """

    spans: Mapping[str, Span]
    key: str
    dtype: Any
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def read(self) -> np.ndarray:
        """Returns the values; raises WeightsError if they are not all there, or of an unknown dtype."""
        stored = _stored_dtype(self.dtype)
        if self.key not in self.spans:
            raise WeightsError(f"cut short: storage {self.key} is not there")
        data = self.spans[self.key].data
        values = data[: len(data) // stored.itemsize * stored.itemsize].view(stored)
        self._check_within(len(values))
        if 0 in self.size:
            array = np.empty(self.size, stored)
        else:
            strides = [step * stored.itemsize for step in self.stride]
            array = np.lib.stride_tricks.as_strided(values[self.offset :], self.size, strides, writeable=False)
        if self.dtype == BFLOAT16:
            return (array.astype("<u4") << 16).view("<f4")
        return array.astype("<f4") if stored == np.float16 else array

    def _check_within(self, length: int) -> None:
        """NumPy would read whatever lies in memory outside the storage."""
        regular = len(self.size) == len(self.stride) and min((self.offset, *self.size, *self.stride)) >= 0
        last = self.offset + sum((count - 1) * step for count, step in zip(self.size, self.stride))
        if not regular or (0 not in self.size and last >= length):
            raise WeightsError(f"its values lie outside storage {self.key}, which has {length}")


def read_state(path: str | Path, keys: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Reads the weights of a file of any known format.

    Args:
        path: The file.
        keys: See :func:`select`.

    Raises:
        WeightsError: It is missing, damaged, in another format, or holds no weights; the message names it.
    """
    path = Path(path)
    try:
        return select(read_contents(path), keys)
    except OSError as error:
        raise WeightsError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # WeightsError is one
        raise WeightsError(f"{path}: {error}") from None
    except RecursionError:
        raise WeightsError(f"{path}: damaged: a module holds itself") from None


def read_contents(path: Path) -> Any:
    """Reads a file whose tensors are left on disk as :class:`StoredTensor`.

    PyTorch's zip and legacy formats, TorchScript archives, safetensors, and pickles of NumPy arrays such as Paddle's
    and Caffe2's are told apart by what they begin with.

    Raises:
        ValueError: It is damaged, or in another format.
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        start = file.read(40)
        file.seek(0)
        if start.startswith(b"PK"):
            return _read_zip(path)
        if start[8:9] == b"{":
            return _read_safetensors(path, file)
        try:
            first = load_inert(file)
        except ValueError as error:
            raise WeightsError(f"{error}{_text_hint(start)}") from None
        return _read_legacy(path, file) if isinstance(first, int) and first == LEGACY_MAGIC else first


def _text_hint(start: bytes) -> str:
    """Says what a file most likely is that begins with text."""
    text = start.decode("latin1")
    if not text or not all(32 <= ord(character) < 127 or character in "\t\r\n" for character in text):
        return ""
    return f"; it begins with the text {text!r}: a web page, an index or a pointer of Git LFS in place of the weights?"


def select(contents: Any, keys: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Returns the state dict in what a file holds.

    Args:
        contents: From :func:`read_contents`.
        keys: Names it may be under, in this order; where there is none of them, it is the whole.

    Raises:
        WeightsError: Some value is not an array; the message names it and says what the file holds.
    """
    found = _found(contents, keys)
    if isinstance(found, Inert) and found.origin.startswith("__torch__"):
        found = dict(_script_tensors(found))
    if not isinstance(found, Mapping) or not found:
        advice = "; of a whole model, save state_dict() where it was made" if isinstance(found, Inert) else ""
        raise WeightsError(f"expected a mapping of names to arrays, found {_describe(found)}{advice}")
    state = {}
    for key, value in found.items():
        if key == PADDLE_NAMES:
            continue
        try:
            state[str(key)] = _array(value)
        except WeightsError as error:
            names = list(contents) if isinstance(contents, Mapping) else []
            holds = f"; it holds {', '.join(map(str, names[:8]))}{', ...' if len(names) > 8 else ''}" if names else ""
            if isinstance(value, Mapping) and keys:
                holds += f"; weights are looked for under {' and '.join(keys)}: save them so, or alone"
            raise WeightsError(f"{key}: {error}{holds if found is contents else ''}") from None
    return state


def _found(contents: Any, keys: Sequence[str]) -> Any:
    """Returns what is under the first of the keys, or the whole; says what else could have been meant."""
    if not isinstance(contents, Mapping):
        return contents
    taken = next((key for key in keys if isinstance(contents.get(key), (Mapping, Inert))), None)
    if taken is None:
        return contents
    rivals = [repr(key) for key in contents if key != taken and (key in keys or "ema" in str(key).split("_"))]
    if rivals:
        logger.warning("the weights under %r are taken, not those under %s", taken, " or ".join(rivals))
    return contents[taken]


def _array(value: Any) -> np.ndarray:
    if isinstance(value, StoredTensor):
        return value.read()
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], np.ndarray):
        value = value[1]  # Paddle's tensor: its name and its values
    if isinstance(value, (np.ndarray, np.number, int, float)) and np.asarray(value).dtype != object:
        array = np.asarray(value)
        return array.astype(np.float32) if array.dtype == np.float16 else array
    raise WeightsError(f"expected an array, found {_describe(value)}")


def _describe(value: Any) -> str:
    if isinstance(value, Inert):
        return f"an object of {value.origin}, which was not made"
    if isinstance(value, StoredTensor):
        return "one tensor"
    return "nothing" if isinstance(value, Mapping) and not value else type(value).__name__


def _script_tensors(module: Inert, prefix: str = "") -> Iterator[tuple[str, StoredTensor]]:
    """Goes through the attributes of a TorchScript module and of the modules in it."""
    for name, value in (module.state if isinstance(module.state, Mapping) else {}).items():
        if isinstance(value, StoredTensor):
            yield prefix + name, value
        elif isinstance(value, Inert):
            yield from _script_tensors(value, f"{prefix}{name}.")


def _load_torch(file: BinaryIO, spans: Mapping[str, Span]) -> tuple[Any, dict[str, Any]]:
    """Reads a pickle of PyTorch's, whose tensors refer to storages. Returns: what it holds, dtypes of the storages."""
    kinds: dict[str, Any] = {}

    def tensor(storage: tuple, offset: int, size: Sequence[int], stride: Sequence[int], *_: Any) -> StoredTensor:
        key, dtype, start = storage
        return StoredTensor(spans, key, dtype, start + int(offset), tuple(map(int, size)), tuple(map(int, stride)))

    def parameter(data: Any, *_: Any) -> Any:
        return data

    def of_subclass(rebuild: Any, kind: Any, arguments: tuple, state: Any) -> Any:
        return rebuild(*arguments) if rebuild in (tensor, parameter) else kind

    def storage(identifier: tuple) -> Any:
        if identifier[0] == "module":  # a class, and in old files its source code
            return identifier[1]
        _, kind, key, _, _, *view = identifier  # "storage", class, key, device, elements, in old files a view of it
        kinds[key] = kind
        return key, kind, int(view[0][1]) if view and view[0] else 0

    names = {
        "torch._utils._rebuild_tensor": tensor,
        "torch._utils._rebuild_tensor_v2": tensor,
        "torch._utils._rebuild_parameter": parameter,
        "torch._utils._rebuild_parameter_with_state": parameter,
        "torch._tensor._rebuild_from_type_v2": of_subclass,
        "torch.Size": tuple,
        **{f"torch.{name}": dtype for name, dtype in TORCH_STORAGES.items()},
    }
    return load_inert(file, names, storage), kinds


def _read_zip(path: Path) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = {entry.filename: entry for entry in archive.infolist()}
            pickles = [name for name in entries if name.rpartition("/")[2] == "data.pkl"]
            if len(pickles) != 1:
                raise WeightsError("a zip file, but not one of PyTorch's: it has no data.pkl")
            folder = pickles[0].removesuffix("data.pkl")
            order = entries.get(f"{folder}byteorder")
            if order and archive.read(order) != b"little":
                raise WeightsError("its numbers are big-endian; save it on another machine")
            spans = {
                name.removeprefix(f"{folder}data/"): _member(path, entry)
                for name, entry in entries.items()
                if name.startswith(f"{folder}data/")
            }
            with archive.open(pickles[0]) as file:
                return _load_torch(file, spans)[0]
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise WeightsError(f"a zip file that is damaged or cut short ({error})") from None


def _member(path: Path, entry: zipfile.ZipInfo) -> Span:
    """Finds the bytes of an uncompressed member, behind its local header of 30 bytes, a name and an extra field."""
    if entry.compress_type != zipfile.ZIP_STORED:
        raise WeightsError(f"{entry.filename} is compressed, which PyTorch never does")
    header = Span(path, entry.header_offset, 30).data
    name, extra = (int(length) for length in header[26:].view("<u2"))
    return Span(path, entry.header_offset + 30 + name + extra, entry.file_size, entry.CRC)


def _read_legacy(path: Path, file: BinaryIO) -> Any:
    """Reads PyTorch's format before 1.6, behind the magic number: version, system, contents, keys, storages."""
    load_inert(file)
    system = load_inert(file)
    if isinstance(system, Mapping) and system.get("little_endian") is False:
        raise WeightsError("its numbers are big-endian; save it on another machine")
    spans: dict[str, Span] = {}
    contents, kinds = _load_torch(file, spans)
    keys = load_inert(file)
    for key in keys if isinstance(keys, list) else ():
        elements = int(Span(path, file.tell(), 8).data.view("<i8")[0])
        file.seek(8, 1)
        spans[key] = Span(path, file.tell(), elements * _stored_dtype(kinds.get(key)).itemsize)
        file.seek(spans[key].length, 1)
    return contents


def _read_safetensors(path: Path, file: BinaryIO) -> dict[str, StoredTensor]:
    length = int.from_bytes(file.read(8), "little")
    begin = 8 + length
    try:
        header = json.loads(Span(path, 8, length).data.tobytes())
    except ValueError as error:
        raise WeightsError(f"a safetensors file whose header is damaged ({error})") from None
    spans, contents = {}, {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            size = tuple(map(int, entry["shape"]))
            first, last = entry["data_offsets"]
            spans[name] = Span(path, begin + first, last - first)
            kind = SAFETENSORS_DTYPES.get(entry["dtype"], entry["dtype"])
        except (KeyError, TypeError) as error:
            raise WeightsError(f"a safetensors file whose header is damaged at {name} ({error!r})") from None
        stride = tuple(math.prod(size[axis + 1 :]) for axis in range(len(size)))
        contents[name] = StoredTensor(spans, name, kind, 0, size, stride)
    return contents


def _stored_dtype(kind: Any) -> np.dtype:
    if not isinstance(kind, str) or kind not in (*TORCH_STORAGES.values(), *SAFETENSORS_DTYPES.values()):
        raise WeightsError(f"numbers of the unknown kind {getattr(kind, 'origin', kind)}")
    return np.dtype("<u2" if kind == BFLOAT16 else kind)
