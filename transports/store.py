"""The store contract: a small shared dictionary by which ranks find each other before they have a transport."""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod

from transports.errors import DeadlineExceeded

MAX_KEY_BYTES = 512
MAX_VALUE_BYTES = 1 << 20


class Store(ABC):
    """Keys are non-empty strings of up to 512 UTF-8 bytes, values bytes of up to 1 MiB. Threads may share a store.

    Every method raises RendezvousError when the store cannot be reached or was closed, ValueError for a bad key or
    value.
    """

    @abstractmethod
    def set(self, key: str, value: bytes) -> None:
        """Bind `key` to `value`, replacing what it had."""

    @abstractmethod
    def get(self, key: str, deadline: float) -> bytes:
        """The value of `key`, waited for until `deadline` (absolute `time.monotonic()` seconds).

        Raises DeadlineExceeded naming the key; the store stays usable.
        """

    def peek(self, key: str) -> bytes | None:
        """The value of `key`, or None if it has none. Does not wait."""
        try:
            return self.get(key, time.monotonic())
        except DeadlineExceeded:
            return None

    @abstractmethod
    def add(self, key: str, amount: int) -> int:
        """Add to a counter that begins at 0; return the sum. Atomic over all users. `get` returns a counter as decimal
        ASCII bytes.

        Raises ValueError, with nothing changed, if `key` holds something else or the sum does not fit 64 bits.
        """

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Forget `key`; True if it was there."""

    @abstractmethod
    def close(self) -> None:
        """Release descriptors and threads. Idempotent."""

    def prefixed(self, prefix: str) -> Store:
        """The part of this store whose keys begin with `prefix` + '/'. Closing it does not close this one."""
        return PrefixStore(self, prefix)

    def local_address(self) -> str | None:
        """The local address of the connection to the store. None if the store was not used yet, or is not reached
        through a network (also by loopback): then the address says nothing about routes to other machines."""
        return None

    def with_timeout(self, seconds: float) -> Store:
        """This store with a time-out: calls raise RendezvousError if the store does not accept a connection or answer
        within `seconds` (for `get`: within `seconds` after its deadline). It shares all resources with this store, so
        close only this one.

        A store that is always reachable returns itself.
        """
        return self


def check_item(key: str, value: bytes = b"") -> None:
    """Check the limits of a key and a value. Raises ValueError."""
    if not key or len(key.encode()) > MAX_KEY_BYTES:
        raise ValueError(f"key={key!r}: must be 1 to {MAX_KEY_BYTES} UTF-8 bytes")
    if len(value) > MAX_VALUE_BYTES:
        raise ValueError(f"value of {len(value)} bytes for key {key!r}: at most {MAX_VALUE_BYTES} are allowed")


def counted(key: str, value: bytes | None, amount: int) -> int:
    """The sum of the counter stored as `value` (None: no counter yet) and `amount`.

    Raises ValueError if `value` is no counter or the sum does not fit 64 bits.
    """
    if value is not None and not re.fullmatch(rb"-?[0-9]{1,19}", value):
        raise ValueError(f"key={key!r}: holds a value of {len(value)} bytes that is not a counter")
    total = int(value or 0) + amount
    if not -(2**63) <= total < 2**63:
        raise ValueError(f"amount={amount!r} for key {key!r}: the counter must stay within 64 bits")
    return total


class PrefixStore(Store):
    """A part of another store, so that groups, generations and services never see each other's keys."""

    def __init__(self, inner: Store, prefix: str) -> None:
        check_item(prefix)
        self._inner = inner
        self._prefix = prefix + "/"

    def set(self, key: str, value: bytes) -> None:
        self._inner.set(self._prefix + key, value)

    def get(self, key: str, deadline: float) -> bytes:
        return self._inner.get(self._prefix + key, deadline)

    def add(self, key: str, amount: int) -> int:
        return self._inner.add(self._prefix + key, amount)

    def delete(self, key: str) -> bool:
        return self._inner.delete(self._prefix + key)

    def close(self) -> None:
        """Does nothing: the inner store belongs to its creator."""

    def local_address(self) -> str | None:
        return self._inner.local_address()

    def with_timeout(self, seconds: float) -> Store:
        return PrefixStore(self._inner.with_timeout(seconds), self._prefix[:-1])
