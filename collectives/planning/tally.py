"""Tally: the counts of one plan."""

from __future__ import annotations


class Tally:
    """The counts of one plan, which the executor raises and the meter reads.

    calls         calls so far
    next          number of the next call that is to be timed
    timed, last   number of the last timed call, and its nanoseconds
    nanoseconds   estimated for all calls up to `timed`
    words         `calls` and `next` as two words of 64 bits, which compiled code reads and raises
    """

    __slots__ = ("last", "nanoseconds", "timed", "words")

    def __init__(self) -> None:
        self.words = memoryview(bytearray(16)).cast("q")
        self.words[1] = 1
        self.timed = self.last = self.nanoseconds = 0

    @property
    def calls(self) -> int:
        return self.words[0]

    @calls.setter
    def calls(self, calls: int) -> None:
        self.words[0] = calls

    @property
    def next(self) -> int:
        return self.words[1]

    @next.setter
    def next(self, number: int) -> None:
        self.words[1] = number

    def clear(self) -> None:
        """Count from zero again."""
        self.calls = self.timed = self.last = self.nanoseconds = 0
        self.next = 1
