"""Reading pickles without executing anything: arrays, text, numbers and plain containers only."""

from __future__ import annotations

import pickle
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
