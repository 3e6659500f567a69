"""The pool of workers: the master gives tasks to idle ranks, and collects their results.

Messages, all of objects: the master sends a task or None to end; a worker answers with True and a result, or False and
an exception, and with None when it has ended. Tasks (function, arguments, options), results and exceptions travel as
pickles in bytes: one that cannot be loaded is an error of its task alone.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import BrokenExecutor, Future
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

import collectives
from frontends.mpi import MPI

TASK, ANSWER = 1, 2
"""The tags of the messages to workers, and from them."""


Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
"""A function, its arguments, and those by keyword."""


class BrokenWorker(BrokenExecutor):
    """The initializer of the worker has failed."""


class Task(NamedTuple):
    """A call that a worker is to make; its future in the master."""

    future: Future[Any]
    call: Call


class Pool(Protocol):
    """Workers that take tasks."""

    size: int

    def put(self, task: Task) -> None:
        """Give a task to a worker as soon as one is idle."""

    def close(self) -> None:
        """Wait for the tasks, and end the workers."""


class RankPool:
    """Workers that are the other ranks of a communicator.

    size   number of workers
    """

    def __init__(self, comm: MPI.Intracomm, most: int | None, initializer: Any, initargs: Iterable[Any]) -> None:
        self._comm = comm
        workers = [rank for rank in range(comm.size) if rank != comm.rank]
        self.size = len(workers) if most is None else min(most, len(workers))
        self._idle: SimpleQueue[int] = SimpleQueue()
        for rank in workers:
            comm.send((initializer, tuple(initargs)), rank, TASK)
        for rank in workers[: self.size]:
            self._idle.put(rank)
        self._workers = workers
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._running: dict[int, Future[Any]] = {}
        self._error: BaseException | None = None
        world = collectives.world()
        self._threads = [
            threading.Thread(target=self._in_world, args=(world, body), name=f"ronde.mpi futures: {body.__name__}")
            for body in (self._give, self._collect)
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def _in_world(self, world: Any, body: Callable[[], None]) -> None:
        """Run a thread of the pool; its failure fails all tasks."""
        with collectives.world_scope(world):
            try:
                body()
            except BaseException as error:  # noqa: BLE001 - it is raised by the futures
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """The pool has failed, and so all its tasks: those that run here, the others in `_give`."""
        self._error = error
        for future in list(self._running.values()):
            if not future.done():
                future.set_exception(error)
        for _ in range(self.size):  # nobody waits for a worker that does not answer
            self._idle.put(-1)

    def put(self, task: Task) -> None:
        if self._error is not None:
            task.future.set_exception(self._error)
        else:
            self._tasks.put(task)

    def _give(self) -> None:
        while (task := self._tasks.get()) is not None:
            if not task.future.set_running_or_notify_cancel():
                continue
            rank = self._idle.get()
            self._running[rank] = task.future
            if self._error is not None:
                self._idle.put(rank)
                if not task.future.done():
                    task.future.set_exception(self._error)
                continue
            try:
                call = MPI.pickle.dumps(task.call)
            except Exception as error:  # noqa: BLE001 - the call cannot be pickled: that is for the future
                del self._running[rank]
                self._idle.put(rank)
                task.future.set_exception(error)
            else:
                try:
                    self._comm.send(call, rank, TASK)
                except MPI.Exception as error:
                    self._fail(error)
        for _ in range(self.size):
            self._idle.get()
        for rank in self._workers if self._error is None else ():
            self._comm.send(None, rank, TASK)

    def _collect(self) -> None:
        ended, status = 0, MPI.Status()
        while ended < len(self._workers):
            answer = self._comm.recv(source=MPI.ANY_SOURCE, tag=ANSWER, status=status)
            if answer is None:
                ended += 1
                continue
            fine, data = answer
            try:
                value = MPI.pickle.loads(data)
            except Exception as error:  # noqa: BLE001 - that is for the future
                fine, value = False, error
            future = self._running.pop(status.source)
            self._idle.put(status.source)
            if fine:
                future.set_result(value)
            else:
                future.set_exception(value)

    def close(self) -> None:
        self._tasks.put(None)
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error


def serve(comm: MPI.Intracomm, master: int) -> bool:
    """Work for the master until it ends the pool. False, with nothing done, if there is no pool any more."""
    first = comm.recv(source=master, tag=TASK)
    if first is None:
        return False
    broken = initialized(*first)
    while (call := comm.recv(source=master, tag=TASK)) is not None:
        comm.send(_answer(call, broken), master, ANSWER)
    comm.send(None, master, ANSWER)
    return True


def initialized(initializer: Callable[..., object] | None, initargs: Iterable[Any]) -> BaseException | None:
    """Prepare a worker by the program's function; the error that it has raised, which is shown, None without one."""
    if initializer is not None:
        try:
            initializer(*initargs)
        except BaseException as error:  # noqa: BLE001 - each task raises it
            traceback.print_exception(error)
            return error
    return None


def called(call: Call, broken: BaseException | None) -> Any:
    """The result of a call. Raises BrokenWorker on a worker whose initializer has failed."""
    if broken is not None:
        raise BrokenWorker(f"the initializer of the worker raised {broken!r}")
    function, arguments, options = call
    return function(*arguments, **options)


def _answer(call: bytes, broken: BaseException | None) -> tuple[bool, bytes]:
    """The pickle of the result of a call, or of its error; that is also the error of a result without a pickle."""
    try:
        loaded: Call = MPI.pickle.loads(call)
        return True, MPI.pickle.dumps(called(loaded, broken))
    except BaseException as error:  # noqa: BLE001 - it is the master's
        text = "".join(traceback.format_exception(error))
        error.add_note(text)
        try:
            pickled = MPI.pickle.dumps(error)
            MPI.pickle.loads(pickled)
        except Exception as cause:  # noqa: BLE001 - the master gets its text
            pickled = MPI.pickle.dumps(RuntimeError(f"the error of the task has no pickle ({cause!r}): {text}"))
        return False, pickled
