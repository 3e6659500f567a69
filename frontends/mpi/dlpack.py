"""DLPack: the memory of arrays of other libraries, read from their capsules as the DLPack specification lays them out.

NumPy's own reader takes arrays of old exporters as read-only, so that nothing could be received into them.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any, Final

_HOST: Final = 1
_ON_STREAMS: Final = (2, 10, 13)
"""CUDA, ROCm, and CUDA's managed memory."""
_READ_ONLY: Final = 1
_NAMES: Final = (b"dltensor_versioned", b"dltensor")
_CODES: Final = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_is_valid: Final = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_pointer: Final = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def capsule_of(obj: Any) -> tuple[Any, bool]:
    """The capsule of an array, and True if it is in the host's memory. Raises TypeError or ValueError for a bad
    device."""
    device = obj.__dlpack_device__
    if not callable(device):
        raise TypeError(f"{type(obj).__name__}.__dlpack_device__: must be a method")
    kind, number = device()
    if not isinstance(kind, int) or not isinstance(number, int):
        raise TypeError(f"{type(obj).__name__}.__dlpack_device__: must return two ints")
    stream = -1 if kind in _ON_STREAMS else None  # the program has synchronized, as MPI asks for
    try:
        return obj.__dlpack__(stream=stream, max_version=(1, 0)), kind == _HOST
    except TypeError:  # an exporter that does not know versions
        return obj.__dlpack__(stream=stream), kind == _HOST


def read(capsule: Any) -> tuple[int, int, str, bool]:
    """Address, number of bytes, type string and read-only flag of a capsule's memory. Raises BufferError."""
    name = next((name for name in _NAMES if _is_valid(capsule, name)), None) if capsule is not None else None
    if name is None:
        raise BufferError("__dlpack__: must return a capsule that was not used")
    address = _pointer(capsule, name)
    readonly = False
    if name == _NAMES[0]:
        versioned = _Versioned.from_address(address)
        if versioned.major != 1:
            raise BufferError(f"__dlpack__: version {versioned.major} of DLPack; must be 1")
        tensor, readonly = versioned.tensor, bool(versioned.flags & _READ_ONLY)
    else:
        tensor = _Tensor.from_address(address)
    ndim = tensor.ndim
    if ndim < 0 or (ndim and not tensor.shape):
        raise BufferError(f"__dlpack__: an array of {ndim} dimensions without a shape")
    shape = [tensor.shape[i] for i in range(ndim)]
    if any(length < 0 for length in shape):
        raise BufferError(f"__dlpack__: shape {shape}")
    if ndim and tensor.strides:
        _check_contiguous(shape, [tensor.strides[i] for i in range(ndim)])
    itemsize = (tensor.bits * tensor.lanes + 7) // 8
    code = _CODES.get(tensor.code, "")
    if code == "f" and tensor.lanes == 2:  # a complex number too long for the field `bits`
        code = "c"
    elif tensor.lanes != 1:
        code = ""
    typestr = f"{code}{itemsize}" if code else ""
    return (tensor.data or 0) + tensor.byte_offset, math.prod(shape) * itemsize, typestr, readonly


def _check_contiguous(shape: list[int], strides: list[int]) -> None:
    """Raise BufferError for an array that is contiguous neither in C nor in Fortran order."""
    if math.prod(shape) <= 1:
        return
    for order in (range(len(shape) - 1, -1, -1), range(len(shape))):
        expected, fits = 1, True
        for i in order:
            if shape[i] != 1:
                fits = fits and strides[i] == expected
                expected *= shape[i]
        if fits:
            return
    raise BufferError(f"__dlpack__: an array of shape {shape} and strides {strides} is not contiguous")
