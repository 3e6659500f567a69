"""Accepts connections, and lets only those through that know the job's secret."""

from __future__ import annotations

import logging
import math
import socket
import time
from typing import Final, Protocol

from transports.tcp import sockets
from transports.tcp.handshake import CROWDED_SECONDS, Stranger
from transports.tcp.loop import READ, Loop
from transports.tcp.options import Options
from transports.tls import Tls

logger = logging.getLogger(__name__)

MAX_STRANGERS: Final = 128
MAX_REFUSALS_LOGGED: Final = 100
_PAUSE: Final = 0.1
_BACKLOG: Final = 4096


class Welcome(Protocol):
    """Who gets the connections that were let through."""

    def accepted(self, sock: socket.socket, rank: int, connection: int) -> str | None:
        """Take the socket of a lane from `rank`, its connection of that number, or say why not: then it is hung up
        on."""


class Listener:
    """A listening socket and the connections that have not proved themselves yet, `MAX_STRANGERS` at most: more wait
    in the system's queue, and the oldest is cut for the next once it had CROWDED_SECONDS."""

    def __init__(
        self, host: Welcome, loop: Loop, *, secret: bytes, purpose: bytes, tls: Tls | None, options: Options
    ) -> None:
        self.closed = False
        self._host = host
        self._loop = loop
        self._secret = secret
        self._purpose = purpose
        self._tls = tls
        self._options = options
        self._sock: socket.socket | None = None
        self._strangers: dict[Stranger, None] = {}  # oldest first
        self._paused_until: float | None = None
        self._refusals = 0

    @property
    def due(self) -> float:
        """When `tick` has something to do; infinity for nothing."""
        times = [stranger.deadline for stranger in self._strangers]
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
        """Hang up on the strangers and stop listening. Idempotent."""
        self.closed = True
        for stranger in self._strangers:
            stranger.close()
        self._strangers.clear()
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
                logger.warning("cannot accept connections just now: %s", error)
                self._pause(time.monotonic() + _PAUSE)
                return
            sock.setblocking(False)
            stranger = Stranger(
                self,
                self._loop,
                sock,
                origin=f"{address[0]}, port {address[1]}",
                secret=self._secret,
                purpose=self._purpose,
                tls=self._tls,
                options=self._options,
            )
            self._strangers[stranger] = None
            self._loop.hurry(stranger.deadline)
            stranger.start()

    def tick(self, now: float) -> None:
        """Turn away the strangers that took too long, and accept again after a pause."""
        for stranger in [stranger for stranger in self._strangers if now >= stranger.deadline]:
            stranger.refuse(TimeoutError(f"its handshake took longer than {self._options.handshake_timeout:g} s"))
        if self._paused_until is not None and now >= self._paused_until:
            self._listen_again()

    def introduced(self, stranger: Stranger, sock: socket.socket, rank: int, connection: int) -> None:
        self._forget(stranger)
        objection = self._host.accepted(sock, rank, connection)
        if objection is not None:
            sock.close()
            self._log(stranger, objection)

    def refused(self, stranger: Stranger, error: Exception) -> None:
        self._forget(stranger)
        self._log(stranger, error)

    def _make_room(self, now: float) -> bool:
        """Whether one more can be let in, which in a crowd takes that the oldest has had its time."""
        if len(self._strangers) >= MAX_STRANGERS:
            oldest = next(iter(self._strangers))
            if now < oldest.begun + CROWDED_SECONDS:
                self._pause(oldest.begun + CROWDED_SECONDS)
                return False
            oldest.refuse(TimeoutError(f"it had not proved itself after {CROWDED_SECONDS:g} s, and others waited"))
        return True

    def _pause(self, until: float) -> None:
        self._paused_until = until
        self._loop.watch(self, 0)
        self._loop.hurry(until)

    def _forget(self, stranger: Stranger) -> None:
        self._strangers.pop(stranger, None)
        self._listen_again()

    def _listen_again(self) -> None:
        self._paused_until = None
        if self._sock is not None:
            self._loop.watch(self, READ)

    def _log(self, stranger: Stranger, reason: object) -> None:
        """Bounded: whoever can connect shall not fill the disk."""
        self._refusals += 1
        if self._refusals <= MAX_REFUSALS_LOGGED:
            last = "; more refusals are not logged" if self._refusals == MAX_REFUSALS_LOGGED else ""
            logger.warning("refused a connection from %s: %s%s", stranger.origin, reason, last)
