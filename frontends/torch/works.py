"""torch.distributed's Work and Future, on top of the runtime's Work."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import FunctionType
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
import torch.futures
from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy, set_code_exec_strategy

from collectives import Status
from collectives import Work as Ours
from frontends.torch import streams
from frontends.torch.native_futures import asked_by_native_code, native
from frontends.torch_backend import BACKEND
from transports import forking
from transports.errors import DeadlineExceeded, ForkedError, ReentryError

T = TypeVar("T")
Finish = Callable[[list[Any]], object]
_SKIP: Final = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)
"""Run a function and all that it calls without the compiler."""


def eager(what: T) -> T:
    """Keep the compiler away from a function, or from all methods of a class, and from what they call, as
    torch.compiler.disable does.

    That would import the compiler, which takes a second. The mark stops the compiler where it follows a call; the
    strategy stops it where a method is entered from C++ or from code that is not compiled.
    """
    for attribute in vars(what).values() if isinstance(what, type) else (what,):
        function = attribute.fget if isinstance(attribute, property) else attribute
        if isinstance(function, FunctionType):
            function._torchdynamo_disable = True  # type: ignore[attr-defined]
            set_code_exec_strategy(function.__code__, _SKIP)
    return what


class Callbacks:
    """The threads that run callbacks of futures, and the callback that each thread is running.

    A callback may begin operations and wait for them, as PowerSGD's does. It runs in one of these threads, or at once
    in the main thread if the operation has already ended. So the order of a callback's operations and the main thread's
    next operation differs between ranks. Ranks match a callback's operations by name instead, made of the `position`:
    (3, 0, 1) is the second operation in a callback of the first operation in a callback of the group's third
    collective. Messages are counted apart, with negative numbers: (-3, 0) is the first operation in a callback of the
    rank's third message.
    """

    def __init__(self) -> None:
        self.keeper = streams.Keeper()
        self._thread = threading.local()
        self._lock = threading.Lock()
        self._threads: list[ThreadPoolExecutor] = []
        self._last: dict[int, concurrent.futures.Future[object]] = {}
        self._closed = False

    def position(self) -> tuple[int, ...]:
        """Return the position of the calling thread's next operation; () outside of callbacks."""
        inside: _Callback | None = getattr(self._thread, "callback", None)
        return () if inside is None else (*inside.position, next(inside.count))

    @contextlib.contextmanager
    def running(self, callback: _Callback) -> Iterator[None]:
        """Context in which the calling thread runs a callback."""
        before = getattr(self._thread, "callback", None)
        self._thread.callback = callback
        try:
            yield
        finally:
            self._thread.callback = before

    def submit(self, depth: int, complete: Callable[[], object]) -> None:
        """Call `complete` in the thread for a depth of callbacks. Each depth has its own, so that a callback can wait
        for another's operations. After `close`, and at the end of the process, call it in this thread.
        """
        with self._lock:
            try:
                while len(self._threads) <= depth and not self._closed:
                    self._threads.append(ThreadPoolExecutor(1, f"ronde-torch-callback-{len(self._threads)}"))
                if not self._closed:
                    self._last[depth] = self._threads[depth].submit(complete)
                    return
            except RuntimeError:  # Python has ended its threads
                self._closed = True
        complete()

    def close(self, seconds: float) -> None:
        """End the threads after their last call, for which it waits so long at most, and not in one of them."""
        with self._lock:
            self._closed = True
        if getattr(self._thread, "callback", None) is None:
            concurrent.futures.wait(self._last.values(), seconds)
        for threads in self._threads:
            threads.shutdown(wait=False)


class _Callback:
    """The position of an operation, and a number for each operation that its callbacks begin."""

    __slots__ = ("count", "position")

    def __init__(self, position: tuple[int, ...]) -> None:
        self.position = position
        self.count = itertools.count()


