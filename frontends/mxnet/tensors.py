"""NumPy views of MXNet's arrays, without copies, and MXNet's arrays for results.

MXNet's engine computes in the background. A view is valid once the engine has finished with the array: `as_array` waits
for that, and raises the error of a computation that has failed. Arrays of `mx.nd` and of `mx.np` are both accepted; a
result has the kind of its tensor.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from collectives.arrays import named_dtype
from frontends.horovod import Library
from frontends.mxnet.library import mx

_MX_BFLOAT16: Final = np.dtype([("bfloat16", np.uint16)])
"""MXNet's own dtype for bfloat16."""


class _Memory:
    """The memory of an array, which it keeps alive, for NumPy's array interface."""

    def __init__(self, tensor: Any, address: int, dtype: np.dtype[Any]) -> None:
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "shape": tensor.shape,
            "typestr": dtype.str,
            "data": (address, False),
        }


def as_array(tensor: Any, name: str = "tensor", *, write: bool = False) -> Any:
    """Return an array that shares the tensor's memory, when the engine has computed the tensor.

    write   the array will be written to: wait also for computations that read the tensor

    Gradients are not tracked through it. Raises TypeError unless the tensor is a dense array of MXNet on the CPU;
    MXNetError if its computation has failed.
    """
    if not isinstance(tensor, mx.nd.NDArray):
        raise TypeError(f"{name}: must be an NDArray of MXNet, not {type(tensor).__name__}")
    if tensor.stype != "default":
        raise TypeError(f"{name}: must be dense, not {tensor.stype}; tensor.tostype('default') makes it so")
    if not tensor.context.device_type.startswith("cpu"):
        raise TypeError(f"{name}: is on {tensor.context}; must be on the CPU: tensor.as_in_context(mx.cpu())")
    dtype = dtype_of(tensor)
    if not tensor.size:
        return np.empty(tensor.shape, dtype)
    base = mx.base
    base.check_call((base._LIB.MXNDArrayWaitToWrite if write else base._LIB.MXNDArrayWaitToRead)(tensor.handle))
    address = ctypes.c_void_p()
    base.check_call(base._LIB.MXNDArrayGetData(tensor.handle, ctypes.byref(address)))
    assert address.value is not None  # there are elements
    if dtype.name == "bfloat16":
        return np.asarray(_Memory(tensor, address.value, np.dtype(np.uint16))).view(dtype)
    return np.asarray(_Memory(tensor, address.value, dtype))


def dtype_of(tensor: Any) -> np.dtype[Any]:
    """Return the NumPy dtype of a tensor's elements."""
    dtype: np.dtype[Any] = np.dtype(tensor.dtype)
    return named_dtype("bfloat16") if dtype == _MX_BFLOAT16 else dtype


def empty(shape: Sequence[int], dtype: np.dtype[Any], like: Any) -> Any:
    """Return an array of MXNet's with undefined elements, of the kind and on the device of `like`."""
    made = mx.nd.empty(tuple(shape), ctx=like.context, dtype=_MX_BFLOAT16 if dtype.name == "bfloat16" else dtype)
    return made.as_np_ndarray() if isinstance(like, mx.np.ndarray) else made


def _empty_like(tensor: Any, name: str) -> Any:
    if not isinstance(tensor, mx.nd.NDArray):
        raise TypeError(f"{name}: must be an NDArray of MXNet, not {type(tensor).__name__}")
    return empty(tensor.shape, dtype_of(tensor), tensor)


def as_tensor(array: Any, like: Any) -> Any:
    """Return a copy of an array as an array of MXNet, of the kind and on the device of `like`."""
    made = empty(array.shape, array.dtype, like)
    np.copyto(as_array(made, write=True), array)
    return made


LIBRARY: Final = Library(as_array, functools.partial(as_array, write=True), as_tensor, _empty_like)
"""Horovod's operations on MXNet's arrays. Each begins when the engine has computed its tensors."""
