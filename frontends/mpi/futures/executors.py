"""The executors."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from itertools import islice
from time import monotonic
from types import ModuleType
from typing import Any, Final

import collectives
from frontends.mpi import MPI
from frontends.mpi.errors import missing
from frontends.mpi.futures.workers import BrokenWorker, Pool, RankPool, Task, called, initialized, serve
from frontends.mpi.ints import as_int, from_environment


class ThreadPool:
    """Workers that are threads, where there are no other ranks.

    size   number of workers
    """

    def __init__(self, most: int | None, initializer: Any, initargs: Iterable[Any]) -> None:
        world = collectives.world()
        self.size = 1 if most is None else most
        self._worker = threading.local()

        def begin() -> None:
            collectives.world_scope(world).__enter__()
            master.of_thread.workers = MPI.COMM_SELF
            self._worker.broken = initialized(initializer, initargs)

        self._threads = ThreadPoolExecutor(self.size, "ronde.mpi futures", begin)

    def put(self, task: Task) -> None:
        self._threads.submit(self._run, task)

    def _run(self, task: Task) -> None:
        if not task.future.set_running_or_notify_cancel():
            return
        try:
            task.future.set_result(called(task.call, self._worker.broken))
        except BaseException as error:  # noqa: BLE001 - it is raised by the future
            task.future.set_exception(error)

    def close(self) -> None:
        self._threads.shutdown()


class _Master:
    """The communicator whose other ranks serve this one, while a script runs under `python -m ronde.mpi.futures`.

    comm        the communicator; None elsewhere
    workers     on a worker, the communicator of the workers
    program     the script, whose tasks may go on when it has ended
    """

    comm: MPI.Intracomm | None = None
    workers: MPI.Intracomm | None = None
    program: ModuleType | None = None

    def __init__(self) -> None:
        self.of_thread = threading.local()
        """In a worker that is a thread, `workers` in the place of that of the process."""
        self._lock = threading.Lock()
        self._pool: Pool | None = None
        self._kind: object = None
        """The kind of the executors that the pool is for."""
        self._executors: weakref.WeakSet[MPIPoolExecutor] = weakref.WeakSet()
        """Those that were not shut down, and that the script still has."""

    def begin(self, executor: MPIPoolExecutor, comm: MPI.Intracomm) -> Pool:
        """The pool of an executor, which all executors of its kind have together. Raises RuntimeError while others have
        the workers."""
        kind = executor.kind(comm)
        while True:
            with self._lock:  # of two executors that begin at once in threads, one is first
                if self._pool is not None and self._kind != kind and not self._executors:
                    pool, self._pool = self._pool, None
                    pool.close()
                if self._pool is None:
                    self._pool, self._kind = executor.on_ranks(comm), kind
                if self._kind == kind:
                    self._executors.add(executor)
                    self.program = sys.modules["__main__"]
                    return self._pool
                endings = [one.ending for one in self._executors]
            for ending in endings:
                if ending is None:
                    raise RuntimeError("the workers serve another executor: shut that down first")
                ending.join()

    def leave(self, executor: MPIPoolExecutor) -> None:
        """An executor has no more tasks."""
        with self._lock:
            self._executors.discard(executor)

    def end(self) -> None:
        """Wait for the tasks of executors that the script has not waited for, and end the pool."""
        for executor in list(self._executors):
            executor.shutdown()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


master: Final = _Master()


class _Futures(set[Future[Any]]):
    """The futures of an executor that are not done. They do not keep the executor.

    broken   the error of a worker whose initializer has failed
    """

    broken: BrokenWorker | None = None

    def ended(self, future: Future[Any]) -> None:
        """A future is done."""
        self.discard(future)
        error = None if future.cancelled() else future.exception()
        if isinstance(error, BrokenWorker):
            self.broken = error


class MPIPoolExecutor(Executor):
    """An executor whose workers are the other ranks.

    max_workers            the most workers; by default MPI4PY_FUTURES_MAX_WORKERS of the environment, or all others
    initializer, initargs  function that each worker calls first, and its arguments

    Other options of mpi4py concern processes that it spawns, and are not used.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        **options: Any,
    ) -> None:
        if max_workers is None:
            max_workers = from_environment("MPI4PY_FUTURES_MAX_WORKERS", 1, default=None)
        if max_workers is not None and max_workers <= 0:
            raise ValueError(f"max_workers={max_workers}: must be 1 or more")
        if initializer is not None and not callable(initializer):
            raise TypeError(f"initializer={initializer!r}: must be callable")
        self._lock = threading.Lock()
        self._most, self._initializer, self._initargs = max_workers, initializer, tuple(initargs)
        self._pool: Pool | None = None
        self._comm: MPI.Intracomm | None = options.pop("_comm", None)
        self._closed = False
        self._futures = _Futures()
        self._is_shared = False
        self._own_kind = object()
        self.ending: threading.Thread | None = None
        """Ends the executor that was shut down without waiting."""

    def _started(self) -> Pool:
        """The pool, which begins with the first task."""
        with self._lock:
            if self._pool is None:
                comm = self._comm or master.comm
                if comm is None and MPI.COMM_WORLD.size > 1:
                    raise missing(
                        "workers for MPIPoolExecutor here",
                        "start the script with `python -m ronde.mpi.futures`, or use MPICommExecutor",
                    )
                if comm is None or comm.size < 2:
                    self._pool = ThreadPool(self._most, self._initializer, self._initargs)
                elif comm is master.comm:
                    self._pool = master.begin(self, comm)
                    self._is_shared = True
                else:
                    self._pool = self.on_ranks(comm)
            return self._pool

    def on_ranks(self, comm: MPI.Intracomm) -> Pool:
        """A pool of the other ranks of a communicator."""
        return RankPool(comm, self._most, self._initializer, self._initargs)

    def kind(self, comm: MPI.Intracomm) -> object:
        """Executors of equal kinds can have one pool: those of one size, without an initializer."""
        return self._own_kind if self._initializer is not None else min(self._most or comm.size, comm.size - 1)

    @property
    def num_workers(self) -> int:
        return 0 if self._closed else self._started().size

    _max_workers = num_workers

    def bootup(self, wait: bool = True) -> MPIPoolExecutor:
        """Have the workers ready."""
        if self._closed:
            raise RuntimeError("the executor was shut down")
        self._started()
        return self

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Have a worker call a function. Raises BrokenExecutor once a call has found that an initializer failed."""
        if self._closed:
            raise RuntimeError("the executor was shut down")
        if self._futures.broken is not None:
            raise BrokenWorker(str(self._futures.broken))
        future: Future[Any] = Future()
        self._futures.add(future)
        future.add_done_callback(self._futures.ended)
        self._started().put(Task(future, (fn, args, kwargs)))
        return future

    def map(
        self,
        fn: Callable[..., Any],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        unordered: bool = False,
    ) -> Iterator[Any]:
        """The results of a function on items, in the order of the items, or as they come. `buffersize` bounds the tasks
        whose results were not taken yet: then the items may have no end."""
        return self.starmap(fn, zip(*iterables), timeout, chunksize, buffersize, unordered)  # noqa: B905 - as `map` does

    def starmap(
        self,
        fn: Callable[..., Any],
        iterable: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        unordered: bool = False,
    ) -> Iterator[Any]:
        """The same as `map`, with the arguments of each call as one item."""
        if buffersize is not None and as_int(buffersize, "buffersize") < 1:
            raise ValueError(f"buffersize={buffersize}: must be 1 or more, or None")
        if buffersize is not None and unordered:
            raise ValueError(f"buffersize={buffersize}: must be None with unordered=True")
        calls = chunks(iterable, chunksize)

        def submit(most: int | None) -> list[Future[Any]]:
            return [self.submit(call_all, fn, chunk) for chunk in islice(calls, most)]

        return _results(deque(submit(buffersize)), submit if buffersize else None, timeout, unordered)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the workers once all tasks are done."""
        with self._lock:
            pool, self._pool, was_closed, self._closed = self._pool, None, self._closed, True
        if cancel_futures:
            for future in list(self._futures):
                future.cancel()
        if pool is None or was_closed:
            if wait and self.ending is not None:
                self.ending.join()
        elif wait:
            self._end(pool)
        else:
            self.ending = threading.Thread(target=self._end, args=(pool,), name="ronde.mpi futures: shutdown")
            self.ending.start()

    def _end(self, pool: Pool) -> None:
        if self._is_shared:
            wait(list(self._futures))
            master.leave(self)
        else:
            pool.close()


