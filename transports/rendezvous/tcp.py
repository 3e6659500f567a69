"""A store that one process serves to all ranks over TCP: the client, and by its side the server."""

from __future__ import annotations

import contextlib
import copy
import socket
import ssl
import threading
import time
from typing import Final

from transports.auth import CHALLENGE_BYTES, Client, check_secret
from transports.errors import ConnectError, DeadlineExceeded, RendezvousError
from transports.interfaces import outward_address
from transports.rendezvous import sockets
from transports.rendezvous.server import TcpStoreServer
from transports.rendezvous.store import Store, check_item
from transports.rendezvous.wire import HEADER, LONGEST_GET, MAX_FRAME, PURPOSE, decode, encode, format_url
from transports.tls import Tls, explain, suspicion

__all__ = ["TcpStore", "TcpStoreServer"]

ATTEMPT_SECONDS: Final = 10.0
SHORTEST_ATTEMPT: Final = 1.0
ANSWER_SECONDS: Final = 15.0
"""What the server gets to answer, beyond what a get waits by itself, and where nobody is in haste."""
FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 0.5


class TcpStore(Store):
    """The client. It connects on first use and keeps connections: one for each call that is under way at a time, so a
    `get` that waits is in nobody's way.

    secret            the job's secret; empty only if the server has none either
    connect_deadline  until then (absolute) a server that cannot be reached is tried again, since it may come up later
                      than the ranks; after it, a connection is tried once
    tls               certificates, if the server has them

    Besides what every store raises: RendezvousError naming the server's address and the cause if it cannot be
    reached, does not know the secret, or ends the connection. A call that failed leaves the store usable, but whether
    the server carried the call out is not known.
    """

    def __init__(
        self, host: str, port: int, secret: bytes, *, connect_deadline: float = 0.0, tls: Tls | None = None
    ) -> None:
        self.url = format_url(host, port)
        self._address = (host, port)
        self._secret = check_secret(secret)
        self._connect_deadline = connect_deadline
        self._tls = tls
        self._patience = ANSWER_SECONDS
        self._local_address: str | None = None
        self._lock = threading.Lock()
        self._idle: list[socket.socket] = []
        self._busy: set[socket.socket] = set()
        self._closed = threading.Event()

    def set(self, key: str, value: bytes) -> None:
        check_item(key, value)
        self._ask("set", key, bytes(value))

    def get(self, key: str, deadline: float) -> bytes:
        check_item(key)
        while True:
            value = self._ask("get", key, deadline=deadline)
            if isinstance(value, bytes):
                return value
            if time.monotonic() >= deadline:
                raise DeadlineExceeded(f"key {key!r} was not set in time (store at {self.url})")

    def add(self, key: str, amount: int) -> int:
        check_item(key)
        if not -(2**63) <= amount < 2**63:
            raise ValueError(f"amount={amount!r} for key {key!r}: must fit 64 bits")
        total = self._ask("add", key, amount)
        assert isinstance(total, int)
        return total

    def delete(self, key: str) -> bool:
        check_item(key)
        return self._ask("delete", key) is True

    def close(self) -> None:
        """Calls that wait in other threads raise RendezvousError, at the latest when their attempt to connect ends."""
        with self._lock:
            self._closed.set()
            for link in self._busy:
                with contextlib.suppress(OSError):  # the server may have ended it already
                    link.shutdown(socket.SHUT_RDWR)
            while self._idle:
                self._idle.pop().close()

    def local_address(self) -> str | None:
        return self._local_address

    def hasty(self, seconds: float) -> Store:
        hasty = copy.copy(self)  # it shares the connections
        hasty._patience = seconds
        hasty._connect_deadline = 0.0
        return hasty

    def _ask(self, op: str, key: str, argument: object = None, *, deadline: float | None = None) -> object:
        """The result of a request; None for a get that was late. `deadline` makes it a get."""
        link = self._take(self._connect_deadline if deadline is None else min(deadline, self._connect_deadline))
        sound = False
        try:
            patience = self._patience
            if deadline is not None:
                argument = max(0.0, min(deadline - time.monotonic(), LONGEST_GET))
                patience += argument
            status, result = self._exchange(link, [op, key, argument], time.monotonic() + patience)
            sound = True
        except (OSError, ValueError) as error:
            self._check_open()
            raise RendezvousError(f"the store at {self.url} failed to answer: {error}") from error
        finally:
            self._give(link, sound)
        if status == "bad":
            raise ValueError(result)
        if status == "full":
            raise RendezvousError(f"the store at {self.url}: {result}")
        return result

    def _exchange(self, link: socket.socket, request: list[object], deadline: float) -> list[object]:
        link.settimeout(_left(deadline))
        link.sendall(encode(request))
        (length,) = HEADER.unpack(_receive(link, HEADER.size, deadline))
        if length > MAX_FRAME:
            raise ValueError(f"it sent a frame of {length} bytes, at most {MAX_FRAME} are allowed")
        answer = decode(_receive(link, length, deadline))
        match (request[0], *answer):
            case ("set", "ok", None) | ("get", "ok", bytes()) | ("get", "late", None):
                return answer
            case ("add", "ok", int()) | ("delete", "ok", bool()) | (_, "bad" | "full", str()):
                return answer
        raise ValueError("it sent something that is no answer")

    def _take(self, deadline: float) -> socket.socket:
        with self._lock:
            self._check_open()
            if self._idle:
                link = self._idle.pop()
                self._busy.add(link)
                return link
        link = self._connect(deadline)
        with self._lock:
            if not self._closed.is_set():
                self._busy.add(link)
                return link
        link.close()
        raise self._closed_error()

    def _give(self, link: socket.socket, sound: bool) -> None:
        with self._lock:
            self._busy.discard(link)
            if sound and not self._closed.is_set():
                self._idle.append(link)
                return
        link.close()

    def _connect(self, deadline: float) -> socket.socket:
        """A proven connection. A server that is not there is no event to wait for, hence the pauses."""
        pause = FIRST_PAUSE
        while True:
            try:
                return self._attempt(time.monotonic() + self._attempt_seconds(deadline))
            except ConnectError as error:
                raise RendezvousError(f"the store at {self.url}: {error.message}") from error
            except (OSError, UnicodeError) as error:  # UnicodeError: no host can have such a name
                if time.monotonic() + pause >= deadline:
                    raise RendezvousError(f"no connection to the store at {self.url}: {error}") from error
            self._closed.wait(pause)
            self._check_open()
            pause = min(2 * pause, LONGEST_PAUSE)

    def _attempt_seconds(self, deadline: float) -> float:
        left = deadline - time.monotonic()
        return min(self._patience, ATTEMPT_SECONDS, max(left, SHORTEST_ATTEMPT) if left > 0 else ATTEMPT_SECONDS)

    def _attempt(self, deadline: float) -> socket.socket:
        link = socket.create_connection(self._address, _left(deadline))
        try:
            # On loopback a connection to a free port of the ephemeral range can meet itself (simultaneous open).
            if link.getsockname() == link.getpeername():
                raise ConnectionRefusedError("nobody listens there")
            sockets.tune(link)
            if self._tls is not None:
                link.settimeout(_left(deadline))
                link = self._tls.call(link)
            proof = Client(self._secret, PURPOSE if self._tls is None else self._tls.bind(link, PURPOSE))
            link.sendall(proof.hello)
            link.sendall(proof.answer(_challenge(link, deadline)))
            self._local_address = outward_address(link)
        except BaseException:
            link.close()
            raise
        return link

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise self._closed_error()

    def _closed_error(self) -> RendezvousError:
        return RendezvousError(f"the client of the store at {self.url} was closed")


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _challenge(link: socket.socket, deadline: float) -> bytes:
    """What the server says to the hello. Raises ConnectError if it is plain that it never will, OSError."""
    data = bytearray(CHALLENGE_BYTES)
    try:
        _fill(link, data, deadline)
    except ssl.SSLError as error:
        raise ConnectError(explain(error)) from error
    except OSError as error:
        if hint := suspicion(data):
            raise ConnectError(f"{error}{hint}") from error
        raise
    return bytes(data)


def _receive(link: socket.socket, count: int, deadline: float) -> bytes:
    """Exactly `count` bytes. Raises OSError if they do not come, TimeoutError if not in time."""
    data = bytearray(count)
    _fill(link, data, deadline)
    return bytes(data)


def _fill(link: socket.socket, data: bytearray, deadline: float) -> None:
    view = memoryview(data)
    while view:
        link.settimeout(_left(deadline))
        got = link.recv_into(view)
        if not got:
            raise ConnectionResetError("the connection was closed by the other end")
        view = view[got:]
