"""A file in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Lines are buffered in memory. The thread that adds some writes them when there are many, or when the last write was a
second ago; otherwise a thread of the file writes them within a second, so that another program can follow a job. A
killed process loses its buffered lines and leaves a file without the closing bracket, which the format allows. A write
error (a full disk) ends the file with a warning; calls go on.

Source: Google, "Trace Event Format", 2016.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from transports.locks import is_mine, let_go

_MANY: Final = 2048
"""Number of buffered events that causes a write."""
_LONG: Final = 10**9
"""Nanoseconds since the last write that cause one."""
_SOON: Final = 0.5
"""Seconds from an event to the write of its lines."""

log = logging.getLogger("ronde.timeline")


class Event(NamedTuple):
    """One event on a track, from `began` to `ended` (nanoseconds).

    overlaps  True if another event of the track may begin before this one ends
    """

    track: str
    name: str
    began: int
    ended: int
    details: Mapping[str, object]
    overlaps: bool = False


class Finished(NamedTuple):
    """A named operation that has ended.

    kind              name of the collective
    op                its reduction operator; None without one
    dtype, shape      of its first array; empty without one
    description       the whole call as text
    signature         all arguments that the ranks specify alike, by name; numbers, strings and sequences of them
    submitted, agreed, began, ended
                      when this rank submitted it, when all ranks had, and when its communication began and ended
                      (nanoseconds)
    arrivals          on rank 0: ranks of the communicator that have submitted it, and when rank 0 heard of it
    """

    name: str
    kind: str
    op: str | None
    dtype: str
    shape: tuple[int, ...]
    description: str
    submitted: int
    agreed: int
    began: int
    ended: int
    arrivals: tuple[tuple[int, int], ...] = ()
    signature: Mapping[str, object] = MappingProxyType({})


class TraceFile(ABC):
    """A file of events. Any thread may add some."""

    def __init__(self, path: Path) -> None:
        """Raises OSError if the file cannot be written."""
        self.path = path
        self._waiting: deque[tuple[Iterable[str], int]] = deque()
        self._count = 0
        self._lock = threading.RLock()
        self._written = time.perf_counter_ns()
        self._added = threading.Event()
        self._closing = threading.Event()
        self._writer = threading.Thread(target=self._write_soon, name="ronde-timeline", daemon=True)
        self._file = path.open("wb", buffering=0)  # a forked child must not inherit bytes to be written
        self._writer.start()

    @abstractmethod
    def put(self, events: Iterable[Event], count: int = 1) -> None:
        """Add `count` events. The iterable is consumed when they are written."""

    @abstractmethod
    def operation(self, label: str, finished: Finished) -> None:
        """Add a named operation of the communicator `label`, which is empty for the world."""

    @abstractmethod
    def cycle(self) -> None:
        """Add the moment at which operations begin that all ranks have agreed on."""

    @abstractmethod
    def _last_line(self) -> str:
        """The end of the file."""

    def _about_writing(self, began: int, lines: int) -> Iterable[str]:
        """Lines about a write that has begun at a moment."""
        return ()

    def flush(self) -> None:
        """Write the buffered lines, unless another thread does so now, or this one: a signal handler may add events."""
        if is_mine(self._lock):
            return
        try:
            if self._lock.acquire(blocking=False):
                self._flush()
        finally:
            let_go(self._lock)

    def close(self) -> None:
        """Write the buffered lines and the closing bracket. Idempotent."""
        self._end_writer()
        with self._lock:
            if not self._file.closed:
                self._flush()
                self._write(self._last_line())
                self._file.close()

    def abandon(self) -> None:
        """Write no more, also in a forked child."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _add(self, lines: Iterable[str], count: int) -> None:
        """Buffer the lines of `count` events."""
        self._waiting.append((lines, count))
        self._count += count
        if self._count >= _MANY or time.perf_counter_ns() - self._written > _LONG:
            self.flush()
        elif not self._added.is_set():
            self._added.set()

    def _write_soon(self) -> None:
        """The life of the file's thread."""
        while not self._closing.is_set():
            self._added.wait()
            self._closing.wait(_SOON)  # more events are likely to follow the first
            self._added.clear()
            self.flush()

    def _end_writer(self) -> None:
        self._closing.set()
        self._added.set()
        if threading.current_thread() is not self._writer:
            self._writer.join()

    def _flush(self) -> None:
        began = time.perf_counter_ns()
        lines: list[str] = []
        while self._waiting:
            more, count = self._waiting.popleft()
            self._count -= count
            lines += more
        self._written = time.perf_counter_ns()
        self._write(*lines, *self._about_writing(began, len(lines)))

    def _write(self, *texts: str) -> None:
        if self._file.closed:
            return
        try:
            data = memoryview("".join(texts).encode())
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            log.warning("the timeline %s ends here: it cannot be written: %s", self.path, error)
            self.abandon()


def as_line(event: Mapping[str, object]) -> str:
    """Return an event as text, without the end of its line."""
    return json.dumps(event, default=str)
