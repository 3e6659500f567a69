"""The arithmetic of reductions on arrays of a GPU, in whole arrays and in the current place.

CuPy's arrays take NumPy's ufuncs; the rules are those of collectives.arrays.ops, which works in blocks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from collectives.arrays import FLOAT32, FLOAT64, UFUNCS, Averaging, Kernel, is_small_float, real_dtype, rest, share


def device_kernel(op: str, dtype: np.dtype[Any]) -> Kernel:
    """The kernel of an operation; see arrays.kernel."""
    ufunc = UFUNCS[op]
    if not is_small_float(dtype):
        return lambda a, b, out: ufunc(a, b, out=out)

    def combine(a: Any, b: Any, out: Any) -> None:
        np.copyto(out, ufunc(a.astype(FLOAT32), b.astype(FLOAT32)), casting="unsafe")

    return combine


def device_averaging(dtype: np.dtype[Any], averaging: Averaging) -> Kernel:
    """The kernel of a combination within an average; see arrays.averaging_kernel."""
    size, a_alone, b_alone, last = averaging
    real = FLOAT32 if is_small_float(dtype) else real_dtype(dtype)
    factor, divisor = real.type(share(size)), real.type(rest(size))

    def combine(a: Any, b: Any, out: Any) -> None:
        if dtype.kind == "c":
            a, b, out = a.view(real), b.view(real), out.view(real)
        elif real != dtype:
            a, b = a.astype(real), b.astype(real)
        total = a * factor + b if a_alone else a + b * factor if b_alone else a + b
        if a_alone and b_alone:
            total = a + b
            total = np.where(np.isinf(total), a * factor + b * factor, total * factor)
        if last and divisor != 1:
            total = total / divisor
        np.copyto(out, total, casting="unsafe")

    return combine


def scaled(array: Any, factor: float) -> Any:
    """array * factor, a new array of the same dtype; see arrays.scale."""
    wide = _wide(array.dtype)
    if wide is None:
        return np.multiply(array, array.dtype.type(factor))
    return np.multiply(array.astype(wide), wide.type(factor)).astype(array.dtype)


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    """The wider dtype of the computation; None if it is `dtype` itself."""
    if is_small_float(dtype):
        return FLOAT32
    return FLOAT64 if dtype.kind in "iu" else None
