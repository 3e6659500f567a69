"""Averages that stay in the range of their dtype. Those of integers are exact; those of floats have the error of a sum.

    dtype                        what the ranks add up                                     the mean
    float32, float64, complex    the numbers times `share`, a power of two: no sum         the sum by `rest`
                                 of them overflows
    small floats                 the same in float32                                       rounded once
    int8 ... uint32              the numbers, as int32 or int64                            exact, truncated toward zero
    int64, uint64                quotients and remainders of a division by the number      exact, truncated toward zero
                                 of ranks

A power of two changes no bits of a float that is not subnormal. The sum of two numbers is halved afterwards, and before
only where it overflows (`averaging_kernel`), so that two ranks lose nothing at either end of the range. With more ranks
a mean may be off by as many of the smallest subnormal numbers as there are ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.arrays.loops import Loop, inner_loop
from collectives.arrays.named_dtypes import HALVES, is_small_float
from collectives.arrays.ops import FLOAT32, FLOAT64, Kernel, kernel, scaling

Array = NDArray[Any]

_INT32: Final = np.dtype(np.int32)
_INT64: Final = np.dtype(np.int64)
_BLOCK: Final = 1 << 15
"""Elements that are combined at once: their sum stays in a core's private cache."""
_SMALL: Final = 1 << 12
"""Elements below which it takes less time to ask for infinity than to have NumPy tell of an overflow."""


def share(size: int) -> float:
    """Return the largest power of two by which `size` numbers can be multiplied so that their sum is none too large."""
    return 0.5 ** (size - 1).bit_length()


def rest(size: int) -> float:
    """Return the number by which a sum of shares is divided to be the mean; 1 where `size` is a power of two."""
    return size * share(size)


