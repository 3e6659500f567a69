"""CallQueue: runs jobs one at a time, in the order of their submission.

A blocking call on an idle queue runs in the caller's thread: no thread, no hand-over. The worker thread exists only
from the first asynchronous job on. It runs jobs that are tables in machine code, without Python's lock (progress.py).
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from typing import Any, TypeVar

from collectives.arrays import Array
from collectives.operations.job import Job
from collectives.operations.planned_call import PlainJob, PlannedCall
from collectives.operations.progress import Progress
from collectives.operations.work import Promise, Work
from transports import forking
from transports.base import Group
from transports.errors import ClosedError, DeadlineExceeded, ForkedError, RondeError

T = TypeVar("T")


class _Queued(Promise[T]):
    """A job on a stream."""

    def __init__(self, job: Job[T]) -> None:
        super().__init__()
        self._job: Job[T] | None = job

    def run(self) -> None:
        job, self._job = self._job, None  # so that a finished operation keeps no arrays alive but its result
        assert job is not None
        try:
            result = job.run(time.monotonic() + job.timeout)
        except BaseException as error:  # noqa: BLE001 - the waiting caller gets every error
            self.set_exception(error)
        else:
            self.set_result(result)

    def refuse(self, error: BaseException) -> None:
        self._job = None
        self.set_exception(error)


class CallQueue:
    """Runs jobs one at a time, in the order in which they were submitted, from any thread.

    A thread that runs a job holds the turn. The worker takes it before it takes a job from the queue, so a caller that
    finds the queue empty and the turn free has nothing before it. Machine code can take no turn: whoever submits the
    first job to the ring of `Progress` takes it and lends it to the ring. Once the ring is empty the next caller takes
    it back, or the worker does when it has another job.
    """

    def __init__(self, name: str, group: Group) -> None:
        """`name` is for messages; `group` is that of the rank."""
        self._name = name
        self._group = group
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._queue: deque[_Queued[Any]] = deque()
        self._closed = False
        self._worker: threading.Thread | None = None
        self._progress: Progress | None = None
        self._lent = False
        """True while the ring has the turn."""
        self._state = "closed"
        self._forked: ForkedError | None = None
        self.end = self._turn.release
        """Give the turn back."""
        forking.register(self)

    def run(self, job: Job[T]) -> T:
        """Run a job and return its result: here and now if nothing is before it."""
        if not self.begin():
            return self.submit(job).wait()
        try:
            return job.run(time.monotonic() + job.timeout)
        finally:
            self.end()

    def run_planned(self, planned: PlannedCall, x: Array, out: Array | None, seconds: float) -> Any:
        """The same as `run(PlainJob(planned, x, out, seconds))`, without the job: a small call takes hardly longer than
        the making of one."""
        if self._queue or self._closed or not (self._turn.acquire(False) or (self._lent and self._take_back())):
            return self.submit(PlainJob(planned, x, out, seconds)).wait()
        try:
            result = planned.empty() if out is None else out
            if planned.begin is not None:
                try:
                    answer = planned.begin(x, result)
                except BaseException as error:
                    planned.leave(error)
                    raise
                if answer is not None:
                    deadline = time.monotonic() + seconds
                    if planned.go_on(answer, x, result, deadline) is False:
                        return planned.otherwise(x, out, seconds, deadline)
                return result
            if planned.flat:
                source, target = x, result
            else:
                target = result.reshape(-1)
                source = target if out is x else x.reshape(-1)
            deadline = time.monotonic() + seconds
            if planned.quietly(planned.function, planned.planned, source, target, deadline) is False:
                return planned.otherwise(x, out, seconds, deadline)
            return result
        finally:
            self.end()

    def begin(self) -> bool:
        """Take the turn if nothing is before the caller; then `end` must follow. False if it has to queue."""
        if self._queue or self._closed:
            return False
        return self._turn.acquire(False) or (self._lent and self._take_back())

    def submit(self, job: Job[T]) -> Work[T]:
        """Queue a job; its timeout counts from when it begins."""
        with self._changed:
            if self._closed:
                raise self._closed_error()
            found = self._submit_to_ring(job) if isinstance(job, PlainJob) and not self._queue else None
            if found is None:
                work = _Queued(job)
                self._queue.append(work)
                self._call_worker()
            if self._worker is None:
                self._worker = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._worker.start()
        return work if found is None else found

    def retire(self, state: str) -> None:
        """Refuse all later jobs; `state` is the text of their errors. Raises ClosedError if jobs are refused
        already."""
        with self._changed:
            if self._closed:
                raise self._closed_error()
            self._closed, self._state = True, state
            self._call_worker()

    def close(self, deadline: float) -> None:
        """Wait until the submitted jobs have ended, then end the worker. Idempotent.

        Raises DeadlineExceeded if that takes too long; jobs that have not begun by then are refused with ClosedError.
        """
        with self._changed:
            self._closed = True
            self._call_worker()
            self._changed.wait_for(lambda: not self._queue, max(0.0, deadline - time.monotonic()))
            abandoned, self._queue = self._queue, deque()
            worker = self._worker
        for work in abandoned:
            work.refuse(self._closed_error())
        drained = self._turn.acquire(timeout=max(0.0, deadline - time.monotonic()))
        if drained:
            self._turn.release()
        if abandoned or not drained:
            raise DeadlineExceeded(f"{self._name}: operations were still in flight when it was closed")
        if worker is not None and worker is not threading.current_thread():
            worker.join(max(0.0, deadline - time.monotonic()))

    def after_fork(self) -> None:
        """In a forked child: refuse all jobs with ForkedError. The turn stays as it is: a caller who has forked in the
        middle of a job will give it back."""
        self._closed, self._forked = True, self._group.forked_error()
        self._changed = threading.Condition()
        self._queue = deque()
        self._lent = False

    def _closed_error(self) -> RondeError:
        return copy.copy(self._forked) or ClosedError(f"{self._name} is {self._state}")

    # ---- the lock is held

    def _submit_to_ring(self, job: PlainJob) -> Work[Any] | None:
        """Have machine code run a job that nothing but jobs of the ring is before; None if it cannot."""
        if job.planned.table is None or not (self._lent or self._turn.acquire(False)):
            return None
        work = None
        try:
            if self._progress is None:
                ring = job.planned.job_ring()
                if ring is not None:
                    self._progress = Progress(ring)
                    self._changed.notify_all()
            if self._progress is not None:
                work = self._progress.submit(job)
            self._lent = self._lent or work is not None
        finally:
            if not self._lent:
                self._turn.release()
        return work

    def _call_worker(self) -> None:
        """Have the worker look at the queue, and at `_closed`."""
        self._changed.notify_all()
        if self._progress is not None:
            self._progress.ring.call(1)

    # ---- from any thread

    def _take_back(self) -> bool:
        """Take the turn that is lent, if the ring is empty."""
        with self._changed:
            progress = self._progress
            if progress is None or not self._lent or self._queue or not progress.idle:
                return False
            self._lent = False
            progress.drop_ended()
            return True

    # ---- the worker

    def _serve(self) -> None:
        while self._await_job():
            with self._turn:
                with self._changed:
                    work = self._queue.popleft() if self._queue else None  # close may have refused it
                    self._changed.notify_all()
                if work is not None:
                    work.run()

    def _await_job(self) -> bool:
        """Wait until the first job is one of the queue, and run those of the ring meanwhile. False if there will be no
        more jobs."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue) or self._closed or self._progress is not None)
                progress, wanted = self._progress, bool(self._queue) or self._closed
                if wanted and (progress is None or progress.idle):
                    if self._lent:
                        self._lent = False
                        self._turn.release()
                    return bool(self._queue)
                if progress is not None:
                    progress.expect(wanted)
            if progress is not None:
                progress.serve()
