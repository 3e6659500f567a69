"""The response cache: bits by which all ranks refer to named operations that were negotiated before.

The coordinator assigns a bit in the answer that runs an operation for the first time. All ranks receive answers in the
same order, so all have the same cache. The cache is bounded: when it is full, a new operation evicts the least recently
used one and takes over its bit. A rank may announce a bit before it hears of the eviction. Therefore every announcement
carries the sender's cache version, and the coordinator keeps evicted entries until all ranks know a newer version.

Source: the response cache of Horovod (horovod/common/response_cache.h).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from collectives.negotiation.messages import bits
from collectives.operations import Signature

_CAPACITY: Final = 4096


class Entry(NamedTuple):
    """The operation of a bit, and the cache version that introduced it."""

    name: str
    signature: Signature
    version: int


class EvictedEntry(NamedTuple):
    """The entry that `bit` had before cache version `until`."""

    bit: int
    entry: Entry
    until: int


class ResponseCache:
    """The coordinator's cache of at most `capacity` entries. Sets of bits are masks.

    entries    the entry of every bit
    evicted    entries that announcements on their way may still refer to
    version    number of insertions so far
    ambiguous  mask of the entries whose name has several entries, with different signatures
    """

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self.entries: list[Entry] = []
        self.evicted: list[EvictedEntry] = []
        self.version = 0
        self.ambiguous = 0
        self._capacity = capacity
        self._masks: dict[str, int] = {}
        self._least_recent_first: OrderedDict[int, None] = OrderedDict()

    def mask_of(self, name: str) -> int:
        """Mask of the entries of a name, one entry per signature."""
        return self._masks.get(name, 0)

    def find(self, name: str, signature: Signature) -> int:
        """Bit of an operation, -1 if it is not in the cache."""
        return next((bit for bit in bits(self.mask_of(name)) if self.entries[bit].signature == signature), -1)

    def touch(self, mask: int) -> None:
        """Mark entries as used now."""
        for bit in bits(mask):
            self._least_recent_first.move_to_end(bit)

    def insert(self, name: str, signature: Signature, pinned: int) -> int:
        """Store an operation without evicting an entry of the mask `pinned`; its bit, -1 if there is no room."""
        if len(self.entries) < self._capacity:
            bit = len(self.entries)
            self.version += 1
            self.entries.append(Entry(name, signature, self.version))
        else:
            bit = next((bit for bit in self._least_recent_first if not pinned >> bit & 1), -1)
            if bit < 0:
                return bit
            old = self.entries[bit]
            self.version += 1
            self.evicted.append(EvictedEntry(bit, old, self.version))
            self._set_mask(old.name, self.mask_of(old.name) & ~(1 << bit))
            self.ambiguous &= ~(1 << bit)
            self.entries[bit] = Entry(name, signature, self.version)
        self._set_mask(name, self.mask_of(name) | 1 << bit)
        self._least_recent_first[bit] = None
        self._least_recent_first.move_to_end(bit)
        return bit

    def forget_evicted(self, version: int) -> None:
        """Drop evicted entries that no rank can refer to, because all ranks know `version`."""
        self.evicted = [evicted for evicted in self.evicted if evicted.until > version]

    def _set_mask(self, name: str, mask: int) -> None:
        if mask:
            self._masks[name] = mask
        else:
            del self._masks[name]
        self.ambiguous = self.ambiguous | mask if mask & (mask - 1) else self.ambiguous & ~mask
