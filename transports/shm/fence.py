"""Memory ordering in pure Python.

What is published is written before the word that says so, and read after it. On x86-64 a plain store or load through
a memoryview keeps that order by itself (Intel SDM vol. 3, 9.2.2: stores are not reordered with other stores, loads
not with other loads); machines with weaker ordering need a barrier between the two.
"""

from __future__ import annotations

import platform
import sys
import threading
from typing import Final

_STRONG: Final = frozenset({"x86_64", "amd64"})
_WEAK: Final = frozenset({"aarch64", "arm64"})
_MACHINE: Final = platform.machine().lower()

WEAKLY_ORDERED: Final = _MACHINE not in _STRONG
"""True if a barrier must stand between data and the word that publishes it, on either side."""


def barrier() -> None:
    """Nothing before it is reordered with anything after it.

    A lock's release keeps what is before it there, its acquisition what is after it; the second acquisition cannot
    pass the first release, since both are about one word. The lock is fresh, so that no thread or signal handler can
    stand in the way.
    """
    lock = threading.Lock()
    with lock:
        pass
    with lock:
        pass


def unordered() -> str | None:
    """Why memory of this machine cannot be shared from Python; None if it can."""
    if sys.maxsize < 2**32 or sys.byteorder != "little":
        return "shared memory needs a 64-bit little-endian machine"
    if _MACHINE not in _STRONG | _WEAK:
        return f"the memory ordering of {platform.machine()!r} machines is not known"
    return None
