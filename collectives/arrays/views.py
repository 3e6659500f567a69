"""Flat, contiguous NumPy views of the caller's arrays, and the checks of every array argument.

Views share the caller's memory. Only an array that is not C-contiguous is copied.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.libraries import check_sign, maker_of, no_memory

Array = NDArray[Any]


def as_numpy(x: Any, name: str = "x", *, records: bool = False) -> Array:
    """Return a NumPy array that shares the memory of `x`.

    x      a NumPy array or scalar, a Python number, or a CPU array that supports DLPack or the array interface
    name   the argument's name, for errors
    records   allow every dtype, for a caller that checks it

    Raises TypeError for any other object, for a masked array, for a negated view of a tensor, and for a dtype that
    cannot be communicated; ValueError for a tensor whose memory was freed.
    """
    if type(x) is np.ndarray:
        array = x
    elif isinstance(x, np.ndarray):
        if isinstance(x, np.ma.MaskedArray):
            instead = "a plain array" if name == "out" else f"{name}.filled(value)"
            raise TypeError(f"{name}: is a masked array, and masks are not communicated; pass {instead}")
        array = x
    elif isinstance(x, (np.generic, bool, int, float, complex)):
        array = np.asarray(x)
    elif hasattr(x, "__dlpack__"):
        check_sign(x, name)
        try:
            array = np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"{name}: NumPy cannot view this {type_name(x)}: {error}") from error
        if array.size and array.flags.owndata:  # NumPy makes memory of its own where it is given none
            raise ValueError(f"{name}: {no_memory(array.size)}")
    elif hasattr(x, "__array_interface__"):
        array = np.asarray(x)
    else:
        hint = "; pass numpy.asarray(...) of it, or use the *_object functions" if isinstance(x, (list, tuple)) else ""
        raise TypeError(f"{name}={shorten(x)}: must be an array or a number, not {type_name(x)}{hint}")
    if not records:
        check_dtype(array.dtype, name)
    return array


def can_be_sent(dtype: np.dtype[Any]) -> bool:
    """Return True if `dtype` is bool or a number (bfloat16 included), in any byte order."""
    return dtype.kind in "biufc" or (dtype.kind == "V" and dtype.names is None and dtype.isbuiltin == 2)


def check_dtype(dtype: np.dtype[Any], name: str) -> None:
    """Raise TypeError unless `dtype` is bool or a number (bfloat16 included) in native byte order."""
    if not can_be_sent(dtype):
        hint = "; use the *_object functions for Python objects" if dtype.kind == "O" else ""
        raise TypeError(f"{name}: dtype {dtype} cannot be communicated; it must be bool, a number or bfloat16{hint}")
    if not dtype.isnative:
        raise TypeError(
            f"{name}: dtype {dtype!r} is not in native byte order; convert it with x.astype(x.dtype.newbyteorder('='))"
        )


def flat(array: Array) -> Array:
    """Return the elements in C order as a one-dimensional array: a view if `array` is C-contiguous, else a copy."""
    return np.ascontiguousarray(array).reshape(-1)


def as_bytes(array: Array) -> memoryview:
    """Return the bytes of a flat, contiguous array. Works also for dtypes without a buffer format, such as bfloat16."""
    return array.view(np.uint8).data


def as_view(array: Array) -> memoryview:
    """Return the bytes of a contiguous array, as `as_bytes` does. It takes a quarter of the time where Python knows the
    format of NumPy's buffer."""
    try:
        return array.data.cast("B")
    except (TypeError, ValueError, BufferError):
        return as_bytes(array.reshape(-1))


@cache
def casts(dtype: np.dtype[Any]) -> bool:
    """Return True if `array.data.cast("B")` works for non-empty arrays of this dtype. It takes a quarter of the time of
    `as_bytes`."""
    try:
        np.empty(1, dtype).data.cast("B")
    except (TypeError, ValueError):
        return False
    return True


class Target:
    """The destination of a result: the caller's `out`, or a new array.

    given   True if the caller passed `out`
    flat    contiguous one-dimensional array to write the result into; shares memory with the destination if possible
    """

    __slots__ = ("_like", "_out", "_shaped", "flat", "given")

    def __init__(
        self, out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], like: Any = None, name: str = "out"
    ) -> None:
        """Use `out`, or make an array of `shape` and `dtype` that `finish` converts to the library of `like`.

        Raises TypeError or ValueError, naming the argument, if `out` has another dtype or shape, or is read-only.
        """
        self._out = out
        self._like = like
        if out is None:
            self._shaped = np.empty(shape, dtype)
        else:
            self._shaped = as_numpy(out, name, records=True)  # its dtype must be that of the result
            if isinstance(out, (np.generic, bool, int, float, complex)):
                raise TypeError(f"{name}={shorten(out)}: must be an array, not {type_name(out)}")
            if self._shaped.dtype != dtype:
                raise TypeError(f"{name}: has dtype {self._shaped.dtype}, must have {dtype}")
            if self._shaped.shape != shape:
                raise ValueError(f"{name}: has shape {self._shaped.shape}, must have {shape}")
            if not self._shaped.flags.writeable:
                raise ValueError(f"{name}: is read-only")
        self.given = out is not None
        self.flat = flat(self._shaped)

    def apart(self, source: Array) -> Array:
        """A flat `source`, copied if it overlaps the caller's `out`."""
        return source.copy() if self.given and np.may_share_memory(source, self.flat) else source

    def finish(self) -> Any:
        """Return the result: `out`, with the elements copied back if it is not contiguous, or the new array."""
        if self.given:
            if not self._shaped.flags.c_contiguous:
                np.copyto(self._shaped, self.flat.reshape(self._shaped.shape))
            return self._out
        return like(self._shaped, self._like)


def like(result: Array, original: Any) -> Any:
    """Convert `result` to the array type of `original`: a NumPy array, a NumPy scalar for numbers, else by DLPack."""
    if original is None or isinstance(original, np.ndarray):
        return result
    if isinstance(original, (np.generic, bool, int, float, complex)):
        return result[()] if result.ndim == 0 else result
    convert = maker_of(original)
    return result if convert is None else convert(result)


def type_name(x: Any) -> str:
    """Return the full name of an object's type, such as 'numpy.ndarray' or 'list'."""
    kind = type(x)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def shorten(x: Any) -> str:
    """Return repr(x), cut to 60 characters for error messages."""
    text = repr(x)
    return text if len(text) <= 60 else text[:57] + "..."
