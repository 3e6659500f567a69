"""The memory that calls in flight write to."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

Span = tuple[int, int]
"""The addresses of the first byte of an array, and after its last one."""


def span(array: NDArray[Any]) -> Span:
    """Return the span of an array; of one that is not contiguous, whose gaps may be another array's, only that of its
    first element."""
    begin = int(array.__array_interface__["data"][0])
    together = array.flags.c_contiguous or array.flags.f_contiguous
    return begin, begin + (array.nbytes if together else array.itemsize if array.size else 0)


class WrittenMemory:
    """The spans that calls write to, by the calls' names. Two calls that reduce in place in the same memory would add
    up each other's results."""

    def __init__(self) -> None:
        self._sorted: list[tuple[int, int, str]] = []
        """No two of them overlap."""
        self._of: dict[str, list[Span]] = {}

    def owner(self, spans: Iterable[Span]) -> str | None:
        """Return the name of a call that writes to a part of these spans; None if there is none."""
        found = self._sorted
        for begin, end in spans:
            if begin == end:
                continue
            place = bisect_left(found, (begin, end, ""))
            if place < len(found) and found[place][0] < end:
                return found[place][2]
            if place and found[place - 1][1] > begin:
                return found[place - 1][2]
        return None

    def add(self, name: str, spans: Iterable[Span]) -> None:
        """Note the spans of a call, which have no other owner and may overlap each other."""
        united: list[Span] = []
        for begin, end in sorted(spans):
            if united and begin < united[-1][1]:
                united[-1] = united[-1][0], max(end, united[-1][1])
            elif begin < end:
                united.append((begin, end))
        if united:
            self._of[name] = united
            for one in united:
                insort(self._sorted, (*one, name))

    def remove(self, name: str) -> None:
        """Forget the spans of a call, if it has any."""
        for one in self._of.pop(name, ()):
            del self._sorted[bisect_left(self._sorted, (*one, name))]

    def clear(self) -> None:
        """Forget all spans."""
        self._sorted.clear()
        self._of.clear()