class _Failure:
    """The value of a future that has failed. Python code gets the error instead of it. C++ code that expects a tensor
    asks for its text, to complain of it, and then raises the error too."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error


def _raise_failure(value: Any) -> None:
    if isinstance(value, _Failure):
        raise value.error


@eager
class Future(torch.futures.Future):  # type: ignore[misc]
    """A future whose callbacks know which operation they follow. `devices` are the GPUs of its tensors."""

    def __init__(self, group_callbacks: Callbacks, callbacks: _Callback, devices: Sequence[torch.device]) -> None:
        super().__init__(devices=list(devices))
        self._devices = devices
        self._group_callbacks = group_callbacks
        self._callbacks = callbacks
        self._process = forking.process
        self._complete = threading.Event()
        self.add_done_callback(self._tell_completion)

    def _tell_completion(self, _: torch.futures.Future[Any]) -> None:
        self._complete.set()

    def wait(self) -> Any:
        """Wait until it is complete; return its value. The same as torch's, but Ctrl-C interrupts it. Raises
        DistBackendError in a forked child, where nothing completes it."""
        if forking.process != self._process and not self.done():
            raise dist.DistBackendError(f"the operation is one of process {self._process}, which has forked this one")
        self._complete.wait()  # the operation's own end sets it, and the end of the callbacks between
        return super().wait()

    def set_exception(self, error: BaseException) -> None:
        """Complete it with an error, which `wait` and `value` raise. The same as torch's."""
        self._set_unwrap_func(_raise_failure)
        self.set_result(_Failure(error))

    def then(self, callback: Callable[[torch.futures.Future[Any]], Any]) -> torch.futures.Future[Any]:
        """Return a future of `callback(self)`, which is called when this future is complete. The same as torch's."""
        following = Future(self._group_callbacks, self._callbacks, self._devices)

        def call(this: torch.futures.Future[Any]) -> None:
            try:
                with self._group_callbacks.running(self._callbacks):
                    result = callback(this)
            except BaseException as error:
                following.set_exception(error)
                if not isinstance(error, Exception):
                    raise
            else:
                following.set_result(result)

        self.add_done_callback(call)
        return following


