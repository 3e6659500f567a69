"""Persistent calls: the same call on the same arrays, many times. As MPI_Allreduce_init (MPI 4.0, section 6.12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collectives.operations.call_queue import CallQueue
from collectives.operations.job import Job
from collectives.operations.planned_call import PlainJob
from collectives.operations.work import Work


class Persistent:
    """A call that `Communicator.plan` has made, for any number of runs. It keeps its arrays alive."""

    __slots__ = ("_make", "_plain", "_queue")

    def __init__(self, queue: CallQueue, make: Callable[[], Job[Any]]) -> None:
        """`make` makes the job of one run. It is called once here, so that bad arguments are found."""
        self._queue = queue
        self._make = make
        job = make()
        self._plain = (
            (job.planned, job.x, job.out, job.timeout) if isinstance(job, PlainJob) and job.out is not None else None
        )

    def run(self) -> Any:
        """Run it now, and return the result of the plain call: `out`, if that was given. Collective.

        Raises the errors of the plain call; ClosedError if the communicator has been closed.
        """
        return self._queue.run(self._make()) if self._plain is None else self._queue.run_planned(*self._plain)

    def start(self) -> Work[Any]:
        """Begin to run it, in the order of calls. Its arrays must not be touched until the Work is over."""
        return self._queue.submit(self._make())
