"""The way from the arguments of a public method to a started call.

    Communicator.allreduce(x, op, out=..., prescale=..., ...)
        |  the collective's name, x, out, and all arguments that decide the plan as one tuple
        v
    Starter.arrays --> PlannedCalls.plain --> Start.plain     NumPy arrays that are used as they are
             |
             +--> ArrayOperations.job --> Start.job           all others; of GPUs by the operations on their memory

A blocking call, an asynchronous, a named and a persistent one differ only in their Start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import Any, Final, Generic, NamedTuple, NoReturn, TypeVar

import numpy as np

from collectives.operations.arguments import Arguments
from collectives.operations.call_queue import CallQueue
from collectives.operations.job import Job
from collectives.operations.planned_call import Collective, InBytes, PlainJob, PlannedCall, PlannedCalls, as_bytes
from collectives.operations.space import Space
from collectives.operations.work import Work

R = TypeVar("R")

_ndarray: Final = np.ndarray


class ArrayOperations:
    """The collectives on the arrays of one space, by the names of the Communicator's methods."""

    def __init__(
        self,
        collectives: Sequence[Collective],
        space: Space,
        calls: PlannedCalls,
        arguments: Arguments,
        adapt: Callable[[Job[Any]], Job[Any]] | None = None,
    ) -> None:
        """`adapt` is applied to every job."""
        self.collectives = {collective.name: collective for collective in collectives}
        self.calls = calls
        self._space = space
        self.arguments = arguments
        self._adapt = adapt

    def job(self, name: str, x: Any, out: Any, arguments: tuple[Any, ...], timeout: float | None) -> Job[Any]:
        """The job of a call. Raises TypeError or ValueError for bad arguments."""
        seconds = self.arguments.timeout(timeout)
        job = self.calls.job(self._space, self.collectives[name], x, out, arguments, seconds)
        return job if self._adapt is None else self._adapt(job)


class Start(NamedTuple, Generic[R]):
    """Starts calls that are checked and planned. Both functions return what the method of the Communicator returns.

    plain   (planned, x, out, seconds): on NumPy arrays that are used as they are; `out` may be None
    job     any other call
    """

    plain: Callable[[PlannedCall, Any, Any, float], R]
    job: Callable[[Job[Any]], R]


def run_by(queue: CallQueue) -> Start[Any]:
    """Run each call in the caller's thread, if nothing is before it in the queue; gives its result."""
    return Start(queue.run_planned, queue.run)


def begin_by(submit: Callable[[Job[Any]], Work[Any]]) -> Start[Work[Any]]:
    """Submit each call as a job; gives its Work."""
    return Start(lambda planned, x, out, seconds: submit(PlainJob(planned, x, out, seconds)), submit)


MAKE_JOB: Final[Start[Any]] = Start(PlainJob, lambda job: job)
"""Gives the job of each call."""


Make = Callable[[ArrayOperations], Job[Any]]
"""Makes the job of one call by the operations for its arrays."""
Elsewhere = Callable[[Any, Any, Any, bool], Callable[[Make], Job[Any]] | None]
"""(x, out, stream, blocking): the function that has the job of a call made by the operations for its arrays; None if
they are in the host's memory."""


