"""Speculation: whether the next allgather runs as if all ranks' parts were equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from collectives.operations.shapes import EvenParts, Shapes

_AFTER_UNEVEN: Final = 16
"""Number of gatherings that are not speculative after one with unequal parts."""
_MOST_BYTES: Final = 1 << 18
"""Bytes of all ranks' parts, up to which they travel with their headers: more would be copied for longer than that
saves."""
UNTRIED: Final = -100
"""Answer of a guarded function that was not called. No answer of the interpreter is it."""


class Speculation:
    """The decision whether the next allgather runs as if all parts were equal. All ranks decide alike, since all have
    made the same gatherings.

    expected  parts like those of the last gathering, if it was by messages, and they were small and equal
    """

    def __init__(self) -> None:
        self._cautious = 0
        self.expected: EvenParts | None = None

    def next(self) -> bool:
        """The answer for the gathering that begins now."""
        if self._cautious:
            self._cautious -= 1
            return False
        return True

    def guard(self, begin: Callable[[Any, Any], int | None]) -> Callable[[Any, Any], int | None]:
        """A function that begins a gathering if it is to be speculative, and else returns UNTRIED."""

        def begin_if_next(source: Any, target: Any) -> int | None:
            return UNTRIED if self._cautious and not self.next() else begin(source, target)

        return begin_if_next

    def failed(self) -> None:
        """The parts were unequal, or not as expected."""
        self._cautious = _AFTER_UNEVEN
        self.expected = None

    def agreed(self, shapes: Shapes) -> None:
        """The parts of a gathering by messages have turned out to be these."""
        small = sum(shapes.blocks) * shapes.dtype.itemsize <= _MOST_BYTES
        expects = small and not self._cautious and len(set(shapes.rows)) == 1
        self.expected = EvenParts(shapes) if expects else None
