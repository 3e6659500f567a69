"""A list of values in a store to which everybody can append. It is never shortened."""

from __future__ import annotations

from typing import Final

from transports.store import Store

_BATCH: Final = 64
"""Entries that are asked for at once."""


class SharedLog:
    """The list in a part of a store. Its entry n has the key 'n', and is the first value that was proposed for it. So
    it has no holes, whoever dies in the middle."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def append(self, value: bytes, start: int = 0) -> int:
        """Append a value, which must differ from all others. Returns its place. Raises RendezvousError.

        start  a place at or before the end, to begin the search there
        """
        place = start
        while self._store.set_default(str(place), value) != value:
            place += 1
        return place

    def read(self, start: int) -> list[bytes]:
        """The entries from place `start` on. Raises RendezvousError."""
        entries: list[bytes] = []
        while True:
            first = start + len(entries)
            found = self._store.peek_all([str(place) for place in range(first, first + _BATCH)])
            there = [value for value in found if value is not None]
            entries += there
            if len(there) < _BATCH:
                return entries
