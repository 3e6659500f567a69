"""Connections between the driver and the tasks: Spark carries no messages between them while a task runs."""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import socket
import socketserver
import threading
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

from collectives.launch import Place


@dataclass(frozen=True)
class Invitation:
    """The address of the driver and the key, by which a task connects. `repr` leaves out the key."""

    address: tuple[str, int]
    key: bytes

    def __repr__(self) -> str:
        return f"Invitation({self.address})"


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


class Desk(socketserver.ThreadingTCPServer):
    """The driver's side: puts what tasks send into `events`, as (number of the task, message).

    host  a name or an address of the driver, by which the tasks reach it
    bind  the address to listen at

    `with Desk(...) as desk` closes all connections in the end and waits for its threads.
    """

    def __init__(self, host: str, bind: str) -> None:
        self.events: queue.Queue[tuple[int, Message] | JobEnded] = queue.Queue()
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._ended = False
        self._sockets: set[socket.socket] = set()
        self._tasks: dict[int, tuple[socket.socket, Connection]] = {}
        super().__init__((bind, 0), socketserver.BaseRequestHandler)
        self.invitation = Invitation((host, self.server_address[1]), self._key)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.1,), name="ronde-spark-desk", daemon=True)
        self._thread.start()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Put the messages of one connection into `events` until it ends. Each has a thread of its own."""
        own: socket.socket = request
        with self._lock:
            if self._ended:
                return
            self._sockets.add(own)
        task = None
        try:
            with (
                Connection(os.dup(own.fileno())) as connection,
                contextlib.suppress(EOFError, OSError, AuthenticationError),
            ):
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
                arrival: Arrival = connection.recv()
                with self._lock:
                    self._tasks[arrival.task] = own, connection
                task = arrival.task
                self.events.put((task, arrival))
                while True:
                    self.events.put((task, connection.recv()))
        finally:
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
