"""What the ranks of one group share, and how they find it."""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from transports.base import Group
from transports.errors import ConnectError, RondeError

if TYPE_CHECKING:
    from transports.local.transport import LocalTransport
    from transports.local.window import Exposure


class Hub:
    """What the ranks of one group share. Its lock guards it and everything that its ranks keep."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # reentrant: abort may be called from a finalizer, at any point
        self.joined: set[int] = set()
        self.present: dict[int, LocalTransport] = {}
        self.cause: RondeError | None = None
        self.gathering: dict[str, Exposure] = {}

    def wake(self) -> None:
        """Let every rank look again at what it waits for."""
        for transport in self.present.values():
            transport.news.notify_all()


_hubs: Final[WeakValueDictionary[str, Hub]] = WeakValueDictionary()
"""How ranks that share only a store find the hub in their process; a hub lives as long as its ranks hold it."""


def meet(group: Group, deadline: float) -> Hub:
    """The hub of `group`: whoever comes first makes it and says in the group's store which one it is."""
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
