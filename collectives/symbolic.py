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

_IN, _OUT, _, _STAGE = Buf
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

    def check_last(self, values: list[int], said: bool, promised: bool) -> None:
        """What is `said` to be the last combination must be one; if that is `promised`, it must be said of all. Raises
        Violation."""
        everyone = (1 << self._size) - 1
        for value in values:
            last = self.ranks[value] == everyone
            if said and not last:
                raise Violation("is said to be the last combination, and lacks contributions")
            if last and promised and not said:
                raise Violation("is the last combination, and that is not said")

    def along(self, tree: Tree, place: int) -> int:
        """The value of a combination tree."""
        if isinstance(tree, int):
            call, element = divmod(place, self._elements)
            return (call * self._size + tree) * self._elements + element
        return self.combine(self.along(tree[0], place), self.along(tree[1], place))


class _Shared:
    """Who has touched a buffer that lies in a window: for each place the rank and moment of the last write, and of the
    reads since. Raises Violation where an access does not know of one that it conflicts with."""

    def __init__(self, name: str, owner: int, places: int, moment: int) -> None:
        self._what = f"{name} {{}} of rank {owner}"
        self._written = [(owner, moment)] * places
        self._read: list[dict[int, int]] = [{} for _ in range(places)]

    def read(self, start: int, stop: int, rank: int, clock: Clock, moment: int) -> None:
        """A read by `rank`, which knows `clock`, that ends at `moment`."""
        for place in range(start, stop):
            writer, written = self._written[place]
            if writer != rank and written > clock[writer]:
                raise Violation(f"reads {self._what.format(place)} without knowing that it is ready")
            self._read[place][rank] = moment

    def write(self, start: int, stop: int, rank: int, clock: Clock) -> None:
        """A write by `rank` now."""
        for place in range(start, stop):
            for reader, moment in self._read[place].items():
                if reader != rank and moment > clock[reader]:
                    raise Violation(f"writes {self._what.format(place)}, which rank {reader} may still be reading")
            writer, written = self._written[place]
            if writer != rank and written > clock[writer]:
                raise Violation(f"writes {self._what.format(place)}, which rank {writer} may still be writing")
            self._read[place] = {}
            self._written[place] = rank, int(clock[rank])


class Memory:
    """The buffers of one rank, and its clock. Every access raises Violation if it is not allowed.

    STAGE has two halves, used by successive calls in turn, and lives on; the rest is new in every call.

    peers    the memories of all ranks
    window   elements of half of STAGE
    shared   which of IN and OUT peers may touch too
    """

    def __init__(
        self, rank: int, peers: Sequence[Memory], size: int, scratch: int, window: int, shared: Sequence[Buf]
    ) -> None:
        self._rank = rank
        self._peers = peers
        self._scratch = scratch
        self._window = window
        self._buffers: list[list[int]] = [[], [], [], [UNDEFINED] * (2 * window)]
        self._sending: list[list[int]] = [[], [], [], [0] * (2 * window)]
        self._given = shared
        self._shared = {_STAGE: _Shared("STAGE", rank, 2 * window, 0)}
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

    def share(self) -> None:
        """The call has begun: what the caller has done with IN and OUT is done now."""
        for buf in self._given:
            self._shared[buf] = _Shared(buf.name, self._rank, len(self._buffers[buf]), self.now)

    def leave(self) -> None:
        """The call ends: the caller may do anything with IN and OUT."""
        for buf in self._given:
            self._shared[buf].write(0, len(self._buffers[buf]), self._rank, self.clock)

    @property
    def result(self) -> list[int]:
        """OUT."""
        return self._buffers[Buf.OUT]

    def _locate(self, span: Span | None) -> tuple[Memory, Buf, int, int]:
        """Whose memory a span is, which, and where."""
        if span is None:
            raise Violation("an operand is missing")
        buf, start, stop, peer = span
        owner = self._peers[peer] if peer >= 0 else self
        if buf is _STAGE:
            if 0 <= start <= stop <= self._window:
                return owner, buf, start + self._half, stop + self._half
        elif owner is not self and buf not in owner._shared:
            raise Violation(f"the {buf.name} of rank {peer} is in no window")
        elif 0 <= start <= stop <= len(owner._buffers[buf]):
            return owner, buf, start, stop
        raise Violation(f"{buf.name} {start}:{stop} is out of bounds")

    def read(self, span: Span | None, *, lasting: bool = False) -> list[int]:
        """The values of a span. A `lasting` read goes on until `end_read`."""
        owner, buf, start, stop = self._locate(span)
        values = owner._buffers[buf][start:stop]
        if values and min(values) < 0:
            what = "a pending RECV writes" if PENDING in values else "nobody has written"
            raise Violation(f"reads {buf.name} {start}:{stop} of rank {owner._rank}, which {what}")
        if buf in owner._shared:
            owner._shared[buf].read(start, stop, self._rank, self.clock, _LATER if lasting else self.now)
        if lasting and owner is self:
            sending = self._sending[buf]
            for place in range(start, stop):
                sending[place] += 1
        return values

    def end_read(self, span: Span) -> None:
        """End a lasting read."""
        owner, buf, start, stop = self._locate(span)
        if buf in owner._shared:
            owner._shared[buf].read(start, stop, self._rank, self.clock, self.now)
        if owner is self:
            for place in range(start, stop):
                self._sending[buf][place] -= 1

    def write(self, span: Span | None, values: list[int]) -> None:
        """Put values into a span; PENDING for a write that goes on until `end_write`."""
        owner, buf, start, stop = self._locate(span)
        memory = owner._buffers[buf]
        if len(values) != stop - start:
            raise Violation(f"puts {len(values)} elements where {stop - start} have room")
        if buf is _IN:
            raise Violation("writes IN")
        if owner is not self and buf is not _OUT:
            raise Violation(f"writes the {buf.name} of rank {owner._rank}")
        if any(owner._sending[buf][start:stop]):
            raise Violation(f"writes {buf.name} {start}:{stop}, which a pending SEND reads")
        if PENDING in memory[start:stop]:
            raise Violation(f"writes {buf.name} {start}:{stop}, which a pending RECV writes")
        if buf in owner._shared:
            owner._shared[buf].write(start, stop, self._rank, self.clock)
        memory[start:stop] = values

    def end_write(self, span: Span, values: list[int]) -> None:
        """End a write that was PENDING."""
        _, buf, start, stop = self._locate(span)
        self._buffers[buf][start:stop] = values
        if buf in self._shared:
            self._shared[buf].write(start, stop, self._rank, self.clock)
