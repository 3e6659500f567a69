"""The state of MPI in one rank: its world, and the messages in flight that need this rank's attention.

There is one for each world communicator of Ronde; ranks that are threads of one process have one each.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from typing import Any, Final, Protocol

import collectives
from collectives import Communicator, DeadlineExceeded, RondeError, Work
from frontends.mpi.errors import failure

_FIRST_SLICE: Final = 50e-6
_LAST_SLICE: Final = 1e-3


class Attentive(Protocol):
    """An operation that this rank must look after until it has ended."""

    def test(self) -> bool:
        """Make progress; True once it has ended."""


class Process:
    """The state of MPI in one rank.

    world      the world communicator of Ronde
    attended   receives in flight: the sender of a synchronous message waits for the news that it has been matched
    buffered   buffered sends in flight
    probing    held between a matched probe's look at a message and its receive
    successor  after a failure, the state in the world of the ranks that are left; None before they have met
    moved      the ranks that are left: their numbers in this world and in that
    """

    def __init__(self, world: Communicator) -> None:
        self.world = world
        self.attended: dict[int, Attentive] = {}
        self.buffered: list[Work[Any]] = []
        self.probing = threading.RLock()
        self.bodies: dict[str, Any] = {}
        self.buffer: Any = None
        self.successor: Process | None = None
        self.moved: dict[int, int] = {}
        self.is_local = world.transport.name == "local"
        self._serials = itertools.count(1)

    def serial(self) -> int:
        """A number for a synchronous message."""
        return next(self._serials) & 0x3FFFFFFF or next(self._serials)

    def progress(self) -> None:
        """Look after the receives in flight."""
        for key, operation in list(self.attended.items()):
            if operation.test():
                self.attended.pop(key, None)

    def wait(self, work: Work[Any]) -> Any:
        """The result of an operation. Raises MPI's Exception."""
        try:
            if self.attended:
                pause = _FIRST_SLICE
                while not work.test():
                    self.progress()
                    with contextlib.suppress(DeadlineExceeded):
                        work.wait(pause)
                    pause = min(2 * pause, _LAST_SLICE)
            return work.wait()
        except RondeError as error:
            raise failure(error)  # noqa: B904 - its cause is the error

    def flush(self) -> None:
        """Wait for the buffered sends."""
        while self.buffered:
            self.wait(self.buffered.pop())

    def keep(self, message: Work[Any]) -> None:
        """Keep a buffered send until it has ended."""
        self.buffered = [one for one in self.buffered if not one.test()]
        self.buffered.append(message)


_processes: Final[weakref.WeakKeyDictionary[Communicator, Process]] = weakref.WeakKeyDictionary()


def current() -> Process:
    """The state of this rank. Raises NotInitializedError before `Init`."""
    world = collectives.world()
    found = _processes.get(world)
    if found is None:
        found = _processes.setdefault(world, Process(world))
    return found
