"""What a communicator tells of itself: its metrics, and the timeline of its rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from collectives import clocks
from collectives.meter import Meter
from collectives.timeline import Header, Timeline
from collectives.trace import Trace

if TYPE_CHECKING:
    from collectives.communicator import Family

_HELP: Final = {
    "calls": "Collectives run, as they are executed",
    "bytes": "Bytes that the collectives were about",
    "moved_bytes": "Bytes sent to peers or read from their memory",
    "call_seconds": "Seconds in collectives, estimated",
    "wait_seconds": "Seconds waited for a peer in collectives, estimated",
    "plans_made": "Plans made for collectives of a new kind or size",
    "plans_reused": "Calls that found their plan",
    "events": "Other things that happened",
}


class Observable:
    """The methods of a communicator that tell how it is doing. Not collective, but for the beginning of a timeline."""

    rank: int
    size: int
    trace: Trace
    """Where events for the timeline go; see trace.py."""
    meter: Meter
    """What counts; see meter.py."""
    compose: Callable[..., Any]
    _family: Family
    _context: int

    def metrics(self) -> dict[str, Any]:
        """What this communicator has done since it was made or its metrics were reset:

        collectives   for each, as it is executed: calls; bytes (the size of the arrays: of all parts together where
                      ranks have parts, of what a rank gives for alltoall); moved (bytes that this rank sent to peers or
                      read from their memory); seconds; and the calls by algorithm
        parts         the same for exchanges that were a part of something else: of sizes, compression, Adasum
        waited        seconds by rank of the world: how long it was waited for, or for its memory
        plans         made, and reused by later calls
        events        other things by name, such as stalls

        Calls and bytes are exact. Seconds are estimates, for which as many calls are timed as takes half a percent of
        the time: those that take a millisecond all, short ones now and then. With arrays on GPUs they tell how long it
        took to enqueue the work. Splits of the communicator count for themselves, and messages are not counted.
        """
        return self.meter.snapshot()

    def reset_metrics(self) -> None:
        """Count from zero again."""
        self.meter.reset()

    def metrics_text(self) -> str:
        """The metrics in Prometheus' text format (version 0.0.4), for an endpoint or file of yours."""
        lines: dict[str, list[str]] = {name: [] for name in _HELP}
        for name, labels, value in self._samples():
            tags = {"rank": str(self.rank), "communicator": str(self._context), **labels}
            text = ",".join(f'{label}="{tag}"' for label, tag in tags.items())
            lines[name].append(f"ronde_{name}_total{{{text}}} {value}")
        blocks = [
            "\n".join([f"# HELP ronde_{name}_total {_HELP[name]}.", f"# TYPE ronde_{name}_total counter", *rows])
            for name, rows in lines.items()
            if rows
        ]
        return "\n".join(blocks) + "\n"

    def _samples(self) -> Iterator[tuple[str, dict[str, str], object]]:
        for (collective, part, algorithm), total in self.meter.sums().items():
            labels = {"collective": collective, "algorithm": algorithm, "part": "yes" if part else "no"}
            yield "calls", labels, total.calls
            yield "bytes", labels, total.bytes
            yield "moved_bytes", labels, total.moved
            yield "call_seconds", labels, total.nanoseconds / 1e9
        rest = self.meter.snapshot()
        for peer, seconds in rest["waited"].items():
            yield "wait_seconds", {"peer": str(peer)}, seconds
        yield "plans_made", {}, rest["plans"]["made"]
        yield "plans_reused", {}, rest["plans"]["reused"]
        for event, count in rest["events"].items():
            yield "events", {"event": event}, count

    # ---- the timeline

    def start_timeline(self, path: str | os.PathLike[str]) -> None:
        """Write what this rank does to a file, from now on until `stop_timeline` or the end: negotiation, queues,
        fusion, every collective and every step of it. Open it in Perfetto (ui.perfetto.dev); `ronde timeline merge`
        makes one file of those of all ranks.

        path   '{rank}' in it stands for the rank; without that '.rank0' and so on is put before its suffix

        Of the world communicator only; those split from it are included. Collective if the ranks are on several hosts,
        whose clocks are compared. The setting `timeline` does this from the beginning. While it is written, calls take
        some 0.2 us longer per step, and now and then a millisecond for the writing.

        Raises TypeError for a bad path; ValueError if a timeline is being written already, or for a communicator that
        is not the world's; OSError if the file cannot be written, on this rank alone: all stay usable.
        """
        target = Path(os.fspath(path))
        family, context = self._family, self._context
        if context:
            raise ValueError("start_timeline: must be called on the world communicator; its splits are included")
        if family.timeline is not None:
            raise ValueError(f"path={str(path)!r}: a timeline is being written to {family.timeline.path} already")
        members = family.transport.group.members
        offset, error = 0, 0
        if len({member.host for member in members}) > 1:
            offset, error = self.compose(clocks.compare, "a comparison of clocks")
        own = members[self.rank]
        header = Header(self.rank, self.size, own.hostname, own.pid, offset, error)
        family.timeline = Timeline(for_rank(target, self.rank), header)
        for communicator in family.open:
            communicator.observe()

    def stop_timeline(self) -> None:
        """End the timeline, if there is one. Every event until now is in the file."""
        timeline, self._family.timeline = self._family.timeline, None
        for communicator in self._family.open:
            communicator.observe()
        if timeline is not None:
            timeline.close()

    def observe(self) -> None:
        """Put this communicator's events where its family's go."""
        self.trace.direct(self._family.timeline)
        self.meter.every_call()


def for_rank(path: Path, rank: int) -> Path:
    """The file of one rank: 'run.json' becomes 'run.rank3.json', 'run-{rank}.json' 'run-3.json'."""
    if "{rank}" in str(path):
        return Path(str(path).replace("{rank}", str(rank)))
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
