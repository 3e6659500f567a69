"""Exchanges of code that is no schedule: Peers, for an operation that computes between them, and agreement on times."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from collectives.arrays import Array
from collectives.execution.executor import Executor
from collectives.planning import Call


def brief(parts: Sequence[object]) -> str:
    """A short text of things that must be equal on all ranks, equal only if they are: '3', '160 * ... #1b2c3d4e'."""
    if len(parts) == 1:
        return str(parts[0])
    return f"{len(parts)} * ... #{zlib.crc32(repr(tuple(parts)).encode()):08x}"


def maximum(executor: Executor, values: Sequence[float] | Array, deadline: float) -> Array:
    """The elementwise maximum of `values` over all ranks, as float64 of one dimension. Collective. Raises as
    `Executor.run`."""
    agreed: Array = np.array(values, np.float64)
    call = Call("allreduce", agreed.dtype, (agreed.size,), "max", alias=0)
    executor.run_call(call, agreed, agreed, deadline)
    return agreed


class Peers:
    """The ranks of a communicator, as an operation under way uses them.

    rank, size   this rank's number, and the number of ranks

    The methods are collective and raise the errors of the communicator's methods. Arrays are contiguous; their sizes
    and dtypes must be equal on all ranks. Arguments are not checked further.
    """

    def __init__(self, executor: Executor, what: str, deadline: float) -> None:
        """`what` is the operation in words: equal on all ranks, or they get a MismatchError that contains it."""
        self.rank = executor.rank
        self.size = len(executor.ranks)
        self._executor = executor
        self._what = what
        self._deadline = deadline

    def allreduce(self, x: Array, *, reproducible: bool = False) -> None:
        """Replace `x` by the sum over all ranks; the same bits everywhere. `reproducible` as in the public method."""
        flat = x.reshape(-1)
        call = Call("allreduce", x.dtype, (x.size,), "sum", 0, 0, None, reproducible, within=self._what)
        self._executor.run_call(call, flat, flat, self._deadline)

    def allgather(self, x: Array) -> Array:
        """The arrays of all ranks, as one array with a new first axis: the ranks."""
        table = np.empty((self.size, *x.shape), x.dtype)
        call = Call("allgather", x.dtype, (x.size,) * self.size, within=self._what)
        self._executor.run_call(call, x.reshape(-1), table.reshape(-1), self._deadline)
        return table

    def alltoall(self, x: Array) -> Array:
        """Row i of `x` goes to rank i; row i of the result, an array like `x`, came from rank i."""
        table = np.empty_like(x)
        call = Call("alltoall", x.dtype, (x.size // self.size,), within=self._what)
        self._executor.run_call(call, x.reshape(-1), table.reshape(-1), self._deadline)
        return table
