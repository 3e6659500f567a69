"""Compiled kernels against those of NumPy."""

from __future__ import annotations

import time
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from collectives.arrays import (
    Averaging,
    averaging_kernel,
    compiled_averaging,
    compiled_kernel,
    compiled_scaling,
    kernel,
    scale,
)
from collectives.jit import MachineCode, combining, load

pytest.importorskip("numba", reason="kernels are compiled by Numba")

HALVES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
ALL = np.arange(1 << 16, dtype=np.uint16)


@pytest.fixture(scope="module")
def code() -> MachineCode:
    found = load(time.monotonic() + 600)
    assert isinstance(found, MachineCode), found
    if not found.kernels:
        pytest.skip("this processor does not convert float16")
    return found


def same(found: Any, expected: Any) -> bool:
    """Equal bits; any NaN for a NaN."""
    nan = np.isnan(expected.astype(np.float32))
    return bool((np.isnan(found.astype(np.float32)) == nan).all() and found[~nan].tobytes() == expected[~nan].tobytes())


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shift", [0, 1, 513, 0x8001, 0x7C00])
def test_every_half_plus_another_one(code: MachineCode, dtype: Any, shift: int) -> None:
    add = combining(code, compiled_kernel("sum", dtype), 2)
    assert add is not None
    a, b = ALL.view(dtype), np.roll(ALL, shift).view(dtype)
    expected, out = np.empty_like(a), np.empty_like(a)
    with np.errstate(all="ignore"):
        kernel("sum", dtype)(a, b, expected)
    add(a, b, out)
    assert same(out, expected)
    for place in (0, 1):
        operands = [a.copy(), b.copy()]
        add(*operands, operands[place])
        assert same(operands[place], expected)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("count", [0, 1, 2, 31, 1000, 1 << 17])
def test_arrays_of_any_length(code: MachineCode, dtype: Any, count: int) -> None:
    add = combining(code, compiled_kernel("average", dtype), 2)
    assert add is not None
    made = np.random.default_rng(count)
    a, b = (made.normal(size=count).astype(dtype) for _ in range(2))
    expected, whole = np.empty_like(a), np.zeros(count + 2, dtype)
    kernel("sum", dtype)(a, b, expected)
    add(a, b, whole[1:-1])
    assert whole[1:-1].tobytes() == expected.tobytes()
    assert whole[[0, -1]].tolist() == [0, 0]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("shift", [0, 1, 513, 0x8001, 0x7C00])
def test_every_half_averaged_with_another_one(code: MachineCode, dtype: Any, shift: int) -> None:
    pair = Averaging(2, True, True, True)
    found = compiled_averaging(dtype, pair)
    assert found is not None
    mean = combining(code, found.name, 2)
    assert mean is not None
    a, b = ALL.view(dtype), np.roll(ALL, shift).view(dtype)
    expected, out = np.empty_like(a), np.empty_like(a)
    with np.errstate(all="ignore"):
        averaging_kernel(dtype, pair)(a, b, expected)
    mean(a, b, out)
    assert same(out, expected)
    finite = np.isfinite(a.astype(np.float32)) & np.isfinite(b.astype(np.float32))
    assert np.isfinite(out[finite].astype(np.float32)).all()


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("factor", [0.5, -3.0, 1e-7, 1e39, float("inf")])
def test_every_half_scaled(code: MachineCode, dtype: Any, factor: float) -> None:
    a, expected = ALL.view(dtype), np.empty(1 << 16, dtype)
    with np.errstate(all="ignore"):
        name, number = compiled_scaling(dtype, factor)
        scale(a, factor, expected)
    multiply_by = combining(code, name, 2)
    assert multiply_by is not None
    out = np.empty_like(a)
    multiply_by(a, number, out)
    assert same(out, expected)
    out[:] = a
    multiply_by(out, number, out)
    assert same(out, expected)


def test_there_are_no_others(code: MachineCode) -> None:
    assert compiled_kernel("max", HALVES[0]) == compiled_kernel("sum", np.dtype(np.float32)) == ""
    assert compiled_averaging(np.dtype(np.longdouble), Averaging(2, True, True, True)) is None
    assert combining(code, "", 2) is None
