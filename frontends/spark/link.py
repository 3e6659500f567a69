"""A connection between the driver and a task: pickled messages between two ends that have proved to each other that
they know the job's key, as ranks do (`transports.auth`), and under TLS if the settings say so."""

from __future__ import annotations

import contextlib
import pickle
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from transports import auth
from transports.tls import Tls

_PURPOSE: Final = b"ronde.spark: driver and task"
_LENGTH: Final = struct.Struct("!Q")
_READ_BYTES: Final = 1 << 16


class Link:
    """One end. `send` may be called by several threads, `receive` by one.

    The socket does not block. An OpenSSL connection must not be used by two threads at a time, so a lock is held while
    the socket is used, and not while a thread waits for it.
    """

    def __init__(self, sock: socket.socket) -> None:
        """`sock`: not blocking; the link closes it."""
        self._sock = sock
        self._using = threading.Lock()
        self._sending = threading.Lock()
        self._received = bytearray()

    @classmethod
    def dial(cls, address: tuple[str, int], key: bytes, tls: Tls | None, seconds: float) -> Link:
        """Connect to the driver. Raises ConnectError if it does not know the key, OSError if it cannot be reached."""
        until = time.monotonic() + seconds
        sock = socket.create_connection(address, seconds)
        sock.setblocking(False)

        def prove(link: Link, purpose: bytes) -> None:
            proof = auth.Client(key, purpose)
            link._write(proof.hello, until)
            link._write(proof.answer(link._read(auth.CHALLENGE_BYTES, until)), until)

        return cls._proved(sock if tls is None else tls.dial(sock), tls, until, prove)

    @classmethod
    def answer(cls, sock: socket.socket, key: bytes, tls: Tls | None, seconds: float) -> Link:
        """The driver's end of an accepted connection. Raises ConnectError or OSError for one that is not a task's."""
        until = time.monotonic() + seconds
        own = sock.dup()
        own.setblocking(False)

        def prove(link: Link, purpose: bytes) -> None:
            proof = auth.Server(key, purpose)
            link._write(proof.challenge(link._read(auth.HELLO_BYTES, until)), until)
            proof.verify(link._read(auth.PROOF_BYTES, until))

        return cls._proved(own if tls is None else tls.accept(own), tls, until, prove)

    @classmethod
    def _proved(cls, sock: socket.socket, tls: Tls | None, until: float, prove: Callable[[Link, bytes], None]) -> Link:
        """A link whose ends have proved to each other that they know the key; closed if they do not."""
        with contextlib.ExitStack() as failed:
            link = cls(sock)
            failed.callback(link.close)
            link._shake(until)
            prove(link, _PURPOSE if tls is None else tls.bind(sock, _PURPOSE))
            failed.pop_all()
        return link

    @property
    def own_address(self) -> str:
        """The address of this end."""
        return str(self._sock.getsockname()[0])

    def send(self, message: object) -> None:
        """Send a message. Raises OSError if the connection has ended."""
        data = pickle.dumps(message)
        with self._sending:
            self._write(_LENGTH.pack(len(data)) + data, None)

    def receive(self) -> Any:
        """Wait for a message. Raises OSError if the connection ends."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size, None))
        return pickle.loads(self._read(length, None))

    def close(self) -> None:
        """Close the connection. Idempotent."""
        with self._using:
            self._sock.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _shake(self, until: float) -> None:
        """Do the handshake of TLS."""
        shake = getattr(self._sock, "shake", None)
        while shake is not None and not shake():
            self._await(select.POLLIN, until)

    def _read(self, count: int, until: float | None) -> bytes:
        """So many bytes."""
        while len(self._received) < count:
            self._received += self._when_ready(lambda: self._sock.recv(_READ_BYTES), select.POLLIN, until)
        found = bytes(self._received[:count])
        del self._received[:count]
        return found

    def _write(self, data: bytes, until: float | None) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._when_ready(lambda: self._sock.send(rest), select.POLLOUT, until) :]  # noqa: B023

    def _when_ready(self, use: Callable[[], Any], event: int, until: float | None) -> Any:
        """The result of a use of the socket, once that is possible. Raises ConnectionResetError at the end."""
        while True:
            try:
                with self._using:
                    found = use()
            except BlockingIOError:
                self._await(event, until)
                continue
            if not found:
                raise ConnectionResetError("the other end has closed the connection")
            return found

    def _await(self, event: int, until: float | None) -> None:
        """Wait for an event of the socket. Raises TimeoutError after `until`."""
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError("the other end does not prove in time that it knows the key")
        poll = select.poll()
        poll.register(self._sock.fileno(), event)
        poll.poll(None if left is None else left * 1000)
