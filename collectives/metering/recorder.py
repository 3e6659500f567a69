"""Starts and stops the timeline of a rank, for all communicators on its transport."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from collectives.folders import path_of
from collectives.metering.meter import Meter
from collectives.metering.trace_file import TraceFile


class Recorder:
    """The timeline of one rank, and the meters whose calls it shows."""

    def __init__(self) -> None:
        self._timeline: TraceFile | None = None
        self._meters: list[Meter] = []

    def attach(self, meter: Meter) -> None:
        """Show the calls of `meter` and the events of its trace, in this timeline and in later ones."""
        self._meters.append(meter)
        meter.record_to(self._timeline)

    def detach(self, meter: Meter) -> None:
        """Show them no more. Idempotent."""
        if meter in self._meters:
            self._meters.remove(meter)
            meter.record_to(None)

    def file(self, path: str | os.PathLike[str]) -> Path:
        """The path of a new timeline. Raises TypeError for a bad path, ValueError for one without a name, or if a
        timeline is being written already."""
        target = path_of(path, "path")
        if not target.name:
            raise ValueError(f"path={str(path)!r}: must name a file")
        if self._timeline is not None:
            raise ValueError(f"path={str(path)!r}: a timeline is being written to {self._timeline.path} already")
        return target

    def start(self, create: Callable[[], TraceFile]) -> None:
        """Begin the timeline that `create` returns. Raises its OSError if the file cannot be written."""
        self._timeline = create()
        for meter in list(self._meters):
            meter.record_to(self._timeline)

    def stop(self) -> None:
        """End the timeline, if there is one. Every event until now is in the file."""
        timeline, self._timeline = self._timeline, None
        for meter in list(self._meters):
            meter.record_to(None)
        if timeline is not None:
            timeline.close()

    def after_fork(self) -> None:
        """In a forked child: record nothing. The file is the parent's."""
        timeline, self._timeline = self._timeline, None
        for meter in list(self._meters):
            meter.after_fork()
        if timeline is not None:
            timeline.abandon()


def rank_path(path: Path, rank: int) -> Path:
    """The file of one rank: 'run.json' becomes 'run.rank3.json', 'run-{rank}.json' becomes 'run-3.json'."""
    if "{rank}" in str(path):
        return Path(str(path).replace("{rank}", str(rank)))
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")
