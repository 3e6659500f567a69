"""Operations that are straight code: several exchanges, with what lies between them, as one operation.

What is exchanged next may depend on what came before, as in compression and Adasum; schedules cannot do that. The
operation is one job, so nothing of the same communicator comes between its exchanges.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from collectives.arguments import JobMaker
from collectives.buffers import Array
from collectives.execute import Executor
from collectives.plan import Call
from collectives.progress import Job
from collectives.terms import Terms
from transports.errors import AbortedError, RondeError

T = TypeVar("T")


def brief(what: Sequence[object]) -> str:
    """Things that must be equal on all ranks as a short text, equal only if they are: '3', or '160 * ... #1b2c3d4e'."""
    if len(what) == 1:
        return str(what[0])
    return f"{len(what)} * ... #{zlib.crc32(repr(tuple(what)).encode()):08x}"


class Peers:
    """The ranks of a communicator, as an operation sees them that is under way.

    rank, size   this rank's number, and how many there are

    The methods are collective and raise what the communicator's do. Arrays are contiguous; their sizes and dtypes must
    be equal on all ranks. Arguments are not checked further.
    """

    def __init__(self, executor: Executor, rank: int, size: int, what: str, deadline: float) -> None:
        """`what` is the operation in words: equal on all ranks, or they get a MismatchError that tells it."""
        self.rank = rank
        self.size = size
        self._executor = executor
        self._what = what
        self._deadline = deadline

    def allreduce(self, x: Array, *, reproducible: bool = False) -> None:
        """Replace `x` by the sum over all ranks; the same bits everywhere. `reproducible` as in the public method."""
        flat = x.reshape(-1)
        call = Call("allreduce", x.dtype, (x.size,), "sum", 0, 0, None, reproducible, within=self._what)
        self._run(call, flat, flat)

    def allgather(self, x: Array) -> Array:
        """What every rank gives, as an array with a new first axis: the ranks."""
        table = np.empty((self.size, *x.shape), x.dtype)
        call = Call("allgather", x.dtype, (x.size,) * self.size, within=self._what)
        self._run(call, x.reshape(-1), table.reshape(-1))
        return table

    def alltoall(self, x: Array) -> Array:
        """Row i of `x` goes to rank i; row i of the result, an array like `x`, came from rank i."""
        table = np.empty_like(x)
        call = Call("alltoall", x.dtype, (x.size // self.size,), within=self._what)
        self._run(call, x.reshape(-1), table.reshape(-1))
        return table

    def _run(self, call: Call, source: Array, target: Array) -> None:
        self._executor.run(call, source, target, self._deadline)


class ComposedJobs(JobMaker):
    """Makes the jobs of composed operations."""

    def compose(self, body: Callable[[Peers], T], what: str, *, timeout: float | None = None) -> Job[T]:
        """Run `body(peers)` as one collective operation, and return what it returns. All ranks must call it.

        what   the operation in words; ranks that say different things get a MismatchError from the first exchange

        The communicator is aborted by whatever `body` raises. NumPy says nothing of overflows and the like in it.
        """

        def run(deadline: float) -> T:
            try:
                with np.errstate(all="ignore"):
                    return body(Peers(self._executor, self.rank, self.size, what, deadline))
            except RondeError:
                raise
            except BaseException as error:  # the others would wait for exchanges that never come
                rank = self._executor.ranks[self.rank]
                self._executor.abort(AbortedError(f"rank {rank} left {what}: {error!r}", rank=rank))
                raise

        return self.job(run, timeout, Terms("compose", detail=(what,)))
