"""The figures of a job for Prometheus, by its official client (the extra `metrics`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from frontends.needs import needs
from frontends.top.figures import Figures
from frontends.top.server import Observer

_NEEDS_CLIENT: Final = "ronde top --metrics needs prometheus_client: pip install 'ronde[metrics]'"

GAUGES: Final = {
    "up": "1 while the process of the rank lives",
    "waiting_seconds": "Seconds for which the rank has waited for other ranks in its present call",
    "communicating_share": "The part of the last second in calls, 0 to 1",
    "calls_per_second": "Calls of the rank in the last second",
    "bytes_per_second": "Bytes of the arrays that the rank gave to calls in the last second",
    "caused_share": "The part of all waiting that the rank causes, 0 to 1",
    "core_wait_share": "Seconds in each second for which threads of the rank were ready and waited for a core",
    "culprit_share": "The part of all waiting that this rank causes, with the reason, while one is found",
}
"""The meaning of each gauge, whose names begin with ronde_rank_."""


class Metrics:
    """A server that answers Prometheus, from the constructor to `close`.

    address, port   where it listens; port 0 for a free one

    Raises ModuleNotFoundError without the client, OSError if the port is not free.
    """

    def __init__(self, observer: Observer, address: str, port: int) -> None:
        with needs(prometheus_client=_NEEDS_CLIENT):
            from prometheus_client import CollectorRegistry, start_http_server
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(observer))
        self._server, self._thread = start_http_server(port, addr=address, registry=registry)
        self.port = int(self._server.server_port)

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Collector:
    """The figures as the client asks for them, see prometheus_client.registry.Collector."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import GaugeMetricFamily

        with self._observer.lock:
            figures = self._observer.figures
        families: dict[str, Any] = {}
        for name, labels, value in samples(figures):
            family = families.get(name)
            if family is None:
                family = GaugeMetricFamily(f"ronde_rank_{name}", f"{GAUGES[name]}.", labels=list(labels))
                families[name] = family
            family.add_metric(list(labels.values()), value)
        yield from families.values()


def samples(figures: Figures) -> Iterator[tuple[str, dict[str, str], float]]:
    """Name, labels and value of every gauge."""
    for row in figures["ranks"]:
        labels = {"world": figures["world"], "rank": str(row["rank"]), "host": row["host"]}
        yield "up", labels, float(row["state"] not in ("dead", "failed", "closed"))
        yield "waiting_seconds", labels, row["waits"]
        yield "communicating_share", labels, row["communicating"]
        yield "calls_per_second", labels, row["calls_per_second"]
        yield "bytes_per_second", labels, row["bytes_per_second"]
        yield "caused_share", labels, row["share"]
        if row["run_delay"] is not None:
            yield "core_wait_share", labels, row["run_delay"]
    for culprit in figures["culprits"]:
        rank = str(culprit["ranks"]["first"][0]) if culprit["ranks"]["count"] == 1 else ""
        labels = {"world": figures["world"], "rank": rank, "host": culprit["host"], "kind": culprit["kind"]}
        yield "culprit_share", labels, culprit["share"]
