"""The calls that a rank is in at this moment. Executors and messages tell their position; the watchdog asks for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from collectives.flight import NoteLog
from collectives.metering import Meter


class Caller(Protocol):
    """The executor of a communicator, as the watchdog sees it."""

    key: str
    """Name of the communicator, the same on all its ranks."""
    ranks: tuple[int, ...]
    """The communicator's ranks, as ranks of the world."""
    rank: int
    """This rank's number within the communicator."""
    meter: Meter
    stalled: tuple[int, str]
    """Number of the call of the last stall report, and the report. The watchdog sets it."""

    @property
    def calls(self) -> int:
        """Number of the newest collective."""

    def notes(self, ending: str, label: str) -> NoteLog:
        """See Executor."""

    def recent(self) -> Sequence[tuple[int, int, str]]:
        """The last collectives: number, digest that must be equal on all ranks, description."""


class CallPosition(NamedTuple):
    """One call that is under way.

    caller    the executor of the communicator
    number    number of the collective within its communicator; 0 for a message
    step      changes as the call advances; grows in a collective
    text      call, step and awaited rank, for people
    peers     ranks of the world that may know the reason for a delay; this rank may be among them
    awaits    the rank of the world that the call waits for; None if it waits for none
    phase     the phase of the collective that the awaited rank has not reached; where a message is awaited, the last
              phase that this rank has awaited before. Unlike steps, phases are those of all ranks
    """

    caller: Caller
    number: int
    step: int
    text: str
    peers: tuple[int, ...]
    awaits: int | None = None
    phase: int = 0


class PositionSource(Protocol):
    """An executor or a message, which can tell the position of its call."""

    def position(self) -> CallPosition | None:
        """The call that is under way; None if there is none. Any thread may ask. Takes no lock and never waits."""


class StepCounter:
    """Index of the instruction that a collective has reached. Compiled instructions set it before they can block."""

    __slots__ = ("step",)

    def __init__(self) -> None:
        self.step = 0


class CallPositions:
    """The position sources of one rank. Any thread may use it. It needs no lock, since each use of the dict is one
    operation."""

    def __init__(self) -> None:
        self._sources: dict[int, PositionSource] = {}

    def add(self, source: PositionSource) -> None:
        """Ask `source` from now on."""
        self._sources[id(source)] = source

    def remove(self, source: PositionSource) -> None:
        """Ask `source` no more. Idempotent."""
        self._sources.pop(id(source), None)

    def now(self) -> list[CallPosition]:
        """All calls that are under way."""
        sources = self._sources.copy().values()
        return [position for source in sources if (position := source.position()) is not None]
