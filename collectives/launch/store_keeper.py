"""Serves the job's store, and answers what the launcher asks about the ranks' reports in it."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from collectives.config import Config
from collectives.failure import are_left_out, culprit
from transports import rendezvous
from transports.errors import ConfigError, RendezvousError
from transports.interfaces import choose_address
from transports.store import Store
from transports.tls import Tls

Question = Literal["culprit", "left out"]

REACH_SECONDS: Final = 5.0
"""Time for a host to reach the store of another one."""


class StoreKeeper:
    """The store of a job, on its first host. `environment` tells the certificates for TLS. `serve` once, then `ask`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._secret = b""
        self._tls: Tls | None = None
        self._server: rendezvous.TcpStoreServer | None = None
        self._announcing: Store | None = None
        self._met = False

    def serve(self, secret: bytes, interface: str, hints: Sequence[str]) -> tuple[str, tuple[str, int]]:
        """Serve the store; its URL, and an address for rank 0 of torch. Raises ConfigError, RendezvousError.

        interface  name or address of the interface that other hosts reach; "" chooses
        hints      other hosts of the job, the best way to name them first. None: the job has one host

        Later the arguments mean nothing: there is one store.
        """
        if self._server is None:
            tls = Config.load(environment=self._environment).load_tls()
            self.serve_at(serving_address(interface, hints), 0, secret, tls)
        assert self._server is not None
        host = self._server.address[0]
        return self._server.url, (host, free_port(host))

    def serve_at(self, host: str, port: int, secret: bytes, tls: Tls | None) -> str:
        """Serve the store at an address; its URL. Raises ConfigError, RendezvousError."""
        self._secret, self._tls = secret, tls
        server = rendezvous.TcpStoreServer(host, port, secret=secret, tls=tls)
        server.start()
        self._server = server
        return server.url

    def ask(self, question: Question, ranks: Sequence[int]) -> int | bool:
        """Ask the store: which of the failed ranks is the culprit, or whether the others have gone on without ranks."""
        assert self._server is not None
        with contextlib.closing(_opened(self._server.url, self._secret, time.monotonic(), self._tls)) as store:
            return culprit(store, ranks) if question == "culprit" else are_left_out(store, ranks)

    def announce_end(self, rank: int) -> None:
        """Tell the ranks that wait for a rank, whose process has ended, that it does not come."""
        with contextlib.suppress(RendezvousError):  # without the store nobody can wait there
            if self._announcing is None:
                self._announcing = self.client()
            self._met = rendezvous.announce_end(self._announcing, rank, met=self._met)

    def client(self) -> Store:
        """A new connection to the store, which the caller closes. Raises RendezvousError."""
        assert self._server is not None
        return _opened(self._server.url, self._secret, time.monotonic() + REACH_SECONDS, self._tls)

    def close(self) -> None:
        """End the store. Idempotent."""
        if self._announcing is not None:
            self._announcing.close()
            self._announcing = None
        if self._server is not None:
            self._server.close()
            self._server = None


class WayToStore:
    """The way of a host's ranks to the store. Several ranks of a host to which it is far get a proxy.

    url  the store, or the proxy

    Raises RendezvousError if the store cannot be reached, ConfigError.
    """

    def __init__(self, url: str, secret: bytes, environment: Mapping[str, str], ranks: int, *, is_far: bool) -> None:
        self.url = url
        self._proxy: rendezvous.TcpStoreServer | None = None
        if not is_far:
            return
        if ranks > 1:
            tls = Config.load(environment=environment).load_tls()
            deadline = time.monotonic() + REACH_SECONDS
            self._proxy = rendezvous.proxy_of(url, secret, below=ranks, deadline=deadline, tls=tls)
            self._proxy.start()
            self.url = self._proxy.url
        else:
            reach(url, secret, environment)

    def close(self) -> None:
        """End the proxy. Idempotent."""
        if self._proxy is not None:
            self._proxy.close()


def reach(url: str, secret: bytes, environment: Mapping[str, str]) -> None:
    """Ask a store that is served already for an answer. Raises RendezvousError if none comes within REACH_SECONDS,
    ConfigError."""
    tls = Config.load(environment=environment).load_tls()
    with contextlib.closing(_opened(url, secret, time.monotonic() + REACH_SECONDS, tls)) as store:
        store.with_timeout(REACH_SECONDS).peek("reach")


def _opened(url: str, secret: bytes, deadline: float, tls: Tls | None) -> Store:
    return rendezvous.open_store(url, secret, deadline, tls=tls)


def serving_address(interface: str, hints: Sequence[str]) -> str:
    """The address to serve on. Without an interface that of the way to the first hint that leads anywhere; loopback
    only if all do. Raises ConfigError."""
    if interface or not hints:
        return choose_address(interface, hints[0] if hints else None)
    found, problem = [], ConfigError("no address leads to the other hosts")
    for hint in hints:
        try:
            address = choose_address("", hint)
        except ConfigError as error:
            problem = error
            continue
        if not ipaddress.ip_address(address).is_loopback:
            return address
        found.append(address)
    if not found:
        raise problem
    return found[0]


def free_port(host: str) -> int:
    """A port that is free now. Another process could take it before torch does, but that is unlikely."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as free:
        free.bind((host, 0))
        return int(free.getsockname()[1])
