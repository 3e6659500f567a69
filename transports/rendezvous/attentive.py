"""A store for the time in which a transport opens: who waits there for another rank notices when it waits in vain."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Final

from transports.errors import DeadlineExceeded, RondeError
from transports.rendezvous.store import Store

SLICE_SECONDS: Final = 0.05


class AttentiveStore(Store):
    """Another store, whose `get` also raises what `failure` tells, as long as there is one to be asked.

    Hasty ones do not: they are for whoever finds out about failures.
    """

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.failure: Callable[[], RondeError | None] | None = None

    def set(self, key: str, value: bytes) -> None:
        self._inner.set(key, value)

    def get(self, key: str, deadline: float) -> bytes:
        while (failure := self.failure) is not None:
            try:
                return self._inner.get(key, min(deadline, time.monotonic() + SLICE_SECONDS))
            except DeadlineExceeded:
                cause = failure()
                if cause is not None:
                    raise copy.copy(cause) from None
                if time.monotonic() >= deadline:
                    raise
        return self._inner.get(key, deadline)

    def add(self, key: str, amount: int) -> int:
        return self._inner.add(key, amount)

    def delete(self, key: str) -> bool:
        return self._inner.delete(key)

    def close(self) -> None:
        """Does nothing: the inner store belongs to whoever made it."""

    def local_address(self) -> str | None:
        return self._inner.local_address()

    def hasty(self, seconds: float) -> Store:
        return self._inner.hasty(seconds)
