"""A store for the threads of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from transports.errors import DeadlineExceeded, RendezvousError
from transports.forking import register
from transports.store import Awaited, Store, check_awaited, check_item, counted


class MemoryStore(Store):
    """A dictionary with a condition. Share one object among all threads; closing it closes it for all of them.

    A forked child has a copy of its own.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        self._closed = False
        register(self)

    def after_fork(self) -> None:
        """In a forked child: use a new lock, since another thread may have held the old one."""
        self._changed = threading.Condition()

    def set(self, key: str, value: bytes) -> None:
        check_item(key, value)
        with self._changed:
            self._check_open()
            self._values[key] = bytes(value)
            self._changed.notify_all()

    def set_default(self, key: str, value: bytes) -> bytes:
        check_item(key, value)
        with self._changed:
            self._check_open()
            if key not in self._values:
                self._values[key] = bytes(value)
                self._changed.notify_all()
            return self._values[key]

    def get(self, key: str, deadline: float) -> bytes:
        check_item(key)
        found = self.await_any([key], deadline)
        if found is None:
            raise DeadlineExceeded(f"key {key!r} was not set in time (store in memory)")
        return found[1]

    def awaited(self, *keys: str) -> Awaited:
        check_awaited(keys)
        return _Awaited(self, keys)

    def await_any(self, keys: Sequence[str], deadline: float) -> tuple[int, bytes] | None:
        """The position and the value of one of `keys`, waited for until `deadline`; None if none has a value then."""
        with self._changed:
            while True:
                self._check_open()
                for position, key in enumerate(keys):
                    if key in self._values:
                        return position, self._values[key]
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                self._changed.wait(min(left, threading.TIMEOUT_MAX))

    def add(self, key: str, amount: int) -> int:
        check_item(key)
        with self._changed:
            self._check_open()
            total = counted(key, self._values.get(key), amount)
            self._values[key] = b"%d" % total
            self._changed.notify_all()
            return total

    def delete(self, key: str) -> bool:
        check_item(key)
        with self._changed:
            self._check_open()
            return self._values.pop(key, None) is not None

    def forget(self, prefix: str, kept: Sequence[str] = ()) -> None:
        check_item(prefix)
        with self._changed:
            self._check_open()
            for key in [key for key in self._values if key.startswith(f"{prefix}/") and key not in kept]:
                del self._values[key]

    def close(self) -> None:
        """Every wait, now and later, raises RendezvousError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise RendezvousError("the store in memory was closed")


class _Awaited(Awaited):
    """Waits for the event, without slices."""

    def __init__(self, store: MemoryStore, keys: Sequence[str]) -> None:
        super().__init__(store, keys)
        self._memory = store

    def wait(self, until: float) -> tuple[int, bytes] | None:
        return self._memory.await_any(self._keys, until)
