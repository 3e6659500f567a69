"""Why the job came to its end, told through the store: for ranks that a transport could not tell.

A rank that gives up tells its transport first, which is quick but cannot always reach everybody (a connection may be
half made, or stuck in the middle of a frame). Whoever then sees no more than a broken connection asks here.
"""

from __future__ import annotations

import time
from typing import Final

from transports.errors import DeadlineExceeded, RendezvousError, RondeError, from_wire, to_wire
from transports.packed import pack, unpack
from transports.rendezvous.store import Store

_REACH_SECONDS: Final = 1.0
"""What the store gets to answer, once. It may be on the other side of the very fault that is the cause, and then
nobody is to wait for it again and again."""


class Causes:
    """The first cause of a group's end."""

    def __init__(self, store: Store) -> None:
        self._store = store.prefixed("cause").hasty(_REACH_SECONDS)
        self._out_of_reach = False

    def tell(self, cause: RondeError) -> bool:
        """Make `cause` known, unless another one is: then, and if the store cannot be reached or has something else
        in its place, False."""
        if self._out_of_reach:
            return False
        try:
            if self._store.add("tellers", 1) == 1:
                self._store.set("first", pack(to_wire(cause)))
                return True
        except RendezvousError:
            self._out_of_reach = True
        except ValueError:
            return False
        return False

    def ask(self, patience: float) -> RondeError | None:
        """The first cause, None if none becomes known within `patience` seconds."""
        if self._out_of_reach:
            return None
        try:
            told = unpack(self._store.get("first", time.monotonic() + patience))
            return from_wire(told) if isinstance(told, dict) else None
        except (DeadlineExceeded, ValueError):
            return None
        except RendezvousError:
            self._out_of_reach = True
            return None
