"""A rank's timeline as a file: an array of events in the Trace Event Format, which Perfetto (ui.perfetto.dev) and
chrome://tracing open.

Events are buffered in memory. The thread that adds an event writes them when there are many, or when the last write was
a second ago. A killed process loses its buffered events and leaves a file without the closing bracket, which the format
allows. A write error (a full disk) ends the timeline with a warning; calls go on.

Source: Google, "Trace Event Format", 2016. A rank is a "process" of the format, a track a "thread". Events that may
overlap with others on their track are asynchronous events, a pair of lines.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

HEADER: Final = "ronde"
"""Name of the first event. It holds the fields of a Header, and `zero`, the clock reading at the file's time 0."""
_MANY: Final = 2048
"""Number of buffered events that causes a write."""
_LONG: Final = 10**9
"""Nanoseconds since the last write that cause one."""

log = logging.getLogger("ronde")


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


class Header(NamedTuple):
    """The rank that writes a timeline. Its clock plus `offset` is the clock of rank 0, within `error` (nanoseconds)."""

    rank: int
    size: int
    host: str
    process: int
    offset: int
    error: int


class Timeline:
    """The file of one rank. Any thread may add events."""

    def __init__(self, path: Path, header: Header) -> None:
        """Raises OSError if the file cannot be written."""
        self.path = path
        self._header = header
        self._waiting: deque[tuple[Iterable[Event], int]] = deque()
        self._count = 0
        self._lock = threading.Lock()
        self._tracks: dict[str, int] = {}
        self._pairs = 0
        self._zero = self._written = time.perf_counter_ns()
        self._file = path.open("wb", buffering=0)  # a forked child must not inherit bytes to be written
        self._write(
            "[\n",
            self._fact(HEADER, {**header._asdict(), "zero": self._zero}),
            self._fact("process_name", {"name": f"rank {header.rank} ({header.host}, pid {header.process})"}),
            self._fact("process_sort_index", {"sort_index": header.rank}),
        )

    def put(self, events: Iterable[Event], count: int = 1) -> None:
        """Add `count` events. The iterable is consumed when they are written."""
        self._waiting.append((events, count))
        self._count += count
        if self._count >= _MANY or time.perf_counter_ns() - self._written > _LONG:
            self.flush()

    def flush(self) -> None:
        """Write the buffered events, unless another thread does so now."""
        if self._lock.acquire(blocking=False):
            try:
                self._flush()
            finally:
                self._lock.release()

    def close(self) -> None:
        """Write the buffered events and the closing bracket. Idempotent."""
        with self._lock:
            if not self._file.closed:
                self._flush()
                self._write(self._fact("ronde_end", {}).rstrip(",\n"), "\n]\n")
                self._file.close()

    def abandon(self) -> None:
        """Write no more, also in a forked child."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _flush(self) -> None:
        began = time.perf_counter_ns()
        lines: list[str] = []
        while self._waiting:
            events, count = self._waiting.popleft()
            self._count -= count
            for event in events:
                lines += self._lines(event)
        own = Event("timeline", "write", began, time.perf_counter_ns(), {"events": len(lines)})
        self._written = own.ended
        self._write(*lines, *self._lines(own))

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

    def _lines(self, event: Event) -> Iterator[str]:
        """The lines of an event. The first event of a track is preceded by the lines that name the track."""
        number = self._tracks.get(event.track)
        if number is None:
            number = self._tracks[event.track] = len(self._tracks) + 1
            yield self._fact("thread_name", {"name": event.track}, number)
            yield self._fact("thread_sort_index", {"sort_index": number}, number)
        line = {
            "name": event.name,
            "cat": event.track,
            "ph": "X",
            "ts": (event.began - self._zero) / 1000,
            "pid": self._header.rank,
            "tid": number,
            "args": event.details,
        }
        if not event.overlaps:
            yield _line(line | {"dur": (event.ended - event.began) / 1000})
            return
        self._pairs += 1
        both = {"id": f"{self._header.rank}.{self._pairs}"}
        yield _line(line | both | {"ph": "b"})
        yield _line(line | both | {"ph": "e", "ts": (event.ended - self._zero) / 1000, "args": {}})

    def _fact(self, name: str, args: Mapping[str, object], track: int = 0) -> str:
        return _line({"name": name, "ph": "M", "pid": self._header.rank, "tid": track, "args": args})


def _line(event: Mapping[str, object]) -> str:
    return json.dumps(event, default=str) + ",\n"
