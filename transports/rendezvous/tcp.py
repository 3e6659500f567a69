"""A store that one process serves to all ranks over TCP: the client, and by its side the server."""

from __future__ import annotations

import contextlib
import copy
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Final

from transports import names
from transports.auth import CHALLENGE_BYTES, Client, check_secret
from transports.descriptors import explained, lacks
from transports.errors import ConnectError, DeadlineExceeded, RendezvousError
from transports.forking import register
from transports.interfaces import outward_address
from transports.moments import seconds_left, timeouts
from transports.packed import pack, unpack
from transports.rendezvous import sockets
from transports.rendezvous.server import TcpStoreServer
from transports.rendezvous.wire import HEADER, LONGEST_GET, MAX_FRAME, PURPOSE, decode, encode, format_url
from transports.store import Awaited, Place, Store, check_awaited, check_item, check_row, read_rows
from transports.tls import Tls, explain, suspicion

__all__ = ["TcpStore", "TcpStoreServer"]

ATTEMPT_SECONDS: Final = 10.0
SHORTEST_ATTEMPT: Final = 1.0
ANSWER_SECONDS: Final = 15.0
"""Seconds to wait for an answer of the server, beyond the deadline of a `get`. `with_timeout` replaces them."""
_MOST_KEYS: Final = 1 << 12
"""Maximum number of keys of one request."""
FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 0.5


class NoLoopback(RendezvousError):
    """The loopback interface is down: to try again does not help."""


class _Links:
    """The connections of a client and of its hasty copies, and the lock that guards them.

    idle, busy   connections, by whether a call uses them now
    closed       set once the client was closed
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: list[socket.socket] = []
        self.busy: set[socket.socket] = set()
        self.closed = threading.Event()
        register(self)

    def after_fork(self) -> None:
        """In a forked child: give up the parent's connections. A call makes a new one."""
        closed = self.closed.is_set()
        self.lock, self.closed = threading.Lock(), threading.Event()
        if closed:
            self.closed.set()
        links = [*self.idle, *self.busy]
        self.idle.clear()
        self.busy.clear()
        for link in links:
            link.close()


