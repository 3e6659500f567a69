"""Dead-link detection: finds hosts that have fallen silent, from TCP's statistics of the connections (Linux only).

The source is TCP_INFO (tcp(7), struct tcp_info). A connection is stuck while data, or a probe of a closed receive
window, is sent again and again without an answer. (The count of repetitions is no proof: a receiver without room
answers each one and acknowledges nothing. Nor is a single probe soon after an answer: Linux answers no more often than
every half second, and the next probe comes after twice the pause.) That alone proves little: the pauses between
repetitions grow, and packets may be lost by chance. So a host is lost when a connection to it has been stuck for the
limit, and no connection to the host has had an answer or data for as long. If other connections to the host go on well,
the stuck one gets LONE_LINK_FACTOR times the limit: then only this connection is blocked (by a firewall, or large
packets do not pass).
"""

from __future__ import annotations

import math
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from typing import Final, Protocol

LONE_LINK_FACTOR: Final = 3
_TCP_INFO: Final = getattr(socket, "TCP_INFO", None) if sys.platform == "linux" else None  # the layout is Linux's
_INFO: Final = struct.Struct("8B13I")
_FIRST_REPETITION: Final = 0.2
"""Minimum seconds before Linux retransmits (TCP_RTO_MIN)."""
_LONGEST_GAP: Final = 0.5
"""Seconds between two looks after which nothing is known of the time between them. A rank that is in no call does not
look, and its peer may have answered meanwhile."""
_UNANSWERED_MS: Final = 700
"""Milliseconds after an answer in which one probe may stay unanswered: 500 (net.ipv4.tcp_invalid_ratelimit), and the
time until a look sees the probe."""


class LinkHealth:
    """Measures how long one connection has been stuck."""

    __slots__ = ("_doubtful", "_looked", "_stuck_since")

    def __init__(self) -> None:
        self._stuck_since: float | None = None
        self._looked = -math.inf
        self._doubtful = False
        """True if the first probe without an answer came so soon that a second one must confirm it."""

    def look(self, sock: socket.socket, now: float) -> tuple[float, float]:
        """Seconds for which every call has found the connection stuck, and seconds since data or an answer arrived.
        Call it several times a second."""
        if _TCP_INFO is None:
            return 0.0, math.inf
        found = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _INFO.size)
        if len(found) < _INFO.size:  # an emulator of another processor cuts it
            return 0.0, math.inf
        info = _INFO.unpack(found)
        repetitions, probes, pause_us, sent_ms, data_ms, answer_ms = (info[at] for at in (2, 3, 8, 17, 19, 20))
        # The answer is newer than the last repetition, and the next one is not due yet.
        answered = answer_ms <= sent_ms and answer_ms * 1000 <= pause_us
        if now - self._looked > _LONGEST_GAP:
            self._stuck_since = None
        self._looked = now
        if not probes and (not repetitions or answered):
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = now - _FIRST_REPETITION
            self._doubtful = probes == 1 and answer_ms < _UNANSWERED_MS
        stuck = 0.0
        if self._stuck_since is not None and not (self._doubtful and probes == 1):
            stuck = now - self._stuck_since
        return stuck, min(data_ms, answer_ms) / 1000


class Link(Protocol):
    """A connection, established or being made."""

    peer: int
    closed: bool
    health: LinkHealth

    @property
    def sock(self) -> socket.socket | None:
        """Its socket, None if it has none just now."""

    def fail(self, error: Exception) -> None:
        """Close the connection and report the error."""


def fail_dead_links(links: Iterable[Link], host_of: Callable[[int], str], limit: float, now: float) -> None:
    """Fail the links to hosts that have been silent for `limit` seconds. Call it several times a second."""
    looks = []
    unheard: dict[str, float] = {}
    for link in links:
        if link.sock is not None and not link.closed:
            stuck, seconds = link.health.look(link.sock, now)
            host = host_of(link.peer)
            looks.append((link, host, stuck))
            unheard[host] = min(seconds, unheard.get(host, math.inf))
    for link, host, stuck in looks:
        if stuck >= limit and unheard[host] >= limit:
            link.fail(TimeoutError(f"its host has acknowledged nothing for {limit:g} s"))
        elif stuck >= LONE_LINK_FACTOR * limit:
            seconds = LONE_LINK_FACTOR * limit
            text = f"its host has acknowledged nothing on this connection for {seconds:g} s, but on others"
            link.fail(TimeoutError(text))
