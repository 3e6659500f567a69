"""What tests of `shrink` share."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest

from collectives import Communicator, RondeError
from tests.collectives.ranks import SECONDS

THREADS = ["local", "tcp", "shm", "auto"]
PROCESSES = ["shm", "tcp", "auto"]
linux = pytest.mark.skipif(sys.platform != "linux", reason="processes are watched by /proc")


def soon(seconds: float = SECONDS) -> float:
    return time.monotonic() + seconds


def compute(comm: Communicator, seats: list[int]) -> None:
    """Several collectives on the ranks that once were `seats`, each of which tells apart who took part."""
    size, rank, mine = comm.size, comm.rank, seats[comm.rank]
    assert size == len(seats)
    for count in (1, 1000, 100_000):
        x = np.arange(count, dtype=np.int64) + 10**6 * mine
        total = size * np.arange(count, dtype=np.int64) + 10**6 * sum(seats)
        np.testing.assert_array_equal(comm.allreduce(x), total)
        np.testing.assert_array_equal(comm.allreduce_async(x, algorithm="ring").wait(), total)
    np.testing.assert_array_equal(comm.allgather(np.full(mine, mine)), np.repeat(seats, seats))
    np.testing.assert_array_equal(comm.broadcast(np.array([mine]), root=size - 1), [seats[-1]])
    np.testing.assert_array_equal(
        comm.alltoall(np.array([mine * 10 + peer for peer in seats])), [peer * 10 + mine for peer in seats]
    )
    np.testing.assert_array_equal(
        comm.sendrecv(np.array([mine]), (rank + 1) % size, (rank - 1) % size), [seats[rank - 1]]
    )
    assert comm.allgather_object(("seat", mine)) == [("seat", seat) for seat in seats]
    half = comm.split(0)
    assert half is not None
    assert half.allreduce(mine) == sum(seats)
    half.close()
    comm.barrier()


def fail(comm: Communicator) -> RondeError:
    """Compute until that fails; the error."""
    try:
        while True:
            comm.allreduce(np.ones(10))
    except RondeError as error:
        return error
