"""Executors: `concurrent.futures` on the ranks of a communicator.

    with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:     on every rank; executor is None on the workers
        if executor is not None:
            results = list(executor.map(function, items))

`python -m ronde.mpi.futures script.py` runs the script on rank 0 alone, where `MPIPoolExecutor()` uses the other ranks.
"""

from __future__ import annotations

from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    InvalidStateError,
    TimeoutError,
    as_completed,
    wait,
)

from frontends.mpi.futures.chains import collect, compose
from frontends.mpi.futures.executors import MPICommExecutor, MPIPoolExecutor, get_comm_workers

ThreadPoolExecutor = MPIPoolExecutor
ProcessPoolExecutor = MPIPoolExecutor

__all__ = [
    "ALL_COMPLETED",
    "FIRST_COMPLETED",
    "FIRST_EXCEPTION",
    "BrokenExecutor",
    "CancelledError",
    "Executor",
    "Future",
    "InvalidStateError",
    "MPICommExecutor",
    "MPIPoolExecutor",
    "ProcessPoolExecutor",
    "ThreadPoolExecutor",
    "TimeoutError",
    "as_completed",
    "collect",
    "compose",
    "get_comm_workers",
    "wait",
]
