"""Symbolic memory for the prover: buffers of symbols that check every access."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from collectives.schedule import Buf, Marks, Span, Tree

UNDEFINED: Final = -1
PENDING: Final = -2
"""The value of an element that a pending RECV will overwrite."""

_IN, _OUT, _, _STAGE = Buf
_LAST, _A_ALONE, _B_ALONE, _PAIR = Marks
_LATER: Final = 1 << 62
"""The end of a read that has not ended."""
_MEANINGS: Final = {
    _LAST: "the last combination",
    _A_ALONE: "of the contribution of one rank as operand a",
    _B_ALONE: "of the contribution of one rank as operand b",
}

Clock: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
"""A vector clock: for every rank the last moment that is known to have passed."""


class Violation(Exception):
    """An instruction breaks a rule."""


def _meaning(marks: int) -> str:
    return " and ".join(text for mark, text in _MEANINGS.items() if marks & mark)


class Expressions:
    """Symbolic values as numbers. Two numbers are equal if and only if their expressions are equal.

    The contribution of rank r to element e in call c is (c * size + r) * elements + e. Combinations get higher numbers
    in order of their first use.
    """

    def __init__(self, size: int, elements: int, calls: int) -> None:
        self._size = size
        self._elements = elements
        leaves = range(calls * size * elements)
        self._leaves = len(leaves)
        self._all = (1 << size) - 1
        self.ranks = [1 << leaf // elements % size for leaf in leaves]
        """The ranks whose contributions a value contains, as bits."""
        self.places = [leaf // (elements * size) * elements + leaf % elements for leaf in leaves]
        """call * elements + element."""
        self.runs: list[tuple[int, int] | None] = [(leaf // elements % size,) * 2 for leaf in leaves]
        """The first and the last rank of a value that combines successive ranks in rank order; None for others."""
        self.marks = [0] * len(leaves)
        """The marks that are true of the combination that gives a value."""
        self._known: dict[tuple[int, int], int] = {}

    def combine(self, a: int, b: int) -> int:
        """Return the combination of two values. Raises Violation for values that must not be combined."""
        value = self._known.get((a, b))
        if value is None:
            if self.places[a] != self.places[b]:
                places = [place % self._elements for place in (self.places[a], self.places[b])]
                raise Violation(f"combines elements {places[0]} and {places[1]}, or values of different calls")
            twice = self.ranks[a] & self.ranks[b]
            if twice:
                raise Violation(f"combines the contribution of rank {twice.bit_length() - 1} twice")
            value = self._known[a, b] = len(self.ranks)
            ranks = self.ranks[a] | self.ranks[b]
            self.ranks.append(ranks)
            alone = _A_ALONE * (a < self._leaves) | _B_ALONE * (b < self._leaves)
            self.marks.append(alone | _LAST * (ranks == self._all))
            self.places.append(self.places[a])
            left, right = self.runs[a], self.runs[b]
            joined = None
            if left is not None and right is not None and left[1] + 1 == right[0]:
                joined = left[0], right[1]
            self.runs.append(joined)
        return value

    def check_marks(self, value: int, marks: int, promised: bool) -> None:
        """Check the marks of a combination with this value. Raises Violation.

        marks      those of the instruction
        promised   the algorithm marks every combination
        """
        true = self.marks[value]
        if marks & ~true:
            raise Violation(f"is said to be {_meaning(marks & ~true)}, and is not")
        if promised and true & ~marks:
            raise Violation(f"is {_meaning(true & ~marks)}, and that is not said")

    def in_turn(self, ranks: range, place: int) -> int:
        """Return the combination of the contributions of some ranks from left to right, at a place."""
        return functools.reduce(self.combine, (self.along(rank, place) for rank in ranks))

    def along(self, tree: Tree, place: int) -> int:
        """Return the value of a combination tree at a place."""
        if isinstance(tree, int):
            call, element = divmod(place, self._elements)
            return (call * self._size + tree) * self._elements + element
        return self.combine(self.along(tree[0], place), self.along(tree[1], place))


class _Shared:
    """The accesses to a buffer in a window: for each element the rank and moment of the last write and of later reads.

    An access raises Violation if its rank does not know that a conflicting access has ended.
    """

    def __init__(self, name: str, owner: int, places: int, moment: int) -> None:
        self._what = f"{name} {{}} of rank {owner}"
        self._written = [(owner, moment)] * places
        self._read: list[dict[int, int]] = [{} for _ in range(places)]

    def read(self, start: int, stop: int, rank: int, clock: Clock, moment: int) -> None:
        """Record a read by `rank`, whose vector clock is `clock`, that ends at `moment`."""
        for place in range(start, stop):
            writer, written = self._written[place]
            if writer != rank and written > clock[writer]:
                raise Violation(f"reads {self._what.format(place)} without knowing that it is ready")
            self._read[place][rank] = moment

    def write(self, start: int, stop: int, rank: int, clock: Clock) -> None:
        """Record a write by `rank` at its present moment."""
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
    """The buffers and the vector clock of one rank. A forbidden access raises Violation.

    STAGE has two halves, between which successive calls alternate, and keeps its contents. Other buffers are new in
    every call.

    peers    the memories of all ranks
    window   elements of one half of STAGE
    shared   the buffers among IN and OUT that peers may access
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
        self.now = 0
        """The present moment of the rank: its own entry in the clock, which no other rank knows better."""

    def tick(self) -> None:
        """Begin the next moment. Signals and messages sent before do not cover it."""
        self.now += 1
        self.clock[self._rank] = self.now

    def learn(self, clock: Clock) -> None:
        """Merge the vector clock of another rank."""
        np.maximum(self.clock, clock, out=self.clock)

    def enter(self, call: int, source: list[int], target: list[int]) -> None:
        """Begin a call with these contents of IN and OUT."""
        self._half = call % 2 * self._window
        self._buffers[:3] = source, target, [UNDEFINED] * self._scratch
        self._sending[:3] = [0] * len(source), [0] * len(target), [0] * self._scratch

    def share(self) -> None:
        """Begin to track accesses to IN and OUT. All accesses by the caller have ended."""
        for buf in self._given:
            self._shared[buf] = _Shared(buf.name, self._rank, len(self._buffers[buf]), self.now)

    def leave(self) -> None:
        """End the call. The caller may now access IN and OUT, which counts as a write."""
        for buf in self._given:
            self._shared[buf].write(0, len(self._buffers[buf]), self._rank, self.clock)

    @property
    def result(self) -> list[int]:
        """OUT."""
        return self._buffers[Buf.OUT]

    def _locate(self, span: Span | None) -> tuple[Memory, Buf, int, int]:
        """Return owner, buffer, start and stop of a span."""
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
        """Return the values of a span. A `lasting` read ends with `end_read`."""
        owner, buf, start, stop = self._locate(span)
        values = owner._buffers[buf][start:stop]
        if values and min(values) < 0:
            what = "a pending RECV writes" if PENDING in values else "no step has written"
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
        """Write values to a span. A write of PENDING ends with `end_write`."""
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
        """End a write of PENDING with its values."""
        _, buf, start, stop = self._locate(span)
        self._buffers[buf][start:stop] = values
        if buf in self._shared:
            self._shared[buf].write(start, stop, self._rank, self.clock)
