"""Numbers that threads take, each of them once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator


class Numbers(Iterator[int]):
    """`first`, first + 1, and so on. No two threads get the same number; those that share an `itertools.count` may, in
    a Python without its lock."""

    def __init__(self, first: int = 0) -> None:
        self._count = itertools.count(first)
        self._lock = threading.RLock()  # a signal handler may take one in the middle of another

    def __next__(self) -> int:
        with self._lock:
            return next(self._count)
