"""Memory ordering in pure Python.

A writer stores its data before the word that publishes them; a reader loads that word before the data. On x86-64 plain
stores and loads through a memoryview keep this order (Intel SDM vol. 3, 9.2.2: stores are not reordered with other
stores, loads not with other loads); machines with weaker ordering need a barrier between the two.
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
"""True if writer and reader need a barrier between the data and the word that publishes them."""


def barrier() -> None:
    """A full barrier: no memory access is reordered across it.

    Releasing a lock keeps earlier accesses before the release, acquiring one keeps later accesses after the
    acquisition; the second acquisition cannot pass the first release, since both access the same word. The lock is new,
    so no other thread or signal handler can hold it.
    """
    lock = threading.Lock()
    with lock:
        pass
    with lock:
        pass


def unclaimed() -> str | None:
    """The reason for which Python processes of this system are not known to share memory; None if they are."""
    if sys.platform != "linux":
        return f"shared memory is tested on Linux alone, and this system is {sys.platform}"
    if sys.maxsize < 2**32 or sys.byteorder != "little":
        return "shared memory needs a 64-bit little-endian machine"
    if _MACHINE not in _STRONG | _WEAK:
        return f"the memory ordering of {platform.machine()!r} machines is not known"
    return None
