"""The timeline as Horovod writes it: one file of rank 0, with a "process" of the format for each named operation.

    NEGOTIATE_ALLREDUCE                 from the first rank's submission until all ranks have submitted the operation
      0, 1, ...                         rank 0 hears that this rank has
    ALLREDUCE                           from then until its end
      QUEUE, then RONDE_ALLREDUCE       until its communication begins, and the communication (GLOO_ALLREDUCE and so on
                                        in Horovod)
    CYCLE_START                         a batch of operations begins that all ranks have agreed on

Source: horovod/common/timeline.cc of Horovod 0.28.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from collectives.metering.trace_file import Event, Finished, TraceFile, as_line

_KINDS: Final = {
    "grouped_allreduce": "ALLREDUCE",
    "grouped_allgather": "ALLGATHER",
    "reduce_scatter": "REDUCESCATTER",
    "broadcast_object": "BROADCAST",
    "allgather_object": "ALLGATHER",
}


class HorovodTimeline(TraceFile):
    """The file of all ranks, written by rank 0."""

    def __init__(self, path: Path, *, cycles: bool) -> None:
        """`cycles`: mark the beginning of each batch. Raises OSError if the file cannot be written."""
        super().__init__(path)
        self._cycles = cycles
        self._zero = time.perf_counter_ns()
        self._numbers: dict[str, int] = {}
        self._last: dict[str, int] = {}
        first = self._fact("process_name", 0, {"start_time_since_epoch_in_micros": time.time_ns() // 1000})
        self._write("[\n", as_line(first), *self._next(self._fact("process_sort_index", 0, {"sort_index": 0})))

    def put(self, events: Iterable[Event], count: int = 1) -> None:
        """Nothing: Horovod shows named operations only."""

    def operation(self, label: str, finished: Finished) -> None:
        """Add a named operation."""
        self._add(self._lines(" ".join(filter(None, (finished.name, label))), finished), 8 + len(finished.arrivals))

    def cycle(self) -> None:
        """Add CYCLE_START."""
        if self._cycles:
            moment = self._at(time.perf_counter_ns())
            self._add(self._next({"ph": "i", "name": "CYCLE_START", "ts": moment, "s": "g"}), 1)

    def _last_line(self) -> str:
        return "\n]\n"

    def _lines(self, name: str, finished: Finished) -> Iterator[str]:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._numbers) + 1
            yield from self._next(self._fact("process_name", number, {"name": name}))
            yield from self._next(self._fact("process_sort_index", number, {"sort_index": number}))
        kind = "ADASUM" if finished.op == "adasum" else _KINDS.get(finished.kind, finished.kind.upper())
        about: dict[str, Any] = {}
        if finished.dtype:
            about = {"args": {"dtype": finished.dtype, "shape": str(list(finished.shape))}}
        first = min([finished.submitted, *(moment for _, moment in finished.arrivals)])
        first = max(first, self._last.get(name, 0))  # another rank may be in the next step already
        self._last[name] = finished.ended
        ready = [
            ("X", str(rank), min(max(moment, first), finished.agreed), {"dur": 0}) for rank, moment in finished.arrivals
        ]
        events: list[tuple[str, str, int, dict[str, Any]]] = [
            ("B", f"NEGOTIATE_{kind}", first, {}),
            *ready,
            ("E", "", finished.agreed, {}),
            ("B", kind, finished.agreed, {}),
            ("B", "QUEUE", finished.agreed, {}),
            ("E", "", finished.began, {}),
            ("B", f"RONDE_{kind}", finished.began, {}),
            ("E", "", finished.ended, {}),
            ("E", "", finished.ended, about),
        ]
        for phase, text, moment, more in events:
            named = {"name": text} if text else {}
            yield from self._next({"ph": phase, **named, "ts": self._at(moment), "pid": number, **more})

    def _at(self, moment: int) -> int:
        return (moment - self._zero) // 1000

    @staticmethod
    def _next(event: dict[str, Any]) -> tuple[str, str]:
        return ",\n", as_line(event)

    @staticmethod
    def _fact(name: str, number: int, args: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "ph": "M", "pid": number, "args": args}
