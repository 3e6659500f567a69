"""Early-arrival delay: a large frame that comes before its receive is left in the network for a moment.

A frame that is read before its receive is posted needs newly allocated memory, and a copy later. The delay equals the
estimated time of both: if no receive is posted during the delay, it at most doubles the cost.
"""

from __future__ import annotations

import math
import time
from typing import Final

_LARGE: Final = 1 << 16
"""Minimum bytes of a delayed frame."""
_COST: Final = 1e-9
"""Seconds per byte for new memory and the copy."""


class EarlyArrivals:
    """Peers whose next frame is delayed, each with the end of its delay."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    @property
    def due(self) -> float:
        """Monotonic time at which the first delay ends; infinity if there is none."""
        return min(self._until.values(), default=math.inf)

    def holds(self, peer: int, length: int, awaited: bool) -> bool:
        """True while the next frame from a peer, of `length` bytes, must stay in the network. `awaited`: its receive is
        posted."""
        if length < _LARGE:
            return False
        if not awaited:
            now = time.monotonic()
            if now < self._until.setdefault(peer, now + length * _COST):
                return True
        self._until.pop(peer, None)
        return False
