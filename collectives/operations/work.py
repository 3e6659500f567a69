"""Work: the handle of an operation in flight."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NoReturn, TypeVar

from collectives.numeric import NUMBERS
from collectives.operations.arguments import bounded, check_callback
from transports import forking
from transports.errors import DeadlineExceeded, ForkedError

T = TypeVar("T")

log = logging.getLogger("ronde.work")


class Work(ABC, Generic[T]):
    """An operation in flight, as every `*_async` call returns it.

    ends_by_itself  False for a send or receive: it ends in the thread that tests or waits for it
    """

    ends_by_itself: ClassVar[bool] = True

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

    @staticmethod
    def seconds_of(timeout: float) -> float:
        """The argument `timeout` of `wait` as a float that calls of the system take. Raises TypeError for no number,
        ValueError for NaN."""
        if isinstance(timeout, bool) or not isinstance(timeout, NUMBERS):
            raise TypeError(f"timeout={timeout!r}: must be a number of seconds, or None")
        seconds = bounded(timeout)
        if math.isnan(seconds):
            raise ValueError("timeout=nan: must be a number of seconds, or None")
        return max(0.0, seconds)

    def cancel(self) -> bool:
        """Take the operation back, which only a receive that has matched no message can be. True if it was: it is over
        then, and `wait` raises CancelledError of `concurrent.futures`. False if it was not: it goes on."""
        return False

    def ends_within(self, seconds: float) -> bool:
        """True once it is over, within these seconds."""
        with contextlib.suppress(Exception):  # an error of the operation is for `wait`
            self.wait(seconds)
        return self.test()

    def add_done_callback(self, callback: Callable[[Work[T]], object]) -> None:
        """Call `callback(self)` once the operation is over, at once if it is.

        It is called by the thread that ends the operation, whose next operation waits for it: it must not wait for
        another Work. (A thread of its own waits for a send or recv with a callback.) Its errors are logged. Raises
        TypeError for what cannot be called.
        """
        check_callback(callback)
        self._callbacks.append(callback)
        if self._over():
            self.call_back()

    @abstractmethod
    def _over(self) -> bool:
        """True once `call_back` has been called, or is about to be."""

    def call_back(self) -> None:
        """Call the callbacks of an ended operation. Several threads may call it. An interrupt is raised after the other
        callbacks."""
        try:
            self._call_each()
        except BaseException:
            self._call_each()
            raise

    def __reduce__(self) -> NoReturn:
        """Refuse a copy, which would not learn of the end. Raises TypeError."""
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: it belongs to this process")

    def _call_each(self) -> None:
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return
            try:
                callback(self)
            except Exception:
                log.exception("a callback of an operation raised")


class DeferredResult:
    """The result of an operation that a device is still at work on: `get` gives it to the calling thread, and has what
    that thread lets the device do next wait for it."""

    __slots__ = ("get",)

    def __init__(self, get: Callable[[], Any]) -> None:
        self.get = get


class Promise(Work[T]):
    """A Work that other code ends with `set_result` or `set_exception`."""

    def __init__(self, check_wait: Callable[[], object] = lambda: None) -> None:
        """`check_wait` raises ReentryError where a wait of the calling thread would have no end."""
        super().__init__()
        self._check_wait = check_wait
        self._finished = False
        self._process = forking.process
        self._gate = threading.Lock()  # held until then; an Event takes ten times as long to make
        self._gate.acquire()
        self._result: T | None = None
        self._error: BaseException | None = None

    def test(self) -> bool:
        return self._finished or self._is_inherited()

    def wait(self, timeout: float | None = None) -> T:
        if not self._finished:
            if self._is_inherited():
                raise ForkedError(f"the operation was begun by process {self._process}, which has forked this one")
            self._check_wait()
            if not self._passes(-1 if timeout is None else self.seconds_of(timeout)):
                raise DeadlineExceeded(f"the operation did not complete within {timeout} s; it is still in flight")
        if self._error is not None:
            raise self._error
        result: Any = self._result
        return result.get() if type(result) is DeferredResult else result  # type: ignore[no-any-return]

    def ends_within(self, seconds: float) -> bool:
        return self._finished or self._is_inherited() or self._passes(seconds)

    def _passes(self, seconds: float) -> bool:
        """Wait at the gate, which stays open once the operation has ended, also if an interrupt comes behind it."""
        try:
            return self._gate.acquire(timeout=seconds)
        finally:
            if self._finished:
                self._open()

    def _open(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:  # it is open already
            return

    def _is_inherited(self) -> bool:
        """True in a forked child of the process that began the operation: there it never ends."""
        return self._process != forking.process

    def set_result(self, result: T) -> None:
        """The operation has ended well."""
        self._result = result
        self._end()

    def set_exception(self, error: BaseException) -> None:
        """The operation has failed."""
        self._error = error
        self._end()

    def _end(self) -> None:
        try:
            self._finished = True
            self._open()
            self.call_back()
        except BaseException:  # an interrupt: those that wait must learn of the end
            self._open()
            self.call_back()
            raise

    def _over(self) -> bool:
        return self._finished
