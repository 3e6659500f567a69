"""Events of one communicator, for the timeline. While no timeline is written, they are dropped.

    with comm.trace.span("fusion", "pack 7 tensors", bytes=n):      work of this thread
        ...

    began = now()                                                   or work that is reported when it is over
    comm.trace.add("queue", "layer1.weight", began)

The executor traces collectives and their steps. A track appears with its first event. Events of one track may overlap,
except for collectives and steps. A call costs 0.1 us while there is no timeline; test `trace.on` before a call that
must be cheaper, or whose name must be formatted.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final

from collectives.metering.trace_file import Event, Finished, TraceFile
from collectives.planning import Plan
from collectives.schedule import Instruction

now: Final = time.perf_counter_ns
"""The clock of timelines, in nanoseconds. On Linux all processes of a host share it."""
_OFF: Final = contextlib.nullcontext()


class Trace:
    """The events of one communicator. Any thread may use it.

    on   True while a timeline is written
    """

    def __init__(self, label: str) -> None:
        """`label` distinguishes the communicator's tracks; it is empty for the world communicator."""
        self.on = False
        self._label = label
        self._timeline: TraceFile | None = None

    def write_to(self, timeline: TraceFile | None) -> None:
        """Send later events to `timeline`; None drops them."""
        self._timeline = timeline
        self.on = timeline is not None

    def span(self, track: str, name: str, /, **details: object) -> AbstractContextManager[object]:
        """A context manager that reports its body as one event. `details` are numbers, strings, or lists of them."""
        return _Span(self, track, name, details) if self.on else _OFF

    def add(self, track: str, name: str, began: int, ended: int | None = None, /, **details: object) -> None:
        """Report an event. `began` and `ended` are readings of `now`; `ended` defaults to the present."""
        if self.on:
            self.put(track, name, began, now() if ended is None else ended, details)

    def mark(self, track: str, name: str, /, **details: object) -> None:
        """Report an event without duration."""
        if self.on:
            moment = now()
            self.put(track, name, moment, moment, details)

    def put(self, track: str, name: str, began: int, ended: int, details: Mapping[str, object]) -> None:
        """Report an event whose details are in a mapping."""
        timeline = self._timeline
        if timeline is not None:
            timeline.put([Event(self._track(track), name, began, ended, details, overlaps=True)])

    def operation(self, finished: Finished) -> None:
        """Report a named operation that has ended."""
        timeline = self._timeline
        if timeline is not None:
            timeline.operation(self._label, finished)

    def cycle(self) -> None:
        """Report that named operations begin on which all ranks have agreed."""
        timeline = self._timeline
        if timeline is not None:
            timeline.cycle()

    def call(
        self,
        plan: Plan,
        number: int,
        ranks: tuple[int, ...],
        label: str,
        steps: Sequence[tuple[Instruction, int, int]],
        failed: bool,
    ) -> None:
        """Report a collective that an executor has run. `steps` are its instructions with begin and end."""
        timeline = self._timeline
        if timeline is not None and steps:
            timeline.put(self._events(plan, number, ranks, label, steps, failed), len(steps) + 1)

    def _events(
        self,
        plan: Plan,
        number: int,
        ranks: tuple[int, ...],
        label: str,
        steps: Sequence[tuple[Instruction, int, int]],
        failed: bool,
    ) -> Iterator[Event]:
        """The events of a call. A generator, so that they are built only when they are written."""
        call, itemsize = plan.call, plan.call.dtype.itemsize
        details = {"call": call.describe(), "number": number, "algorithm": plan.algorithm.name, "bytes": plan.nbytes}
        details |= {"failed": True} if failed else {}
        yield Event(self._track("collectives", label), call.collective, steps[0][1], steps[-1][2], details)
        track = self._track("steps", label)
        for step, began, ended in steps:
            span = step.a or step.dst
            about: dict[str, object] = {"kind": step.kind.name.lower()}
            if step.peer >= 0:
                about["peer"] = ranks[step.peer]
            if span is not None:
                about["bytes"] = (span.stop - span.start) * itemsize
            yield Event(track, step.label, began, ended, about)

    def _track(self, name: str, label: str = "") -> str:
        return " ".join(filter(None, (label, name, self._label)))


class _Span:
    """The context manager of `Trace.span`."""

    def __init__(self, trace: Trace, track: str, name: str, details: dict[str, object]) -> None:
        self._trace = trace
        self._track = track
        self._name = name
        self._details = details

    def __enter__(self) -> None:
        self._began = now()

    def __exit__(self, *error: object) -> None:
        self._trace.put(self._track, self._name, self._began, now(), self._details)
