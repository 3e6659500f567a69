"""Socket calls of the transport: listen, connect, buffer sizes, keepalive, vectored writes."""

from __future__ import annotations

import contextlib
import math
import socket
import sys
from collections.abc import Sequence

from transports.descriptors import explained
from transports.errors import ConnectError, TransportError
from transports.interfaces import can_bind
from transports.tls import TlsSocket

_KEEPIDLE = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
_KEEPINTVL = getattr(socket, "TCP_KEEPINTVL", None)
_KEEPCNT = getattr(socket, "TCP_KEEPCNT", None)
_RTO_MAX_MS = 44 if sys.platform == "linux" else None
"""TCP_RTO_MAX_MS, which Python does not name yet."""
_CONGESTION = getattr(socket, "TCP_CONGESTION", None)
_UNSENT = getattr(socket, "TCP_NOTSENT_LOWAT", None)
_QUICKACK = getattr(socket, "TCP_QUICKACK", None)
_UNPACED = b"reno"
"""Congestion control for connections inside a host, where there is no congestion."""
_LONGEST_RTO = 120
"""Seconds: the system's default."""
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
    """A non-blocking socket that has begun to connect; it is writable once the attempt has succeeded or failed.

    Raises TransportError if the system lacks resources for a socket: then the peer is not to blame. OSError if there is
    no route.
    """
    family, address = _resolve(host, port)
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise TransportError(f"cannot make a socket: {explained(error)}") from error
    try:
        sock.setblocking(False)
        # Before the connection: the window scale is agreed upon in its first packets, and BBR, once it is in use, has
        # the system pace the packets of the connection for good.
        size_buffers(sock, buffer_bytes)
        if _CONGESTION is not None and can_bind(host):
            with contextlib.suppress(OSError):  # the system lacks reno
                sock.setsockopt(socket.IPPROTO_TCP, _CONGESTION, _UNPACED)
        sock.connect(address)
    except BlockingIOError:
        return sock
    except OSError:
        sock.close()
        raise
    return sock


def size_buffers(sock: socket.socket, buffer_bytes: int) -> None:
    """Set the size of both buffers of a socket; a listener's accepted sockets inherit it. 0 changes nothing."""
    if buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)


def tune(sock: socket.socket, peer_timeout: float) -> None:
    """Send small frames without delay, and let an idle connection to a vanished host fail after about `peer_timeout`:
    after pause + count * pause seconds, see below.

    TCP_USER_TIMEOUT would cover busy connections too, but since Linux 5.11 it also fails a connection whose peer does
    not read for that long, as a computing rank. dead_links.py covers busy connections.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Five probes if the time allows it, never only one: packets get lost on any network. The last one comes once the
    # time is over, so that the network may have been gone for almost as long.
    pause = max(1, int(peer_timeout) // 5)
    probes = max(2, math.ceil(peer_timeout / pause))
    for option, value in ((_KEEPIDLE, pause), (_KEEPINTVL, pause), (_KEEPCNT, probes)):
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    if _RTO_MAX_MS is not None:
        # Lost packets are repeated at the same pace, so that a connection recovers soon after the network does.
        with contextlib.suppress(OSError):  # before Linux 6.15: the pauses between repetitions double
            sock.setsockopt(socket.IPPROTO_TCP, _RTO_MAX_MS, min(pause, _LONGEST_RTO) * 1000)


def delay_answers(sock: socket.socket) -> None:
    """Do not acknowledge every small message immediately by a packet of its own, which costs the reader time: one
    packet may acknowledge several, at most 40 ms later."""
    if _QUICKACK is not None:
        sock.setsockopt(socket.IPPROTO_TCP, _QUICKACK, 0)


def limit_unsent(sock: socket.socket, nbytes: int) -> None:
    """Accept data only while fewer than `nbytes` wait to be sent for the first time."""
    if _UNSENT is not None:
        sock.setsockopt(socket.IPPROTO_TCP, _UNSENT, nbytes)


def send_vector(sock: socket.socket, buffers: Sequence[memoryview]) -> int:
    """Send as much of `buffers`, in order, as the socket accepts; the number of bytes. BlockingIOError if none."""
    return sock.sendmsg(buffers) if _HAS_SENDMSG or isinstance(sock, TlsSocket) else sock.send(buffers[0])
