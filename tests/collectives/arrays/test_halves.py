"""The sums of float16 and bfloat16 against NumPy's own, bit by bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.arrays import halves
from collectives.arrays.ops import kernel

DTYPES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
COUNTS = st.integers(0, 5) | st.integers(2040, 2060) | st.integers(65_530, 65_545) | st.integers(131_070, 140_000)


def bits(x: Any) -> Any:
    """The bits of an array, those of NaNs all alike."""
    return np.where(np.isnan(x.astype(np.float32)), 0x7FFF, x.view(np.uint16))


def check(a: Any, b: Any) -> None:
    with np.errstate(all="ignore"):
        right = bits((a.astype(np.float32) + b.astype(np.float32)).astype(a.dtype))
        add = kernel("sum", a.dtype)
        out = np.empty_like(a)
        add(a, b, out)
        assert np.array_equal(bits(out), right)
        for alias in (a.copy(), b.copy()):
            left, other = (alias, b) if np.array_equal(alias.view(np.uint16), a.view(np.uint16)) else (a, alias)
            add(left, other, alias)
            assert np.array_equal(bits(alias), right)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
def test_every_half_with_neighbours_in_exponent_signs_infinities_and_nans(dtype: np.dtype[Any]) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    for offset in (0, 1, 0x0400, 0x0FFF, 0x8000, 0x8001, 0x83FF, 0xA5A5):
        check(every.view(dtype), (every + np.uint16(offset)).view(dtype))


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
@given(count=COUNTS, seed=st.integers(0, 2**32 - 1), scale=st.integers(-8, 4), start=st.integers(0, 3))
def test_sums_are_rounded_once(dtype: np.dtype[Any], count: int, seed: int, scale: int, start: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.standard_normal(count + start).astype(dtype)[start:]
    b = (rng.standard_normal(count) * 10.0**scale).astype(dtype)
    check(a, b)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=list(DTYPES))
def test_large_numbers_infinities_and_nans_in_a_block_of_small_ones(dtype: np.dtype[Any]) -> None:
    for odd in (np.inf, -np.inf, np.nan, 40_000.0, -40_000.0, 65_504.0):
        a = np.full(5000, 0.25, np.float32)
        a[[0, 2047, 4998, 4999]] = odd
        for other in (a, -a, np.ones_like(a)):
            check(a.astype(dtype), other.astype(dtype))


def test_long_arrays_take_the_vector_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the tests above are about that."""
    seen = []
    monkeypatch.setattr(halves, "_join", lambda upper, lower, out: seen.append(len(out)))
    for dtype in DTYPES.values():
        x = np.ones(70_001, dtype)
        kernel("sum", dtype)(x, x, np.empty_like(x))
    assert seen == [32_768, 2232] * 2
