"""Persistent calls: the same call on the same arrays, many times. As MPI_Allreduce_init (MPI 4.0, section 6.12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collectives.operations.call_queue import CallQueue
from collectives.operations.job import Job
from collectives.operations.planned_call import PlainJob, PlannedCall
from collectives.operations.work import Work


class Persistent:
    """A call that `Communicator.plan` has made, for any number of runs. It keeps its arrays alive."""

    __slots__ = ("_given", "_make", "_out", "_planned", "_queue", "_run_planned", "_timeout", "_x")

    def __init__(self, queue: CallQueue, make: Callable[[], Job[Any]]) -> None:
        """`make` makes the job of one run. It is called once here, so that bad arguments are found."""
        self._queue = queue
        self._make = make
        job = make()
        self._run_planned = queue.run_planned
        self._planned: PlannedCall | None = None
        if isinstance(job, PlainJob) and job.out is not None:
            self._planned, self._timeout = job.planned, job.timeout
            self._given = job.out
            self._x = job.x.view()  # of the planned shape, also when the program gives its array another one
            self._out = self._x if job.out is job.x else job.out.view()

    def run(self) -> Any:
        """Run it now, and return the result of the plain call: `out`, if that was given. Collective.

        Raises the errors of the plain call; ClosedError if the communicator has been closed.
        """
        planned, run_planned = self._planned, self._run_planned
        if planned is None or not self._given.flags.writeable:  # not any more: as the plain call has it
            return self._queue.run(self._make())
        run_planned(planned, self._x, self._out, self._timeout)
        return self._given

    def start(self) -> Work[Any]:
        """Begin to run it, in the order of calls. Its arrays must not be touched until the Work is over."""
        return self._queue.submit(self._make())
