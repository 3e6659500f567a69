"""Socket calls of both ends of the TCP store."""

from __future__ import annotations

import contextlib
import os
import socket

from transports.errors import ConfigError, RendezvousError
from transports.rendezvous.wire import format_url


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """A non-blocking listener on one address. Raises ConfigError for all addresses, RendezvousError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
        if not host or address[0] in ("0.0.0.0", "::"):
            raise ConfigError(f"host={host!r}: must be one address to listen on, not all of them")
        listener = socket.socket(family, kind, protocol)
        try:
            if os.name == "posix":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(backlog)
            listener.setblocking(False)
        except BaseException:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:  # UnicodeError: no host can have such a name
        raise RendezvousError(f"the store server cannot listen on {format_url(host, port)}: {error}") from error
    return listener


def end(sock: socket.socket) -> None:
    """Shut down and close a connection. The copy of a forked child would keep it alive without the shutdown."""
    with contextlib.suppress(OSError):  # the other end may have left
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def tune(sock: socket.socket) -> None:
    """Send small messages at once (TCP_NODELAY), and detect hosts that vanished (SO_KEEPALIVE)."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
