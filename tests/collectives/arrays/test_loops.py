"""NumPy's inner loops, called as C functions, against NumPy."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from collectives.arrays import (
    LOGICAL,
    OPS,
    Loop,
    inner_loop,
    kernel,
    kernel_loop,
    scale,
    scaling,
    scaling_loop,
)
from collectives.arrays.ops import allowed_ops

DTYPES = [np.dtype(name) for name in ["?", "b", "h", "i", "l", "B", "H", "I", "L", "e", "f", "d", "F", "D"]]
DTYPES += [np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.float8_e4m3fn)]
CASES = [(op, dtype) for dtype in DTYPES for op in OPS if op in allowed_ops(dtype)]
SIZES = (1, 2, 3, 17, 1000)

C_LOOP = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def call(loop: Loop, a: Any, b: Any, out: Any, b_stride: int | None = None) -> None:
    pointers = np.array([array.ctypes.data for array in (a, b, out)], np.int64)
    strides = np.array([a.itemsize, b.itemsize if b_stride is None else b_stride, out.itemsize], np.int64)
    length = np.array([len(out)], np.int64)
    C_LOOP(loop.function)(pointers.ctypes.data, length.ctypes.data, strides.ctypes.data, loop.data)


def values(dtype: Any, count: int, seed: int) -> Any:
    made = np.random.default_rng(seed).integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)
    return made.astype(np.uint8).astype(bool) if dtype.kind == "b" else made


@pytest.mark.parametrize(("op", "dtype"), CASES)
def test_a_kernels_loop_gives_the_bits_of_the_kernel(op: str, dtype: Any) -> None:
    loop = kernel_loop(op, dtype)
    if loop is None:
        assert dtype.kind in "Vc" or dtype == np.float16 or op in LOGICAL
        return
    with np.errstate(all="ignore"):
        for count in SIZES:
            a, b = values(dtype, count, 1), values(dtype, count, 2)
            expected = np.empty_like(a)
            kernel(op, dtype)(a, b, expected)
            for out in (np.empty_like(a), a.copy(), b.copy()):
                left = out if len(out) and (out == a).all() else a
                call(loop, left, b, out)
                nan = np.isnan(expected) & np.isnan(out) if dtype.kind in "fc" else np.zeros(count, bool)
                assert out[~nan].tobytes() == expected[~nan].tobytes()


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype.kind != "b"])
@pytest.mark.parametrize("factor", [0.3, -1e30])
def test_the_loop_of_a_scaling_gives_its_bits(dtype: Any, factor: float) -> None:
    found = scaling_loop(dtype, factor)
    with np.errstate(all="ignore"):
        for count in SIZES:
            a = np.random.default_rng(3).normal(size=count).astype(dtype)
            expected, in_place = np.empty_like(a), a.copy()
            scale(a, factor, expected)
            scaling(dtype, factor, count)(in_place, in_place)
            assert in_place.tobytes() == expected.tobytes()
            if found is None:
                assert dtype.kind in "iuV" or dtype == np.float16
                continue
            loop, number = found
            call(loop, a, number, a, 0)
            assert a.tobytes() == expected.tobytes()


def test_there_is_no_loop_for_other_dtypes() -> None:
    assert inner_loop(np.bitwise_or, np.dtype(np.float32)) is None
