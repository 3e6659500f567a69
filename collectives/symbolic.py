"""Memory that holds symbols, and knows who may touch it when: what the prover runs programs on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from collectives.patterns import Tree
from collectives.program import Span
from collectives.schedule import Buf

UNDEFINED: Final = -1
PENDING: Final = -2
"""What a RECV that has not been awaited is about to overwrite."""

_IN, _, _, _STAGE = Buf
_LATER: Final = 1 << 62
"""The moment at which a read ends that is still going on."""

Clock: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
"""A vector clock: the last moment of every rank that is known to be over."""


class Violation(Exception):
    """What an instruction does wrong."""


class Expressions:
    """Symbolic values as numbers, which are equal if and only if the expressions are.

    The contribution of rank r to element e in call c is (c * size + r) * elements + e. Combinations get the numbers
    above those as they come up.
    """

    def __init__(self, size: int, elements: int, calls: int) -> None:
        self._size = size
        self._elements = elements
        leaves = range(calls * size * elements)
        self.ranks = [1 << leaf // elements % size for leaf in leaves]
        """Whose contributions a value contains, as bits."""
        self.places = [leaf // (elements * size) * elements + leaf % elements for leaf in leaves]
        """call * elements + element."""
        self._known: dict[tuple[int, int], int] = {}

    def combine(self, a: int, b: int) -> int:
        """Raises Violation for values that must not be combined."""
        value = self._known.get((a, b))
        if value is None:
            if self.places[a] != self.places[b]:
                places = [place % self._elements for place in (self.places[a], self.places[b])]
                raise Violation(f"combines elements {places[0]} and {places[1]}, or values of different calls")
            twice = self.ranks[a] & self.ranks[b]
            if twice:
                raise Violation(f"combines the contribution of rank {twice.bit_length() - 1} twice")
            value = self._known[a, b] = len(self.ranks)
            self.ranks.append(self.ranks[a] | self.ranks[b])
            self.places.append(self.places[a])
        return value

    def along(self, tree: Tree, place: int) -> int:
        """The value of a combination tree."""
        if isinstance(tree, int):
            call, element = divmod(place, self._elements)
            return (call * self._size + tree) * self._elements + element
        return self.combine(self.along(tree[0], place), self.along(tree[1], place))


class Memory:
    """The buffers of one rank, and its clock. Every access raises Violation if it is not allowed.

    STAGE has two halves, used by successive calls in turn, and lives on; the rest is new in every call. Peers read
    STAGE, so for each of its places it is known when it was written last, and who has read it since and when.

    peers    the memories of all ranks
    window   elements of half of STAGE
    """

    def __init__(self, rank: int, peers: Sequence[Memory], size: int, scratch: int, window: int) -> None:
        self._rank = rank
        self._peers = peers
        self._scratch = scratch
        self._window = window
        self._buffers: list[list[int]] = [[], [], [], [UNDEFINED] * (2 * window)]
        self._sending: list[list[int]] = [[], [], [], [0] * (2 * window)]
        self._written = [0] * (2 * window)
        self._readers: list[dict[int, int]] = [{} for _ in range(2 * window)]
        self._half = 0
        self.clock: Clock = np.zeros(size, np.int64)

    @property
    def now(self) -> int:
        """The moment that the rank is at."""
        return int(self.clock[self._rank])

    def tick(self) -> None:
        """Go on to the next moment: what comes now is not covered by what has been told before."""
        self.clock[self._rank] += 1

    def learn(self, clock: Clock) -> None:
        """What another rank knew is known here now."""
        np.maximum(self.clock, clock, out=self.clock)

    def enter(self, call: int, source: list[int], target: list[int]) -> None:
        """Begin a call with these contents of IN and OUT."""
        self._half = call % 2 * self._window
        self._buffers[:3] = source, target, [UNDEFINED] * self._scratch
        self._sending[:3] = [0] * len(source), [0] * len(target), [0] * self._scratch

    @property
    def result(self) -> list[int]:
        """OUT."""
        return self._buffers[Buf.OUT]

    def _locate(self, span: Span | None) -> tuple[Memory, Buf, int, int]:
        """Whose memory a span is, which, and where."""
        if span is None:
            raise Violation("an operand is missing")
        buf, start, stop, peer = span
        if buf is _STAGE:
            if 0 <= start <= stop <= self._window:
                return self._peers[peer] if peer >= 0 else self, buf, start + self._half, stop + self._half
        elif 0 <= start <= stop <= len(self._buffers[buf]):
            return self, buf, start, stop
        raise Violation(f"{buf.name} {start}:{stop} is out of bounds")

    def read(self, span: Span | None, *, lasting: bool = False) -> list[int]:
        """The values of a span. A `lasting` read goes on until `end_read`."""
        owner, buf, start, stop = self._locate(span)
        values = owner._buffers[buf][start:stop]
        if values and min(values) < 0:
            what = "a pending RECV writes" if PENDING in values else "nobody has written"
            raise Violation(f"reads {buf.name} {start}:{stop} of rank {owner._rank}, which {what}")
        if owner is not self:
            told, moment = int(self.clock[owner._rank]), _LATER if lasting else self.now
            for place in range(start, stop):
                if owner._written[place] > told:
                    raise Violation(f"reads STAGE {place} of rank {owner._rank} without knowing that it is ready")
                owner._readers[place][self._rank] = moment
        elif lasting:
            sending = self._sending[buf]
            for place in range(start, stop):
                sending[place] += 1
        return values

    def end_read(self, span: Span) -> None:
        """End a lasting read."""
        owner, buf, start, stop = self._locate(span)
        for place in range(start, stop):
            if owner is self:
                self._sending[buf][place] -= 1
            else:
                owner._readers[place][self._rank] = self.now

    def write(self, span: Span | None, values: list[int]) -> None:
        """Put values into a span; PENDING for a write that goes on until `end_write`."""
        owner, buf, start, stop = self._locate(span)
        memory = self._buffers[buf]
        if len(values) != stop - start:
            raise Violation(f"puts {len(values)} elements where {stop - start} have room")
        if buf is _IN:
            raise Violation("writes IN")
        if owner is not self:
            raise Violation(f"writes the STAGE of rank {owner._rank}")
        if any(self._sending[buf][start:stop]):
            raise Violation(f"writes {buf.name} {start}:{stop}, which a pending SEND reads")
        if PENDING in memory[start:stop]:
            raise Violation(f"writes {buf.name} {start}:{stop}, which a pending RECV writes")
        if buf is _STAGE:
            for place in range(start, stop):
                for reader, moment in self._readers[place].items():
                    if moment > self.clock[reader]:
                        raise Violation(f"writes STAGE {place}, which rank {reader} may still be reading")
                self._readers[place] = {}
                self._written[place] = self.now
        memory[start:stop] = values

    def end_write(self, span: Span, values: list[int]) -> None:
        """End a write that was PENDING."""
        _, buf, start, stop = self._locate(span)
        self._buffers[buf][start:stop] = values
        if buf is _STAGE:
            self._written[start:stop] = [self.now] * (stop - start)
