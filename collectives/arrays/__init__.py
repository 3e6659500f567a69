"""Flat NumPy views of the caller's arrays, reduction ops and their kernels. Nothing here communicates.

`views` checks array arguments and shares their memory where possible. `ops` holds one table of ops: a new op is one
entry of it. `averages` has the arithmetic by which averages stay in range. `halves` holds fast kernels for float16 and
bfloat16. `named_dtypes` is the one place that imports ml_dtypes, where it is installed. `loops` finds NumPy's inner
loops, for compiled code.
"""

from __future__ import annotations

from collectives.arrays.averages import (
    Averaging,
    CompiledAveraging,
    Mean,
    averaging_kernel,
    compiled_averaging,
    real_dtype,
    rest,
    share,
)
from collectives.arrays.loops import Loop, inner_loop
from collectives.arrays.named_dtypes import FLOAT16, ML_DTYPES, is_small_float, named_dtype, small_floats
from collectives.arrays.ops import (
    ADASUM,
    ALIASES,
    FLOAT32,
    FLOAT64,
    LOGICAL,
    OPS,
    UFUNCS,
    WIDENED,
    Kernel,
    allowed_ops,
    check_op,
    compiled_kernel,
    compiled_scaling,
    kernel,
    kernel_loop,
    one_element,
    scale,
    scaling,
    scaling_loop,
)
from collectives.arrays.own_ops import Op
from collectives.arrays.views import (
    Array,
    Target,
    as_bytes,
    as_numpy,
    as_view,
    can_be_sent,
    casts,
    check_dtype,
    flat,
    type_name,
)

__all__ = [
    "ADASUM",
    "ALIASES",
    "FLOAT16",
    "FLOAT32",
    "FLOAT64",
    "LOGICAL",
    "ML_DTYPES",
    "OPS",
    "UFUNCS",
    "WIDENED",
    "Array",
    "Averaging",
    "CompiledAveraging",
    "Kernel",
    "Loop",
    "Mean",
    "Op",
    "Target",
    "allowed_ops",
    "as_bytes",
    "as_numpy",
    "as_view",
    "averaging_kernel",
    "can_be_sent",
    "casts",
    "check_dtype",
    "check_op",
    "compiled_averaging",
    "compiled_kernel",
    "compiled_scaling",
    "flat",
    "inner_loop",
    "is_small_float",
    "kernel",
    "kernel_loop",
    "named_dtype",
    "one_element",
    "real_dtype",
    "rest",
    "scale",
    "scaling",
    "scaling_loop",
    "share",
    "small_floats",
    "type_name",
]
