"""Connections before they are lanes: each end proves that it knows the job's secret (`transports.auth`).

Both ends are state machines in the progress loop. They read exactly the bytes of the handshake; the following bytes
stay in the socket for the lane. If the group has certificates, the handshake goes through TLS (`transports.tls`).
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

from transports import auth, tls
from transports.errors import ConnectError, PeerLost, RondeError, TransportError
from transports.loop import READ, WRITE, Loop
from transports.tcp import sockets
from transports.tcp.dead_links import LinkHealth
from transports.tcp.frames import HEADER, intro_frame, parse_intro
from transports.tcp.options import Options
from transports.tls import Tls, TlsSocket

CROWDED_SECONDS: Final = 1.0
"""Minimum seconds that an accepted connection gets to prove itself, also while others wait to be accepted."""


class _Handshake(ABC):
    """A socket in the loop, read in messages of known length."""

    def __init__(self, loop: Loop, secret: bytes, purpose: bytes, tls: Tls | None) -> None:
        self.closed = False
        self._loop = loop
        self._secret = secret
        self._purpose = purpose
        self._tls = tls
        self._sock: socket.socket | None = None
        self._message = bytearray()

    def fileno(self) -> int:
        return self._socket().fileno()

    @abstractmethod
    def ready(self, events: int) -> None:
        """Continue the handshake."""

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._close_socket()
        self.closed = True

    def _socket(self) -> socket.socket:
        assert self._sock is not None
        return self._sock

    def _close_socket(self) -> None:
        if self._sock is not None:
            self._loop.watch(self, 0)
            self._sock.close()
            self._sock = None
        self._message.clear()

    def _release_socket(self) -> socket.socket:
        sock = self._socket()
        self._loop.watch(self, 0)
        self._sock = None
        self.closed = True
        return sock

    def _bound_purpose(self) -> bytes | None:
        """The purpose to prove, bound to the TLS session; None until the TLS handshake is done."""
        sock = self._socket()
        if self._tls is None:
            return self._purpose
        assert isinstance(sock, TlsSocket)
        return self._tls.bind(sock, self._purpose) if sock.shake() else None

    def _receive(self, length: int) -> bytes | None:
        """The next message of `length` bytes, None until all of it has arrived. Raises EOFError at the end."""
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
        # A few bytes into an empty buffer: a socket that accepts only a part of them is broken.
        if self._socket().send(message) < len(message):
            raise ConnectError("the connection does not accept the bytes of the handshake")


class Dial(_Handshake):
    """The connecting end.

    The other end closes a connection whose handshake takes longer than `handshake_timeout`, or CROWDED_SECONDS while
    others wait; this rank may have been computing for that long. So a connection that was closed after that time is
    made again; one that was closed earlier was refused.
    """

    def __init__(
        self,
        dialed: Callable[[Dial, socket.socket], None],
        failed: Callable[[Dial, RondeError], None],
        loop: Loop,
        *,
        rank: int,
        peer: int,
        connection: int,
        address: tuple[str, int],
        secret: bytes,
        purpose: bytes,
        tls: Tls | None,
        options: Options,
    ) -> None:
        """Exactly one of two functions is called.

        dialed  the peer has proved itself and has received this rank's introduction; takes over the socket
        failed  the connection could not be made
        """
        super().__init__(loop, secret, purpose, tls)
        self.peer = peer
        self.address = address
        self._dialed = dialed
        self._failed = failed
        self._rank = rank
        self._connection = connection
        self._options = options
        self._connecting = True
        self._client: auth.Client | None = None
        self._begun = 0.0
        self.health = LinkHealth()

    def start(self) -> None:
        """Begin to connect. A failure is told in this call or later."""
        self._begun = time.monotonic()
        self._connecting = True
        self._client = None
        self.health = LinkHealth()
        try:
            self._sock = sockets.dial(*self.address, self._options.socket_buffer_bytes)
        except (TransportError, OSError) as error:
            self.fail(error)
        else:
            self._loop.watch(self, WRITE)

    def ready(self, events: int) -> None:
        try:
            if self._connecting:
                self._connected()
            if self._client is None:
                self._send_hello()
            else:
                self._challenge_received()
        except EOFError:
            cause = "it closed the connection during the handshake: refused, or its process ended"
            hint = tls.suspicion(self._message)
            self._ended(ConnectError(cause + hint) if hint else ConnectionResetError(cause))
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
            self._ended(ConnectError(tls.explain(error)))
        except ssl.SSLError as error:
            self.fail(ConnectError(tls.explain(error)))
        except (ConnectionResetError, BrokenPipeError) as error:
            self._ended(ConnectError(f"{error}{hint}") if (hint := tls.suspicion(self._message)) else error)
        except (ConnectError, OSError) as error:
            self.fail(error)

    def _connected(self) -> None:
        sock = self._socket()
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            raise OSError(error, os.strerror(error))
        sockets.tune(sock, self._options.peer_timeout)
        if self._tls is not None:
            self._sock = self._tls.dial(sock)
        self._connecting = False
        self._loop.watch(self, READ)

    def _send_hello(self) -> None:
        purpose = self._bound_purpose()
        if purpose is not None:
            self._client = auth.Client(self._secret, purpose)
            self._send(self._client.hello)

    def _challenge_received(self) -> None:
        assert self._client is not None
        challenge = self._receive(auth.CHALLENGE_BYTES)
        if challenge is not None:
            proof = self._client.answer(challenge)
            if self._receive(1) is not None:  # raises EOFError if the other end has closed
                raise ConnectError("it sent more bytes than the handshake has")
            self._send(proof + intro_frame(self._rank, self._connection))
            self._dialed(self, self._release_socket())

    def _ended(self, error: ConnectError | OSError) -> None:
        if time.monotonic() - self._begun >= min(CROWDED_SECONDS, self._options.handshake_timeout):
            self._close_socket()
            self.start()
        else:
            self.fail(error)

    @property
    def sock(self) -> socket.socket | None:
        """The socket whose connection has begun, None between two attempts."""
        return self._sock

    def fail(self, error: Exception) -> None:
        """Close the connection and report the error."""
        self.close()
        where = "{}, port {}".format(*self.address)
        kind = type(error) if isinstance(error, TransportError) else PeerLost
        self._failed(self, kind(f"{where}: {error}", rank=self._rank, peer=self.peer))


class IncomingHandshake(_Handshake):
    """The accepting end of a handshake: an unauthenticated connection."""

    def __init__(
        self,
        authenticated: Callable[[IncomingHandshake, socket.socket, int, int], None],
        rejected: Callable[[IncomingHandshake, Exception], None],
        loop: Loop,
        sock: socket.socket,
        *,
        origin: str,
        secret: bytes,
        purpose: bytes,
        tls: Tls | None,
        options: Options,
    ) -> None:
        """Exactly one of two functions is called.

        authenticated  the client has proved that it knows the secret; takes over the socket, which is a connection of
                       that rank with that number
        rejected       the connection was refused and closed
        """
        super().__init__(loop, secret, purpose, tls)
        self.origin = origin
        self.begun = time.monotonic()
        self.deadline = self.begun + options.handshake_timeout
        self._sock = sock
        self._authenticated = authenticated
        self._rejected = rejected
        self._options = options
        self._server: auth.Server | None = None
        self._proving = False

    def start(self) -> None:
        """Wait for the first message."""
        try:
            sockets.tune(self._socket(), self._options.peer_timeout)
            if self._tls is not None:
                self._sock = self._tls.accept(self._socket())
        except OSError as error:  # the connection has ended already
            self.reject(error)
        else:
            self._loop.watch(self, READ)

    def ready(self, events: int) -> None:
        try:
            if not self._proving:
                self._hello_received()
            else:
                self._proof_received()
        except EOFError:
            self.reject(ConnectError("it closed the connection during the handshake"))
        except ssl.SSLError as error:
            self.reject(ConnectError(tls.explain(error)))
        except (TransportError, OSError) as error:
            self.reject(error)

    def reject(self, error: Exception) -> None:
        """Close the connection and report the error."""
        self.close()
        self._rejected(self, error)

    def _hello_received(self) -> None:
        if self._server is None:
            purpose = self._bound_purpose()
            if purpose is None:
                return
            self._server = auth.Server(self._secret, purpose)
        hello = self._receive(auth.HELLO_BYTES)
        if hello is not None:
            if tls.suspicion(hello):
                self._send(tls.REFUSAL)
            try:
                challenge = self._server.challenge(hello)
            except ConnectError:
                if hello.startswith(auth.MAGIC):  # without a REFUSAL the client would count this rank as lost
                    self._send(auth.REFUSAL)
                raise
            self._send(challenge)
            self._proving = True

    def _proof_received(self) -> None:
        assert self._server is not None
        answer = self._receive(auth.PROOF_BYTES + HEADER.size)
        if answer is not None:
            self._server.verify(answer[: auth.PROOF_BYTES])
            rank, connection = parse_intro(answer[auth.PROOF_BYTES :])
            self._authenticated(self, self._release_socket(), rank, connection)