class Starter(Generic[R]):
    """Starts the calls of a communicator in one way. `R` is a Work if that only begins them, else a result.

    message   (method, *arguments): starts a message; see PointToPoint
    """

    __slots__ = (
        "_arrays",
        "_collectives",
        "_elsewhere",
        "_job",
        "_jobs",
        "_plain",
        "_planned",
        "_seconds",
        "_timeout",
        "message",
    )

    def __init__(
        self,
        arrays: ArrayOperations,
        jobs: Mapping[str, Callable[..., Job[Any]]],
        elsewhere: Elsewhere,
        start: Start[R],
        message: Callable[..., R],
    ) -> None:
        """
        arrays   the operations on arrays of the host
        jobs     make the jobs of operations without arrays
        """
        self._arrays = arrays
        self._collectives = arrays.collectives
        self._planned = arrays.calls.plain
        self._timeout = arrays.arguments.timeout
        self._seconds = arrays.arguments.seconds
        self._jobs = jobs
        self._elsewhere = elsewhere
        self._plain = start.plain
        self._job = start.job
        self.message = message

    def arrays(
        self,
        name: str,
        x: Any,
        out: Any,
        arguments: tuple[Any, ...],
        timeout: float | None,
        stream: Any,
        blocking: bool,
    ) -> R:
        """Start a collective on arrays.

        x                 the call's array, or a sequence whose first array decides; None: `out` decides
        arguments         those that decide the plan, in the order of Collective.key
        stream, blocking  the options of arrays on GPUs
        """
        place = None
        if type(x) is _ndarray and stream is None:
            planned = self._planned(self._collectives[name], x, out, arguments)
            if planned is not None:
                return self._plain(planned, x, out, self._seconds if timeout is None else self._timeout(timeout))
        else:
            place = self._elsewhere(x, out, stream, blocking)
        make = methodcaller("job", name, x, out, arguments, timeout)
        return self._job(make(self._arrays) if place is None else place(make))

    def job(self, name: str, *arguments: Any) -> R:
        """Start an operation without arrays of the caller: a barrier, objects, a composed operation."""
        return self._job(self._jobs[name](*arguments))

    def repeated(self, name: str, arguments: tuple[Any, ...], timeout: float | None, *, in_bytes: bool) -> Repeated[R]:
        """The call of `arrays` with these arguments, to be started on any arrays of the host."""
        start = Start(self._plain, self._job)
        return Repeated(self._arrays, name, arguments, self._timeout(timeout), start, in_bytes=in_bytes)


class RepeatingStarter(Starter[Any]):
    """Gives a `Repeated` for each call, which starts it as another starter does."""

    __slots__ = ("_in_bytes", "_starter")

    def __init__(self, starter: Starter[Any], *, in_bytes: bool) -> None:
        self._starter = starter
        self._in_bytes = in_bytes

    def arrays(
        self,
        name: str,
        x: Any,
        out: Any,
        arguments: tuple[Any, ...],
        timeout: float | None,
        stream: Any,
        blocking: bool,
    ) -> Repeated[Any]:
        return self._starter.repeated(name, arguments, timeout, in_bytes=self._in_bytes)


class Repeated(Generic[R]):
    """A collective with all its arguments but the arrays, which may be others in each call. It keeps no arrays."""

    __slots__ = (
        "_arguments",
        "_arrays",
        "_collective",
        "_in_bytes",
        "_job",
        "_latest",
        "_name",
        "_plain",
        "_planned",
        "_seconds",
    )

    def __init__(
        self,
        arrays: ArrayOperations,
        name: str,
        arguments: tuple[Any, ...],
        seconds: float,
        start: Start[R],
        *,
        in_bytes: bool,
    ) -> None:
        """`in_bytes`: the call is made on the memory of the arrays as bytes."""
        self._arrays = arrays
        self._name = name
        self._collective = arrays.collectives[name]
        self._arguments = arguments
        self._seconds = seconds
        self._plain: Callable[..., R] = start.plain
        self._job = start.job
        calls = arrays.calls
        self._planned: Callable[..., PlannedCall | InBytes | None] = calls.plain_in_bytes if in_bytes else calls.plain
        self._in_bytes = in_bytes
        self._latest = calls.repeated

    def __reduce__(self) -> NoReturn:
        """Raises TypeError: it belongs to the communicator of this process."""
        raise TypeError(f"a repeated {self._name} cannot be pickled or copied: it belongs to a communicator")

    def again(self, x: Any, out: Any) -> bool:
        """Make the call if `x` and `out`, of any type, are arrays like those of the last one; else False, with nothing
        done. Collective. Raises as the method."""
        planned = self._latest.get(self)
        if planned is None or not planned.fits(x, out):
            return False
        self._plain(planned, x, out, self._seconds)
        return True

    def __call__(self, x: Any, out: Any) -> R:
        """Make the call on NumPy arrays, which are None where the method has none. Collective. Raises as the method."""
        planned = self._latest.get(self)
        if planned is not None and planned.fits(x, out):
            return self._plain(planned, x, out, self._seconds)
        if self._in_bytes and not all(array is None or array.flags.c_contiguous for array in (x, out)):
            raise ValueError("x, out: must be contiguous, since the call is on their memory")
        if type(x) is _ndarray:
            planned = self._planned(self._collective, x, out, self._arguments)
            if planned is not None:
                self._latest[self] = planned
                return self._plain(planned, x, out, self._seconds)
        if self._in_bytes:
            x, out = as_bytes(x, out)
        return self._job(self._arrays.job(self._name, x, out, self._arguments, self._seconds))
