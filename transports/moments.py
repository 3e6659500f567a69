"""The time up to a moment of time.monotonic(), for the waits of the system."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

LONGEST_WAIT: Final = 86400.0
"""Seconds that a wait lasts at most: poll and epoll take 24 days, and sockets 292 years. Loops look again."""
_LOOK: Final = 1e-3


def seconds_until(moment: float) -> float:
    """Seconds up to a moment, 0 for one that has passed, and at most LONGEST_WAIT."""
    return min(max(0.0, moment - time.monotonic()), LONGEST_WAIT)


def seconds_left(deadline: float) -> float:
    """The same, for the timeout of a socket, where 0 means that it never waits. Raises TimeoutError once `deadline` has
    passed."""
    left = seconds_until(deadline)
    if not left:
        raise TimeoutError("timed out")
    return left


def timeouts(deadline: float) -> Iterator[float]:
    """The timeouts of a socket for one read after the other. The last is for a look once `deadline` has passed: this
    process may have been late itself, and all may have come. Raises TimeoutError behind it."""
    while left := seconds_until(deadline):
        yield left
    yield _LOOK
    raise TimeoutError("timed out")
