"""Reduction operations: the table of ops, the dtypes that each allows, and the kernels that combine two arrays.

A kernel is `kernel(a, b, out)`: out = a op b, in this operand order, on flat arrays of one dtype; `out` may be `a` or
`b`. Kernels for small floats compute in float32 and round once (IEEE 754, to nearest, ties to even).

To add an op, add an entry to `_TABLE`. Its ufunc serves every dtype on the host and on GPUs. A faster kernel for one
dtype goes into `kernel`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from collectives.arrays.halves import add_bfloat16, add_float16
from collectives.arrays.loops import Loop, inner_loop
from collectives.arrays.named_dtypes import FLOAT16, HALVES, is_small_float
from collectives.arrays.own_ops import Op

Array = NDArray[Any]
Kernel = Callable[[Array, Array, Array], object]

FLOAT32: Final = np.dtype(np.float32)
FLOAT64: Final = np.dtype(np.float64)


@dataclass(frozen=True, slots=True)
class OpSpec:
    """One reduction operation.

    kinds    kinds of dtypes it is defined for: b bool, i signed, u unsigned, f float (small floats too), c complex
    ufunc    the NumPy ufunc that combines two arrays; None for an op that does not combine element by element
    rounds   a sum or product, whose result is rounded: a reproducible reduction of small floats keeps it in float32
    logical  operands other than bool are first replaced by 0 or 1
    """

    name: str
    kinds: str
    ufunc: Any
    rounds: bool = False
    logical: bool = False


ADASUM: Final = "adasum"
"""Adaptive summation, by allreduce only: see collectives.operations.adasum. It works on whole tensors, so it has no
kernel."""

_TABLE: Final = (
    OpSpec("sum", "iufc", np.add, rounds=True),
    OpSpec("average", "iufc", np.add, rounds=True),
    OpSpec("prod", "iufc", np.multiply, rounds=True),
    OpSpec("min", "biuf", np.minimum),
    OpSpec("max", "biuf", np.maximum),
    OpSpec("band", "biu", np.bitwise_and),
    OpSpec("bor", "biu", np.bitwise_or),
    OpSpec("bxor", "biu", np.bitwise_xor),
    OpSpec("land", "biu", np.logical_and, logical=True),
    OpSpec("lor", "biu", np.logical_or, logical=True),
    OpSpec("lxor", "biu", np.logical_xor, logical=True),
    OpSpec(ADASUM, "f", None),
)

OPS: Final = tuple(spec.name for spec in _TABLE)
ALIASES: Final = {"avg": "average", "mean": "average"}
"""Names of ops in other libraries, which are accepted too."""
UFUNCS: Final[dict[str, Any]] = {spec.name: spec.ufunc for spec in _TABLE if spec.ufunc is not None}
LOGICAL: Final = frozenset(spec.name for spec in _TABLE if spec.logical)
WIDENED: Final = frozenset(spec.name for spec in _TABLE if spec.rounds)
"""Ops of small floats that a reproducible reduction computes in float32 from beginning to end."""

_BY_KIND: Final = {kind: tuple(spec.name for spec in _TABLE if kind in spec.kinds) for kind in "biufc"}
"""The ops for each kind of dtypes."""
_BLOCK: Final = 8192
"""Elements: two blocks of float32 stay in a 64 KiB first-level cache."""


def allowed_ops(dtype: np.dtype[Any]) -> frozenset[str]:
    """Return the ops that are defined for a dtype and have a kernel."""
    return frozenset(_defined(dtype)) & UFUNCS.keys()


def _defined(dtype: np.dtype[Any]) -> tuple[str, ...]:
    return _BY_KIND[dtype.kind if dtype.kind in "biuc" else "f"]


def check_op(op: str, dtype: np.dtype[Any]) -> None:
    """Raise ValueError for an unknown op, TypeError for an op that is not defined for the dtype."""
    if not isinstance(op, str) or op not in OPS:
        raise ValueError(f"op={op!r}: must be one of {', '.join(OPS)}, or an Op")
    if op not in (defined := _defined(dtype)):
        raise TypeError(f"op={op!r}: not defined for {dtype}; it allows {', '.join(defined)}")


def kernel(op: str | Op, dtype: np.dtype[Any]) -> Kernel:
    """Return the kernel of an op with a ufunc or a function, for a dtype that `check_op` or the op has accepted."""
    return op.combine if isinstance(op, Op) else _kernel_of(op, dtype)


@cache
def _kernel_of(op: str, dtype: np.dtype[Any]) -> Kernel:
    ufunc = UFUNCS[op]
    if ufunc is np.add and dtype.name in HALVES:
        return add_float16 if dtype == FLOAT16 else add_bfloat16
    if ufunc is np.multiply and dtype.kind == "c":
        return _multiply_complex
    if is_small_float(dtype) and dtype != FLOAT16:
        return _through_float32(ufunc)
    # NumPy's own loops for float16 compute in float32 and round once.
    if ufunc in (np.minimum, np.maximum):  # deprecated: `out` by position
        return lambda a, b, out: ufunc(a, b, out=out)
    combine: Kernel = ufunc
    return combine


def kernel_loop(op: str | Op, dtype: np.dtype[Any]) -> Loop | None:
    """Return the C function that does what `kernel` does; None if that is more than one inner loop of NumPy's."""
    return None if isinstance(op, Op) else _loop_of(op, dtype)


