"""A transport among some ranks of a group, as a part of one for all of them: translation of rank numbers."""

from __future__ import annotations

from collections.abc import Callable

from transports.base import Transport
from transports.errors import RondeError, from_wire, to_wire
from transports.progress import ProgressRequest


class Child:
    """An inner transport, which connects some of the group's ranks."""

    def __init__(self, transport: Transport, ranks: tuple[int, ...]) -> None:
        self.transport = transport
        self.ranks = ranks
        self.place = {rank: place for place, rank in enumerate(ranks)}
        self.progress = ProgressRequest(transport)

    def outward(self, error: RondeError) -> RondeError:
        """An error of the inner transport, with the group's rank numbers."""
        here = self.ranks
        return _renumbered(error, lambda place: here[place] if place < len(here) else place - len(here))

    def inward(self, error: RondeError) -> RondeError:
        """An error for the inner transport. Ranks that it does not connect have numbers beyond its own."""
        return _renumbered(error, lambda rank: self.place.get(rank, len(self.ranks) + rank))


def _renumbered(error: RondeError, number: Callable[[int], int]) -> RondeError:
    rank = None if error.rank is None else number(error.rank)
    peer = None if error.peer is None else number(error.peer)
    if (rank, peer) == (error.rank, error.peer):
        return error
    return from_wire({**to_wire(error), "rank": rank, "peer": peer})
