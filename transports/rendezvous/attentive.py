"""A store whose waits end when the job fails, for the time in which a transport opens."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Final

from transports.errors import DeadlineExceeded, RondeError
from transports.store import Store

SLICE_SECONDS: Final = 0.05


class AttentiveStore(Store):
    """Another store whose `get` also raises the error that `failure` returns, while `failure` is set.

    Stores made by `with_timeout` do not: failure detection itself uses them.
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
        """Does nothing: the inner store belongs to its creator."""

    def local_address(self) -> str | None:
        return self._inner.local_address()

    def with_timeout(self, seconds: float) -> Store:
        return self._inner.with_timeout(seconds)
