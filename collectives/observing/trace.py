"""The calls of a world as one trace in the Trace Event Format, which Perfetto (ui.perfetto.dev) opens.

A rank is a "process" of the format, a communicator a "thread", and so is the waiting of a rank for others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from collectives.observing.charges import Charges
from collectives.observing.comparing import hostname_of


def trace_events(charges: Charges) -> Iterator[Mapping[str, Any]]:
    """The events: the calls of every rank, and its waits with the rank that is charged."""
    world, zero = charges.world, charges.began
    for record in world.records:
        rank, offset, end = record.rank, world.offset_of(record.rank), world.moments[record.rank]
        title = f"rank {rank} ({hostname_of(record)}, pid {record.facts.get('pid', 0)})"
        yield _fact("process_name", rank, 0, {"name": title})
        yield _fact("process_sort_index", rank, 0, {"sort_index": rank})
        for track, name in enumerate(record.calls, 1):
            yield _fact("thread_name", rank, track, {"name": world.joints[name].title})
            for entry in record.entries(name):
                began = entry.began + offset
                ended = max(began, end if entry.ended is None else entry.ended + offset)
                details = {"call": entry.text.call, "number": entry.number, "algorithm": entry.text.algorithm}
                details |= {"bytes": entry.text.nbytes, "line": entry.text.line, "ended": entry.ended is not None}
                yield _box(entry.text.collective, rank, track, began - zero, ended - began, details)
        yield _fact("thread_name", rank, len(record.calls) + 1, {"name": "waits"})
    waits = charges.waits
    columns = (waits.rank, waits.culprit, waits.began, waits.ended, waits.call, waits.number)
    for rank, culprit, began, ended, call, number in zip(*(column.tolist() for column in columns), strict=True):
        details = {"call": charges.calls[call].description.call, "number": number}
        track = len(world.by_rank[rank].calls) + 1
        yield _box(f"waits for rank {culprit}", rank, track, began - zero, ended - began, details)


def _fact(name: str, rank: int, track: int, details: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"name": name, "ph": "M", "pid": rank, "tid": track, "args": details}


def _box(
    name: str, rank: int, track: int, began: int, nanoseconds: int, details: Mapping[str, Any]
) -> Mapping[str, Any]:
    times = {"ts": began / 1000, "dur": nanoseconds / 1000}
    return {"name": name, "ph": "X", "pid": rank, "tid": track, **times, "args": details}
