"""A rank's timeline: its named operations with their phases, its collectives and their steps.

A rank is a "process" of the Trace Event Format, a track a "thread". Events that may overlap with others on their track
are asynchronous events, a pair of lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from collectives.metering.trace_file import Event, Finished, TraceFile, as_line

HEADER: Final = "ronde"
"""Name of the first event. It holds the fields of a Header, and `zero`, the clock reading at the file's time 0."""


class Header(NamedTuple):
    """The rank that writes a timeline. Its clock plus `offset` is the clock of rank 0, within `error` (nanoseconds)."""

    rank: int
    size: int
    host: str
    process: int
    offset: int
    error: int


class Timeline(TraceFile):
    """The file of one rank."""

    def __init__(self, path: Path, header: Header) -> None:
        """Raises OSError if the file cannot be written."""
        super().__init__(path)
        self._header = header
        self._tracks: dict[str, int] = {}
        self._pairs = 0
        self._zero = self._written
        self._write(
            "[\n",
            self._fact(HEADER, {**header._asdict(), "zero": self._zero}),
            self._fact("process_name", {"name": f"rank {header.rank} ({header.host}, pid {header.process})"}),
            self._fact("process_sort_index", {"sort_index": header.rank}),
        )

    def put(self, events: Iterable[Event], count: int = 1) -> None:
        """Add `count` events. The iterable is consumed when they are written."""
        self._add((line for event in events for line in self._lines(event)), count)

    def operation(self, label: str, finished: Finished) -> None:
        """Add the phases of a named operation."""
        phases: tuple[tuple[str, int, int, Mapping[str, object]], ...] = (
            ("negotiation", finished.submitted, finished.agreed, {"signature": finished.signature}),
            ("queue", finished.agreed, finished.began, {}),
            ("operations", finished.began, finished.ended, {"operation": finished.description}),
        )
        self.put(
            [
                Event(f"{track} {label}".rstrip(), finished.name, began, ended, details, overlaps=True)
                for track, began, ended, details in phases
            ],
            len(phases),
        )

    def cycle(self) -> None:
        """Nothing: the operations of a batch show when they begin."""

    def _last_line(self) -> str:
        return self._fact("ronde_end", {}).rstrip(",\n") + "\n]\n"

    def _about_writing(self, began: int, lines: int) -> Iterable[str]:
        return self._lines(Event("timeline", "write", began, self._written, {"events": lines}))

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
    return as_line(event) + ",\n"
