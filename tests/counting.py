"""A store that counts what is asked of it, for simulated worlds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from transports.store import Awaited, Store


class CountingStore(Store):
    """Another store, and what it was asked: one request is one message to a store in another process, one answer.

    requests   number of requests by method
    sent       bytes of values given to the store
    received   bytes of values returned
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.requests: Counter[str] = Counter()
        self.sent = self.received = 0

    @property
    def total(self) -> int:
        """Number of all requests."""
        return self.requests.total()

    def set(self, key: str, value: bytes) -> None:
        self._count("set", value)
        self.inner.set(key, value)

    def get(self, key: str, deadline: float) -> bytes:
        self._count("get")
        return self._returned(self.inner.get(key, deadline))

    def awaited(self, *keys: str) -> Awaited:
        self._count("awaited")
        return self.inner.awaited(*keys)

    def peek(self, key: str) -> bytes | None:
        self._count("peek")
        value = self.inner.peek(key)
        return None if value is None else self._returned(value)

    def peek_all(self, keys: Sequence[str]) -> list[bytes | None]:
        self._count("peek_all")
        values = self.inner.peek_all(keys)
        self.received += sum(len(value or b"") for value in values)
        return values

    def set_default(self, key: str, value: bytes) -> bytes:
        self._count("set_default", value)
        return self._returned(self.inner.set_default(key, value))

    def put_row(self, table: str, place: int, size: int, row: bytes) -> None:
        self._count("put_row", row)
        self.inner.put_row(table, place, size, row)

    def rows(self, table: str) -> list[bytes | None]:
        self._count("rows")
        rows = self.inner.rows(table)
        self.received += sum(len(row or b"") for row in rows)
        return rows

    def add(self, key: str, amount: int) -> int:
        self._count("add")
        return self.inner.add(key, amount)

    def delete(self, key: str) -> bool:
        self._count("delete")
        return self.inner.delete(key)

    def close(self) -> None:
        """Close the other store."""
        self.inner.close()

    def _count(self, method: str, value: bytes = b"") -> None:
        self.requests[method] += 1
        self.sent += len(value)

    def _returned(self, value: bytes) -> bytes:
        self.received += len(value)
        return value