class TcpStore(Store):
    """The client. It connects on first use and keeps its connections. Each concurrent call has one of its own, so a
    waiting `get` delays no other call.

    secret            the job's secret; empty only if the server has none either
    connect_deadline  until then (absolute) a server that cannot be reached is tried again, since it may come up later
                      than the ranks; after it, a connection is tried once
    tls               certificates, if the server has them
    purpose           the purpose that the server must have

    Raises, besides the errors of every store: RendezvousError naming the server's address and the cause if it cannot be
    reached, does not know the secret, or ends the connection. A call that failed leaves the store usable, but whether
    the server carried the call out is not known. In a forked child the store is usable, by connections of its own.
    """

    def __init__(
        self,
        host: str,
        port: int,
        secret: bytes,
        *,
        connect_deadline: float = 0.0,
        tls: Tls | None = None,
        purpose: bytes = PURPOSE,
    ) -> None:
        self.url = format_url(host, port)
        self._address = (host, port)
        self._secret = check_secret(secret)
        self._connect_deadline = connect_deadline
        self._tls = tls
        self._purpose = purpose
        self._patience = ANSWER_SECONDS
        self._local_address: str | None = None
        self._links = _Links()

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

    def awaited(self, *keys: str) -> Awaited:
        check_awaited(keys)
        return _Awaited(self, keys)

    def peek_all(self, keys: Sequence[str]) -> list[bytes | None]:
        for key in keys:
            check_item(key)
        values: list[bytes | None] = []
        for first in range(0, len(keys), _MOST_KEYS):
            asked = list(keys[first : first + _MOST_KEYS])
            found = self._list("peek", asked[0], pack(asked), len(asked))
            values += [value if isinstance(value, bytes) else None for value in found]
        return values

    def set_default(self, key: str, value: bytes) -> bytes:
        check_item(key, value)
        return self._bytes("default", key, bytes(value))

    def put_row(self, table: str, place: int, size: int, row: bytes) -> None:
        check_row(table, place, size, row)
        (refusal,) = self._list("put", table, pack([size, [[place, bytes(row)]]]), 1)
        if refusal is not None:
            raise ValueError(refusal)

    def rows(self, table: str) -> list[bytes | None]:
        check_item(table)
        try:
            return read_rows(self._bytes("rows", table))
        except ValueError as error:
            raise self._no_answer() from error

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

    def forget(self, prefix: str, kept: Sequence[str] = ()) -> None:
        check_item(prefix)
        self._ask("forget", prefix, pack([*kept]))

    def close(self) -> None:
        """Calls that wait in other threads raise RendezvousError, at the latest when their attempt to connect ends."""
        with self._links.lock:
            self._links.closed.set()
            for link in self._links.busy:
                with contextlib.suppress(OSError):  # the server may have ended it already
                    link.shutdown(socket.SHUT_RDWR)
            while self._links.idle:
                self._links.idle.pop().close()

    def local_address(self) -> str | None:
        return self._local_address

    def place(self) -> Place | None:
        return Place(self.url, self._purpose)

    def link(self, deadline: float) -> socket.socket:
        """An authenticated connection for a caller that speaks the protocol itself, and closes it. Raises
        RendezvousError if there is none by `deadline`."""
        return self._connect(deadline)

    def with_timeout(self, seconds: float) -> Store:
        limited = copy.copy(self)  # it shares the connections
        limited._patience = seconds
        limited._connect_deadline = 0.0
        return limited

    def _bytes(self, op: str, key: str, argument: object = None) -> bytes:
        """The result of a request whose result is bytes."""
        result = self._ask(op, key, argument)
        assert isinstance(result, bytes)
        return result

    def _list(self, op: str, key: str, argument: bytes, count: int) -> list[object]:
        """The result of a request whose result is a packed list of `count` values."""
        try:
            values = unpack(self._bytes(op, key, argument))
        except ValueError as error:
            raise self._no_answer() from error
        if not isinstance(values, list) or len(values) != count:
            raise self._no_answer()
        return values

    def _no_answer(self) -> RendezvousError:
        return RendezvousError(f"the store at {self.url} failed to answer: it sent an invalid answer")

    def _ask(self, op: str, key: str, argument: object = None, *, deadline: float | None = None) -> object:
        """Send a request and return its result; None for a `get` that timed out. Only a `get` has a `deadline`."""
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
        link.settimeout(seconds_left(deadline))
        link.sendall(encode([0, *request]))
        (length,) = HEADER.unpack(_receive(link, HEADER.size, deadline))
        if length > MAX_FRAME:
            raise ValueError(f"it sent a frame of {length} bytes, at most {MAX_FRAME} are allowed")
        number, *answer = decode(_receive(link, length, deadline))
        match (request[0], *answer) if number == 0 else ():
            case ("set" | "forget", "ok", None) | ("get", "late", None):
                return answer
            case ("get" | "default" | "rows" | "peek" | "put", "ok", bytes()):
                return answer
            case ("add", "ok", int()) | ("delete", "ok", bool()) | (_, "bad" | "full", str()):
                return answer
        raise ValueError("it sent an invalid answer")

    def _take(self, deadline: float) -> socket.socket:
        with self._links.lock:
            self._check_open()
            if self._links.idle:
                link = self._links.idle.pop()
                self._links.busy.add(link)
                return link
        link = self._connect(deadline)
        with self._links.lock:
            if not self._links.closed.is_set():
                self._links.busy.add(link)
                return link
        link.close()
        raise self._closed_error()

    def _give(self, link: socket.socket, sound: bool) -> None:
        with self._links.lock:
            self._links.busy.discard(link)
            if sound and not self._links.closed.is_set():
                self._links.idle.append(link)
                return
        link.close()

    def _connect(self, deadline: float) -> socket.socket:
        """An authenticated connection. Attempts repeat after pauses: no event announces a started server."""
        pause = FIRST_PAUSE
        while True:
            try:
                return self._attempt(time.monotonic() + self._attempt_seconds(deadline))
            except ConnectError as error:
                raise RendezvousError(f"the store at {self.url}: {error.message}") from error
            except (OSError, UnicodeError) as error:  # UnicodeError: no host can have such a name
                if isinstance(error, OSError) and names.no_loopback(self._address[0], error):
                    reason = f"the loopback interface is down (ip link set lo up): {error}"
                    raise NoLoopback(f"no connection to the store at {self.url}: {reason}") from error
                if time.monotonic() + pause >= deadline or lacks(error):
                    reason = explained(error) if isinstance(error, OSError) else str(error)
                    raise RendezvousError(f"no connection to the store at {self.url}: {reason}") from error
            self._links.closed.wait(pause)
            self._check_open()
            pause = min(2 * pause, LONGEST_PAUSE)

    def _attempt_seconds(self, deadline: float) -> float:
        left = deadline - time.monotonic()
        return min(self._patience, ATTEMPT_SECONDS, max(left, SHORTEST_ATTEMPT) if left > 0 else ATTEMPT_SECONDS)

    def _attempt(self, deadline: float) -> socket.socket:
        link = names.connect(self._address, deadline)
        try:
            # On loopback a connection to a free port of the ephemeral range can meet itself (simultaneous open).
            if link.getsockname() == link.getpeername():
                raise ConnectionRefusedError("no process listens there")
            sockets.tune(link)
            if self._tls is not None:
                link.settimeout(seconds_left(deadline))
                link = self._tls.call(link)
            proof = Client(self._secret, self._purpose if self._tls is None else self._tls.bind(link, self._purpose))
            link.sendall(proof.hello)
            link.sendall(proof.answer(_challenge(link, deadline)))
            self._local_address = outward_address(link)
        except BaseException:
            link.close()
            raise
        return link

    def _check_open(self) -> None:
        if self._links.closed.is_set():
            raise self._closed_error()

    def _closed_error(self) -> RendezvousError:
        return RendezvousError(f"the client of the store at {self.url} was closed")


