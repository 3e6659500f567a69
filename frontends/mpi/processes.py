"""The state of MPI in one rank: its world, and its buffered messages.

There is one for each world communicator of Ronde; ranks that are threads of one process have one each.
"""

from __future__ import annotations

import weakref
from typing import Any, Final

import collectives
from collectives import Communicator, NotInitializedError, RondeError, Work
from frontends.mpi.errors import error, failure

_UNUSED: Final = (1 << 29) - 1
"""A tag of no message."""


class Process:
    """The state of MPI in one rank.

    world      the world communicator of Ronde
    buffered   buffered sends in flight
    successor  after a failure, the state in the world of the ranks that are left; None before they have met
    moved      the ranks that are left: their numbers in this world and in that
    """

    def __init__(self, world: Communicator) -> None:
        self.world = world
        self.buffered: list[Work[Any]] = []
        self.bodies: dict[str, Any] = {}
        self.buffer: Any = None
        self.successor: Process | None = None
        self.moved: dict[int, int] = {}
        self.is_local = world.transport.name == "local"
        self._messages = world.channel()

    def wait(self, work: Work[Any]) -> Any:
        """The result of an operation. Raises MPI's Exception."""
        try:
            return work.wait()
        except RondeError as cause:
            raise failure(cause)  # noqa: B904 - its cause is the error

    def look(self) -> None:
        """Raise MPI's Exception if ranks are lost or have aborted. For waits of this rank that the transport does not
        see."""
        try:
            self._messages.probe(None, range(_UNUSED, _UNUSED + 1), None)
        except RondeError as cause:
            raise failure(cause)  # noqa: B904 - its cause is the error

    def flush(self) -> None:
        """Wait for the buffered sends."""
        while self.buffered:
            self.wait(self.buffered.pop())

    def keep(self, message: Work[Any]) -> None:
        """Keep a buffered send until it has ended."""
        self.buffered = [one for one in self.buffered if not one.test()]
        self.buffered.append(message)


_processes: Final[weakref.WeakKeyDictionary[Communicator, Process]] = weakref.WeakKeyDictionary()


def world_of_rank() -> Communicator:
    """The world communicator of this rank. Raises MPI's Exception before `Init` and after `Finalize`."""
    try:
        return collectives.world()
    except NotInitializedError as cause:
        raise error("ERR_OTHER", "MPI is not initialized, or is finalized") from cause


def current() -> Process:
    """The state of this rank. Raises as `world_of_rank`."""
    world = world_of_rank()
    found = _processes.get(world)
    if found is None:
        found = _processes.setdefault(world, Process(world))
    return found
