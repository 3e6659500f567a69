"""Pools of rank processes, shared by the tests of a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.frontends.pool import Pool


@pytest.fixture(scope="module")
def pool() -> Iterator[Callable[[int], Pool]]:
    """pool(size) is a pool of so many ranks."""
    pools: dict[int, Pool] = {}

    def of(size: int) -> Pool:
        return pools.setdefault(size, Pool(size))

    yield of
    for one in pools.values():
        one.close()
