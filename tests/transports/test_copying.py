"""Copies to memory that other processes read."""

from __future__ import annotations

import random
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from transports.copying import TRIALS, TRIED_FROM, TRIED_UPTO, Choice, Copying, assign, store_array, store_bytes


@pytest.mark.parametrize("length", [0, 1, 2047, 2048, 2049, 100_000, 1 << 20, (1 << 20) + 1])
def test_copies_of_bytes_are_exact(length: int) -> None:
    copying = Copying(store_bytes)
    for turn in range(TRIALS + 2):
        source = random.Random(turn).randbytes(length)
        target = bytearray(length + 3)
        copying.copy(memoryview(target)[3:], memoryview(source))
        assert target == bytes(3) + source


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16", "float32", "complex128", ml_dtypes.bfloat16])
@pytest.mark.parametrize("kernel", [assign, store_array])
def test_arrays_keep_every_bit(dtype: Any, kernel: Any) -> None:
    octets = np.frombuffer(random.Random(1).randbytes(1001 * np.dtype(dtype).itemsize), np.uint8)
    source = (octets & 1 if dtype == "bool" else octets).view(dtype)  # signalling NaNs are among the others
    target = np.zeros(1002, dtype)
    kernel(target[1:], source)
    assert target[1:].tobytes() == source.tobytes()
    assert not np.any(target[:1].view(np.uint8))


def test_an_array_may_be_stored_onto_itself() -> None:
    x = np.arange(50_000, dtype=np.float32)
    store_array(x, x)
    assert np.array_equal(x, np.arange(50_000))


def test_sizes_worth_a_trial() -> None:
    copying = Copying(store_array)
    assert [copying.choice(n) is not None for n in (0, 1, TRIED_FROM, TRIED_FROM + 1, TRIED_UPTO, TRIED_UPTO + 1)] == [
        False,
        False,
        False,
        True,
        True,
        False,
    ]
    assert copying.choice(3000) is copying.choice(4096)
    assert copying.choice(3000) is not copying.choice(4097)


@pytest.mark.parametrize(("assigning", "storing", "stores"), [(300, 100, True), (105, 100, False), (50, 100, False)])
def test_the_faster_kernel_is_chosen(assigning: int, storing: int, stores: bool) -> None:
    now = 0
    stored = 0

    def store(target: Any, source: Any) -> None:
        nonlocal now, stored
        now += storing - assigning
        stored += 1

    def clock() -> int:
        # A copy lies between two looks: it takes `assigning`, unless `store` has corrected that.
        nonlocal now
        now += assigning
        return now

    choice = Choice(store, clock)
    x = np.zeros(4)
    for _ in range(TRIALS):
        choice.copy(x, x)
    assert stored == TRIALS // 2
    choice.copy(x, x)
    assert stored == TRIALS // 2 + stores


def test_what_recurs_keeps_no_step_with_the_trials() -> None:
    """Calls that copy twice, or use two places in turn, try both kernels in each."""
    turns = []

    def store(target: Any, source: Any) -> None:
        turns.append(int(source[0]))

    choice = Choice(store, iter(range(10 * TRIALS)).__next__)
    for number in range(TRIALS):
        choice.copy(np.zeros(1), np.full(1, number))
    assert sum(number % 2 for number in turns) == len(turns) // 2
    assert sum(number // 2 % 2 for number in turns) == len(turns) // 2


def test_pieces_of_arrays_of_other_sizes_and_fetched_ones_are_other_kinds() -> None:
    copying = Copying(store_array)
    choice = copying.choice(3000, 100_000)
    assert choice is copying.choice(4000, 131_072)
    assert choice is not copying.choice(4000, 131_073)
    assert choice is not copying.choice(4000, 131_072, True)
