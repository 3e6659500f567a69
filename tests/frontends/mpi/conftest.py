"""Worlds of threads, in which MPI is not initialized by being imported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from frontends.mpi import rc
from tests.worlds import Worlds

rc.initialize = False

Run = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    found = Worlds()
    yield found
    found.close()


@pytest.fixture
def ranks(worlds: Worlds) -> Run:
    """ranks(size, function) calls function(MPI.COMM_WORLD) on ranks that are threads; the results by rank."""
    from frontends.mpi import MPI

    def run(size: int, function: Callable[[MPI.Intracomm], Any], transport: str = "local") -> list[Any]:
        return worlds.get(transport, size).run(lambda _: function(MPI.COMM_WORLD))

    return run