def real_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of the parts of complex numbers; others are their own part."""
    return np.dtype(dtype.char.lower()) if dtype.kind == "c" else dtype


class Mean:
    """The arithmetic around a sum of `size` ranks that makes it their mean.

        numbers --load--> array of `dtype`, `width` times as long --sum--> the same --store--> mean

    dtype, width   of the arrays that are added up
    exact          of integers: the mean is exact, and truncated toward zero
    """

    def __init__(
        self,
        dtype: np.dtype[Any],
        size: int,
        *,
        widens: bool = True,
        scaling: Callable[[np.dtype[Any], float], Callable[[Any, Any], object]] = scaling,
    ) -> None:
        """`widens`: small floats are added up in float32. `scaling` as arrays.scaling, for the memory of the arrays."""
        self.exact = dtype.kind in "iu"
        self.width = 1
        self.dtype = dtype
        self._size = size
        if self.exact and dtype.itemsize == 8:
            self.width = 2
        elif self.exact:
            self.dtype = _INT32 if dtype.itemsize <= 2 and size <= 1 << 15 else _INT64
        elif widens and is_small_float(dtype):
            self.dtype = FLOAT32
        self._real = real_dtype(self.dtype)
        self._scale = None if self.exact else scaling(self._real, share(size))

    def load(self, array: Array, work: Array) -> None:
        """Write the summands of flat `array` into `work`, which may be `array` if dtype and length are the same."""
        if self.width == 2:
            np.floor_divide(array, self._number, out=work[0::2])
            np.subtract(array, work[0::2] * self._number, out=work[1::2])
            return
        if work is not array and work.dtype != array.dtype:
            np.copyto(work, array)
            array = work
        if self._scale is not None:
            self._scale(array.view(self._real), work.view(self._real))
        elif work is not array:
            np.copyto(work, array)

    def store(self, work: Array, out: Array) -> None:
        """Write the mean into flat `out`, which may be `work` if dtype and length are the same. `work` is changed."""
        if self.exact:
            quotient, remainder = (work[0::2], work[1::2]) if self.width == 2 else (work, work)
            whole = np.floor_divide(remainder, self._number)
            left = remainder - whole * self._number
            if self.width == 2:
                whole += quotient
            whole += (whole < 0) & (left != 0)
            np.copyto(out, whole, casting="unsafe")
            return
        if rest(self._size) != 1:
            parts = work.view(self._real)
            np.divide(parts, self._real.type(rest(self._size)), out=parts)
        if out is not work:
            np.copyto(out, work, casting="unsafe")

    @property
    def _number(self) -> Any:
        return self.dtype.type(self._size)


class Averaging(NamedTuple):
    """One combination within an average of `size` ranks.

    a_alone, b_alone   the operand is the contribution of one rank, and not yet multiplied by the share
    last               the result is the mean
    """

    size: int
    a_alone: bool
    b_alone: bool
    last: bool


@cache
def averaging_kernel(dtype: np.dtype[Any], averaging: Averaging) -> Kernel:
    """Return the kernel of a combination of floats. For small floats it must be that of two ranks."""
    if is_small_float(dtype):
        return _mean_of_small
    size, a_alone, b_alone, last = averaging
    real = real_dtype(dtype)
    factor = np.array([share(size)], real)
    combine = _sum_of_pair if a_alone and b_alone else _sum_with_share if a_alone or b_alone else None
    divisor = np.array([rest(size)], real) if last and rest(size) != 1 else None
    add = kernel("sum", real)

    def average(a: Array, b: Array, out: Array) -> None:
        if dtype != real:
            a, b, out = a.view(real), b.view(real), out.view(real)
        if b_alone and not a_alone:
            a, b = b, a
        for start in range(0, len(out), _BLOCK):
            piece = slice(start, start + _BLOCK)
            if combine is None:
                add(a[piece], b[piece], out[piece])
            else:
                combine(a[piece], b[piece], factor, out[piece])
            if divisor is not None:
                np.divide(out[piece], divisor, out[piece])

    return average


def _sum_of_pair(a: Array, b: Array, factor: Array, out: Array) -> None:
    """out = (a + b) * factor, where the sum is no infinity."""
    total = np.empty_like(out)
    if _overflows(a, b, total):
        places = np.flatnonzero(np.isinf(total))
        shares = a[places] * factor + b[places] * factor
        np.multiply(total, factor, out)
        out[places] = shares
    else:
        np.multiply(total, factor, out)


def _overflows(a: Array, b: Array, total: Array) -> bool:
    """Compute total = a + b. Returns False if no sum of numbers is an infinity."""
    if len(total) < _SMALL:
        np.add(a, b, total)
        return not np.isfinite(total).all()
    try:
        with np.errstate(over="raise"):
            np.add(a, b, total)
    except FloatingPointError:
        np.add(a, b, total)
        return True
    return False


def _sum_with_share(a: Array, b: Array, factor: Array, out: Array) -> None:
    """out = a * factor + b."""
    np.add(a * factor, b, out)


def _mean_of_small(a: Array, b: Array, out: Array) -> None:
    """out = (a + b) / 2, in float32 and rounded once."""
    for start in range(0, len(out), _BLOCK):
        piece = slice(start, start + _BLOCK)
        mean, other = a[piece].astype(FLOAT32), b[piece].astype(FLOAT32)
        for part in (mean, other):
            np.multiply(part, np.float32(0.5), part)
        np.add(mean, other, mean)
        np.copyto(out[piece], mean, casting="unsafe")


class CompiledAveraging(NamedTuple):
    """The C function of a combination, for a table of the compiled interpreter.

    name      of the compiled kernel (collectives.jit); empty for `loop`, one of NumPy's
    number    an array of the one number that it combines with
    exchange  exchange the operands
    parts     floats of an element: 2 for complex numbers
    divisor   NumPy's loop that divides the result, with its number; None if it is not to be divided
    """

    name: str
    loop: Loop | None
    number: Array
    exchange: bool
    parts: int
    divisor: tuple[Loop, Array] | None


def compiled_averaging(dtype: np.dtype[Any], averaging: Averaging) -> CompiledAveraging | None:
    """Return the C function that does what `averaging_kernel` does; None if there is none."""
    size, a_alone, b_alone, last = averaging
    real = real_dtype(dtype)
    if real.name not in HALVES and real not in (FLOAT32, FLOAT64):
        return None
    division = None
    if last and rest(size) != 1:
        loop = inner_loop(np.divide, real)
        if loop is None:
            return None
        division = loop, np.array([rest(size)], real)
    name = f"mean_{real.name}" if a_alone and b_alone else f"share_{real.name}" if a_alone or b_alone else ""
    number = np.array([share(size)], FLOAT32 if is_small_float(real) else real)
    return CompiledAveraging(
        name,
        None if name else inner_loop(np.add, real),
        number,
        b_alone and not a_alone,
        1 if real == dtype else 2,
        division,
    )
