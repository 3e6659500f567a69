"""Sums of float16 and bfloat16 by integer arithmetic on whole vectors, faster than element by element.

NumPy has no vector instructions for halves. But two of them make a 32-bit word, and each can be moved by shifts and
masks to where it is a float32: a bfloat16 is the upper part of one; a float16 with its bits moved into place is one
times 2**-112, since its exponent counts from 15 and not from 127. There the sum is taken, and rounded once more, to
nearest, ties to even. That is the correctly rounded sum of halves, because the 24 bits of a float32 are at least
2 p + 2 for the p = 11 or 8 bits of a half (Figueroa, "When is double rounding innocuous?", 1995). Everything is done
in blocks that stay in the last cache: in smaller ones the calls cost more than faster caches save.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_BLOCK: Final = 1 << 18
"""Elements: four words of scratch for two of them, 2 MiB."""
_SMALL: Final = 1 << 11
"""Below so many elements the calls cost more than they save."""
_INT: Final = np.dtype(np.int32)
_FLOAT: Final = np.dtype(np.float32)


def _word(bits: int) -> np.int32:
    return np.uint32(bits).view(np.int32)


_1, _3, _13, _16 = (_word(number) for number in (1, 3, 13, 16))
_SIGN: Final = _word(0x80000000)
_UPPER: Final = _word(0xFFFF0000)
_BELOW_SIGN: Final = _word(0x7FFF0000)
_FLOAT16_BITS: Final = _word(0x8FFFE000)
_HALF_OF_13: Final = _word(0x0FFF)
_HALF_OF_16: Final = _word(0x7FFF)
_POSITIVE_LIMIT: Final = 0x7800
_NEGATIVE_LIMIT: Final = 0xF800
"""float16 bits of 32768 and -32768: sums of smaller numbers do not overflow, and none of them is infinite or NaN."""


def add_float16(a: Array, b: Array, out: Array) -> None:
    """out = a + b, flat arrays of float16; `out` may be `a` or `b`. The same bits as NumPy's own sum."""
    _in_blocks(a, b, out, _add_float16)


def add_bfloat16(a: Array, b: Array, out: Array) -> None:
    """out = a + b, flat arrays of bfloat16; `out` may be `a` or `b`. A NaN stays one."""
    _in_blocks(a, b, out, _add_bfloat16)


def _in_blocks(a: Array, b: Array, out: Array, add: Any) -> None:
    count = len(out)
    pairs = count & ~1 if count >= _SMALL else 0
    if pairs < count:
        np.add(a[pairs:], b[pairs:], out[pairs:])
    if not pairs:
        return
    scratch = np.empty((2, 2, min(_BLOCK, pairs) // 2), _INT)
    for start in range(0, pairs, _BLOCK):
        piece = slice(start, min(start + _BLOCK, pairs))
        add(a[piece], b[piece], out[piece], scratch[:, :, : (piece.stop - start) // 2])


def _add_float16(a: Array, b: Array, out: Array, scratch: Array) -> None:
    if not (_moderate(a) and _moderate(b)):
        np.add(a, b, out)
        return
    x, y = scratch
    for words, (upper, lower) in ((a.view(_INT), x), (b.view(_INT), y)):
        np.right_shift(words, _3, upper)
        np.left_shift(words, _16, lower)
        np.right_shift(lower, _3, lower)
    np.bitwise_and(x, _FLOAT16_BITS, x)
    np.bitwise_and(y, _FLOAT16_BITS, y)
    np.add(x.view(_FLOAT), y.view(_FLOAT), x.view(_FLOAT))
    _round(x, _13, _HALF_OF_13, y)
    np.left_shift(y, _3, y)
    np.bitwise_and(x, _SIGN, x)
    np.bitwise_and(y[0], _BELOW_SIGN, y[0])
    np.bitwise_or(x, y, x)
    _join(x, out)


def _add_bfloat16(a: Array, b: Array, out: Array, scratch: Array) -> None:
    x, y = scratch
    for words, (upper, lower) in ((a.view(_INT), x), (b.view(_INT), y)):
        np.bitwise_and(words, _UPPER, upper)
        np.left_shift(words, _16, lower)
    np.add(x.view(_FLOAT), y.view(_FLOAT), x.view(_FLOAT))
    _round(x, _16, _HALF_OF_16, y)
    np.bitwise_and(y[0], _UPPER, y[0])
    _join(y, out)


def _moderate(x: Array) -> bool:
    """True if every |element| of a float16 array is below 32768."""
    return bool(x.view(np.int16).max() < _POSITIVE_LIMIT and x.view(np.uint16).max() < _NEGATIVE_LIMIT)


def _round(x: Array, bits: np.int32, half: np.int32, out: Array) -> None:
    """Round words to nearest, ties to even, where the last `bits` bits are to go; what stays in them is of no use."""
    np.right_shift(x, bits, out)
    np.bitwise_and(out, _1, out)
    np.add(out, half, out)
    np.add(out, x, out)


def _join(halves: Array, out: Array) -> None:
    """Upper halves, with nothing below them, and halves that are to be the lower ones."""
    upper, lower = halves.view(np.uint32)
    np.right_shift(lower, np.uint32(16), lower)
    np.bitwise_or(upper, lower, out.view(np.uint32))
