"""Accepts connections, and lets only those through that know the job's secret."""

from __future__ import annotations

import logging
import math
import socket
import time
from typing import Final, Protocol

from transports.tcp import sockets
from transports.tcp.handshake import Stranger
from transports.tcp.loop import READ, Loop
from transports.tcp.options import Options

logger = logging.getLogger(__name__)

MAX_STRANGERS: Final = 128
_PAUSE: Final = 0.1
_BACKLOG: Final = 4096


class Welcome(Protocol):
    """Who gets the connections that were let through."""

    def accepted(self, sock: socket.socket, rank: int) -> str | None:
        """Take the socket of a lane from `rank`, or say why not: then it is hung up on."""


class Listener:
    """A listening socket and the connections that have not proved themselves yet, `MAX_STRANGERS` at most: more
    wait in the system's queue."""

    def __init__(self, host: Welcome, loop: Loop, *, secret: bytes, purpose: bytes, options: Options) -> None:
        self.closed = False
        self._host = host
        self._loop = loop
        self._secret = secret
        self._purpose = purpose
        self._options = options
        self._sock: socket.socket | None = None
        self._strangers: set[Stranger] = set()
        self._paused_until: float | None = None

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
        while len(self._strangers) < MAX_STRANGERS:
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                logger.warning("cannot accept connections just now: %s", error)
                self._paused_until = time.monotonic() + _PAUSE
                self._loop.hurry(self._paused_until)
                break
            sock.setblocking(False)
            stranger = Stranger(
                self,
                self._loop,
                sock,
                origin=f"{address[0]}, port {address[1]}",
                secret=self._secret,
                purpose=self._purpose,
                options=self._options,
            )
            self._strangers.add(stranger)
            self._loop.hurry(stranger.deadline)
            stranger.start()
        self._loop.watch(self, 0)

    def tick(self, now: float) -> None:
        """Turn away the strangers that took too long, and accept again after a pause."""
        for stranger in [stranger for stranger in self._strangers if now >= stranger.deadline]:
            stranger.refuse(TimeoutError(f"its handshake took longer than {self._options.handshake_timeout:g} s"))
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
        self._listen_again()

    def introduced(self, stranger: Stranger, sock: socket.socket, rank: int) -> None:
        self._strangers.discard(stranger)
        self._listen_again()
        objection = self._host.accepted(sock, rank)
        if objection is not None:
            sock.close()
            logger.warning("refused a connection from %s: %s", stranger.origin, objection)

    def refused(self, stranger: Stranger, error: Exception) -> None:
        self._strangers.discard(stranger)
        self._listen_again()
        logger.warning("refused a connection from %s: %s", stranger.origin, error)

    def _listen_again(self) -> None:
        if self._sock is not None and self._paused_until is None and len(self._strangers) < MAX_STRANGERS:
            self._loop.watch(self, READ)
