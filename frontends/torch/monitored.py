"""The monitored barrier: all ranks wait for each other, and learn which ranks did not come.

It goes through torch's store, so that a rank that does not come leaves the communicator usable. Barriers have numbers.
Rank 0 decides who came to one, and goes on to the next; other ranks go on when they see a decision.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist


class MonitoredBarrier:
    """The monitored barriers of one group, for one rank."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        """`store` is a part of torch's for this group alone: an earlier one's keys would be taken for its ranks."""
        self._store = store
        self._rank = rank
        self._size = size
        self._number = 0

    def wait(self, seconds: float, every: bool) -> None:
        """Wait up to `seconds` for all ranks; with `every`, rank 0 looks for all late ranks, else for the first one.

        Raises DistBackendError with the late ranks, on every rank that came.
        """
        late = self._decide(seconds, every) if self._rank == 0 else self._follow(seconds)
        if late:
            ranks = f"Rank{'s' * (len(late) > 1)} {', '.join(map(str, late))}"
            told = f"{ranks} failed to pass monitoredBarrier in {1000 * seconds:.0f} ms"
            raise dist.DistBackendError(f"[Rank {self._rank}]: {told}")

    def _decide(self, seconds: float, every: bool) -> list[int]:
        self._store.set(self._key(0), "")
        deadline = time.monotonic() + seconds
        late: list[int] = []
        for rank in range(1, self._size):
            if (every or not late) and not self._comes(self._key(rank), deadline - time.monotonic()):
                late.append(rank)
        self._store.set(self._key("decision"), " ".join(map(str, late)))
        if not late:
            self._forget_the_one_before()
        self._number += 1
        return late

    def _follow(self, seconds: float) -> list[int]:
        while self._store.check([self._key("decision")]):  # without this rank
            self._number += 1
        self._store.set(self._key(self._rank), "")
        # rank 0 may come at the end of this time, and then waits as long for others
        if not self._comes(self._key(0), seconds) or not self._comes(self._key("decision"), 2 * seconds):
            self._store.delete_key(self._key(self._rank))
            return [0]
        late = [int(text) for text in self._store.get(self._key("decision")).decode().split()]
        self._number += 1
        return late

    def _comes(self, key: str, seconds: float) -> bool:
        """Return whether a key is set, or will be in this time."""
        try:
            self._store.wait([key], timedelta(seconds=max(0.001, seconds)))
        except RuntimeError:  # stores have different errors for a late key; a store that is gone raises another here
            return bool(self._store.check([key]))
        return True

    def _forget_the_one_before(self) -> None:
        """Delete its keys: all ranks have come to this one, so they have read them."""
        for name in [*range(self._size), "decision"]:
            self._store.delete_key(self._key(name, -1))

    def _key(self, name: int | str, after: int = 0) -> str:
        return f"monitored/{self._number + after}/{name}"
