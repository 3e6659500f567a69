"""The server of the TCP store: one thread serves all connections. Requests are accepted after the handshake only."""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import threading
import time
from collections.abc import Generator, Hashable, Sequence
from types import TracebackType
from typing import Any, Final

from transports.auth import HELLO_BYTES, PROOF_BYTES, Server, check_secret
from transports.descriptors import allow_many
from transports.errors import ConfigError, ConnectError, RendezvousError
from transports.forking import register
from transports.moments import seconds_until
from transports.rendezvous import sockets
from transports.rendezvous.book import Answer, Book, Desk
from transports.rendezvous.forwarder import Forwarder
from transports.rendezvous.wire import HEADER, MAX_FRAME, PURPOSE, decode, encode, format_url
from transports.tls import REFUSAL, Tls, pending, suspicion

HANDSHAKE_SECONDS: Final = 5.0
MAX_UNAUTHENTICATED: Final = 128
"""Maximum number of unauthenticated connections. At the limit the server accepts no connection until one has
authenticated or was closed."""
CROWDED_SECONDS: Final = 1.0
"""Seconds to authenticate while the number of unauthenticated connections is at its limit."""
RETRY_SECONDS: Final = 0.5
"""Seconds to the next attempt to accept after the system lacked descriptors or memory."""
LINGER_SECONDS: Final = 10.0
"""Seconds that a rank serves a store after its own end, for ranks that have not ended yet."""
BACKLOG: Final = 1024
PIECE: Final = 1 << 16

_Life = Generator[int, bytes, None]


class _Connection:
    """The state of a connection. Its generator `life` yields its next need: a number of bytes to read."""

    __slots__ = ("begun", "deadline", "inbox", "life", "need", "open", "outbox", "sock")

    def __init__(self, sock: socket.socket, begun: float) -> None:
        self.sock = sock
        self.begun = begun
        self.deadline = begun + HANDSHAKE_SECONDS
        self.life: _Life
        self.need = 0
        self.inbox = bytearray()
        self.outbox = bytearray()
        self.open = True