@cache
def _loop_of(op: str, dtype: np.dtype[Any]) -> Loop | None:
    ufunc = UFUNCS[op]
    own = (ufunc is np.add and dtype == FLOAT16) or (ufunc is np.multiply and dtype.kind == "c")
    return None if own or dtype.kind not in "biufc" else inner_loop(ufunc, dtype)


def compiled_kernel(op: str | Op, dtype: np.dtype[Any]) -> str:
    """Return the name of the compiled kernel (collectives.jit) that does what `kernel` does; empty if there is none."""
    adds = not isinstance(op, Op) and UFUNCS[op] is np.add and is_small_float(dtype) and dtype.name in HALVES
    return f"add_{dtype.name}" if adds else ""


def compiled_scaling(dtype: np.dtype[Any], factor: float) -> tuple[str, Array]:
    """Return the name of the compiled kernel that does what `scale` does, and its second operand, one number; the name
    is empty if there is none."""
    name = f"scale_{dtype.name}" if dtype.name in HALVES else ""
    return name, np.array([factor], np.float32)


def one_element(combine: Kernel, dtype: np.dtype[Any]) -> Kernel:
    """Return a kernel for arrays of one element whose result has the same bits wherever `out` lies.

    For one element and `out` equal to an operand NumPy takes another code path, which may return the other one of two
    NaNs. Ranks that combine the same operands in different memory would then get different bits.
    """
    work = np.empty(1, dtype)

    def kernel_of_one(a: Array, b: Array, out: Array) -> None:
        combine(a, b, work)
        out[...] = work

    return kernel_of_one


def _multiply_complex(a: Array, b: Array, out: Array) -> None:
    """Multiply by four real products, each rounded.

    NumPy's own product may fuse a multiplication with an addition, depending on the processor and on whether `out` is
    `a`, so its bits differ between ranks.
    """
    for start in range(0, len(out), _BLOCK):
        x, y = a[start : start + _BLOCK], b[start : start + _BLOCK]
        real = x.real * y.real - x.imag * y.imag
        imaginary = x.real * y.imag + x.imag * y.real
        piece = out[start : start + _BLOCK]
        piece.real, piece.imag = real, imaginary


def _through_float32(ufunc: Any) -> Kernel:
    """Return a kernel that computes blocks in float32."""

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


def scaling(dtype: np.dtype[Any], factor: float, size: int = 0) -> Callable[[Array, Array], object]:
    """A function (array, out) that computes out = array * factor on flat arrays of `dtype`; `out` may be `array`. If
    `size` is not 0, it is for arrays of so many elements.

    The factor is first rounded to the dtype. As in Horovod, small floats are scaled in float32, and integers in float64
    with truncation toward zero. Raises TypeError for bool.
    """
    if dtype.kind == "b":
        raise TypeError("prescale and postscale are not defined for bool")
    if is_small_float(dtype):
        return lambda array, out: _through(np.multiply, array, factor, out, FLOAT32)
    if dtype.kind in "iu":
        return lambda array, out: _through(np.multiply, array, factor, out, FLOAT64)
    number = np.array([factor], dtype)  # a scalar would be made an array in each call
    if size != 1:
        return lambda array, out: np.multiply(array, number, out)
    work = np.empty(1, dtype)

    def scale_one(array: Array, out: Array) -> None:
        np.multiply(array, number, work)  # in place NumPy takes four times as long for one element
        out[...] = work

    return scale_one


def scale(array: Array, factor: float, out: Array) -> None:
    """Compute out = array * factor on flat arrays of one dtype; see `scaling`."""
    scaling(array.dtype, factor)(array, out)


def scaling_loop(dtype: np.dtype[Any], factor: float) -> tuple[Loop, Array] | None:
    """Return the C function that does what `scale` does, and its second operand, one number; None if that is more than
    one inner loop of NumPy's."""
    loop = None if is_small_float(dtype) or dtype.kind not in "fc" else inner_loop(np.multiply, dtype)
    return None if loop is None else (loop, np.array([factor], dtype))


def _through(ufunc: Any, array: Array, number: float, out: Array, wide: np.dtype[Any]) -> None:
    """Compute out = ufunc(array, number) in the dtype `wide`, block by block."""
    work = np.empty(min(_BLOCK, len(out)), wide)
    for start in range(0, len(out), _BLOCK):
        piece = slice(start, start + _BLOCK)
        part = work[: len(out[piece])]
        np.copyto(part, array[piece])
        ufunc(part, wide.type(number), part)
        np.copyto(out[piece], part, casting="unsafe")
