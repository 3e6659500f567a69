"""The cause of an abort, published in the store for ranks that the transport could not inform.

A rank that aborts informs its peers through the transport first. This is quick, but does not reach every peer: a
connection may be half made, or stuck in the middle of a frame. A rank that sees a broken connection reads the
cause here.
"""

from __future__ import annotations

import time
from typing import ClassVar, Final

from transports.errors import DeadlineExceeded, RendezvousError, RondeError, from_wire, to_wire
from transports.packed import pack, unpack
from transports.store import Store

_REACH_SECONDS: Final = 1.0
"""Maximum seconds to wait for the store. After one time-out it is not asked again: the fault that caused the abort may
also have cut off the store."""


class Causes:
    """The first cause of a group's abort."""

    KEY: ClassVar[str] = "cause/first"
    """The key of the group's store that has it."""

    def __init__(self, store: Store) -> None:
        self._store = store.with_timeout(_REACH_SECONDS)
        self._out_of_reach = False

    def publish(self, cause: RondeError) -> bool:
        """Publish `cause`; True if it is the first. False if another cause was published before, or the store cannot be
        reached."""
        if self._out_of_reach:
            return False
        try:
            own = pack(to_wire(cause))
            return self._store.set_default(self.KEY, own) == own
        except RendezvousError:
            self._out_of_reach = True
            return False

    def fetch(self, patience: float) -> RondeError | None:
        """The published cause, waited for `patience` seconds; None if there is none or the store cannot be reached."""
        if self._out_of_reach:
            return None
        try:
            return self.read(self._store.get(self.KEY, time.monotonic() + patience))
        except DeadlineExceeded:
            return None
        except RendezvousError:
            self._out_of_reach = True
            return None

    @staticmethod
    def read(value: bytes) -> RondeError | None:
        """The cause that a value of the key is; None if it cannot be read."""
        try:
            fields = unpack(value)
            return from_wire(fields) if isinstance(fields, dict) else None
        except ValueError:
            return None
