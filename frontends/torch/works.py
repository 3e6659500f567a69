"""torch's Work over ours."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.futures

from collectives import Work as Ours
from frontends.torch import streams
from transports.errors import DeadlineExceeded, RondeError

Finish = Callable[[list[Any]], object]


def eager(kind: type) -> type:
    """What torch.compiler.disable does, for all methods of a class, and without the second that importing the compiler
    takes."""
    for attribute in vars(kind).values():
        if callable(attribute) and hasattr(attribute, "__code__"):
            attribute._torchdynamo_disable = True
    return kind


class Callers:
    """Threads that run the callbacks of futures, and whose callback a thread is in.

    A callback may begin operations and wait for them, as PowerSGD's does; it may run in a thread of these, or at once
    in the main thread if the operation was over when it was given. So what comes first, an operation of a callback or
    the next of the main thread, differs from rank to rank; the runtime orders the former by their names, which tell
    the `place`: (3, 0, 1) is the second operation in a callback of the first one in a callback of the group's third.
    """

    def __init__(self) -> None:
        self.keeper = streams.Keeper()
        self._here = threading.local()
        self._lock = threading.Lock()
        self._threads: list[ThreadPoolExecutor] = []

    def place(self) -> tuple[int, ...]:
        """Where the calling thread begins its next operation; () outside of callbacks."""
        inside: _Inside | None = getattr(self._here, "inside", None)
        return () if inside is None else (*inside.place, next(inside.count))

    @contextlib.contextmanager
    def inside(self, callback: _Inside) -> Iterator[None]:
        """The calling thread runs a callback of the operation at a place."""
        before = getattr(self._here, "inside", None)
        self._here.inside = callback
        try:
            yield
        finally:
            self._here.inside = before

    def submit(self, depth: int, settle: Callable[[], object]) -> None:
        """Call `settle` in the thread for operations of a depth: those of callbacks do not wait for their callers."""
        with self._lock:
            while len(self._threads) <= depth:
                self._threads.append(ThreadPoolExecutor(1, f"ronde-torch-callback-{len(self._threads)}"))
            self._threads[depth].submit(settle)

    def close(self) -> None:
        """End the threads, when they have done what they have to."""
        for threads in self._threads:
            threads.shutdown()


class _Inside:
    """Callbacks of one operation: its place, and a number for each operation that they begin."""

    __slots__ = ("count", "place")

    def __init__(self, place: tuple[int, ...]) -> None:
        self.place = place
        self.count = itertools.count()


class Future(torch.futures.Future):  # type: ignore[misc]
    """A future whose callbacks know which operation they follow. `devices` are the GPUs of its tensors."""

    def __init__(self, callers: Callers, callbacks: _Inside, devices: Sequence[torch.device]) -> None:
        super().__init__(devices=list(devices))
        self._devices = devices
        self._callers = callers
        self._callbacks = callbacks

    def then(self, callback: Callable[[torch.futures.Future[Any]], Any]) -> torch.futures.Future[Any]:
        """As torch's: a future of what `callback(self)` returns, which is called when this one is over."""
        following = Future(self._callers, self._callbacks, self._devices)

        def call(this: torch.futures.Future[Any]) -> None:
            try:
                with self._callers.inside(self._callbacks):
                    result = callback(this)
            except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the following one
                following.set_exception(error)
            else:
                following.set_result(result)

        self.add_done_callback(call)
        return following


@eager
class Work(dist.Work):  # type: ignore[misc]
    """One or more operations of the runtime as one of torch's.

    results  the tensors that `result` and the future give
    place    see Callers
    finish   called once with the operations' results when all are over, to put them where they belong
    """

    def __init__(
        self,
        works: Sequence[Ours[Any]],
        results: list[torch.Tensor],
        finish: Finish | None,
        callers: Callers,
        place: tuple[int, ...],
        source: int = -1,
    ) -> None:
        super().__init__()
        self._works = list(works)
        self._results = results
        self._devices = streams.devices_of(results)
        self._marks: streams.Marks = []
        self._finish = finish
        self._callers = callers
        self._place = place
        self._source = source
        self._lock = threading.Lock()
        self._open = len(self._works)
        self._over = threading.Event()
        self._error: Exception | None = None
        self._future: Future | None = None
        for work in self._works:
            work.add_done_callback(self._one_is_over)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait until it is over; True. `timeout` zero or less waits as long as the operation's own lets it run.

        On GPUs it is the thread's current streams that wait from now on, and not the host.
        Raises DistBackendError (a RuntimeError) with the runtime's error as its cause.
        """
        seconds = timeout.total_seconds()
        try:
            for work in self._works:
                work.wait(seconds if seconds > 0 else None)
        except DeadlineExceeded as error:
            if not work.test():
                raise dist.DistBackendError(str(error)) from error
        except Exception:  # noqa: BLE001, S110 - it is kept in _error, by the callback that is on its way
            pass
        self._over.wait()
        if self._error is not None:
            raise dist.DistBackendError(str(self._error)) from self._error
        streams.follow(self._marks)
        return True

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def is_completed(self) -> bool:
        """True once it is over, well or not."""
        return self._over.is_set() or (all(work.test() for work in self._works) and self._over.is_set())

    def is_success(self) -> bool:
        """True once it has ended well."""
        return self._over.is_set() and self._error is None

    def exception(self) -> Exception | None:
        """What it failed with."""
        return self._error

    def result(self) -> list[torch.Tensor]:
        """The tensors that were written."""
        return self._results

    def source_rank(self) -> int:
        """The rank that a message came from."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future of `result`. Its callbacks run in threads of their own, and may wait for other operations."""
        with self._lock:
            if self._future is None:
                self._future = Future(self._callers, _Inside(self._place), self._devices)
                if self._over.is_set():
                    self._settle()  # nobody can have given it a callback
            return self._future

    def _one_is_over(self, work: Ours[Any]) -> None:
        with self._lock:
            self._open -= 1
            if self._open:
                return
        try:
            with streams.aside(self._devices):
                values = [work.wait() for work in self._works]
                if self._finish is not None:
                    self._finish(values)
                self._marks = streams.mark(self._devices)
            self._callers.keeper.keep(self._marks, values)
        except Exception as error:  # noqa: BLE001 - whatever it was, it belongs to whoever waits
            self._error = error
        with self._lock:
            self._over.set()
            if self._future is not None:
                self._callers.submit(len(self._place) - 1, self._settle)

    def _settle(self) -> None:
        assert self._future is not None
        if self._error is None:
            with streams.aside(self._devices):
                streams.follow(self._marks)
                self._future.set_result(self._results)
        else:
            self._future.set_exception(dist.DistBackendError(str(self._error)))


@eager
class Done(dist.Work):  # type: ignore[misc]
    """An operation that was over when it was returned, because nobody asked for it to be asynchronous."""

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
        """None: it would have been raised."""
        return None

    def result(self) -> list[torch.Tensor]:
        """The tensors that were written."""
        return self._results

    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]:
        """A future that has its result."""
        devices = streams.devices_of(self._results)
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=devices)
        future.set_result(self._results)
        return future


def raise_for_torch(error: RondeError) -> None:
    """Raise a runtime's error as torch's users expect it."""
    raise dist.DistBackendError(str(error)) from error
