"""Metrics in Prometheus' text format, version 0.0.4.

Source: Prometheus documentation, "Exposition formats", text-based format.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from collectives.metering.meter import Meter

HELP: Final = {
    "calls": "Collectives run, as they are executed",
    "bytes": "Bytes of the arrays given to collectives",
    "moved_bytes": "Bytes sent to peers or read from their memory",
    "call_seconds": "Seconds in collectives, estimated",
    "wait_seconds": "Seconds waited for a peer in collectives, estimated",
    "plans_made": "Plans made for collectives of a new kind or size",
    "plans_reused": "Calls that found their plan",
    "events": "Other events",
}
"""The meaning of each counter."""
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def prometheus_text(meter: Meter, rank: int, communicator: int) -> str:
    """The counters of `meter`, for an endpoint or a file. Every sample is labelled with `rank` and `communicator`."""
    lines: dict[str, list[str]] = {name: [] for name in HELP}
    for name, labels, value in labelled(meter, rank, communicator):
        text = ",".join(f'{label}="{content.translate(_ESCAPES)}"' for label, content in labels.items())
        lines[name].append(f"ronde_{name}_total{{{text}}} {value}\n")
    return "".join(
        f"# HELP ronde_{name}_total {HELP[name]}.\n# TYPE ronde_{name}_total counter\n{''.join(rows)}"
        for name, rows in lines.items()
        if rows
    )


def labelled(meter: Meter, rank: int, communicator: int) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of every counter."""
    for name, labels, value in _samples(meter):
        yield name, {"rank": str(rank), "communicator": str(communicator), **labels}, value


def _samples(meter: Meter) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, own labels and value of every counter."""
    for (collective, part, algorithm), total in meter.sums().items():
        labels = {"collective": collective, "algorithm": algorithm, "part": "yes" if part else "no"}
        yield "calls", labels, total.calls
        yield "bytes", labels, total.bytes
        yield "moved_bytes", labels, total.moved
        yield "call_seconds", labels, total.nanoseconds / 1e9
    metrics = meter.snapshot()
    for peer, seconds in metrics["waited"].items():
        yield "wait_seconds", {"peer": str(peer)}, seconds
    yield "plans_made", {}, metrics["plans"]["made"]
    yield "plans_reused", {}, metrics["plans"]["reused"]
    for event, count in metrics["events"].items():
        yield "events", {"event": event}, count
