"""Socket calls of the transport: listen, connect, buffer sizes, keepalive, vectored writes."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Sequence

from transports.errors import ConnectError
from transports.tls import TlsSocket

_KEEPIDLE = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
_KEEPINTVL = getattr(socket, "TCP_KEEPINTVL", None)
_KEEPCNT = getattr(socket, "TCP_KEEPCNT", None)
_RTO_MAX_MS = 44 if sys.platform == "linux" else None
"""TCP_RTO_MAX_MS, which Python does not name yet."""
_CONGESTION = getattr(socket, "TCP_CONGESTION", None)
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)
_LONGEST_RTO = 120
"""Seconds: the system's own."""
_HAS_SENDMSG = hasattr(socket.socket, "sendmsg")


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except OSError as error:
        raise ConnectError(f"{host!r} is not a numeric IPv4 or IPv6 address: {error}") from error
    family, _, _, _, address = found[0]
    return family, address  # type: ignore[return-value]


def listen(host: str, backlog: int) -> socket.socket:
    """A non-blocking listener on an ephemeral port of one address. Raises ConnectError."""
    family, address = _resolve(host, 0)
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise ConnectError(f"cannot listen on {host}: {error}") from error
    return listener


def dial(host: str, port: int, buffer_bytes: int) -> socket.socket:
    """A non-blocking socket whose connection has begun; it is writable once that has succeeded or failed.

    Raises ConnectError if it cannot even begin for want of resources, OSError if the system knows no way.
    """
    family, address = _resolve(host, port)
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise ConnectError(f"cannot make a socket: {error}") from error
    try:
        sock.setblocking(False)
        # Before the connection: the window scale is agreed upon in its first packets.
        size_buffers(sock, buffer_bytes)
        sock.connect(address)
    except BlockingIOError:
        return sock
    except OSError:
        sock.close()
        raise
    return sock


def size_buffers(sock: socket.socket, buffer_bytes: int) -> None:
    """Set both buffers of a socket; those of a listener are inherited by what it accepts. 0 leaves them alone."""
    if buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)


def tune(sock: socket.socket, peer_timeout: float) -> None:
    """Small frames leave at once, and an idle connection whose other host has vanished fails about `peer_timeout`
    later: after pause + count * pause seconds, see below.

    TCP_USER_TIMEOUT would watch a busy connection too, but since Linux 5.11 it also fails one whose peer merely does
    not read for that long, which a computing rank does all the time. dead_links.py does that part.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # The other host is asked five times where there is room for it, never only once: packets get lost on any network.
    pause = max(1, int(peer_timeout) // 5)
    for option, value in ((_KEEPIDLE, pause), (_KEEPINTVL, pause), (_KEEPCNT, max(2, round(peer_timeout / pause)))):
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    if _RTO_MAX_MS is not None:
        # What got lost is repeated as often, so that a connection recovers soon after the network does.
        with contextlib.suppress(OSError):  # before Linux 6.15: then the pauses between repetitions go on doubling
            sock.setsockopt(socket.IPPROTO_TCP, _RTO_MAX_MS, min(pause, _LONGEST_RTO) * 1000)
    if _CONGESTION is not None:
        # Nothing is congested inside a host: what the system prefers may pace what is sent (BBR), and reno does not.
        with contextlib.suppress(OSError):  # it was left out, or the other end is gone already
            if sock.getsockname()[0] == sock.getpeername()[0]:
                sock.setsockopt(socket.IPPROTO_TCP, _CONGESTION, b"reno")


def delay_answers(sock: socket.socket) -> None:
    """Do not acknowledge every small message by itself, at once, which a reader pays for: the next ones may come with
    it, 40 ms later at most."""
    if _QUICKACK is not None:
        sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 0)


def send_vector(sock: socket.socket, buffers: Sequence[memoryview]) -> int:
    """Send what the socket takes of `buffers`, in order; the number of bytes. Raises BlockingIOError for none."""
    return sock.sendmsg(buffers) if _HAS_SENDMSG or isinstance(sock, TlsSocket) else sock.send(buffers[0])
