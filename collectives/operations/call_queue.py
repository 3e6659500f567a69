"""CallQueue: runs jobs one at a time, in the order of their submission.

A blocking call on an idle queue runs in the caller's thread: no thread, no hand-over. `call_turn` has the rule of the
turn. The worker thread exists only from the first asynchronous job on. It runs jobs that are tables in machine code,
without Python's lock (progress.py).
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from threading import get_ident
from typing import Any, Final, TypeVar

from collectives.arrays import Array
from collectives.execution import Executor
from collectives.jit import UNTRIED
from collectives.operations.call_turn import HOLDER, CallTurn, run_whole
from collectives.operations.job import Job
from collectives.operations.planned_call import PlainJob, PlannedCall, new_array
from collectives.operations.progress import Progress
from collectives.operations.work import Promise, Work
from transports import forking
from transports.base import Group
from transports.errors import ClosedError, DeadlineExceeded, ForkedError, RondeError
from transports.locks import let_go

T = TypeVar("T")

_SLICE: Final = 0.05
"""Seconds after which a waiting caller looks for an abort: the call before its own may not look for one."""


class _Queued(Promise[T]):
    """A job on a stream."""

    def __init__(self, job: Job[T], turn: CallTurn) -> None:
        super().__init__(turn.check_wait)
        self._job: Job[T] | None = job

    def run(self, executor: Executor) -> None:
        job, self._job = self._job, None  # so that a finished operation keeps no arrays alive but its result
        if job is None:  # it was refused
            return
        try:
            result = job.finish(run_whole(executor, job, time.monotonic() + job.timeout))
        except BaseException as error:  # noqa: BLE001 - the waiting caller gets every error
            self.set_exception(error)
        else:
            self.set_result(result)

    def refuse(self, error: BaseException) -> None:
        """End it with an error, unless it has ended."""
        self._job = None
        if not self.test():
            self.set_exception(error)


class CallQueue:
    """Runs jobs one at a time, in the order in which they were submitted, from any thread.

    A thread that runs a job has the turn. The worker takes it before it takes a job from the queue, so a caller that
    finds the queue empty and the turn free has nothing before it. Machine code can take no turn: whoever submits the
    first job to the ring of `Progress` takes it and lends it to the ring. Once the ring is empty the next caller takes
    it back, or the worker does when it has another job.
    """

    def __init__(self, name: str, group: Group, executor: Executor) -> None:
        """`name` is for messages; `group` is that of the rank; `executor` is that of the jobs."""
        self._name = name
        self._group = group
        self._executor = executor
        self._turn = CallTurn(executor)
        self._take = self._turn.take
        self._clear = self._turn.clear
        self._waiting = self._turn.waiting
        self._queue: deque[_Queued[Any]] = deque()
        self._running: _Queued[Any] | None = None
        """The job of the worker."""
        self._closed = False
        self._worker: threading.Thread | None = None
        self._progress: Progress | None = None
        self._state = "closed"
        self._forked: ForkedError | None = None
        forking.register(self)

    @property
    def entered(self) -> bool:
        """True if this thread is in the middle of a job."""
        return self._turn.is_mine

    @property
    def idle(self) -> bool:
        """True if no job is under way or waits; for a caller that knows that nobody submits any."""
        progress, turn = self._progress, self._turn
        return not self._queue and (not turn.locked() or turn.is_lent) and (progress is None or progress.idle)

    def run(self, job: Job[T]) -> T:
        """Run a job and return its result: here and now if nothing is before it. Raises ReentryError in the middle of
        another one of this thread."""
        me, turn = get_ident(), self._turn
        try:
            if self._queue or self._closed or (turn.take(HOLDER, me) is not me and not self._take_back(me)):
                return self._run_later(job)
            product = job.run(time.monotonic() + job.timeout)
            turn.release()
        except BaseException as error:
            turn.leave(me, error)
            raise
        return job.finish(product)

    def run_planned(self, planned: PlannedCall, x: Array, out: Array | None, seconds: float) -> Any:
        """The same as `run(PlainJob(planned, x, out, seconds))`, without the job: a small call takes hardly longer than
        the making of one."""
        me = get_ident()
        try:
            if self._queue or self._closed or (self._take(HOLDER, me) is not me and not self._take_back(me)):
                return self._run_later(PlainJob(planned, x, out, seconds))
            begin = planned.begin
            result = new_array(planned.shape, planned.dtype) if out is None else out
            finish = None
            if begin is None:
                finish = planned.go_on(UNTRIED, x, out, result, seconds)
            elif (answer := begin(x, result)) is not None:
                finish = planned.go_on(answer, x, out, result, seconds)
            self._clear()
            if self._waiting:
                self._turn.tell()
        except BaseException as error:
            self._turn.leave(me, error)
            raise
        return result if finish is None else finish()

    def submit(self, job: Job[T]) -> Work[T]:
        """Queue a job; its timeout counts from when it begins."""
        work: Work[T] | None = None
        queued: _Queued[T] | None = None
        submitted = 0 if self._progress is None else self._progress.ring.submitted
        try:
            with self._turn.lock:
                if self._closed:
                    raise self._closed_error()
                if isinstance(job, PlainJob) and not self._queue:
                    work = self._submit_to_ring(job)
                if work is None:
                    work = _Queued(job, self._turn)
                    if self._worker is None:
                        self._start_worker()
                    queued = work
                    self._queue.append(queued)  # the job is submitted here
                    self._call_worker()
            return work
        except BaseException as error:
            if not isinstance(error, RondeError):
                let_go(self._turn.lock)
                if queued is None:
                    self._interrupted(error, submitted)
                elif not self._withdraw(queued):
                    self._executor.left(error)
            raise

    def retire(self, state: str) -> None:
        """Refuse all later jobs; `state` is the text of their errors. Raises ClosedError if jobs are refused
        already."""
        with self._turn.lock:
            if self._closed:
                raise self._closed_error()
            self._closed, self._state = True, state
            self._call_worker()

    def close(self, deadline: float) -> None:
        """Wait until the submitted jobs have ended, then end the worker. Idempotent. In the middle of a job of this
        thread the communicator must have been aborted; the jobs that have not begun are refused.

        Raises DeadlineExceeded if that takes too long; jobs that have not begun by then are refused with ClosedError.
        """
        turn, me = self._turn, get_ident()
        inside = turn.is_mine
        with turn.lock:
            self._closed = True
            self._call_worker()
            if not inside:
                turn.changed.wait_for(lambda: not self._queue, max(0.0, deadline - time.monotonic()))
            abandoned, self._queue = self._queue, deque()
            worker = self._worker
        for work in abandoned:
            work.refuse(self._closed_error())
        if inside:
            return
        with turn.lock:
            drained = turn.await_turn(me, max(0.0, deadline - time.monotonic()))
        if drained:
            turn.release()
        if abandoned or not drained:
            raise DeadlineExceeded(f"{self._name}: operations were still in flight when it was closed")
        if worker is not None and worker is not threading.current_thread():
            worker.join(max(0.0, deadline - time.monotonic()))

    def after_fork(self) -> None:
        """In a forked child: refuse all jobs with ForkedError. The turn stays as it is: a caller who has forked in the
        middle of a job will give it back."""
        self._closed, self._forked = True, self._group.forked_error()
        self._turn.after_fork()
        self._queue = deque()

    def _closed_error(self) -> RondeError:
        return copy.copy(self._forked) or ClosedError(f"{self._name} is {self._state}")

    # ---- for a caller whose job is not the first

    def _run_later(self, job: Job[T]) -> T:
        """Queue a job and wait for its result. It must begin within its timeout."""
        if self._closed:
            raise self._closed_error()
        self._turn.check_wait()
        work: Work[T] | None = None
        try:
            work = self.submit(job)
            until = time.monotonic() + job.timeout
            while not work.ends_within(_SLICE):
                failure, late = self._executor.failure, time.monotonic() >= until
                if (late or failure is not None) and self._withdraw(work):
                    if failure is not None:
                        raise failure.within(f"in {job.signature.describe()}, which waited for another call to end")
                    raise DeadlineExceeded(
                        f"{job.signature.describe()} did not begin within {job.timeout:g} s: another call of "
                        f"{self._name} goes on in another thread"
                    )
            return work.wait()
        except BaseException as error:
            if work is not None and not isinstance(error, RondeError) and not work.test() and not self._withdraw(work):
                self._executor.left(error)
            raise

    def _withdraw(self, work: Work[Any]) -> bool:
        """Take a job back that has not begun."""
        with self._turn.lock:
            if work not in self._queue:
                return False
            assert isinstance(work, _Queued)
            self._queue.remove(work)
            return True

    def _interrupted(self, error: BaseException, submitted: int) -> None:
        """An interrupt has left `submit`, whose job was not queued: the ring has it, or nothing has happened."""
        progress = self._progress
        if progress is None:
            return
        progress.interrupted()
        if progress.ring.submitted != submitted:
            self._executor.left(error)
        elif self._turn.is_lent and progress.idle:
            self._turn.release()

    # ---- the lock is held

    def _submit_to_ring(self, job: PlainJob) -> Work[Any] | None:
        """Have machine code run a job that nothing but jobs of the ring is before; None if it cannot."""
        if job.planned.table is None or not self._turn.lend():
            return None
        work = None
        if self._progress is None:
            ring = job.planned.job_ring()
            if ring is not None:
                if self._worker is None:
                    self._start_worker()
                self._progress = Progress(ring)
                self._turn.changed.notify_all()
        if self._progress is not None:
            work = self._progress.submit(job)
        if work is None and (self._progress is None or self._progress.idle):
            self._turn.release()
        return work

    def _start_worker(self) -> None:
        worker = threading.Thread(target=self._serve, name=self._name, daemon=True)
        worker.start()
        self._worker = worker

    def _call_worker(self) -> None:
        """Have the worker look at the queue, and at `_closed`."""
        self._turn.changed.notify_all()
        if self._progress is not None:
            self._progress.ring.call(1)

    # ---- from any thread

    def _take_back(self, me: object) -> bool:
        """Take the turn that is lent, if the ring is empty."""
        turn = self._turn
        if not turn.is_lent:
            return False
        with turn.lock:
            progress = self._progress
            if progress is None or not turn.is_lent or self._queue or not progress.idle:
                return False
            turn.take_back(me)
            progress.drop_ended()
            return True

    # ---- the worker

    def _serve(self) -> None:
        try:
            while self._serve_next():
                pass
        except BaseException as error:  # noqa: BLE001 - no memory, or an interrupt: all jobs would wait for ever
            self._recover(error)
            self._serve()

    def _recover(self, error: BaseException) -> None:
        """Abort, and give back what this thread has. The jobs that wait then end with the cause, one by one."""
        self._executor.left(error)
        let_go(self._turn.lock)
        self._executor.interrupted()
        if self._progress is not None:
            self._progress.interrupted()
        if self._turn.is_mine:
            self._turn.release()
        running, self._running = self._running, None
        if running is not None:
            running.refuse(error)

    def _serve_next(self) -> bool:
        """Run the first job of the queue. False if there will be none."""
        me, turn = get_ident(), self._turn
        if not self._await_job():
            return False
        with turn.lock:
            if turn.take(HOLDER, me) is not me:
                turn.await_turn(me, None)
            if self._queue:  # close may have refused it
                self._running = self._queue[0]
                self._queue.popleft()
            turn.changed.notify_all()
        if self._running is not None:
            self._running.run(self._executor)
            self._running = None
        turn.release()
        return True

    def _await_job(self) -> bool:
        """Wait until the first job is one of the queue, and run those of the ring meanwhile. False if there will be no
        more jobs."""
        turn = self._turn
        while True:
            with turn.lock:
                turn.changed.wait_for(lambda: bool(self._queue) or self._closed or self._progress is not None)
                progress, wanted = self._progress, bool(self._queue) or self._closed
                if wanted and (progress is None or progress.idle):
                    if turn.is_lent:
                        turn.release()
                    return bool(self._queue)
                if progress is not None:
                    progress.expect(wanted)
            if progress is not None:
                progress.serve()
