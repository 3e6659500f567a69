"""The hub: the state that the ranks of one group share, found through the group's store."""

from __future__ import annotations

import threading
import uuid
from typing import Final, Protocol
from weakref import WeakValueDictionary

from transports.base import Group
from transports.errors import ConnectError, RondeError
from transports.lifecycle import Lifecycle
from transports.local.window import Exposure
from transports.matching import MatchQueue


class Present(Protocol):
    """A rank that has joined the hub. `news` is a condition of the hub's lock; `probes` counts its waits for frames
    without a posted receive."""

    news: threading.Condition
    life: Lifecycle
    match_queue: MatchQueue
    probes: int


class Hub:
    """State that the ranks of one group share. Its lock guards it and everything that its ranks keep.

    joined      the ranks that have ever joined
    present     the ranks that have joined and not left
    cause       the first failure of any of them
    gathering   windows that some of their ranks have not joined yet, by key
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()  # reentrant: abort may be called from a finalizer, at any point
        self.joined: set[int] = set()
        self.present: dict[int, Present] = {}
        self.cause: RondeError | None = None
        self.gathering: dict[str, Exposure] = {}

    def wake(self) -> None:
        """Wake every rank, which then checks the condition of its wait."""
        for transport in self.present.values():
            transport.news.notify_all()


_hubs: Final[WeakValueDictionary[str, Hub]] = WeakValueDictionary()
"""The hubs of this process by the key in their store; a hub lives as long as its ranks hold it."""


def meet(group: Group, deadline: float) -> Hub:
    """The hub of `group`. The first rank that comes makes it, and writes into the group's store which one it is."""
    if group.store.add("local/arrivals", 1) == 1:
        hub, key = Hub(), uuid.uuid4().hex
        _hubs[key] = hub
        group.store.set("local/hub", key.encode())
        return hub
    found = _hubs.get(group.store.get("local/hub", deadline).decode())
    if found is None:
        raise ConnectError(
            f"rank {group.rank} finds no other rank in its process: the ranks of a local transport must be threads "
            f"of one process, open at the same time",
            rank=group.rank,
        )
    return found
