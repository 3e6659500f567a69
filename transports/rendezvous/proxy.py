"""A proxy of the TCP store, for the ranks of one host: a server that asks another one."""

from __future__ import annotations

import contextlib

from transports.rendezvous.server import TcpStoreServer
from transports.rendezvous.tcp import TcpStore
from transports.rendezvous.wire import parse_url
from transports.tls import Tls


def proxy_of(url: str, secret: bytes, *, below: int, deadline: float, tls: Tls | None = None) -> TcpStoreServer:
    """A server, not yet started, that forwards to the store at `url`. It listens at the address of this host that leads
    there, so the ranks learn from it which of their addresses others can reach, as they do from the store.

    below     number of ranks that use the proxy
    deadline  time of time.monotonic() until which the store is tried

    Raises RendezvousError if the store cannot be reached. When the store ends, the proxy does, and does not come back.
    """
    host, port = parse_url(url)
    with contextlib.closing(TcpStore(host, port, secret, tls=tls)) as client:
        link = client.link(deadline)
        try:
            return TcpStoreServer(link.getsockname()[0], secret=secret, tls=tls, upstream=(link, below))
        except BaseException:
            link.close()
            raise
