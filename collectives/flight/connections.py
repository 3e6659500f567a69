"""The connections of a host, as the kernel's TCP measures them: their round trips and the bytes that they deliver.

The source is sock_diag(7), which tells of all sockets of this user without touching the processes that have them. The
layout is that of struct tcp_info.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

_SOCK_DIAG: Final = 4
_BY_FAMILY: Final = 20
_DUMP: Final = 0x301
"""NLM_F_REQUEST, NLM_F_ROOT and NLM_F_MATCH."""
_ERROR, _DONE = 2, 3
_HEADER: Final = struct.Struct("=IHHII")
_REQUEST: Final = struct.Struct("=4BI48s")
_WITH_INFO: Final = 1 << 1
"""The attribute INET_DIAG_INFO, as a bit of a request."""
_INFO: Final = 2
_ESTABLISHED: Final = 1 << 1
_MESSAGE: Final = struct.Struct("=4B2s2s16s16s12s5I")
"""struct inet_diag_msg."""
_ATTRIBUTE: Final = struct.Struct("=HH")
_SILENCE: Final = 56
_ROUND_TRIP: Final = 68
_SENT: Final = 120
_RATE: Final = 160
_BUSY: Final = 168
_LEAST_INFO: Final = 176
_WAIT_SECONDS: Final = 0.2
_MOST_BYTES: Final = 4 << 20
"""Answers of the kernel that are read: those of some ten thousand sockets."""
_MOST_ROUTES: Final = 1024
_LEAST_SENT: Final = 1 << 20
"""Bytes that a connection must have delivered for its rate to tell of the network."""
_LATELY_MS: Final = 30_000
"""Milliseconds since the last answer of the other end after which a connection tells nothing of now."""


class Route(NamedTuple):
    """The connections of this user from an address of this host to one of another.

    round_trip  microseconds, the least
    rate        bytes a second that were delivered, the most; 0 if no connection has had enough to send
    """

    local: str
    remote: str
    round_trip: int
    rate: int


def routes() -> tuple[Route, ...]:
    """The routes of now; empty where the kernel does not tell. Takes some milliseconds."""
    found: dict[tuple[str, str], Route] = {}
    if sys.platform == "linux":
        for family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError, struct.error):
                for one in _of_family(family):
                    before = found.get(one[:2])
                    if before is not None:
                        one = Route(*one[:2], min(one.round_trip, before.round_trip), max(one.rate, before.rate))
                    elif len(found) == _MOST_ROUTES:
                        continue
                    found[one[:2]] = one
    own = {route.local for route in found.values()}
    return tuple(route for route in found.values() if route.remote not in own)


def _of_family(family: socket.AddressFamily) -> Iterator[Route]:
    """The established connections of one family. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.settimeout(_WAIT_SECONDS)
        request = _REQUEST.pack(family, socket.IPPROTO_TCP, _WITH_INFO, 0, _ESTABLISHED, b"")
        kernel.send(_HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request)
        taken = 0
        while taken < _MOST_BYTES:
            data = kernel.recv(1 << 16)
            taken, at = taken + len(data), 0
            while at < len(data):
                length, kind, _, _, _ = _HEADER.unpack_from(data, at)
                if kind in (_ERROR, _DONE) or length < _HEADER.size:
                    return
                if kind == _BY_FAMILY:
                    route = _route(family, data[at + _HEADER.size : at + length])
                    if route is not None:
                        yield route
                at += length + 3 & ~3


def _route(family: socket.AddressFamily, data: bytes) -> Route | None:
    """The route of one connection; None for one of another user, or that does not tell of now."""
    _, _, _, _, _, _, local, remote, _, _, _, _, user, _ = _MESSAGE.unpack_from(data)
    info = _info(data[_MESSAGE.size :])
    if user != os.geteuid() or len(info) < _LEAST_INFO:
        return None
    (silence,), (round_trip,) = (struct.unpack_from("=I", info, at) for at in (_SILENCE, _ROUND_TRIP))
    (sent,), (rate,), (busy,) = (struct.unpack_from("=Q", info, at) for at in (_SENT, _RATE, _BUSY))
    if busy:  # the kernel's rate is that of a burst where the sender has not always more to send
        rate = min(rate, sent * 1_000_000 // busy)
    if silence > _LATELY_MS or not round_trip:
        return None
    return Route(_address(family, local), _address(family, remote), round_trip, rate if sent >= _LEAST_SENT else 0)


def _info(attributes: bytes) -> bytes:
    """The struct tcp_info among the attributes of a socket; empty without one."""
    at = 0
    while at + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, at)
        if kind == _INFO or length < _ATTRIBUTE.size:
            return attributes[at + _ATTRIBUTE.size : at + length]
        at += length + 3 & ~3
    return b""


def _address(family: socket.AddressFamily, data: bytes) -> str:
    """An address as text. One of IPv4 within IPv6 is that of IPv4."""
    return socket.inet_ntop(family, data[:4] if family == socket.AF_INET else data).removeprefix("::ffff:")
