"""Arrays of GPU libraries in memory that the host can read too, such as managed and page-locked memory."""

from __future__ import annotations

import ctypes
import math
import os
import sys
import warnings
from typing import Any, Final

_FOREIGN: Final = ">" if sys.byteorder == "little" else "<"


def read(interface: Any) -> tuple[int, int, str, bool, bool]:
    """Address, number of bytes, type string, and whether it is native and read-only, of a CUDA array interface.

    Raises TypeError, KeyError or ValueError for a bad one, BufferError for memory that is not contiguous.
    """
    if not isinstance(interface, dict):
        raise TypeError(f"__cuda_array_interface__: a {type(interface).__name__}; must be a dictionary")
    address, readonly = interface["data"]
    typestr, shape = interface["typestr"], interface["shape"]
    if not isinstance(typestr, str):
        raise TypeError(f"__cuda_array_interface__: typestr {typestr!r}; must be a string")
    if interface.get("mask") is not None:
        raise BufferError("__cuda_array_interface__: an array with a mask")
    order, itemsize = typestr[:1], int(typestr[2:])
    if order not in ("<", ">", "|", "="):
        raise BufferError(f"__cuda_array_interface__: typestr {typestr!r} has an unknown byte order")
    _check_description(interface.get("descr"), typestr)
    lengths = [int(n) for n in tuple(shape)]
    if any(n < 0 for n in lengths):
        raise BufferError(f"__cuda_array_interface__: shape {tuple(shape)}")
    strides = interface.get("strides")
    if strides is not None:
        _check_contiguous(lengths, [int(n) for n in tuple(strides)], itemsize)
    nbytes = math.prod(lengths) * itemsize
    return int(address or 0), nbytes, typestr[1:], order != _FOREIGN, bool(readonly)


def _check_description(description: Any, typestr: str) -> None:
    if description is None:
        return
    if not isinstance(description, list):
        raise TypeError(f"__cuda_array_interface__: descr {description!r}; must be a list")
    if description != [("", typestr)]:
        warnings.warn("__cuda_array_interface__: descr is not used", RuntimeWarning, stacklevel=6)


def _check_contiguous(shape: list[int], strides: list[int], itemsize: int) -> None:
    if math.prod(shape) <= 1:
        return
    for dimensions in (range(len(shape) - 1, -1, -1), range(len(shape))):
        expected, fits = itemsize, True
        for i in dimensions:
            if shape[i] != 1:
                fits = fits and strides[i] == expected
                expected *= shape[i]
        if fits:
            return
    raise BufferError(f"__cuda_array_interface__: shape {shape} and strides {strides}: not contiguous")


def is_readable(address: int, nbytes: int) -> bool:
    """True if the host can read the first and the last of these bytes."""
    reading, writing = os.pipe()
    try:
        for at in (address, address + nbytes - 1):
            try:
                os.write(writing, (ctypes.c_ubyte * 1).from_address(at))  # the kernel reads it, and refuses
            except OSError:
                return False
        return True
    finally:
        os.close(reading)
        os.close(writing)
