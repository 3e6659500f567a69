"""Kernels for 16-bit floats and for averages, as Numba compiles them. They have the form of NumPy's inner loops.

float16 is widened and rounded by the processor's instructions. A bfloat16 is the upper half of a float32. Both are
computed in float32 and rounded once, to nearest, ties to even, as arrays/halves.py does it by NumPy's operations on
whole vectors. Averages are those of arrays/averages.py. A kernel is written once for each place that its result may
have, so that LLVM knows whether a store may change what is loaded later, and uses vector instructions. Numba is needed
to import this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from collectives.jit.atomics import WORD, compiled, word

_HALVES = types.CPointer(types.uint16)
_SINGLES = types.CPointer(types.float32)
_DOUBLES = types.CPointer(types.float64)


def _bit_cast(source: Any, target: Any, kind: Any) -> Callable[..., Any]:
    def make(typing: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
            return builder.bitcast(operands[0], kind)

        return target(source), generate

    return make


bits_of = intrinsic(_bit_cast(types.float32, types.uint32, ir.IntType(32)))
"""The bits of a float32."""
of_bits = intrinsic(_bit_cast(types.uint32, types.float32, ir.FloatType()))
"""The float32 with these bits."""


@intrinsic
def halves_at(typing: Any, address: Any) -> Any:
    """A pointer to 16-bit words."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return builder.inttoptr(operands[0], context.get_value_type(_HALVES))

    return _HALVES(WORD), generate


@intrinsic
def singles_at(typing: Any, address: Any) -> Any:
    """A pointer to float32."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return builder.inttoptr(operands[0], context.get_value_type(_SINGLES))

    return _SINGLES(WORD), generate


@intrinsic
def doubles_at(typing: Any, address: Any) -> Any:
    """A pointer to float64."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return builder.inttoptr(operands[0], context.get_value_type(_DOUBLES))

    return _DOUBLES(WORD), generate


@intrinsic
def widen_float16(typing: Any, bits: Any) -> Any:
    """The float32 that is equal to a float16."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return builder.fpext(builder.bitcast(operands[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def round_float16(typing: Any, number: Any) -> Any:
    """The float16 that is nearest to a float32."""

    def generate(context: Any, builder: Any, signature: Any, operands: Any) -> Any:
        return builder.bitcast(builder.fptrunc(operands[0], ir.HalfType()), ir.IntType(16))

    return types.uint16(types.float32), generate


@compiled
def widen_bfloat16(bits: Any) -> Any:
    """The float32 that is equal to a bfloat16."""
    return of_bits(np.uint32(bits) << np.uint32(16))


@compiled
def round_bfloat16(number: Any) -> Any:
    """The bfloat16 that is nearest to a float32."""
    bits = bits_of(number)
    upper = bits >> np.uint32(16)
    rounded = (bits + np.uint32(0x7FFF) + (upper & np.uint32(1))) >> np.uint32(16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.uint16(upper | np.uint32(0x40)) if is_nan else np.uint16(rounded)


@compiled
def sum_of(a: Any, b: Any) -> Any:
    """a + b."""
    return a + b


@compiled
def mean_of(a: Any, b: Any) -> Any:
    """(a + b) / 2, of halves: no bit of one is lost in a float32 that is half as large."""
    half = np.float32(0.5)
    return a * half + b * half


def _of_halves(combine: Any, widen: Any, rounded: Any) -> Any:
    """The kernel that combines halves."""

    def of_halves(pointers: int, lengths: int, strides: int, data: int) -> None:
        first, second, result, count = word(pointers), word(pointers + 8), word(pointers + 16), word(lengths)
        a, b = numba.carray(halves_at(first), count), numba.carray(halves_at(second), count)
        out = numba.carray(halves_at(result), count)
        if first == result:
            for i in range(count):
                out[i] = rounded(combine(widen(out[i]), widen(b[i])))
        elif second == result:
            for i in range(count):
                out[i] = rounded(combine(widen(a[i]), widen(out[i])))
        else:
            for i in range(count):
                out[i] = rounded(combine(widen(a[i]), widen(b[i])))

    return of_halves


@compiled
def share_of_pair(a: Any, b: Any, factor: Any) -> Any:
    """(a + b) * factor, where the sum is no infinity."""
    total = a + b
    return a * factor + b * factor if abs(total) == np.inf else total * factor


@compiled
def sum_with_share(a: Any, b: Any, factor: Any) -> Any:
    """a * factor + b."""
    return a * factor + b


def _averaging(combine: Any, floats_at: Any) -> Any:
    """The kernel that combines within an average; `data` is the address of its number."""

    def averaging(pointers: int, lengths: int, strides: int, data: int) -> None:
        first, second, result, count = word(pointers), word(pointers + 8), word(pointers + 16), word(lengths)
        a, b = numba.carray(floats_at(first), count), numba.carray(floats_at(second), count)
        out, factor = numba.carray(floats_at(result), count), numba.carray(floats_at(data), 1)[0]
        if first == result:
            for i in range(count):
                out[i] = combine(out[i], b[i], factor)
        elif second == result:
            for i in range(count):
                out[i] = combine(a[i], out[i], factor)
        else:
            for i in range(count):
                out[i] = combine(a[i], b[i], factor)

    return averaging


@compiled
def product(a: Any, b: Any) -> Any:
    """a * b."""
    return a * b


def _with_number(combine: Any, widen: Any, rounded: Any) -> Any:
    """The kernel that combines with one number, a float32."""

    def with_number(pointers: int, lengths: int, strides: int, data: int) -> None:
        first, result, count = word(pointers), word(pointers + 16), word(lengths)
        a, out = numba.carray(halves_at(first), count), numba.carray(halves_at(result), count)
        number = numba.carray(singles_at(word(pointers + 8)), 1)[0]
        if first == result:
            for i in range(count):
                out[i] = rounded(combine(widen(out[i]), number))
        else:
            for i in range(count):
                out[i] = rounded(combine(widen(a[i]), number))

    return with_number


KERNELS: Final = {
    "add_float16": _of_halves(sum_of, widen_float16, round_float16),
    "add_bfloat16": _of_halves(sum_of, widen_bfloat16, round_bfloat16),
    "mean_float16": _of_halves(mean_of, widen_float16, round_float16),
    "mean_bfloat16": _of_halves(mean_of, widen_bfloat16, round_bfloat16),
    "mean_float32": _averaging(share_of_pair, singles_at),
    "mean_float64": _averaging(share_of_pair, doubles_at),
    "share_float32": _averaging(sum_with_share, singles_at),
    "share_float64": _averaging(sum_with_share, doubles_at),
    "scale_float16": _with_number(product, widen_float16, round_float16),
    "scale_bfloat16": _with_number(product, widen_bfloat16, round_bfloat16),
}


def entry(name: str) -> Any:
    """One of the KERNELS as a C function."""
    return numba.cfunc(types.void(WORD, WORD, WORD, WORD), error_model="numpy")(KERNELS[name])
