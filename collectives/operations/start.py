"""Start of a call after the check of its arguments: it is run immediately, or becomes a job for later.

The methods of the operations are written once. A blocking call, an asynchronous, named or persistent one, and a call on
mirrors of a GPU's arrays differ only in their Start.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from collectives.operations.call_queue import CallQueue
from collectives.operations.job import Job
from collectives.operations.planned_call import PlainJob, PlannedCall


class Start(Protocol):
    """Starts calls. `R` of a blocking start is the call's result, of a deferring one a Job."""

    def plain(self, planned: PlannedCall, x: Any, out: Any, seconds: float) -> Any:
        """Start a planned call on NumPy arrays that are used as they are; `out` may be None."""

    def job(self, job: Job[Any]) -> Any:
        """Start any other call."""


class MakeJob:
    """Makes a job of each call."""

    def __init__(self, adapt: Callable[[Job[Any]], Job[Any]] = lambda job: job) -> None:
        """`adapt` is applied to jobs on arrays that are not used as they are."""
        self.plain = PlainJob
        self.job = adapt


class RunNow:
    """Runs each call in the caller's thread, if nothing is before it in the queue; returns its result."""

    def __init__(self, queue: CallQueue) -> None:
        self.plain = queue.run_planned
        self.job = queue.run
