"""A store whose waits end when the job fails, for the time in which a transport opens."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Sequence
from typing import Final

from transports.errors import RondeError
from transports.store import Awaited, Place, Store

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
        with contextlib.closing(self._inner.awaited(key)) as awaited:
            while (failure := self.failure) is not None and (now := time.monotonic()) < deadline:
                found = awaited.wait(min(deadline, now + SLICE_SECONDS))
                if found is not None:
                    return found[1]
                cause = failure()
                if cause is not None:
                    raise copy.copy(cause)
        return self._inner.get(key, deadline)

    def awaited(self, *keys: str) -> Awaited:
        return self._inner.awaited(*keys)

    def peek_all(self, keys: Sequence[str]) -> list[bytes | None]:
        return self._inner.peek_all(keys)

    def set_default(self, key: str, value: bytes) -> bytes:
        return self._inner.set_default(key, value)

    def put_row(self, table: str, place: int, size: int, row: bytes) -> None:
        self._inner.put_row(table, place, size, row)

    def rows(self, table: str) -> list[bytes | None]:
        return self._inner.rows(table)

    def add(self, key: str, amount: int) -> int:
        return self._inner.add(key, amount)

    def delete(self, key: str) -> bool:
        return self._inner.delete(key)

    def forget(self, prefix: str, kept: Sequence[str] = ()) -> None:
        self._inner.forget(prefix, kept)

    def close(self) -> None:
        """Does nothing: the inner store belongs to its creator."""

    def local_address(self) -> str | None:
        return self._inner.local_address()

    def place(self) -> Place | None:
        return self._inner.place()

    def with_timeout(self, seconds: float) -> Store:
        return self._inner.with_timeout(seconds)
