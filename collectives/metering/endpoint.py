"""Metrics over HTTP for Prometheus, by its official client (the extra `metrics`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from collectives.metering.meter import Meter
from collectives.metering.prometheus import HELP, labelled

_MISSING = "serve_metrics needs prometheus_client: pip install 'ronde[metrics]'"


class Endpoint:
    """An HTTP server in a thread of its own, that answers each request with the present counters.

    meters  returns the meters, each with the number of its communicator
    rank    label of all samples
    host    the address to listen at
    port    the port; 0 for a free one

    Raises ModuleNotFoundError without the client, OSError if the port is not free or the address is not this host's.
    `close` ends the thread and releases the port.
    """

    def __init__(self, meters: Callable[[], Iterable[tuple[Meter, int]]], rank: int, host: str, port: int) -> None:
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(_MISSING, name=error.name) from None
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Collector(meters, rank))
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise OSError(error.errno, f"cannot serve metrics at {host} port {port}: {error.strerror}") from error
        self.port = int(self._server.server_port)

    def close(self) -> None:
        """End the server. Requests that are being answered are not waited for."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def after_fork(self) -> None:
        """In a forked child: leave the port to the parent."""
        self._server.socket.close()


class _Collector:
    """The counters as the client asks for them, see prometheus_client.registry.Collector."""

    def __init__(self, meters: Callable[[], Iterable[tuple[Meter, int]]], rank: int) -> None:
        self._meters = meters
        self._rank = rank

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        families: dict[str, Any] = {}
        for meter, communicator in self._meters():
            for name, labels, value in labelled(meter, self._rank, communicator):
                family = families.get(name)
                if family is None:
                    family = CounterMetricFamily(f"ronde_{name}", f"{HELP[name]}.", labels=list(labels))
                    families[name] = family
                family.add_metric(list(labels.values()), value)
        yield from families.values()
