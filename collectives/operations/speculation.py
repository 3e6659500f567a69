"""Speculation: whether the next allgather runs as if all ranks' parts were equal.

by windows     it always does: if the parts are not equal, the call ends without effect on all ranks
by messages    if the parts of the last gathering were equal and small. It assumes parts like those: an own part that
               is another is refused (execution/refusal.py), and the call ends without effect on all ranks
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

import numpy as np

from collectives.jit import UNTRIED
from collectives.operations.shapes import Shapes
from collectives.planning import Call

_AFTER_UNEVEN: Final = 16
"""Number of gatherings that are not speculative after one that has ended without effect."""
_MOST_BYTES: Final = 1 << 22
"""Bytes of all ranks' parts, up to which a gathering by messages may be speculative. For larger parts the agreement on
their sizes takes little of the time."""


class Speculation:
    """The decision whether the next allgather runs as if all parts were equal. All ranks decide alike, since all have
    made the same gatherings.

    by_messages  True by messages, False by windows
    assumed      by messages: the call that the next gathering makes on all ranks; None: none is assumed
    """

    def __init__(self, *, by_messages: bool) -> None:
        self.by_messages = by_messages
        self._cautious = 0
        self.assumed: Call | None = None

    def next(self) -> bool:
        """The answer for the gathering that begins now."""
        if self._cautious:
            self._cautious -= 1
            return False
        return not self.by_messages or self.assumed is not None

    def guard(self, begin: Callable[[Any, Any], int | None], call: Call) -> Callable[[Any, Any], int | None]:
        """A function that begins a gathering by `call` if there is nothing to decide, and else returns UNTRIED."""

        def begin_if_assumed(source: Any, target: Any) -> int | None:
            if self._cautious or (self.by_messages and self.assumed is not call):
                return UNTRIED
            return begin(source, target)

        return begin_if_assumed

    def failed(self) -> None:
        """A gathering has ended without effect."""
        self._cautious = _AFTER_UNEVEN
        self.assumed = None

    def agreed(self, shapes: Shapes) -> None:
        """The parts of a gathering have turned out to be these."""
        nbytes = sum(shapes.blocks) * shapes.dtype.itemsize
        if self.by_messages and not self._cautious and 0 < nbytes <= _MOST_BYTES and len(set(shapes.rows)) == 1:
            self.assumed = even_call(shapes.dtype, (shapes.rows[0], *shapes.rest))
        else:
            self.assumed = None


def even_call(dtype: np.dtype[Any], shape: tuple[int, ...], algorithm: str | None = None) -> Call:
    """The speculative allgather of parts of one shape."""
    return Call("allgather", dtype, (prod(shape),), algorithm=algorithm, shape=shape)
