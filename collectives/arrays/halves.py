"""Sums of float16 and bfloat16 by integer arithmetic on whole vectors, faster than NumPy's element by element.

NumPy has no vector instructions for halves. Two halves form a 32-bit word, and shifts and masks turn each into a
float32. A bfloat16 is the upper half of a float32. A float16 with its bits moved into place is a float32 times 2**-112,
because its exponent bias is 15 and not 127. The float32 values are added, and the sum is rounded to nearest, ties to
even. That gives the correctly rounded sum of halves, because the 24 bits of a float32 are at least 2 p + 2 for the
p = 11 or 8 bits of a half (Figueroa, "When is double rounding innocuous?", 1995).

The work is done in blocks that fit a core's private cache, and are large enough to make the cost of calls negligible.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_BLOCK: Final = 1 << 15
"""Pairs of elements in a block: 128 KiB of each array, and 512 KiB of scratch."""
_SMALL: Final = 1 << 11
"""Elements below which NumPy's own sum is faster."""
_INT: Final = np.dtype(np.int32)
_FLOAT: Final = np.dtype(np.float32)


def _word(bits: int) -> Array:
    """Return a word as an array; NumPy converts an operand that is a number in every call."""
    return np.array(bits, np.uint32).view(_INT)


_1, _3, _13, _16 = (_word(number) for number in (1, 3, 13, 16))
_SIGN: Final = _word(0x80000000)
_UPPER: Final = _word(0xFFFF0000)
_BELOW_SIGN: Final = _word(0x7FFF0000)
_FLOAT16_BITS: Final = _word(0x8FFFE000)
_HALF_OF_13: Final = _word(0x0FFF)
_HALF_OF_16: Final = _word(0x7FFF)
_UNSIGNED_16: Final = np.array(16, np.uint32)
_POSITIVE_LIMIT: Final = 0x7800
_NEGATIVE_LIMIT: Final = 0xF800
"""float16 bits of 32768 and -32768. Sums of smaller magnitudes do not overflow; infinity and NaN are larger."""


def add_float16(a: Array, b: Array, out: Array) -> None:
    """Compute out = a + b on flat arrays of float16; `out` may be `a` or `b`. The same bits as NumPy's own sum."""
    _in_blocks(a, b, out, _add_float16)


def add_bfloat16(a: Array, b: Array, out: Array) -> None:
    """Compute out = a + b on flat arrays of bfloat16; `out` may be `a` or `b`. A NaN stays a NaN."""
    _in_blocks(a, b, out, _add_bfloat16)


class _Scratch:
    """Work memory for `pairs` words of two operands, with their halves separated.

    x, y               the operands as words: upper halves, then lower halves
    float_x, float_y   the same memory as float32
    taken              (upper, lower) of `x` and of `y`
    """

    def __init__(self, pairs: int) -> None:
        self.pairs = pairs
        self.x, self.y = np.empty((2, 2, pairs), _INT)
        self.float_x, self.float_y = self.x.view(_FLOAT), self.y.view(_FLOAT)
        self.taken = (self.x[0], self.x[1]), (self.y[0], self.y[1])


def _in_blocks(a: Array, b: Array, out: Array, add: Any) -> None:
    count = len(out)
    pairs = count // 2 if count >= _SMALL else 0
    if 2 * pairs < count:
        np.add(a[2 * pairs :], b[2 * pairs :], out[2 * pairs :])
    if not pairs:
        return
    arrays = [array[: 2 * pairs].view(_INT) for array in (a, b, out)]
    scratch = _Scratch(min(_BLOCK, pairs))
    for start in range(0, pairs, _BLOCK):
        if pairs - start < scratch.pairs:
            scratch = _Scratch(pairs - start)
        add(*(array[start : start + _BLOCK] for array in arrays), scratch)


def _add_float16(a: Array, b: Array, out: Array, scratch: _Scratch) -> None:
    if not (_moderate(a) and _moderate(b)):
        np.add(a.view(np.float16), b.view(np.float16), out.view(np.float16))
        return
    x, y = scratch.x, scratch.y
    for words, (upper, lower) in zip((a, b), scratch.taken, strict=True):
        np.right_shift(words, _3, upper)
        np.left_shift(words, _16, lower)
        np.right_shift(lower, _3, lower)
    np.bitwise_and(x, _FLOAT16_BITS, x)
    np.bitwise_and(y, _FLOAT16_BITS, y)
    np.add(scratch.float_x, scratch.float_y, scratch.float_x)
    _round(x, _13, _HALF_OF_13, y)
    np.left_shift(y, _3, y)
    np.bitwise_and(x, _SIGN, x)
    upper, lower = scratch.taken[1]
    np.bitwise_and(upper, _BELOW_SIGN, upper)
    np.bitwise_or(x, y, x)
    _join(*scratch.taken[0], out)


def _add_bfloat16(a: Array, b: Array, out: Array, scratch: _Scratch) -> None:
    for words, (upper, lower) in zip((a, b), scratch.taken, strict=True):
        np.bitwise_and(words, _UPPER, upper)
        np.left_shift(words, _16, lower)
    np.add(scratch.float_x, scratch.float_y, scratch.float_x)
    _round(scratch.x, _16, _HALF_OF_16, scratch.y)
    upper, lower = scratch.taken[1]
    np.bitwise_and(upper, _UPPER, upper)
    _join(upper, lower, out)


def _moderate(words: Array) -> bool:
    """Return True if the magnitude of every float16 in `words` is below 32768."""
    largest = np.maximum.reduce
    return bool(largest(words.view(np.int16)) < _POSITIVE_LIMIT and largest(words.view(np.uint16)) < _NEGATIVE_LIMIT)


def _round(x: Array, bits: Array, half: Array, out: Array) -> None:
    """Round words to nearest, ties to even, for removal of the last `bits` bits, which are undefined afterwards."""
    np.right_shift(x, bits, out)
    np.bitwise_and(out, _1, out)
    np.add(out, half, out)
    np.add(out, x, out)


def _join(upper: Array, lower: Array, out: Array) -> None:
    """Join words with only their upper halves set and words whose upper halves become the lower ones."""
    lower = lower.view(np.uint32)
    np.right_shift(lower, _UNSIGNED_16, lower)
    np.bitwise_or(upper, lower.view(_INT), out)
