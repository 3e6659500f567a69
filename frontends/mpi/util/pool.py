"""Pools of workers with the interface of multiprocessing, on the ranks of `ronde.mpi.futures` or on threads.

from ronde.mpi.util.pool import Pool       # start with: ronde run -np 4 python -m ronde.mpi.futures script.py
with Pool() as pool:
    print(pool.map(square, range(100)))
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Self

from frontends.mpi.futures import MPIPoolExecutor
from frontends.mpi.futures.executors import call_all, chunks

Function = Callable[..., Any]
Told = Callable[[Any], object] | None


class AsyncResult:
    """The result of one call, or of all calls of a map, that may not be there yet."""

    def __init__(
        self, futures: list[Future[Any]], join: Callable[[list[Any]], Any], callback: Told, errback: Told
    ) -> None:
        """`join` makes the result of those of the futures; `callback` is told of it, `errback` of an error."""
        self._futures, self._join = futures, join
        self._callback, self._errback = callback, errback
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._missing = len(futures)
        self._value: Any = None
        self._error: BaseException | None = None
        for future in futures:
            future.add_done_callback(self._count)
        if not futures:
            self._end()

    def _count(self, _: Future[Any]) -> None:
        with self._lock:
            self._missing -= 1
            last = not self._missing
        if last:
            self._end()

    def _end(self) -> None:
        try:
            self._value = self._join([future.result() for future in self._futures])
        except CancelledError:
            self._error = TimeoutError("the pool was terminated before the call")
        except BaseException as error:  # noqa: BLE001 - `get` raises it
            self._error = error
        told = self._callback if self._error is None else self._errback
        try:
            if told is not None:
                told(self._value if self._error is None else self._error)
        finally:
            self._ended.set()

    def get(self, timeout: float | None = None) -> Any:
        """The result. Raises the error of the call, TimeoutError if there is no result within that many seconds."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"there is no result after {timeout} s")
        if self._error is not None:
            raise self._error
        return self._value

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the result or an error, for at most that many seconds."""
        self._ended.wait(timeout)

    def ready(self) -> bool:
        """True once there is a result or an error."""
        return self._ended.is_set()

    def successful(self) -> bool:
        """True if there is a result, False for an error. Raises ValueError if there is neither."""
        if not self.ready():
            raise ValueError("the call has not ended")
        return self._error is None


ApplyResult = AsyncResult
MapResult = AsyncResult


class Results(Iterator[Any]):
    """The results of a map, one after the other. An error is raised in the place of the results of its chunk."""

    def __init__(self, chunks: list[Future[list[Any]]]) -> None:
        self._chunks = deque(chunks)
        self._ready: deque[Any] = deque()

    def __next__(self) -> Any:
        return self.next()

    def next(self, timeout: float | None = None) -> Any:
        """The next result. Raises TimeoutError if there is none within that many seconds: it may come later."""
        while not self._ready:
            if not self._chunks:
                raise StopIteration
            self._ready.extend(self._ended(timeout).result())
        return self._ready.popleft()

    def _ended(self, timeout: float | None) -> Future[list[Any]]:
        """The next chunk, once its call has ended. Raises TimeoutError."""
        with suppress(CancelledError):  # that is for its result
            self._chunks[0].exception(timeout)
        return self._chunks.popleft()


class _AsTheyCome(Results):
    """The same in the order in which the calls end."""

    def __init__(self, chunks: list[Future[list[Any]]]) -> None:
        super().__init__(chunks)
        self._came: SimpleQueue[Future[list[Any]]] = SimpleQueue()
        for chunk in chunks:
            chunk.add_done_callback(self._came.put)

    def _ended(self, timeout: float | None) -> Future[list[Any]]:
        try:
            found = self._came.get(timeout=timeout)
        except Empty:
            raise TimeoutError(f"there is no result after {timeout} s") from None
        self._chunks.pop()  # the queue has the order: this is their number
        return found


class Pool:
    """Workers that call functions.

    processes              number of workers; by default all other ranks
    initializer, initargs  function that each worker calls first, and its arguments

    Raises ValueError for fewer than one worker, TypeError for an initializer that cannot be called. Other options of
    multiprocessing's pool have no effect, and give a warning.
    """

    Executor: ClassVar[Callable[..., Executor]] = MPIPoolExecutor

    def __init__(
        self,
        processes: int | None = None,
        initializer: Function | None = None,
        initargs: Iterable[Any] = (),
        **options: Any,
    ) -> None:
        for name in [name for name in ("maxtasksperchild", "context") if options.pop(name, None) is not None]:
            warnings.warn(f"{name} has no effect in a pool of ranks", UserWarning, stacklevel=2)
        self._executor: Any = type(self).Executor(
            processes, initializer=initializer, initargs=tuple(initargs), **options
        )
        self._pending: set[Future[Any]] = set()

    # ---- one call

    def apply(self, func: Function, args: Iterable[Any] = (), kwds: Mapping[str, Any] | None = None) -> Any:
        """The result of one call."""
        return self.apply_async(func, args, kwds).get()

    def apply_async(
        self,
        func: Function,
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Told = None,
        error_callback: Told = None,
    ) -> AsyncResult:
        """Begin one call. The callbacks are told of its result or error, in a thread of the pool."""
        return AsyncResult([self._submit(func, *args, **(kwds or {}))], _first, callback, error_callback)

    def _submit(self, func: Function, *args: Any, **kwds: Any) -> Future[Any]:
        future: Future[Any] = self._executor.submit(func, *args, **kwds)
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    # ---- many calls

    def map(self, func: Function, iterable: Iterable[Any], chunksize: int | None = None) -> list[Any]:
        """The results of a function on items, in their order."""
        return self.map_async(func, iterable, chunksize).get()  # type: ignore[no-any-return]

    def map_async(
        self,
        func: Function,
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Told = None,
        error_callback: Told = None,
    ) -> MapResult:
        """Begin a map. A worker takes `chunksize` items at a time, by default a quarter of its share."""
        return self.starmap_async(func, zip(iterable), chunksize, callback, error_callback)

    def imap(self, func: Function, iterable: Iterable[Any], chunksize: int = 1) -> Results:
        """An iterator over the results, in the order of the items."""
        return self.istarmap(func, zip(iterable), chunksize)

    def imap_unordered(self, func: Function, iterable: Iterable[Any], chunksize: int = 1) -> Results:
        """An iterator over the results as they come."""
        return self.istarmap_unordered(func, zip(iterable), chunksize)

    def starmap(self, func: Function, iterable: Iterable[Any], chunksize: int | None = None) -> list[Any]:
        """`map` with the arguments of each call as one item."""
        return self.starmap_async(func, iterable, chunksize).get()  # type: ignore[no-any-return]

    def starmap_async(
        self,
        func: Function,
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Told = None,
        error_callback: Told = None,
    ) -> MapResult:
        """`map_async` with the arguments of each call as one item."""
        items = list(iterable)
        if chunksize is None:
            chunksize = max(1, -(-len(items) // (4 * max(1, self._executor._max_workers))))
        return AsyncResult(self._begin(func, items, chunksize), _joined, callback, error_callback)

    def istarmap(self, func: Function, iterable: Iterable[Any], chunksize: int = 1) -> Results:
        """`imap` with the arguments of each call as one item."""
        return Results(self._begin(func, iterable, chunksize))

    def istarmap_unordered(self, func: Function, iterable: Iterable[Any], chunksize: int = 1) -> Results:
        """`imap_unordered` with the arguments of each call as one item."""
        return _AsTheyCome(self._begin(func, iterable, chunksize))

    def _begin(self, func: Function, iterable: Iterable[Any], chunksize: int) -> list[Future[list[Any]]]:
        return [self._submit(call_all, func, chunk) for chunk in chunks(iterable, chunksize)]

    # ---- the end

    def close(self) -> None:
        """Take no more calls."""
        self._executor.shutdown(wait=False)

    def terminate(self) -> None:
        """Take no more calls, and drop those that no worker has begun."""
        for future in list(self._pending):
            future.cancel()
        self.close()

    def join(self) -> None:
        """Wait for the workers. `close` or `terminate` comes first."""
        self._executor.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class ThreadPool(Pool):
    """The same with threads of this process as workers."""

    Executor: ClassVar[Callable[..., Executor]] = ThreadPoolExecutor


def _first(results: list[Any]) -> Any:
    return results[0]


def _joined(results: list[list[Any]]) -> list[Any]:
    return [item for chunk in results for item in chunk]
