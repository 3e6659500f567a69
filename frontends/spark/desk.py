"""Connections between the driver and the tasks: Spark carries no messages between them while a task runs."""

from __future__ import annotations

import contextlib
import queue
import socket
import socketserver
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

from collectives.config import Config
from collectives.launch import Place
from frontends.spark.link import Link
from transports.auth import new_secret
from transports.errors import ConnectError
from transports.tls import Tls


@dataclass(frozen=True)
class Invitation:
    """The address of the driver and the key, by which a task connects. `repr` leaves out the key.

    tls  the settings tls_certificate, tls_key and tls_ca, files on each node; empty without TLS
    """

    address: tuple[str, int]
    key: bytes
    tls: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Invitation({self.address})"

    def accept(self) -> Link:
        """Connect to the driver. Raises OSError or RondeError if that fails."""
        return Link.dial(self.address, self.key, Tls(*self.tls) if self.tls else None, KNOWN_SECONDS)


@dataclass(frozen=True)
class Arrival:
    """The first message of a task.

    task   Spark's number of this attempt of it, which no other has
    place  where it runs
    pid    its process
    torch  its address and a free port
    """

    task: int
    place: Place
    pid: int
    torch: tuple[str, int]

    def __str__(self) -> str:
        return f"host {self.place.address}, pid {self.pid}"


@dataclass(frozen=True)
class Joined:
    """The rank is in the world."""


@dataclass(frozen=True)
class Line:
    """A line that a rank has printed."""

    text: str


@dataclass(frozen=True)
class Result:
    """The dumped outcome of a rank, which has left the world, and its number there in the end."""

    outcome: bytes
    rank: int


@dataclass(frozen=True)
class Gone:
    """The connection to a task has ended."""


@dataclass(frozen=True)
class JobEnded:
    """Spark's job has ended; the error that Spark has raised for it."""

    error: Exception | None


Message = Arrival | Joined | Line | Result | Gone

KNOWN_SECONDS: Final = 10.0
"""Seconds for a connection to prove that it knows the key."""
MOST_UNKNOWN: Final = 128
"""Number of connections that have not proved it yet."""
SHORTEST_SECONDS: Final = 1.0
"""Seconds that each of them has before it makes room for another one."""


class Desk(socketserver.ThreadingTCPServer):
    """The driver's side: puts what tasks send into `events`, as (number of the task, message).

    host    a name or an address of the driver, by which the tasks reach it
    bind    the address to listen at
    config  Ronde's settings: those of TLS hold for the tasks' connections too

    A connection that does not prove in KNOWN_SECONDS that it knows the key is closed. If MOST_UNKNOWN have not, the
    oldest of them is closed for a new one, but not before SHORTEST_SECONDS.

    `with Desk(...) as desk` closes all connections in the end and waits for its threads.
    """

    request_queue_size = MOST_UNKNOWN

    def __init__(self, host: str, bind: str, config: Config) -> None:
        self.events: queue.Queue[tuple[int, Message] | JobEnded] = queue.Queue()
        self._key = new_secret()
        self._tls = config.load_tls()
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._unknown: dict[socket.socket, float] = {}  # since when, the oldest first
        self._ended = False
        self._sockets: set[socket.socket] = set()
        self._tasks: dict[int, tuple[socket.socket, Link]] = {}
        super().__init__((bind, 0), socketserver.BaseRequestHandler)
        files = (config.tls_certificate, config.tls_key, config.tls_ca) if self._tls is not None else ()
        self.invitation = Invitation((host, self.server_address[1]), self._key, files)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="ronde-spark-desk", daemon=True)
        self._thread.start()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Make room for a connection."""
        with self._room:
            if len(self._unknown) >= MOST_UNKNOWN:
                oldest, since = next(iter(self._unknown.items()))
                left = since + SHORTEST_SECONDS - time.monotonic()
                if not self._room.wait_for(lambda: len(self._unknown) < MOST_UNKNOWN, max(0.0, left)):
                    self._refuse(oldest)
            self._unknown[request] = time.monotonic()
        return True

    def service_actions(self) -> None:
        """Close the connections that are late. Called several times a second."""
        with self._lock:
            for own, since in list(self._unknown.items()):
                if time.monotonic() - since >= KNOWN_SECONDS:
                    self._refuse(own)

    def _refuse(self, own: socket.socket) -> None:
        """End a connection, with the lock held; its thread ends then."""
        self._unknown.pop(own, None)
        with contextlib.suppress(OSError):  # the other end may have ended it already
            own.shutdown(socket.SHUT_RDWR)

    def _known(self, own: socket.socket) -> None:
        """Count a connection no longer among the unknown ones."""
        with self._room:
            self._unknown.pop(own, None)
            self._room.notify()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Put the messages of one connection into `events` until it ends. Each has a thread of its own."""
        own: socket.socket = request
        with self._lock:
            if self._ended:
                self._unknown.pop(own, None)
                return
            self._sockets.add(own)
        task = None
        try:
            with (
                contextlib.suppress(OSError, ConnectError),
                Link.answer(own, self._key, self._tls, KNOWN_SECONDS) as link,
            ):
                self._known(own)
                arrival: Arrival = link.receive()
                with self._lock:
                    self._tasks[arrival.task] = own, link
                task = arrival.task
                self.events.put((task, arrival))
                while True:
                    self.events.put((task, link.receive()))
        finally:
            self._known(own)
            with self._lock:
                self._sockets.discard(own)
                if task is not None:
                    del self._tasks[task]
            if task is not None:
                self.events.put((task, Gone()))

    def send(self, task: int, message: Any) -> None:
        """Send to a task. One that has gone gets nothing: an event tells of it."""
        with self._lock, contextlib.suppress(OSError):
            if task in self._tasks:
                self._tasks[task][1].send(message)

    def hang_up(self, task: int | None = None) -> None:
        """End the connection to a task; without one, to all. A task that has not left its world aborts it then."""
        with self._lock, contextlib.suppress(OSError):  # the task may have ended it already
            for own in self._sockets if task is None else [self._tasks[task][0]] if task in self._tasks else []:
                own.shutdown(socket.SHUT_RDWR)

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self._thread.join()
        with self._lock:
            self._ended = True
        self.hang_up()
        self.server_close()
