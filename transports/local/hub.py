"""The hub: the state that the ranks of one link share, found through the group's store.

Ranks change it without a lock, by single calls of methods of dicts, each of which is atomic. So a signal handler or a
finalizer may abort at any point.
"""

from __future__ import annotations

import uuid
from typing import Final
from weakref import WeakValueDictionary

from transports.errors import ConnectError, RondeError
from transports.local.seat import Seat
from transports.local.window import Exposure
from transports.store import Store

_FIRST: Final = "first"


class Hub:
    """See the module.

    cause      the first failure of any rank
    seats      the ranks that have ever joined
    gathering  windows that some of their ranks have not joined yet, by key
    """

    def __init__(self) -> None:
        self.cause: RondeError | None = None
        self.seats: dict[int, Seat] = {}
        self.gathering: dict[str, Exposure] = {}
        self._causes: dict[str, RondeError] = {}

    def first_cause(self, cause: RondeError) -> RondeError:
        """The first failure of any rank, which is `cause` if there was none before."""
        first = self.cause = self._causes.setdefault(_FIRST, cause)
        return first

    def ring(self) -> None:
        """Wake all ranks."""
        for seat in tuple(self.seats.values()):
            seat.bell.ring()


_hubs: Final[WeakValueDictionary[str, Hub]] = WeakValueDictionary()
"""The hubs of this process by the key in their store; a hub lives as long as its ranks hold it."""


def meet(store: Store, rank: int, deadline: float) -> Hub:
    """The hub of the ranks that share a store. The first rank that comes makes it, and writes into the store which one
    it is."""
    if store.add("local/arrivals", 1) == 1:
        hub, key = Hub(), uuid.uuid4().hex
        _hubs[key] = hub
        store.set("local/hub", key.encode())
        return hub
    found = _hubs.get(store.get("local/hub", deadline).decode())
    if found is None:
        raise ConnectError(
            f"rank {rank} finds no other rank in its process: the ranks of a local transport must be threads "
            f"of one process, open at the same time",
            rank=rank,
        )
    return found
