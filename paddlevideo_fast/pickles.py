"""Reading pickles without executing anything: arrays, text, numbers, plain containers; else refused or inert."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO


class UnsafePickleError(ValueError):
    """A file asks for something that is neither an array nor a plain container."""


_NUMPY_MODULES = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("collections", "OrderedDict"),
    ("builtins", "tuple"),
    ("__builtin__", "tuple"),
    ("_codecs", "encode"),
    *((module, name) for module in _NUMPY_MODULES for name in ("_reconstruct", "scalar", "_frombuffer")),
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            name = f"{module}.{name}"
            raise UnsafePickleError(f"asks for {name}, which weights and lists do not need; it was not executed")
        return super().find_class(module, name)


def load_arrays(source: str | Path | BinaryIO) -> Any:
    """Reads a pickle of NumPy arrays, numbers, strings and plain containers, such as ``paddle.save`` writes.

    Raises:
        UnsafePickleError: The file asks for any other object; nothing of it has been executed.
        ValueError: The file is no pickle, or is cut short.
    """
    if isinstance(source, (str, Path)):
        with open(source, "rb") as file:
            try:
                return load_arrays(file)
            except UnsafePickleError as error:
                raise UnsafePickleError(f"{source}: {error}") from None
            except ValueError as error:
                raise ValueError(f"{source}: {error}") from None
    try:
        return _ArrayUnpickler(source, encoding="latin1").load()
    except UnsafePickleError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(f"not a file of pickled arrays, or damaged ({type(error).__name__}: {error})") from error


class Inert:
    """Stands in for an object of a class or function that is not admitted: holds what it was given, runs nothing.

    Attributes:
        origin: Module and name of what the pickle asked for.
        arguments: What it would have been called with.
        state: What would have become its attributes, or None.
        items: What would have been put into it, were it a container.
    """

    origin = ""

    def __new__(cls, *arguments: Any, **keywords: Any) -> Inert:
        inert = super().__new__(cls)
        inert.arguments, inert.state, inert.items = (*arguments, *keywords.values()), None, []
        return inert

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def append(self, value: Any) -> None:
        self.items.append(value)

    add = append


class _InertUnpickler(pickle.Unpickler):
    def __init__(self, source: BinaryIO, names: Mapping[str, Any], load_storage: Callable[[Any], Any] | None):
        super().__init__(source, encoding="latin1")
        self._names, self._load_storage = names, load_storage

    def find_class(self, module: str, name: str) -> Any:
        origin = f"{module}.{name}"
        if origin in self._names:
            return self._names[origin]
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        return type("Inert", (Inert,), {"origin": origin})

    def persistent_load(self, identifier: Any) -> Any:
        if self._load_storage is None:
            raise ValueError("refers to something outside the pickle")
        return self._load_storage(identifier)


def load_inert(
    source: BinaryIO, names: Mapping[str, Any] | None = None, load_storage: Callable[[Any], Any] | None = None
) -> Any:
    """Reads a pickle of another program: arrays and plain containers as they are, all else as :class:`Inert`.

    Args:
        source: Open file; reading stops behind the pickle.
        names: What stands for which dotted name, beside what :func:`load_arrays` admits. Make new objects for every
            call: a pickle can set attributes of what it has named.
        load_storage: Called with what a persistent identifier refers to.

    Raises:
        ValueError: The file is no pickle, or is cut short.
    """
    try:
        return _InertUnpickler(source, names or {}, load_storage).load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(f"not a pickle, or damaged ({type(error).__name__}: {error})") from error
