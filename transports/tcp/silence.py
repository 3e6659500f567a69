"""Which hosts have fallen silent, by what TCP knows of the connections to them (Linux only).

The source is TCP_INFO (tcp(7), struct tcp_info). A connection is stuck while something that it has sent, or the
question whether the other end has room again, is repeated and not answered. That alone proves little: it is repeated
after ever longer pauses, and may be lost by chance. So a host is lost when a connection to it has been stuck for the
limit, and no connection at all has had an answer or data for as long. Where others go on well it gets PATIENCE times
the limit: then the way is closed for this one only (a firewall's, or that of large packets).
"""

from __future__ import annotations

import math
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Final, Protocol

PATIENCE: Final = 3
_TCP_INFO: Final = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None  # others have other fields
_INFO: Final = struct.Struct("8B13I")
_FIRST_REPETITION: Final = 0.2
"""Seconds after which Linux sends again at the earliest (TCP_RTO_MIN)."""


class Silence:
    """What is known of one connection."""

    __slots__ = ("_stuck_since",)

    def __init__(self) -> None:
        self._stuck_since: float | None = None

    def look(self, sock: socket.socket, now: float) -> tuple[float, float]:
        """The seconds that it has been stuck at every look, and those since anything came. Look several times a
        second."""
        if _TCP_INFO is None:
            return 0.0, math.inf
        info = _INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO.size))
        repetitions, probes, data_ms, answer_ms = info[2], info[3], info[19], info[20]
        if not repetitions and not probes:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now - _FIRST_REPETITION
        stuck = 0.0 if self._stuck_since is None else now - self._stuck_since
        return stuck, min(data_ms, answer_ms) / 1000


class Line(Protocol):
    """A connection, or one that is being made."""

    peer: int
    closed: bool
    silence: Silence

    @property
    def sock(self) -> socket.socket | None:
        """Its socket, None if it has none just now."""

    def fail(self, error: Exception) -> None:
        """Give it up."""


def give_up(lines: Iterable[Line], host_of: Callable[[int], str], limit: float, now: float) -> None:
    """Give up the lines to hosts that have been silent for `limit` seconds. Call it several times a second."""
    looks = []
    unheard: dict[str, float] = {}
    for line in lines:
        if line.sock is not None and not line.closed:
            stuck, seconds = line.silence.look(line.sock, now)
            host = host_of(line.peer)
            looks.append((line, host, stuck))
            unheard[host] = min(seconds, unheard.get(host, math.inf))
    for line, host, stuck in looks:
        if stuck >= limit and unheard[host] >= limit:
            line.fail(TimeoutError(f"its host has acknowledged nothing for {limit:g} s"))
        elif stuck >= PATIENCE * limit:
            text = f"its host has acknowledged nothing on this connection for {PATIENCE * limit:g} s, but on others"
            line.fail(TimeoutError(text))
