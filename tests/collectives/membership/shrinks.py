"""Helpers of the tests of `shrink`."""

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


def compute(comm: Communicator, original_ranks: list[int]) -> None:
    """Several collectives on the ranks that once were `original_ranks`. Each result depends on these numbers."""
    size, rank, mine = comm.size, comm.rank, original_ranks[comm.rank]
    assert size == len(original_ranks)
    for count in (1, 1000, 100_000):
        x = np.arange(count, dtype=np.int64) + 10**6 * mine
        total = size * np.arange(count, dtype=np.int64) + 10**6 * sum(original_ranks)
        np.testing.assert_array_equal(comm.allreduce(x), total)
        np.testing.assert_array_equal(comm.allreduce_async(x, algorithm="ring").wait(), total)
    np.testing.assert_array_equal(comm.allgather(np.full(mine, mine)), np.repeat(original_ranks, original_ranks))
    np.testing.assert_array_equal(comm.broadcast(np.array([mine]), root=size - 1), [original_ranks[-1]])
    np.testing.assert_array_equal(
        comm.alltoall(np.array([mine * 10 + peer for peer in original_ranks])),
        [peer * 10 + mine for peer in original_ranks],
    )
    np.testing.assert_array_equal(
        comm.sendrecv(np.array([mine]), (rank + 1) % size, (rank - 1) % size), [original_ranks[rank - 1]]
    )
    assert comm.allgather_object(("seat", mine)) == [("seat", seat) for seat in original_ranks]
    half = comm.split(0)
    assert half is not None
    assert half.allreduce(mine) == sum(original_ranks)
    half.close()
    comm.barrier()


def fail(comm: Communicator) -> RondeError:
    """Call allreduce until it fails; the error."""
    try:
        while True:
            comm.allreduce(np.ones(10))
    except RondeError as error:
        return error
