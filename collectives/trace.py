"""Events of one communicator, for the timeline. Nothing happens while no timeline is written.

    with comm.trace.span("fusion", "pack 7 tensors", bytes=n):      something that this thread does now
        ...
    began = now()                                                   or, when it is over, something that has taken time:
    comm.trace.add("queue", "layer1.weight", began)

Collectives and their steps are traced by the executor. Tracks are made as they are named. Those of spans are free to
overlap. Costs 0.1 us while there is no timeline; where that is too much, or where a name must be put together first,
look at `trace.on`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from collectives.timeline import Event, Timeline

if TYPE_CHECKING:
    from collectives.plan import Plan
    from collectives.program import Instruction

now: Final = time.perf_counter_ns
"""The clock of timelines: nanoseconds since whenever, the same on all processes of one host (on Linux)."""
_OFF: Final = contextlib.nullcontext()


class Trace:
    """Where one communicator puts its events. Any thread may use it.

    on   True while a timeline is written
    """

    def __init__(self, label: str) -> None:
        """`label` keeps the communicator's tracks apart from others'; empty for the world's."""
        self.on = False
        self._label = label
        self._timeline: Timeline | None = None

    def direct(self, timeline: Timeline | None) -> None:
        """From now on put events into `timeline`, or nowhere."""
        self._timeline = timeline
        self.on = timeline is not None

    def span(self, track: str, name: str, /, **details: object) -> AbstractContextManager[object]:
        """What happens within the `with` statement. `details` are numbers, strings, or lists of them."""
        return _Span(self, track, name, details) if self.on else _OFF

    def add(self, track: str, name: str, began: int, ended: int | None = None, /, **details: object) -> None:
        """Something that began and ended (by default now) at these readings of `now`."""
        if self.on:
            self.put(track, name, began, now() if ended is None else ended, details)

    def mark(self, track: str, name: str, /, **details: object) -> None:
        """Something that has no length."""
        if self.on:
            moment = now()
            self.put(track, name, moment, moment, details)

    def put(self, track: str, name: str, began: int, ended: int, details: Mapping[str, object]) -> None:
        """The same as `add`, for who has the details in a dictionary."""
        timeline = self._timeline
        if timeline is not None:
            timeline.put([Event(self._track(track), name, began, ended, details, overlaps=True)])

    def call(
        self,
        plan: Plan,
        number: int,
        ranks: tuple[int, ...],
        label: str,
        steps: Sequence[tuple[Instruction, int, int]],
        failed: bool,
    ) -> None:
        """A collective that an executor has run, and its steps with when they began and ended."""
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
        """The events of a call. A generator, so that they are put together only when they are written."""
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
    """A span that is under way."""

    def __init__(self, trace: Trace, track: str, name: str, details: dict[str, object]) -> None:
        self._trace = trace
        self._track = track
        self._name = name
        self._details = details

    def __enter__(self) -> None:
        self._began = now()

    def __exit__(self, *error: object) -> None:
        self._trace.put(self._track, self._name, self._began, now(), self._details)
