"""What the transport asks of the operating system's sockets."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

from transports.errors import ConnectError

_TCP_INFO = getattr(socket, "TCP_INFO", None)
_INFO = struct.Struct("8B13I")
_KEEPIDLE = getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))
_KEEPINTVL = getattr(socket, "TCP_KEEPINTVL", None)
_KEEPCNT = getattr(socket, "TCP_KEEPCNT", None)
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
    """Small frames leave at once, and an idle connection whose other host has vanished fails after `peer_timeout`.

    TCP_USER_TIMEOUT would watch a busy connection too, but since Linux 5.11 it also fails one whose peer merely does
    not read for that long, which a computing rank does all the time. `Silence` does that part.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle = max(1, int(peer_timeout) // 2)
    for option, value in ((_KEEPIDLE, idle), (_KEEPINTVL, 1), (_KEEPCNT, max(1, round(peer_timeout) - idle))):
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def send_vector(sock: socket.socket, buffers: Sequence[memoryview]) -> int:
    """Send what the socket takes of `buffers`, in order; the number of bytes. Raises BlockingIOError for none."""
    return sock.sendmsg(buffers) if _HAS_SENDMSG else sock.send(buffers[0])


class Silence:
    """Notices that the other host no longer acknowledges what a busy connection sends (Linux only).

    Read from TCP_INFO (tcp(7), struct tcp_info): retransmissions and window probes since the last answer, and how
    long ago that was. A peer that is alive but does not read answers probes.
    """

    __slots__ = ("_since",)

    def __init__(self) -> None:
        self._since: float | None = None

    def lasts(self, sock: socket.socket, now: float, limit: float) -> bool:
        """True if every look in the last `limit` seconds found the other host silent. Look about once a second."""
        if _TCP_INFO is None:
            return False
        info = _INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO.size))
        retransmits, probes, last_answer_ms = info[2], info[3], info[20]
        if not retransmits and not probes:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= limit and last_answer_ms >= limit * 1000
