"""Large frames that come before their receive is posted: left in the network for a moment, since it may be soon.

A frame that is read before has to be put elsewhere, into memory that is new to the process, and copied from there. The
wait is as long as that would take, so that in vain it doubles the cost at most.
"""

from __future__ import annotations

import math
import time
from typing import Final

_LARGE: Final = 1 << 16
"""Bytes of a frame from which it is worth a wait."""
_COST: Final = 1e-9
"""Seconds for a byte to be put elsewhere and copied."""


class Patience:
    """Which peers' next frames are waited for, and until when."""

    def __init__(self) -> None:
        self._until: dict[int, float] = {}

    @property
    def due(self) -> float:
        """When the first wait is over; infinity for none."""
        return min(self._until.values(), default=math.inf)

    def holds(self, peer: int, length: int, awaited: bool) -> bool:
        """True while the next frame from a peer is to be left where it is. `awaited`: its receive is posted."""
        if length < _LARGE:
            return False
        if not awaited:
            now = time.monotonic()
            if now < self._until.setdefault(peer, now + length * _COST):
                return True
        self._until.pop(peer, None)
        return False
