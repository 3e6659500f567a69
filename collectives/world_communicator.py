"""The world communicator: used by the functions of the package, ended by `shutdown`. `startup.init` makes it.

There is one per process, and it is the only global state. Ranks that run as threads of one process (`run` with the
local transport) have one per thread instead, through a context variable.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from collectives.arrays import type_name
from collectives.communicator import Communicator
from collectives.operations import check_timeout
from transports import forking
from transports.errors import ForkedError
from transports.launchers import History


class NotInitializedError(RuntimeError, ValueError):
    """A call that needs the world communicator was made before `init` or after `shutdown`. It is a ValueError too,
    which Horovod raises there."""


class ProcessWorld:
    """The world communicator of this process, and the resources that must be released after it.

    lock      held while the world is made or closed
    meetings  for each job, by its id, the meetings of this process with the ranks of the job
    forked    in a forked child of a rank, the error of calls without a world; else None
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may shut down in the middle of `init`
        self.communicator: Communicator | None = None
        self.resources = contextlib.ExitStack()
        self.meetings = defaultdict[str, History](History)
        self.forked: ForkedError | None = None
        forking.register(self)

    def close(self, timeout: float | None, flush: float | None = None) -> None:
        """Close the communicator, if there is one, and release the resources. The lock is held. Raises as `shutdown`.

        timeout, flush   see Communicator.close
        """
        communicator, self.communicator = self.communicator, None
        with self.resources:
            if communicator is not None:
                communicator.current.close(timeout, flush=flush)

    def after_fork(self) -> None:
        """In a forked child: have no world, and release nothing of the parent's."""
        communicator = _thread_world.get() or self.communicator
        if communicator is not None:
            self.forked = communicator.transport.group.forked_error()
        self.lock, self.communicator, self.resources = threading.RLock(), None, contextlib.ExitStack()
        _thread_world.set(None)


_thread_world: contextvars.ContextVar[Communicator | None] = contextvars.ContextVar("ronde_world", default=None)
PROCESS_WORLD: Final = ProcessWorld()


def is_initialized() -> bool:
    """True between `init` and `shutdown`, and in a `world_scope`. False in a forked child of a rank, until that calls
    `init` itself."""
    return _thread_world.get() is not None or PROCESS_WORLD.communicator is not None


def world() -> Communicator:
    """The world communicator. Raises NotInitializedError before `init`, ForkedError in a forked child of a rank."""
    communicator = _thread_world.get() or PROCESS_WORLD.communicator
    if communicator is None:
        if PROCESS_WORLD.forked is not None:
            raise copy.copy(PROCESS_WORLD.forked)
        raise NotInitializedError("there is no world communicator: call ronde.init() first")
    return communicator if communicator.successor is None else communicator.current


@contextlib.contextmanager
def world_scope(communicator: Communicator) -> Iterator[Communicator]:
    """Make `communicator` the world of this thread, and of coroutines started here, inside a `with` statement.

    communicator  the world of one of several ranks that share this process

    Raises TypeError for another object.
    """
    if not isinstance(communicator, Communicator):
        raise TypeError(f"communicator={communicator!r:.60}: must be a Communicator, not {type_name(communicator)}")
    token = _thread_world.set(communicator)
    try:
        yield communicator
    finally:
        _thread_world.reset(token)


def shutdown(timeout: float | None = None) -> None:
    """Finish the operations in flight, close the world communicator and release everything. `init` may follow.

    timeout  seconds for that; by default the setting `timeout`

    Raises DeadlineExceeded if they do not end in time; everything is released all the same. A second call does nothing.
    Raises ValueError for a bad timeout, with nothing done. In a `world_scope` it does nothing: the world there belongs
    to the one who made it, as `run` does for ranks that are threads.
    """
    check_timeout(timeout)
    if _thread_world.get() is not None:
        return
    with PROCESS_WORLD.lock:
        PROCESS_WORLD.close(timeout)
