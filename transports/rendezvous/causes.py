"""Why the job came to its end, told through the store: for ranks that a transport could not tell.

A rank that gives up tells its transport first, which is quick but cannot always reach everybody (a connection may be
half made, or stuck in the middle of a frame). Whoever then sees no more than a broken connection asks here.
"""

from __future__ import annotations

import contextlib
import time

import msgpack

from transports.errors import DeadlineExceeded, RendezvousError, RondeError, from_wire, to_wire
from transports.rendezvous.store import Store


class Causes:
    """The first cause of a group's end."""

    def __init__(self, store: Store) -> None:
        self._store = store.prefixed("cause")

    def tell(self, cause: RondeError) -> None:
        """Make `cause` known, unless another one is. What can be done is done; it raises nothing of the store's."""
        with contextlib.suppress(RendezvousError):
            if self._store.add("tellers", 1) == 1:
                self._store.set("first", msgpack.packb(to_wire(cause)))

    def ask(self, patience: float) -> RondeError | None:
        """The first cause, None if none becomes known within `patience` seconds."""
        try:
            return from_wire(msgpack.unpackb(self._store.get("first", time.monotonic() + patience)))
        except (DeadlineExceeded, RendezvousError):
            return None
