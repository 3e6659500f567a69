"""An optional ability: a thread can sleep on a descriptor until the transport can make progress.

A rank that uses several transports sleeps on the descriptors of all of them at once, and each can end the sleep.

    transport.prepare()      makes progress; from now on an event makes the descriptor readable
    select(descriptors)      the thread sleeps, without any lock
    transport.finish()       always, also if `prepare` has made progress

One thread does this at a time, whichever it is. Other threads may use the transport meanwhile, and may wait on it by
themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from transports.cores import Cores

FIRST_SLEEP: Final = 1e-3
LONGEST_SLEEP: Final = 32e-3
"""Seconds. A sleep lasts at most FIRST_SLEEP; the limit doubles with each sleep of a wait up to LONGEST_SLEEP. It has
two reasons: peers that died wake nobody, and a wakeup may be lost to memory ordering (see `shm/doorbell.py`)."""


class Pollable(ABC):
    """The ability. `cores`: those on which this rank waits."""

    cores: Cores

    @property
    @abstractmethod
    def descriptor(self) -> int:
        """Readable between `prepare` and `finish` when the transport can make progress, or a request of it has ended.
        The transport owns it; it is the same from `open` to `close`."""

    @abstractmethod
    def prepare(self) -> float:
        """Make all progress that is possible without waiting. Returns the monotonic time until which a thread may sleep
        on the descriptor: 0 if there was progress. Raises the transport's first failure."""

    @abstractmethod
    def finish(self) -> None:
        """No thread sleeps on the descriptor any more."""
