"""Accepts connections and hands over those that have proved that they know the job's secret."""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable
from typing import Final

from transports.descriptors import explained
from transports.loop import READ, Loop
from transports.tcp import sockets
from transports.tcp.handshake import CROWDED_SECONDS, IncomingHandshake
from transports.tcp.options import Options
from transports.tls import Tls

logger = logging.getLogger("ronde.tcp")

MAX_UNAUTHENTICATED: Final = 128
MAX_REFUSALS_LOGGED: Final = 100
_PAUSE: Final = 0.1
_BACKLOG: Final = 4096


Accepted = Callable[[socket.socket, int, int], str | None]
"""(socket, rank, number of the connection from that rank): takes a connection that has proved itself. If it returns a
reason, the connection is refused and the listener closes the socket."""


class Listener:
    """A listening socket and its unauthenticated connections, MAX_UNAUTHENTICATED at most.

    Further connections wait in the system's queue. The oldest unauthenticated one is closed for the next after
    CROWDED_SECONDS.
    """

    def __init__(
        self, accepted: Accepted, loop: Loop, *, secret: bytes, purpose: bytes, tls: Tls | None, options: Options
    ) -> None:
        self.closed = False
        self._accepted = accepted
        self._loop = loop
        self._secret = secret
        self._purpose = purpose
        self._tls = tls
        self._options = options
        self._sock: socket.socket | None = None
        self._unauthenticated: dict[IncomingHandshake, None] = {}  # oldest first
        self._paused_until: float | None = None
        self._refusals = 0

    @property
    def due(self) -> float:
        """Monotonic time of the next call of `tick`; infinity for never."""
        times = [incoming.deadline for incoming in self._unauthenticated]
        if self._paused_until is not None:
            times.append(self._paused_until)
        return min(times, default=math.inf)

    def open(self, address: str) -> int:
        """Listen on an ephemeral port of `address`; the port. Raises ConnectError."""
        self._sock = sockets.listen(address, _BACKLOG)
        sockets.size_buffers(self._sock, self._options.socket_buffer_bytes)
        self._loop.watch(self, READ)
        return int(self._sock.getsockname()[1])

    def close(self) -> None:
        """Close the listening socket and all unauthenticated connections. Idempotent."""
        self.closed = True
        for incoming in self._unauthenticated:
            incoming.close()
        self._unauthenticated.clear()
        if self._sock is not None:
            self._loop.watch(self, 0)
            self._sock.close()
            self._sock = None

    def fileno(self) -> int:
        assert self._sock is not None
        return self._sock.fileno()

    def ready(self, events: int) -> None:
        assert self._sock is not None
        while self._make_room(time.monotonic()):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                logger.warning("cannot accept connections just now: %s", explained(error))
                self._pause(time.monotonic() + _PAUSE)
                return
            sock.setblocking(False)
            incoming = IncomingHandshake(
                self._authenticated,
                self._rejected,
                self._loop,
                sock,
                origin=f"{address[0]}, port {address[1]}",
                secret=self._secret,
                purpose=self._purpose,
                tls=self._tls,
                options=self._options,
            )
            self._unauthenticated[incoming] = None
            self._loop.hurry(incoming.deadline)
            incoming.start()

    def tick(self, now: float) -> None:
        """Refuse connections whose handshake is overdue, and accept again after a pause."""
        for incoming in [incoming for incoming in self._unauthenticated if now >= incoming.deadline]:
            incoming.reject(TimeoutError(f"its handshake took longer than {self._options.handshake_timeout:g} s"))
        if self._paused_until is not None and now >= self._paused_until:
            self._listen_again()

    def _authenticated(self, incoming: IncomingHandshake, sock: socket.socket, rank: int, connection: int) -> None:
        self._forget(incoming)
        objection = self._accepted(sock, rank, connection)
        if objection is not None:
            sock.close()
            self._log(incoming, objection)

    def _rejected(self, incoming: IncomingHandshake, error: Exception) -> None:
        self._forget(incoming)
        self._log(incoming, error)

    def _make_room(self, now: float) -> bool:
        """True if one more connection can be accepted. At the limit, the oldest one is closed after CROWDED_SECONDS."""
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            oldest = next(iter(self._unauthenticated))
            if now < oldest.begun + CROWDED_SECONDS:
                self._pause(oldest.begun + CROWDED_SECONDS)
                return False
            oldest.reject(
                TimeoutError(f"it had not completed its handshake after {CROWDED_SECONDS:g} s, and others waited")
            )
        return True

    def _pause(self, until: float) -> None:
        self._paused_until = until
        self._loop.watch(self, 0)
        self._loop.hurry(until)

    def _forget(self, incoming: IncomingHandshake) -> None:
        self._unauthenticated.pop(incoming, None)
        self._listen_again()

    def _listen_again(self) -> None:
        self._paused_until = None
        if self._sock is not None:
            self._loop.watch(self, READ)

    def _log(self, incoming: IncomingHandshake, reason: object) -> None:
        """Log a refusal. The number is bounded, so that a client cannot fill the disk."""
        self._refusals += 1
        if self._refusals <= MAX_REFUSALS_LOGGED:
            last = "; more refusals are not logged" if self._refusals == MAX_REFUSALS_LOGGED else ""
            logger.warning("refused a connection from %s: %s%s", incoming.origin, reason, last)
