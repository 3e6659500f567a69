"""Order and asynchrony: a Stream runs jobs one at a time in the order submitted; a Work is the handle of one.

A blocking call on an idle stream runs in the caller's thread: no thread, no hand-over. The worker thread exists only
from the first asynchronous job on.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from collectives.terms import Terms
from transports.errors import ClosedError, DeadlineExceeded

if TYPE_CHECKING:
    from collectives.fusion import Packable

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job(Generic[T]):
    """Something to do: `run(deadline)` does it before that moment and returns the result; `timeout` is in seconds.

    terms      what all ranks must say alike if they name it
    packable   what it works on, if that may travel with others; then nobody need call `run`
    """

    run: Callable[[float], T]
    timeout: float
    terms: Terms
    packable: Packable | None = None


class Work(ABC, Generic[T]):
    """An operation in flight, as every `*_async` call returns it."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Work[T]], object]] = []

    @abstractmethod
    def test(self) -> bool:
        """True once the operation is over, well or not. Never waits."""

    @abstractmethod
    def wait(self, timeout: float | None = None) -> T:
        """The result of the operation, as the blocking call would have returned or raised it.

        timeout  seconds to wait here; None waits as long as the operation's own timeout lets it run.
        Raises DeadlineExceeded if `timeout` passes first: the operation goes on and may be waited for again.
        """

    def add_done_callback(self, callback: Callable[[Work[T]], object]) -> None:
        """Call `callback(self)` once the operation is over, at once if it is.

        It is called by the thread that ends the operation, whose next operation waits for it: it must not wait for
        another Work. (A message, of send or recv, ends in whoever tests or waits for it.) What it raises is logged.
        """
        self._callbacks.append(callback)
        if self._over():
            self._call_back()

    @abstractmethod
    def _over(self) -> bool:
        """Whether `_call_back` has been called, or is about to be."""

    def _call_back(self) -> None:
        """The operation is over. Several threads may say so."""
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return
            try:
                callback(self)
            except Exception:
                log.exception("a callback of an operation raised")


class Claim:
    """The result of an operation that a device is still at work on: `take` gives it to the calling thread, and has what
    that thread lets the device do next wait for it."""

    __slots__ = ("take",)

    def __init__(self, take: Callable[[], Any]) -> None:
        self.take = take


class Promise(Work[T]):
    """A Work that somebody ends with `keep` or `fail`."""

    def __init__(self) -> None:
        super().__init__()
        self._finished = False
        self._gate = threading.Lock()  # held until then; an Event takes ten times as long to make
        self._gate.acquire()
        self._result: T | None = None
        self._error: BaseException | None = None

    def test(self) -> bool:
        return self._finished

    def wait(self, timeout: float | None = None) -> T:
        if not self._finished:
            if not self._gate.acquire(timeout=-1 if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)):
                raise DeadlineExceeded(f"the operation did not complete within {timeout} s; it is still in flight")
            self._gate.release()
        if self._error is not None:
            raise self._error
        result: Any = self._result
        return result.take() if type(result) is Claim else result  # type: ignore[no-any-return]

    def keep(self, result: T) -> None:
        """The operation has ended well."""
        self._result = result
        self._end()

    def fail(self, error: BaseException) -> None:
        """The operation has failed."""
        self._error = error
        self._end()

    def _end(self) -> None:
        self._finished = True
        self._gate.release()
        self._call_back()

    def _over(self) -> bool:
        return self._finished


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
        except BaseException as error:  # noqa: BLE001 - whatever it was, it belongs to whoever waits
            self.fail(error)
        else:
            self.keep(result)

    def refuse(self, error: BaseException) -> None:
        self._job = None
        self.fail(error)


class Stream:
    """Runs jobs one at a time, in the order in which they were submitted, from any thread.

    Whoever runs a job holds the turn. The worker takes it before it takes a job from the queue, so a caller who finds
    the queue empty and the turn free has nothing before it.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._queue: deque[_Queued[Any]] = deque()
        self._closed = False
        self._worker: threading.Thread | None = None
        self._state = "closed"
        self.end = self._turn.release
        """Give the turn back."""

    def run(self, job: Job[T]) -> T:
        """Run a job and return its result: here and now if nothing is before it."""
        if not self.begin():
            return self.submit(job).wait()
        try:
            return job.run(time.monotonic() + job.timeout)
        finally:
            self.end()

    def begin(self) -> bool:
        """Take the turn if nothing is before the caller; then `end` must follow. False if it has to queue."""
        return not (self._queue or self._closed) and self._turn.acquire(False)

    def submit(self, job: Job[T]) -> Work[T]:
        """Queue a job; its timeout counts from when it begins."""
        work = _Queued(job)
        with self._changed:
            if self._closed:
                raise self._closed_error()
            self._queue.append(work)
            if self._worker is None:
                self._worker = threading.Thread(target=self._serve, name=self._name, daemon=True)
                self._worker.start()
            self._changed.notify_all()
        return work

    def retire(self, state: str) -> None:
        """Take no more jobs; `state` is what errors say from now on. Raises ClosedError if it takes none already."""
        with self._changed:
            if self._closed:
                raise self._closed_error()
            self._closed, self._state = True, state
            self._changed.notify_all()

    def close(self, deadline: float) -> None:
        """Let what was submitted come to its end, then end the worker. Idempotent.

        Raises DeadlineExceeded if that takes too long; what had not begun by then is refused with ClosedError.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
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

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"{self._name} is {self._state}")

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue) or self._closed)
                if not self._queue:
                    return
            with self._turn:
                with self._changed:
                    work = self._queue.popleft() if self._queue else None  # close may have refused it
                    self._changed.notify_all()
                if work is not None:
                    work.run()
