"""Connections before they are lanes: each end proves that it knows the job's secret (`transports.auth`).

Both ends are state machines in the progress loop. They read exactly the bytes of the handshake, so that what follows
is left in the socket for the lane.
"""

from __future__ import annotations

import os
import socket
import time
from abc import ABC, abstractmethod
from typing import Protocol

from transports import auth
from transports.errors import ConnectError, PeerLost, RondeError, TransportError
from transports.tcp import sockets
from transports.tcp.frames import HEADER, intro_frame, parse_intro
from transports.tcp.loop import READ, WRITE, Loop
from transports.tcp.options import Options


class Caller(Protocol):
    """Who connects: told exactly one of the two outcomes of a Dial."""

    def dialed(self, peer: int, sock: socket.socket) -> None:
        """The peer has proved itself and been told who calls. The socket is the caller's from now on."""

    def dial_failed(self, peer: int, error: RondeError) -> None:
        """There will be no connection."""


class Doorkeeper(Protocol):
    """Who accepts: told exactly one of the two outcomes of a Stranger."""

    def introduced(self, stranger: Stranger, sock: socket.socket, rank: int) -> None:
        """The stranger knows the secret and says that it is `rank`. The socket is the doorkeeper's from now on."""

    def refused(self, stranger: Stranger, error: Exception) -> None:
        """The stranger has been turned away."""


class _Shaking(ABC):
    """A socket in the loop from which messages of known length are read."""

    def __init__(self, loop: Loop) -> None:
        self.closed = False
        self._loop = loop
        self._sock: socket.socket | None = None
        self._message = bytearray()

    def fileno(self) -> int:
        return self._socket().fileno()

    @abstractmethod
    def ready(self, events: int) -> None:
        """Move on."""

    def close(self) -> None:
        """Hang up. Idempotent."""
        self._hang_up()
        self.closed = True

    def _socket(self) -> socket.socket:
        assert self._sock is not None
        return self._sock

    def _hang_up(self) -> None:
        if self._sock is not None:
            self._loop.watch(self, 0)
            self._sock.close()
            self._sock = None
        self._message.clear()

    def _give_away(self) -> socket.socket:
        sock = self._socket()
        self._loop.watch(self, 0)
        self._sock = None
        self.closed = True
        return sock

    def _receive(self, length: int) -> bytes | None:
        """The next message of `length` bytes, None while it has not all come. Raises EOFError at the end."""
        try:
            part = self._socket().recv(length - len(self._message))
        except BlockingIOError:
            return None
        if not part:
            raise EOFError
        self._message += part
        if len(self._message) < length:
            return None
        message = bytes(self._message)
        self._message.clear()
        return message

    def _send(self, message: bytes) -> None:
        # A few bytes into an empty buffer: a socket that does not take them all is broken.
        if self._socket().send(message) < len(message):
            raise ConnectError("the connection does not take the handshake")


class Dial(_Shaking):
    """The connecting end.

    The other end hangs up on a handshake that takes longer than `handshake_timeout`, and so long this rank may well
    have been away computing. Hung up on after that time it begins again; before, it was refused.
    """

    def __init__(
        self,
        caller: Caller,
        loop: Loop,
        *,
        rank: int,
        peer: int,
        address: tuple[str, int],
        secret: bytes,
        purpose: bytes,
        options: Options,
    ) -> None:
        super().__init__(loop)
        self.peer = peer
        self.address = address
        self._caller = caller
        self._rank = rank
        self._secret = secret
        self._purpose = purpose
        self._options = options
        self._client: auth.Client | None = None
        self._begun = 0.0

    def start(self) -> None:
        """Begin to connect. A failure is told to the caller, here or later."""
        self._begun = time.monotonic()
        self._client = None
        try:
            self._sock = sockets.dial(*self.address, self._options.socket_buffer_bytes)
        except (ConnectError, OSError) as error:
            self._fail(error)
        else:
            self._loop.watch(self, WRITE)

    def ready(self, events: int) -> None:
        try:
            if self._client is None:
                self._connected()
            else:
                self._challenged()
        except EOFError:
            self._ended(ConnectError("it closed the connection during the handshake: refused, or its process ended"))
        except (ConnectionResetError, BrokenPipeError) as error:
            self._ended(error)
        except (ConnectError, OSError) as error:
            self._fail(error)

    def _connected(self) -> None:
        sock = self._socket()
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        sockets.tune(sock, self._options.peer_timeout)
        self._client = auth.Client(self._secret, self._purpose)
        self._send(self._client.hello)
        self._loop.watch(self, READ)

    def _challenged(self) -> None:
        assert self._client is not None
        challenge = self._receive(auth.CHALLENGE_BYTES)
        if challenge is not None:
            self._send(self._client.answer(challenge) + intro_frame(self._rank))
            self._caller.dialed(self.peer, self._give_away())

    def _ended(self, error: ConnectError | OSError) -> None:
        if time.monotonic() - self._begun >= self._options.handshake_timeout:
            self._hang_up()
            self.start()
        else:
            self._fail(error)

    def _fail(self, error: ConnectError | OSError) -> None:
        self.close()
        where = "{}, port {}".format(*self.address)
        kind = ConnectError if isinstance(error, ConnectError) else PeerLost
        self._caller.dial_failed(self.peer, kind(f"{where}: {error}", rank=self._rank, peer=self.peer))


class Stranger(_Shaking):
    """The accepting end: a connection of which nothing is known yet."""

    def __init__(
        self,
        doorkeeper: Doorkeeper,
        loop: Loop,
        sock: socket.socket,
        *,
        origin: str,
        secret: bytes,
        purpose: bytes,
        options: Options,
    ) -> None:
        super().__init__(loop)
        self.origin = origin
        self.deadline = time.monotonic() + options.handshake_timeout
        self._sock = sock
        self._doorkeeper = doorkeeper
        self._options = options
        self._server = auth.Server(secret, purpose)
        self._proving = False

    def start(self) -> None:
        """Await the stranger's first message."""
        self._loop.watch(self, READ)

    def ready(self, events: int) -> None:
        try:
            if not self._proving:
                self._greeted()
            else:
                self._proved()
        except EOFError:
            self.refuse(ConnectError("it hung up during the handshake"))
        except (TransportError, OSError) as error:
            self.refuse(error)

    def refuse(self, error: Exception) -> None:
        """Hang up and tell the doorkeeper why."""
        self.close()
        self._doorkeeper.refused(self, error)

    def _greeted(self) -> None:
        hello = self._receive(auth.HELLO_BYTES)
        if hello is not None:
            sockets.tune(self._socket(), self._options.peer_timeout)
            self._send(self._server.challenge(hello))
            self._proving = True

    def _proved(self) -> None:
        answer = self._receive(auth.PROOF_BYTES + HEADER.size)
        if answer is not None:
            self._server.verify(answer[: auth.PROOF_BYTES])
            rank = parse_intro(answer[auth.PROOF_BYTES :])
            self._doorkeeper.introduced(self, self._give_away(), rank)
