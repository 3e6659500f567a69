"""What `op=` means: which operations exist, for which dtypes, and the kernel that combines two pieces.

A kernel is `kernel(a, b, out)`: out = a op b on flat arrays of one dtype, operand order kept, out may be a or b.
Half-precision kernels compute in float32 and round once (IEEE 754 round to nearest, ties to even).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from collectives.halves import add_bfloat16, add_float16

Array = NDArray[Any]
Kernel = Callable[[Array, Array, Array], object]

BFLOAT16: Final = np.dtype(ml_dtypes.bfloat16)
FLOAT16: Final = np.dtype(np.float16)
FLOAT32: Final = np.dtype(np.float32)
FLOAT64: Final = np.dtype(np.float64)

UFUNCS: Final[dict[str, Any]] = {
    "sum": np.add,
    "average": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
}
ADASUM: Final = "adasum"
"""Of floats, by allreduce only; see adasum.py. It has no kernel, since what it does depends on whole tensors."""
OPS: Final = (*UFUNCS, ADASUM)
LOGICAL: Final = frozenset({"land", "lor", "lxor"})
_BITWISE: Final = frozenset({"band", "bor", "bxor"})
_ARITHMETIC: Final = frozenset({"sum", "average", "prod"})
_ORDERING: Final = frozenset({"min", "max"})

_BLOCK = 8192  # elements: two float32 blocks stay in a 64 KiB first-level cache


def is_small_float(dtype: np.dtype[Any]) -> bool:
    """True for float16, bfloat16 and the 8-bit floats of ml_dtypes: dtypes that are combined in float32."""
    return dtype == FLOAT16 or (dtype.kind not in "biufc" and dtype.itemsize <= 2)


def allowed_ops(dtype: np.dtype[Any]) -> frozenset[str]:
    """The operations with a kernel that a dtype allows."""
    if dtype.kind == "b":
        return _ORDERING | _BITWISE | LOGICAL
    if dtype.kind in "iu":
        return frozenset(UFUNCS)
    if dtype.kind == "c":
        return _ARITHMETIC
    return _ARITHMETIC | _ORDERING


def check_op(op: str, dtype: np.dtype[Any]) -> None:
    """Raises ValueError for an unknown operation, TypeError for one that the dtype does not allow."""
    if op not in OPS:
        raise ValueError(f"op={op!r}: must be one of {', '.join(OPS)}")
    if op == ADASUM:
        if dtype.kind != "f" and not is_small_float(dtype):
            raise TypeError(f"op={op!r}: not defined for {dtype}; it is for floats")
        return
    allowed = allowed_ops(dtype)
    if op not in allowed:
        names = ", ".join(name for name in OPS if name in allowed)
        raise TypeError(f"op={op!r}: not defined for {dtype}; it allows {names}")


@cache
def kernel(op: str, dtype: np.dtype[Any]) -> Kernel:
    """The kernel for an operation that `check_op` has accepted."""
    ufunc = UFUNCS[op]
    if ufunc is np.add and dtype in (FLOAT16, BFLOAT16):
        return add_float16 if dtype == FLOAT16 else add_bfloat16
    if ufunc is np.multiply and dtype.kind == "c":
        return _multiply_complex
    if not is_small_float(dtype) or dtype == FLOAT16:
        # NumPy's own float16 loops already compute in float32 and round once
        if op in _ORDERING:  # whose `out` is no longer taken by position
            return lambda a, b, out: ufunc(a, b, out=out)
        combine: Kernel = ufunc
        return combine
    return _through_float32(ufunc)


def one_element(combine: Kernel, dtype: np.dtype[Any]) -> Kernel:
    """A kernel for arrays of one element, whose bits do not depend on whether `out` is `a` or `b`.

    NumPy takes one element in place for a step of a reduction, and then perhaps the other one of two NaNs comes out: on
    one of two ranks that combine the same, but not in the same memory.
    """
    work = np.empty(1, dtype)

    def kernel_of_one(a: Array, b: Array, out: Array) -> None:
        combine(a, b, work)
        out[...] = work

    return kernel_of_one


def _multiply_complex(a: Array, b: Array, out: Array) -> None:
    """The product by four real ones, each rounded. In NumPy's own it depends on the processor, and on whether `out` is
    `a`, if a product and a sum are rounded together."""
    for start in range(0, len(out), _BLOCK):
        x, y = a[start : start + _BLOCK], b[start : start + _BLOCK]
        real = x.real * y.real - x.imag * y.imag
        imaginary = x.real * y.imag + x.imag * y.real
        piece = out[start : start + _BLOCK]
        piece.real, piece.imag = real, imaginary


def _through_float32(ufunc: Any) -> Kernel:
    def combine(a: Array, b: Array, out: Array) -> None:
        left, right = np.empty((2, min(_BLOCK, len(out))), np.float32)
        for start in range(0, len(out), _BLOCK):
            piece = slice(start, start + _BLOCK)
            count = len(out[piece])
            np.copyto(left[:count], a[piece])
            np.copyto(right[:count], b[piece])
            ufunc(left[:count], right[:count], out=left[:count])
            np.copyto(out[piece], left[:count], casting="unsafe")

    return combine


def scale(array: Array, factor: float, out: Array) -> None:
    """out = array * factor, flat arrays of one dtype; `out` may be `array`.

    The factor is first rounded to the dtype, except that small floats are scaled in float32 and integers in float64
    (truncated toward zero), as Horovod defines it. Raises TypeError for bool.
    """
    dtype = array.dtype
    if dtype.kind == "b":
        raise TypeError("prescale and postscale are not defined for bool")
    if is_small_float(dtype):
        _through(np.multiply, array, factor, out, FLOAT32)
    elif dtype.kind in "iu":
        _through(np.multiply, array, factor, out, FLOAT64)
    else:
        np.multiply(array, dtype.type(factor), out)


def _through(ufunc: Any, array: Array, number: float, out: Array, wide: np.dtype[Any]) -> None:
    """out = ufunc(array, number), computed in `wide`."""
    work = np.empty(min(_BLOCK, len(out)), wide)
    for start in range(0, len(out), _BLOCK):
        piece = slice(start, start + _BLOCK)
        part = work[: len(out[piece])]
        np.copyto(part, array[piece])
        ufunc(part, wide.type(number), part)
        np.copyto(out[piece], part, casting="unsafe")


def divide(array: Array, size: int, out: Array) -> None:
    """out = array / size, flat arrays of one dtype; `out` may be `array`. The last step of `op="average"`.

    Small floats are divided in float32, integers in float64 and truncated toward zero.
    """
    dtype = array.dtype
    if not size & (size - 1) and dtype.kind == "f":  # the same bits, and quicker
        np.multiply(array, dtype.type(1 / size), out)
        return
    if is_small_float(dtype):
        _through(np.divide, array, size, out, FLOAT32)
    elif dtype.kind in "biu":
        _through(np.divide, array, size, out, FLOAT64)
    else:
        np.divide(array, dtype.type(size), out)
