"""Progress: asynchronous calls run by a thread that does not need Python's lock.

    any thread of this rank            the queue's thread, in one compiled call      other ranks
    -----------------------            ----------------------------------------      -----------
    allreduce_async(x, out=y)
      PlainJob --> RingWork
      table, x, y -----------> ring of jobs ------> COPY, SIGNAL, WAIT, REDUCE <---> shared memory
    y = work.wait()  <-------- number of jobs that have ended

The thread sleeps in futex(2) where the ring is empty, or a peer is late: a thread that wakes from a sleep in the kernel
gets a core at once, also beside two loops of Python that never pause. A job does not need Python's lock, which such a
loop gives away only every 5 ms. The thread comes back to Python only if a job needs it (a peer stays late, another
call, a failure, a timeline), or if it is called: for a callback, or for a job that is no table.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from collectives.jit import JobRing
from collectives.operations.arguments import check_callback
from collectives.operations.planned_call import PlainJob
from collectives.operations.work import Work
from transports import forking
from transports.errors import DeadlineExceeded, ForkedError, RondeError
from transports.locks import let_go

_SLICE: Final = 50_000_000
"""Nanoseconds of one sleep of a waiting caller. Between two of them Python handles signals."""


class RingWork(Work[Any]):
    """A call on the ring.

    number  of jobs that have ended once this one has
    job     None once it has ended, so that it keeps no arrays alive but its result
    """

    def __init__(self, progress: Progress, number: int, job: PlainJob) -> None:
        super().__init__()
        self.number = number
        self.job: PlainJob | None = job
        self._progress = progress
        self._ended = progress.ring.ended
        self._process = forking.process
        self._result = job.result()
        self._error: BaseException | None = None

    @property
    def has_callbacks(self) -> bool:
        """True if callbacks have to be called."""
        return bool(self._callbacks)

    def test(self) -> bool:
        return self._ended(self.number, 0) or self._is_inherited()

    def wait(self, timeout: float | None = None) -> Any:
        if not self._ended(self.number, 0):
            if self._is_inherited():
                raise ForkedError(f"the operation was begun by process {self._process}, which has forked this one")
            self._sleep(timeout)
        if self.job is not None:
            try:
                self._progress.drop_ended()
            except BaseException:
                self._progress.interrupted()
                raise
        if self._error is not None:
            raise self._error
        return self._result

    def ends_within(self, seconds: float) -> bool:
        return self._ended(self.number, int(1e9 * seconds)) or self._is_inherited()

    def add_done_callback(self, callback: Callable[[Work[Any]], object]) -> None:
        check_callback(callback)
        self._callbacks.append(callback)
        if not self._over():
            self._progress.ring.call(1)
        if self._over():
            self.call_back()

    def finish(self, answer: int) -> None:
        """Do what the job has left to Python."""
        job = self.job
        assert job is not None
        try:
            job.planned.go_on(answer, job.x, self._result, self._result, job.timeout)
        except BaseException as error:  # noqa: BLE001 - the waiting caller gets every error
            self._error = error
            if not isinstance(error, RondeError):
                job.planned.left(error)

    def _sleep(self, timeout: float | None) -> None:
        if timeout is None:
            while not self._ended(self.number, _SLICE):
                pass
            return
        until = time.monotonic() + self.seconds_of(timeout)
        while not self._ended(self.number, int(min(_SLICE, 1e9 * max(0.0, until - time.monotonic())))):
            if time.monotonic() >= until:
                raise DeadlineExceeded(f"the operation did not complete within {timeout} s; it is still in flight")

    def _is_inherited(self) -> bool:
        """True in a forked child of the process that began the operation: there it never ends."""
        return self._process != forking.process

    def _over(self) -> bool:
        return self._ended(self.number, 0)


class Progress:
    """The jobs of one ring. The holder of the queue's lock submits and expects; the queue's thread serves."""

    def __init__(self, ring: JobRing) -> None:
        self.ring = ring
        self._lock = threading.RLock()
        self._works: deque[RingWork] = deque()
        """Those whose end nobody has seen yet: they keep the tables and arrays whose addresses are in the ring."""

    @property
    def idle(self) -> bool:
        """True if all jobs have ended."""
        return self.ring.ended(self.ring.submitted, 0)

    def submit(self, job: PlainJob) -> RingWork | None:
        """Have the thread run a job; None if the ring is full, or the job is no table."""
        table = job.planned.table
        self.drop_ended()
        with self._lock:
            if table is None or len(self._works) >= self.ring.capacity:
                return None
            while self._works and self._works[-1].number > self.ring.submitted:
                self._works.pop()  # an interrupt has come before it was submitted
            work = RingWork(self, self.ring.submitted + 1, job)
            self._works.append(work)
            self.ring.submit(table.words, job.x, job.result())  # the call begins here
        return work

    def interrupted(self) -> None:
        """An interrupt has left `submit`, `drop_ended` or a wait of this thread."""
        let_go(self._lock)

    def drop_ended(self) -> None:
        """Let go of jobs that have ended. Those with callbacks are left to `serve`."""
        with self._lock:
            while self._works and self._works[0].test() and not self._works[0].has_callbacks:
                work = self._works.popleft()
                assert work.job is not None
                work.job.planned.report_times()
                work.job = None

    def expect(self, wanted: bool) -> None:
        """Have the next `serve` return after each job, and as soon as there is none, if `wanted` or for callbacks."""
        self.ring.call(0)  # before the look at the callbacks: one may be added meanwhile
        with self._lock:
            wanted = wanted or any(work.has_callbacks for work in self._works)
        if wanted:
            self.ring.call(1)

    def serve(self) -> None:
        """Run jobs, until the thread is called or a job needs Python."""
        answer = self.ring.serve()
        if answer is not None:
            with self._lock:
                oldest = next(work for work in self._works if not work.test())
            oldest.finish(answer)
            self.ring.end()
        with self._lock:
            ended = [work for work in self._works if work.has_callbacks and work.test()]
        for work in ended:
            work.call_back()
        self.drop_ended()
