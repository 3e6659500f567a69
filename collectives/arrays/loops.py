"""NumPy's inner loops as C functions, so that compiled code combines arrays by the same instructions as NumPy does.

A ufunc has a table of loops, one for each combination of dtypes: void (char **, npy_intp *, npy_intp *, void *). The
beginning of a ufunc object is a part of NumPy's C interface (numpy/ufuncobject.h) that has not changed since NumPy 1.0.
What Python can see of it is compared before anything is trusted.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final, NamedTuple

import numpy as np


class Loop(NamedTuple):
    """The addresses of an inner loop and of its last argument."""

    function: int
    data: int


class _Ufunc(ctypes.Structure):
    """The fields of a ufunc object after its head."""

    _fields_ = (
        ("inputs", ctypes.c_int),
        ("outputs", ctypes.c_int),
        ("arguments", ctypes.c_int),
        ("identity", ctypes.c_int),
        ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)),
        ("types", ctypes.c_int),
    )


_HEAD: Final = object.__basicsize__


def inner_loop(ufunc: Any, dtype: np.dtype[Any]) -> Loop | None:
    """The loop of a ufunc of two operands for operands and result of one dtype; None if NumPy has none."""
    letter = dtype.char
    name = f"{letter}{letter}->{letter}"
    if name not in ufunc.types:
        return None
    found = _Ufunc.from_address(id(ufunc) + _HEAD)
    if (found.inputs, found.outputs, found.arguments, found.types) != (2, 1, 3, ufunc.ntypes):
        return None
    at = ufunc.types.index(name)
    function, data = found.functions[at], found.data[at] if found.data else None
    return None if function is None else Loop(function, data or 0)