def chunks(iterable: Iterable[Any], chunksize: int) -> Iterator[list[Any]]:
    """The items in lists of `chunksize`, the last one shorter. Raises ValueError for fewer than 1."""
    if chunksize < 1:
        raise ValueError(f"chunksize={chunksize}: must be 1 or more")
    items = iter(iterable)
    while chunk := list(islice(items, chunksize)):
        yield chunk


def call_all(fn: Callable[..., Any], chunk: list[Any]) -> list[Any]:
    """The results of a function on tuples of arguments: the task of a worker."""
    return [fn(*arguments) for arguments in chunk]


def _results(
    futures: deque[Future[Any]],
    submit: Callable[[int], list[Future[Any]]] | None,
    timeout: float | None,
    unordered: bool,
) -> Iterator[Any]:
    """The results of tasks. `submit` begins more of them as results are taken."""
    end = None if timeout is None else monotonic() + timeout
    try:
        if unordered:
            from concurrent.futures import as_completed

            for future in as_completed(futures, timeout):
                yield from future.result()
            return
        while futures:
            results = futures[0].result(None if end is None else end - monotonic())
            futures.popleft()
            if submit is not None:
                futures.extend(submit(1))
            yield from results
    finally:
        for future in futures:
            future.cancel()


class MPICommExecutor:
    """An executor on the ranks of a communicator, all of which enter it: a `with` statement gives it on the root, and
    None on the others, which work until the root leaves the statement. Under `python -m ronde.mpi.futures` it has the
    workers of MPIPoolExecutor.

    comm     the communicator
    root     the rank that submits
    options  those of MPIPoolExecutor
    """

    def __init__(self, comm: MPI.Intracomm | None = MPI.COMM_WORLD, root: int = 0, **options: Any) -> None:
        if comm is None or comm == MPI.COMM_NULL:
            raise ValueError("comm: must be an intracommunicator")
        if comm.is_inter:
            raise ValueError("comm: must be an intracommunicator")
        if not 0 <= root < comm.size:
            raise ValueError(f"root={root}: must be 0 to {comm.size - 1}")
        self._comm = comm
        self._root = root
        self._options = options
        self._executor: MPIPoolExecutor | None = None
        self._own: MPI.Intracomm | None = None

    def __enter__(self) -> MPIPoolExecutor | None:
        if self._own is not None or self._executor is not None:
            raise RuntimeError("the executor was entered before")
        if master.comm is not None and self._comm.size > 1:  # the other ranks serve this one, and do not come here
            self._executor = MPIPoolExecutor(**self._options)
            return self._executor
        self._own = self._comm.Dup()
        if self._comm.rank == self._root:
            self._executor = MPIPoolExecutor(_comm=self._own, **self._options)
            if self._own.size > 1:
                self._executor.bootup()
            return self._executor
        everyone = [rank for rank in range(self._own.size) if rank != self._root]
        master.workers = self._own.Create_group(self._own.group.Incl(everyone))
        serve(self._own, self._root)
        return None

    def __exit__(self, *error: object) -> None:
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown()
        own, self._own = self._own, None
        if master.workers is not None:
            master.workers.Free()
            master.workers = None
        if own is not None:
            own.Free()


def get_comm_workers() -> MPI.Intracomm:
    """The communicator of the workers, in a task. Raises RuntimeError elsewhere."""
    workers: MPI.Intracomm | None = getattr(master.of_thread, "workers", master.workers)
    if workers is None:
        raise RuntimeError("get_comm_workers: this is no worker")
    return workers
