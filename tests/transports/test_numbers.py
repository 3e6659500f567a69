"""Numbers that threads take."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from transports.numbers import Numbers

THREADS, EACH = 4, 2000


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as Python lets them."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
def test_p6_no_number_is_taken_twice() -> None:
    numbers = Numbers(5)
    with ThreadPoolExecutor(THREADS) as pool:
        taken = list(pool.map(lambda _: [next(numbers) for _ in range(EACH)], range(THREADS)))
    assert sorted(number for part in taken for number in part) == list(range(5, 5 + THREADS * EACH))
    assert all(part == sorted(part) for part in taken)