class TcpStoreServer:
    """Serves one dictionary on one address or several.

    host     the address (or name of one) to listen on, or several; an all-interfaces address is refused
    port     0 lets the system choose, for each address
    secret   the job's secret. b"" serves every client that can connect, for trusted networks only; hence no default
    tls      certificates, if clients must use TLS
    purpose  what the store is for, where several may be found at an address: clients for another purpose are refused
    upstream an authenticated connection to another server, for which this one is a proxy, and the number of ranks that
             use the proxy. It owns the connection from `start` on, and ends with it

    The server closes a connection that does not authenticate within 5 s (1 s with 128 unauthenticated connections),
    that breaks the protocol or exceeds a limit. Other connections are not affected. All values together are limited to
    256 MiB.

    `with TcpStoreServer(...) as server` starts and closes it. Raises ConfigError for a bad port or secret.
    """

    def __init__(
        self,
        host: str | Sequence[str],
        port: int = 0,
        *,
        secret: bytes,
        tls: Tls | None = None,
        purpose: bytes = PURPOSE,
        upstream: tuple[socket.socket, int] | None = None,
    ) -> None:
        if not 0 <= port < 65536:
            raise ConfigError(f"port={port!r}: must be 0 (any) to 65535")
        self._wanted = [(host, port)] if isinstance(host, str) else [(each, port) for each in host]
        self._purpose = purpose
        self._secret = check_secret(secret)
        self._tls = tls
        self._upstream = upstream
        self._thread: threading.Thread | None = None
        self._addresses: list[tuple[str, int]] = []
        self._wakeup: socket.socket | None = None
        self._loop: _Loop | None = None
        register(self)

    def start(self) -> None:
        """Listen, and serve in a thread.

        Raises ConfigError if the host means all interfaces, RendezvousError if the address cannot be had, or if
        called twice. Nothing is left open then.
        """
        if self._thread is not None:
            raise RendezvousError("the store server was started before: make a new one")
        allow_many()
        with contextlib.ExitStack() as opened:
            listeners = [opened.enter_context(sockets.listen(*wanted, BACKLOG)) for wanted in self._wanted]
            wakeup, wakeup_end = map(opened.enter_context, socket.socketpair())
            selector = opened.enter_context(selectors.DefaultSelector())
            loop = _Loop(selector, listeners, wakeup_end, self._secret, self._tls, self._purpose, self._upstream)
            thread = threading.Thread(target=loop.run, name="ronde-store", daemon=True)
            thread.start()
            opened.pop_all()
        self._addresses = [listener.getsockname()[:2] for listener in listeners]
        self._wakeup, self._thread, self._loop = wakeup, thread, loop

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Addresses and ports that clients connect to. Raises RendezvousError before `start`."""
        if not self._addresses:
            raise RendezvousError("the store server was not started: it has no address yet")
        return list(self._addresses)

    @property
    def address(self) -> tuple[str, int]:
        """The first address and its port. Raises RendezvousError before `start`."""
        return self.addresses[0]

    @property
    def url(self) -> str:
        """'tcp://host:port', for `open_store`."""
        return format_url(*self.address)

    def drain(self) -> None:
        """Serve until no client is left that has authenticated, LINGER_SECONDS at most: those that leave later need
        the cause of a failure, and the calls of the others after a mismatch."""
        if self._loop is not None:
            self._loop.unused.wait(LINGER_SECONDS)

    def close(self) -> None:
        """End every connection (clients that wait get a RendezvousError) and release everything. Idempotent."""
        if self._thread is not None and self._wakeup is not None:
            sockets.end(self._wakeup)
            self._thread.join()

    def after_fork(self) -> None:
        """In a forked child: serve nobody. The parent goes on."""
        if self._loop is not None and self._wakeup is not None:
            self._loop.abandon()
            self._wakeup.close()
        self._thread = self._wakeup = self._loop = None

    def __enter__(self) -> TcpStoreServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Loop:
    """The event loop in the server's thread. `run` closes the sockets and the selector at its end."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        listeners: Sequence[socket.socket],
        wakeup_end: socket.socket,
        secret: bytes,
        tls: Tls | None,
        purpose: bytes,
        upstream: tuple[socket.socket, int] | None,
    ) -> None:
        self.unused = threading.Event()
        """Set while no authenticated client is connected."""
        self.unused.set()
        self._selector = selector
        self._listeners = listeners
        self._wakeup_end = wakeup_end
        self._secret = secret
        self._tls = tls
        self._purpose = purpose
        self._connections: set[_Connection] = set()
        self._unauthenticated: dict[_Connection, None] = {}  # oldest first
        self._desk: Desk = Book(self._reply)
        self._upstream: _Connection | None = None
        self._over = False
        if upstream is not None:
            sock, below = upstream
            self._upstream = up = _Connection(sock, time.monotonic())
            self._desk = forwarder = Forwarder(self._reply, lambda request: self._send(up, encode(request)), below)
            up.life = _answers(forwarder)
        self._accepts_again = 0.0
        self._wake = math.inf
        self._broken: list[_Connection] = []

    def run(self) -> None:
        try:
            self._selector.register(self._wakeup_end, selectors.EVENT_READ)
            self._listen()
            if self._upstream is not None:
                self._upstream.sock.setblocking(False)
                self._selector.register(self._upstream.sock, selectors.EVENT_READ, self._upstream)
                self._step(self._upstream, None)
            while self._turn() and not self._over:
                self._expire(time.monotonic())
                while self._broken:
                    self._cut(self._broken.pop())
        finally:
            for connection in list(self._connections):
                self._cut(connection)
            if self._upstream is not None:
                sockets.end(self._upstream.sock)
            self._selector.close()
            for listener in self._listeners:
                listener.close()
            self._wakeup_end.close()
            self.unused.set()

    def abandon(self) -> None:
        """In a forked child: close the descriptors. The selector first, since the parent uses the same one."""
        self._selector.close()
        for sock in [*self._listeners, self._wakeup_end, *(connection.sock for connection in self._connections)]:
            sock.close()
        if self._upstream is not None:
            self._upstream.sock.close()

    def _turn(self) -> bool:
        """Handle the ready sockets; False once the server is being closed."""
        wake = min(self._wake, self._desk.due)
        for key, events in self._selector.select(seconds_until(wake)):
            if key.fileobj is self._wakeup_end:
                return False
            if key.data is None:
                self._accept(key.fileobj)
            elif key.data.open:
                if events & selectors.EVENT_WRITE:
                    self._flush(key.data)
                if events & selectors.EVENT_READ and key.data.open:
                    self._read(key.data)
                while key.data.open and not key.data.outbox and pending(key.data.sock):
                    self._read(key.data)
        return True

    # Connections

    def _accept(self, listener: Any) -> None:
        if self._accepts_again:  # another listener's client has reached the limit in this turn
            return
        now = time.monotonic()
        if len(self._unauthenticated) >= MAX_UNAUTHENTICATED:
            oldest = next(iter(self._unauthenticated))
            if now < oldest.begun + CROWDED_SECONDS:
                self._pause(oldest.begun + CROWDED_SECONDS)
                return
            self._cut(oldest)
        try:
            sock, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionError):  # the client has closed it already
            return
        except OSError:
            self._pause(now + RETRY_SECONDS)
            return
        try:
            sock.setblocking(False)
            sockets.tune(sock)
            if self._tls is not None:
                sock = self._tls.accept(sock)
        except OSError:
            sock.close()
            return
        connection = _Connection(sock, now)
        connection.life = self._serve(connection)
        self._connections.add(connection)
        self._unauthenticated[connection] = None
        self._selector.register(sock, selectors.EVENT_READ, connection)
        self._step(connection, None)
        self._remind(connection.deadline)

    def _listen(self) -> None:
        for listener in self._listeners:
            self._selector.register(listener, selectors.EVENT_READ)

    def _pause(self, until: float) -> None:
        for listener in self._listeners:
            self._selector.unregister(listener)
        self._accepts_again = until
        self._remind(until)

    def _resume(self) -> None:
        if self._accepts_again:
            self._accepts_again = 0.0
            self._listen()

    def _remind(self, when: float) -> None:
        self._wake = min(self._wake, when)

    def _expire(self, now: float) -> None:
        """Do what is due, and close the connections whose deadline has passed. `_wake` is the first deadline or
        earlier: a deadline that no longer applies stays in it."""
        if now >= self._desk.due:
            self._desk.tick(now)
        if now < self._wake:
            return
        for connection in [c for c in self._connections if c.deadline <= now]:
            self._cut(connection)
        if self._accepts_again <= now:
            self._resume()
        self._wake = min((c.deadline for c in self._connections), default=math.inf)
        self._remind(self._accepts_again or math.inf)

    def _cut(self, connection: _Connection) -> None:
        if not connection.open:
            return
        connection.open = False
        if connection is self._upstream:
            self._over = True
            return
        connection.life.close()
        self._selector.unregister(connection.sock)
        sockets.end(connection.sock)
        self._connections.discard(connection)
        self._unauthenticated.pop(connection, None)
        self._desk.forget(connection)
        if len(self._connections) == len(self._unauthenticated):
            self.unused.set()
        self._resume()

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(min(connection.need - len(connection.inbox), PIECE))
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._cut(connection)
            return
        connection.inbox += data
        if len(connection.inbox) == connection.need:
            data = bytes(connection.inbox)
            connection.inbox.clear()
            self._step(connection, data)

    def _flush(self, connection: _Connection) -> None:
        try:
            sent = connection.sock.send(connection.outbox)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._cut(connection)
            return
        del connection.outbox[:sent]
        if not connection.outbox:
            self._selector.modify(connection.sock, selectors.EVENT_READ, connection)

    def _send(self, connection: _Connection, data: bytes) -> None:
        """Send data. The connection is not read until all of it is sent. Raises OSError."""
        sent = 0
        if not connection.outbox:
            with contextlib.suppress(BlockingIOError, InterruptedError):
                sent = connection.sock.send(data)
            if sent < len(data):  # the server above may wait for this proxy to read
                reads = selectors.EVENT_READ if connection is self._upstream else 0
                self._selector.modify(connection.sock, selectors.EVENT_WRITE | reads, connection)
        connection.outbox += data[sent:]

    def _step(self, connection: _Connection, given: bytes | None) -> None:
        """Resume a connection's generator with the data that it needed. Close the connection if it fails."""
        try:
            connection.need = next(connection.life) if given is None else connection.life.send(given)
        except (OSError, ValueError, ConnectError):
            self._cut(connection)

    def _reply(self, client: Hashable, number: int, answer: Answer) -> None:
        """Answer a request of a client, which may have another request in its generator just now."""
        assert isinstance(client, _Connection)
        if client.open:
            try:
                self._send(client, encode([number, *answer]))
            except OSError:
                self._broken.append(client)

    # Requests

    def _serve(self, connection: _Connection) -> _Life:
        """The protocol of a connection: handshake, then requests until the connection ends."""
        hello = yield HELLO_BYTES
        if suspicion(hello):
            self._send(connection, REFUSAL)
        purpose = self._purpose if self._tls is None else self._tls.bind(connection.sock, self._purpose)
        proof = Server(self._secret, purpose)
        self._send(connection, proof.challenge(hello))
        proof.verify((yield PROOF_BYTES))
        del self._unauthenticated[connection]
        self.unused.clear()
        connection.deadline = math.inf
        self._resume()
        while True:
            number, *request = decode((yield from _frame()))
            self._desk.ask(connection, number, request, time.monotonic())


def _answers(forwarder: Forwarder) -> _Life:
    """The protocol of the connection to the server above."""
    while True:
        number, *answer = decode((yield from _frame()))
        forwarder.answered(number, answer)


def _frame() -> Generator[int, bytes, bytes]:
    """The body of a frame. Raises ValueError if it is too long."""
    (length,) = HEADER.unpack((yield HEADER.size))
    if not 0 < length <= MAX_FRAME:
        raise ValueError(f"a frame of {length} bytes")
    return (yield length)