class _Awaited(Awaited):
    """One request, which the server answers when a key is set, however often `wait` is called before."""

    def __init__(self, store: TcpStore, keys: Sequence[str]) -> None:
        super().__init__(store, keys)
        self._client = store
        self._link: socket.socket | None = None
        self._inbox = bytearray()

    def wait(self, until: float) -> tuple[int, bytes] | None:
        while True:
            link = self._link or self._ask(until)
            try:
                answer = self._answer(link, until)
            except TimeoutError:
                return None
            except (OSError, ValueError) as error:
                raise self._failed(error) from error
            self._client._give(link, True)
            self._link = None
            match answer:
                case ["ok", [int(position), bytes(value)]] if 0 <= position < len(self._keys):
                    return position, value
                case ["late", None]:  # after LONGEST_GET
                    continue
            raise self._failed(ValueError("it sent an invalid answer"))

    def close(self) -> None:
        link, self._link = self._link, None
        self._inbox.clear()
        if link is not None:
            self._client._give(link, False)

    def _ask(self, until: float) -> socket.socket:
        client = self._client
        self._link = link = client._take(min(until, client._connect_deadline))
        try:
            link.settimeout(client._patience)
            link.sendall(encode([0, "any", self._keys[0], pack([list(self._keys), LONGEST_GET])]))
        except OSError as error:
            raise self._failed(error) from error
        return link

    def _answer(self, link: socket.socket, until: float) -> list[object]:
        """The answer. Raises TimeoutError if it has not come; what has come of it stays in the inbox."""
        inbox, left = self._inbox, timeouts(until)
        while True:
            need = HEADER.size
            if len(inbox) >= HEADER.size:
                (length,) = HEADER.unpack_from(inbox)
                if length > MAX_FRAME:
                    raise ValueError(f"it sent a frame of {length} bytes, at most {MAX_FRAME} are allowed")
                need += length
                if len(inbox) == need:
                    number, *answer = decode(bytes(inbox[HEADER.size :]))
                    inbox.clear()
                    if number != 0:
                        raise ValueError("it sent an invalid answer")
                    return answer
            link.settimeout(next(left))
            got = link.recv(need - len(inbox))
            if not got:
                raise ConnectionResetError("the connection was closed by the other end")
            inbox += got

    def _failed(self, error: Exception) -> RendezvousError:
        self.close()
        self._client._check_open()
        return RendezvousError(f"the store at {self._client.url} failed to answer: {error}")


def _challenge(link: socket.socket, deadline: float) -> bytes:
    """The server's challenge. Raises ConnectError if the other end is no store of this kind, OSError."""
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
    view, left = memoryview(data), timeouts(deadline)
    while view:
        link.settimeout(next(left))
        got = link.recv_into(view)
        if not got:
            raise ConnectionResetError("the connection was closed by the other end")
        view = view[got:]
