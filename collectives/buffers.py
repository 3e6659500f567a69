"""Arrays of the caller's library <-> flat, contiguous NumPy arrays; and the checks that every array argument passes.

Zero-copy wherever the memory allows it: an array is copied only if it is not C-contiguous.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def as_numpy(x: Any, name: str = "x") -> Array:
    """A NumPy array that shares the memory of `x`.

    `x` may be a NumPy array or scalar, a Python number, or any array on the CPU that speaks DLPack or the array
    interface. Raises TypeError for anything else and for a dtype that cannot be communicated.
    """
    if isinstance(x, np.ndarray):
        array = x
    elif isinstance(x, (np.generic, bool, int, float, complex)):
        array = np.asarray(x)
    elif hasattr(x, "__dlpack__"):
        try:
            array = np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"{name}: a {type_name(x)} that NumPy cannot view: {error}") from error
    elif hasattr(x, "__array_interface__"):
        array = np.asarray(x)
    else:
        raise TypeError(f"{name}={shorten(x)}: must be an array or a number, not {type_name(x)}")
    check_dtype(array.dtype, name)
    return array


def check_dtype(dtype: np.dtype[Any], name: str) -> None:
    """Raises TypeError unless the dtype is a native-endian number or bool."""
    if dtype.kind not in "biufc" and not (dtype.kind == "V" and dtype.names is None and dtype.isbuiltin == 2):
        hint = "; use the *_object functions for Python objects" if dtype.kind == "O" else ""
        raise TypeError(f"{name}: dtype {dtype} cannot be communicated; it must be bool, a number or bfloat16{hint}")
    if not dtype.isnative:
        raise TypeError(
            f"{name}: dtype {dtype!r} is not in native byte order; convert it with x.astype(x.dtype.newbyteorder('='))"
        )


def flat(array: Array) -> Array:
    """The elements in C order as a one-dimensional array: a view if possible, else a copy."""
    return np.ascontiguousarray(array).reshape(-1)


def as_bytes(array: Array) -> memoryview:
    """The bytes of a flat, contiguous array (also where NumPy knows no buffer format for its dtype)."""
    return array.view(np.uint8).data


@cache
def casts(dtype: np.dtype[Any]) -> bool:
    """True if `array.data.cast("B")` does what `as_bytes` does, in a quarter of the time, if there are elements."""
    try:
        np.empty(1, dtype).data.cast("B")
    except (TypeError, ValueError):
        return False
    return True


class Target:
    """Where a result goes: the caller's `out`, or a new array.

    `flat` is a contiguous array to work in; `finish` gives the result in the caller's library.
    """

    __slots__ = ("_like", "_out", "_shaped", "flat", "given")

    def __init__(self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any = None) -> None:
        """Raises TypeError or ValueError, naming `out`, if it does not fit or cannot be written to."""
        self._out = out
        self._like = like
        if out is None:
            self._shaped = np.empty(shape, dtype)
        else:
            self._shaped = as_numpy(out, "out")
            if isinstance(out, (np.generic, bool, int, float, complex)):
                raise TypeError(f"out={shorten(out)}: must be an array, not {type_name(out)}")
            if self._shaped.dtype != dtype:
                raise TypeError(f"out: has dtype {self._shaped.dtype}, must have {dtype}")
            if self._shaped.shape != shape:
                raise ValueError(f"out: has shape {self._shaped.shape}, must have {shape}")
            if not self._shaped.flags.writeable:
                raise ValueError("out: is read-only")
        self.given = out is not None
        self.flat = flat(self._shaped)

    def finish(self) -> Any:
        """The result, written back if `out` was not contiguous."""
        if self.given:
            if not self._shaped.flags.c_contiguous:
                np.copyto(self._shaped, self.flat.reshape(self._shaped.shape))
            return self._out
        return like(self._shaped, self._like)


def like(result: Array, original: Any) -> Any:
    """`result` as the kind of array that `original` is: NumPy stays, numbers become NumPy scalars, others by DLPack."""
    if original is None or isinstance(original, np.ndarray):
        return result
    if isinstance(original, (np.generic, bool, int, float, complex)):
        return result[()] if result.ndim == 0 else result
    module = sys.modules.get(type(original).__module__.partition(".")[0])
    convert = getattr(module, "from_dlpack", None)
    return result if convert is None else convert(result)


def type_name(x: Any) -> str:
    """'numpy.ndarray', 'list'."""
    kind = type(x)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def shorten(x: Any) -> str:
    """repr(x), cut to a length that suits an error message."""
    text = repr(x)
    return text if len(text) <= 60 else text[:57] + "..."
