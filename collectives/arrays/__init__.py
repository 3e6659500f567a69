"""Flat NumPy views of the caller's arrays, reduction ops and their kernels. Nothing here communicates.

`views` checks array arguments and shares their memory where possible. `ops` holds one table of ops: a new op is one
entry of it. `halves` holds fast kernels for float16 and bfloat16.
"""

from __future__ import annotations

from collectives.arrays.ops import (
    ADASUM,
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    LOGICAL,
    OPS,
    UFUNCS,
    WIDENED,
    Kernel,
    check_op,
    divide,
    is_small_float,
    kernel,
    one_element,
    scale,
    scaling,
)
from collectives.arrays.views import (
    Array,
    Target,
    as_bytes,
    as_numpy,
    casts,
    check_dtype,
    flat,
    type_name,
)

__all__ = [
    "ADASUM",
    "BFLOAT16",
    "FLOAT16",
    "FLOAT32",
    "FLOAT64",
    "LOGICAL",
    "OPS",
    "UFUNCS",
    "WIDENED",
    "Array",
    "Kernel",
    "Target",
    "as_bytes",
    "as_numpy",
    "casts",
    "check_dtype",
    "check_op",
    "divide",
    "flat",
    "is_small_float",
    "kernel",
    "one_element",
    "scale",
    "scaling",
    "type_name",
]