@eager
class Work(dist.Work):  # type: ignore[misc]
    """One or more operations of the runtime as one torch Work.

    results    the tensors that `result` and the future return
    finish     called once with the operations' results when all of them have ended, to copy them into the tensors
    position   see Callbacks
    seconds    the operations' timeout
    source     rank that sends the message, or its status, which is filled; -1 for a collective
    """

    def __init__(
        self,
        works: Sequence[Ours[Any]],
        results: list[torch.Tensor],
        finish: Finish | None,
        group_callbacks: Callbacks,
        position: tuple[int, ...],
        seconds: float,
        source: int | Status = -1,
    ) -> None:
        super().__init__()
        self._works = list(works)
        self._results = results
        self._devices = streams.devices_of(results)
        self._marks: streams.Marks = []
        self._finish = finish
        self._group_callbacks = group_callbacks
        self._position = position
        self._seconds = seconds
        self._source = source
        self._lock = threading.Lock()
        self._settling = threading.RLock()  # a signal handler may wait for this work
        self._over = False
        self._before: list[Callable[[], object]] = []
        self._error: Exception | None = None
        self._future: Future | None = None
        self._plain_futures: list[torch.futures.Future[list[torch.Tensor]]] = []
        self._listens = False
        if all(work.ends_by_itself for work in self._works):
            self._listen()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until it has ended; return True. A `timeout` of zero or less means the operation's own timeout.

        With CUDA tensors, the thread's current streams wait from then on, and the host does not. Raises
        DistBackendError (a RuntimeError) with the runtime's error as its cause.
        """
        seconds = timeout.total_seconds()
        until = time.monotonic() + seconds
        for work in self._works:
            try:
                work.wait(max(0.0, until - time.monotonic()) if seconds > 0 else None)
            except (ForkedError, ReentryError) as error:  # the thread cannot wait for it: that is not its end
                raise dist.DistBackendError(str(error)) from error
            except DeadlineExceeded as error:
                if not work.test():
                    raise for_torch(error, seconds if seconds > 0 else self._seconds) from error
            except Exception:  # noqa: BLE001, S110 - `_settle` keeps it
                pass
        self._settle()
        if self._error is not None:
            raise for_torch(self._error, self._seconds) from self._error
        streams.follow(self._marks)
        return True

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def is_completed(self) -> bool:
        """True when it has ended, with or without an error."""
        if not self._over and all(work.test() for work in self._works):
            self._settle()
        return self._over

    def is_success(self) -> bool:
        """True when it has ended without an error."""
        return self._over and self._error is None

    def exception(self) -> Exception | None:
        """Return its error, None without one."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """Return the tensors that were written."""
        return self._results

    def source_rank(self) -> int:
        """Return the rank that sent the message, -1 for a collective, and before a message of any rank has come."""
        return self._source.source if isinstance(self._source, Status) else self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a future of `result`. Its callbacks run in threads of their own and may wait for other operations.

        C++ code gets a future of its own kind, but not of CUDA tensors: such a future knows no streams.
        """
        if not self._devices and asked_by_native_code("get_future"):
            return self._native_future()
        with self._lock:
            if self._future is None:
                self._future = Future(self._group_callbacks, _Callback(self._position), self._devices)
                if self._over:
                    self._complete_future()  # it cannot have a callback yet
            future = self._future
        self._listen()
        return future

    def before_it_is_over(self, call: Callable[[], object]) -> None:
        """Call `call` when the operation has ended, before that shows; at once if it does already."""
        with self._lock:
            if not self._over:
                self._before.append(call)
                return
        call()

    def _native_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        plain: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
        future = native(plain, self._results)
        with self._lock:
            over = self._over
            if not over:
                self._plain_futures.append(plain)
        if over:
            self._set(plain)
            future.wait()  # C++ code that has waited for the operation reads the value at once
        self._listen()
        return future

    def _listen(self) -> None:
        """Settle as soon as all operations have ended, also if nobody waits for them. Idempotent."""
        if not self._listens:
            self._listens = True
            for work in self._works:
                work.add_done_callback(self._one_is_over)

    def _one_is_over(self, _: Ours[Any]) -> None:
        if all(work.test() for work in self._works):
            self._settle()

    def _settle(self) -> None:
        """Take the results of the operations, which have ended, and tell everybody who waits for them. Idempotent."""
        with self._settling:
            if self._over:
                return
            try:
                with streams.aside(self._devices):
                    values = [work.wait() for work in self._works]
                    if self._finish is not None:
                        self._finish(values)
                    self._marks = streams.mark(self._devices)
                self._group_callbacks.keeper.keep(self._marks, (values, self._results))
            except Exception as error:  # noqa: BLE001 - the waiting caller gets every error
                self._error = error
            with self._lock:
                if self._over:
                    return
                for call in self._before:
                    call()
                self._over = True
                future, plain_futures = self._future, self._plain_futures
        if future is not None:
            self._group_callbacks.submit(len(self._position) - 1, self._complete_future)
        for plain in plain_futures:
            self._set(plain)

    def _complete_future(self) -> None:
        assert self._future is not None
        with streams.aside(self._devices):
            streams.follow(self._marks)
            self._set(self._future)

    def _set(self, future: torch.futures.Future[list[torch.Tensor]]) -> None:
        if self._error is None:
            future.set_result(self._results)
        else:
            future.set_exception(for_torch(self._error, self._seconds))


@eager
class Done(dist.Work):  # type: ignore[misc]
    """An operation that had ended when it was returned: a synchronous one."""

    def __init__(self, results: list[torch.Tensor]) -> None:
        super().__init__()
        self._results = results

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """True."""
        return True

    def synchronize(self) -> None:
        """Nothing."""

    def is_completed(self) -> bool:
        """True."""
        return True

    is_success = is_completed

    def exception(self) -> Exception | None:
        """None: an error would have been raised."""
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors that were written."""
        return self._results

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """Return a complete future."""
        devices = streams.devices_of(self._results)
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=devices)
        future.set_result(self._results)
        return future


def for_torch(error: Exception, seconds: float) -> dist.DistBackendError:
    """Return the error of an operation as torch's. One that took longer than its timeout of so many seconds also has
    the words of torch's backends, which scripts may look for.
    """
    late = f"{BACKEND}: Timed out waiting {1000 * seconds:.0f}ms: " if isinstance(error, DeadlineExceeded) else ""
    return dist.DistBackendError(f"{late}{error}")
