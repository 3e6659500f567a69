"""A store for the threads of one process."""

from __future__ import annotations

import threading
import time

from transports.errors import DeadlineExceeded, RendezvousError
from transports.forking import register
from transports.store import Store, check_item, counted


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

    def get(self, key: str, deadline: float) -> bytes:
        check_item(key)
        with self._changed:
            while True:
                self._check_open()
                value = self._values.get(key)
                if value is not None:
                    return value
                left = deadline - time.monotonic()
                if left <= 0:
                    raise DeadlineExceeded(f"key {key!r} was not set in time (store in memory)")
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

    def close(self) -> None:
        """Every wait, now and later, raises RendezvousError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise RendezvousError("the store in memory was closed")
