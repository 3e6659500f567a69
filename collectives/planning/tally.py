"""Tally: the counts of one plan."""

from __future__ import annotations


class Tally:
    """The counts of one plan, which the executor raises and the meter reads.

    calls         calls so far
    next          number of the next call that is to be timed
    timed, last   number of the last timed call, and its nanoseconds
    nanoseconds   estimated for all calls up to `timed`
    """

    __slots__ = ("calls", "last", "nanoseconds", "next", "timed")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Count from zero again."""
        self.calls = self.timed = self.last = self.nanoseconds = 0
        self.next = 1
