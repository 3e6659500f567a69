"""The table of slots: small numbers by which all ranks know the named operations that were run before.

The coordinator gives a slot in the answer that runs an operation for the first time. Answers with new slots reach all
ranks in one order, so all have one table. The table is bounded: the slot that was not used for longest is given to
another operation. A bit that was announced before its rank heard of that is understood all the same, because every
announcement tells how many assignments its rank knows, and the coordinator remembers what slots meant for as long as
that may matter. The idea of a cache of negotiated tensors, spoken of by bits, is Horovod's (its response cache).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from collectives.terms import Terms, bits


class Slot(NamedTuple):
    """What a slot means, since assignment number `serial`."""

    name: str
    terms: Terms
    serial: int


class Past(NamedTuple):
    """What a slot meant before assignment number `until`."""

    slot: int
    meant: Slot
    until: int


class Slots:
    """The coordinator's table. Sets of slots are the bits of integers."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._slots: dict[str, int] = {}
        self._used: OrderedDict[int, None] = OrderedDict()
        self.entries: list[Slot] = []
        self.past: list[Past] = []
        self.serial = 0
        self.shared = 0

    def slots_of(self, name: str) -> int:
        """The slots of a name, one for each of the terms that it was run with; bits."""
        return self._slots.get(name, 0)

    def find(self, name: str, terms: Terms) -> int:
        """The slot of an operation, -1 if it has none."""
        return next((slot for slot in bits(self.slots_of(name)) if self.entries[slot].terms == terms), -1)

    def use(self, slots: int) -> None:
        """These are run: they are to be kept longest."""
        for slot in bits(slots):
            self._used.move_to_end(slot)

    def assign(self, name: str, terms: Terms, waiting: int) -> int:
        """Give an operation a slot, but none of the waiting ones; -1 if there is none."""
        if len(self.entries) < self._capacity:
            slot = len(self.entries)
            self.serial += 1
            self.entries.append(Slot(name, terms, self.serial))
        else:
            slot = next((slot for slot in self._used if not waiting >> slot & 1), -1)
            if slot < 0:
                return slot
            old = self.entries[slot]
            self.serial += 1
            self.past.append(Past(slot, old, self.serial))
            self._link(old.name, self.slots_of(old.name) & ~(1 << slot))
            self.shared &= ~(1 << slot)
            self.entries[slot] = Slot(name, terms, self.serial)
        self._link(name, self.slots_of(name) | 1 << slot)
        self._used[slot] = None
        self._used.move_to_end(slot)
        return slot

    def forget(self, known: int) -> None:
        """All ranks know that many assignments: what slots meant before matters no more."""
        self.past = [past for past in self.past if past.until > known]

    def _link(self, name: str, slots: int) -> None:
        """`slots` are those of a name from now on."""
        if slots:
            self._slots[name] = slots
        else:
            del self._slots[name]
        self.shared = self.shared | slots if slots & (slots - 1) else self.shared & ~slots
