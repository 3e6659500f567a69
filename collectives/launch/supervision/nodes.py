"""Nodes that were started by hand: node 0 serves the job's store at an address that all know, and the others connect to
it. Nobody opens a connection for the launcher there, so that messages travel through the store."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from collectives.launch.hosts import Connection
from collectives.launch.store_keeper import StoreKeeper
from transports import launchers, rendezvous
from transports.errors import ConfigError, DeadlineExceeded, RondeError
from transports.packed import pack, unpack
from transports.store import Store
from transports.tls import Tls

_PIECE: Final = 1 << 16
_WAIT_SECONDS: Final = 3600.0
_CLOSE_SECONDS: Final = 2.0


class StorePipes(Connection):
    """A connection between two processes that both reach a store: bytes travel as its values. Secrets and TLS are those
    of the store. Two threads copy between pipes and the store, so that both ends use descriptors.

    store     this end's client, which `close` closes. Both ends must reach the store
    outgoing  name of what this end sends; the other end has the names the other way round
    """

    other_end_has_secret = True  # without it nobody reaches the store. Without TLS others may read what is sent

    def __init__(self, store: Store, outgoing: str, incoming: str) -> None:
        self._store = store
        self._outgoing = outgoing
        self._incoming = incoming
        self._threads: list[threading.Thread] = []
        self._failure = ""
        self._ended = False

    def open(self) -> tuple[int, int]:
        (read, their_write), (their_read, write) = os.pipe(), os.pipe()
        for name, copy, fd in (("send", self._send, their_read), ("receive", self._receive, their_write)):
            thread = threading.Thread(target=copy, args=(fd,), name=f"ronde-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()
        return read, write

    @property
    def ended(self) -> bool:
        return self._ended

    @property
    def end(self) -> str:
        """The error of the store, if that ended the connection."""
        return self._failure

    def kill(self) -> None:
        """End it at once: the other end is not told. Idempotent."""
        self._store.close()
        if self._threads:
            self._threads[1].join()

    def close(self) -> None:
        """Tell the other end, once the descriptors of `open` are closed, and release everything. Idempotent."""
        if self._threads:
            self._threads[0].join(_CLOSE_SECONDS)  # it ends with the pipe that it reads
        self.kill()
        for thread in self._threads:
            thread.join()

    def _send(self, fd: int) -> None:
        number = 0
        with os.fdopen(fd, "rb", buffering=0) as pipe, contextlib.suppress(RondeError):
            data = b"more"
            while data:
                data = pipe.read(_PIECE)
                self._store.set(f"{self._outgoing}/{number}", data)
                number += 1

    def _receive(self, fd: int) -> None:
        number = 0
        with os.fdopen(fd, "wb", buffering=0) as pipe:
            try:
                while data := self._store.get(f"{self._incoming}/{number}", time.monotonic() + _WAIT_SECONDS):
                    self._store.delete(f"{self._incoming}/{number}")
                    number += 1
                    while data:
                        data = data[pipe.write(data) :]
            except (RondeError, BrokenPipeError) as error:
                self._failure = str(error)
            finally:
                self._ended = True  # before the pipe ends, which wakes the launcher


@dataclass(frozen=True)
class Meeting:
    """The place where nodes meet. `until`: the time at which the launcher gives up nodes that have not connected."""

    nodes: int
    node_rank: int
    host: str
    port: int
    until: float
    secret: bytes = field(repr=False)
    tls: Tls | None

    @property
    def url(self) -> str:
        """The address as that of a store."""
        return f"tcp://[{self.host}]:{self.port}" if ":" in self.host else f"tcp://{self.host}:{self.port}"


@dataclass(frozen=True)
class Node:
    """A node that has come, for node 0. `count`: its number of ranks."""

    name: str
    count: int
    pipes: StorePipes


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of 'HOST:PORT', an IPv6 address in brackets. Raises ConfigError."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([\w.-]+)):([0-9]{1,5})", text, re.ASCII)
    if match is None or not 0 < int(match[3]) < 65536:
        raise ConfigError(f"--meet {text}: must be HOST:PORT, with an IPv6 address in brackets, port 1 to 65535")
    return match[1] or match[2], int(match[3])


def given_secret(environment: Mapping[str, str]) -> bytes:
    """The secret that all nodes were given. Raises ConfigError."""
    secret = launchers.given_secret(environment)
    if secret is None:
        raise ConfigError(
            "--meet: the nodes need a secret, the same for all: set RONDE_SECRET to 64 random hexadecimal digits, or "
            "RONDE_SECRET_FILE to a file with them that only you can read"
        )
    return secret


def lead_nodes(meeting: Meeting, keeper: StoreKeeper, interface: str) -> list[Node]:
    """Node 0: serve the store, and wait for the other nodes, which are returned in order.

    interface  where to listen, if it is not the meeting's address

    Raises RendezvousError, ConfigError, DeadlineExceeded that names the nodes which have not come. The keeper then
    serves nothing any more.
    """
    with contextlib.ExitStack() as failed:
        url = keeper.serve_at(interface or meeting.host, meeting.port, meeting.secret, meeting.tls)
        failed.callback(keeper.close)
        nodes = []
        store = failed.enter_context(contextlib.closing(_open(url, meeting)))
        for number in range(1, meeting.nodes):
            try:
                entry = unpack(store.get(f"nodes/{number}/entry", meeting.until))
            except DeadlineExceeded:
                missing = [n for n in range(1, meeting.nodes) if store.peek(f"nodes/{n}/entry") is None]
                names = ", ".join(map(str, missing))
                raise DeadlineExceeded(f"--meet: node {names} of {meeting.nodes} did not come to {url}") from None
            match entry:
                case [str(name), int(count), int(size)] if count > 0:
                    if size != meeting.nodes:
                        raise ConfigError(f"--nodes: node 0 has {meeting.nodes}, node {number} ({name}) has {size}")
                    pipes = StorePipes(_open(url, meeting), f"nodes/{number}/down", f"nodes/{number}/up")
                    failed.callback(pipes.close)
                    nodes.append(Node(name, count, pipes))
                case _:
                    raise ConfigError(f"--meet: node {number} did not send its name and number of ranks")
        failed.pop_all()
        store.close()
    return nodes


def join_nodes(meeting: Meeting, count: int) -> StorePipes:
    """Another node: come to node 0 with `count` ranks; the connection to it. Raises RendezvousError, ConfigError."""
    with contextlib.ExitStack() as failed:
        store = _open(meeting.url, meeting)
        failed.callback(store.close)
        number = meeting.node_rank
        if store.add(f"nodes/{number}/seats", 1) > 1:
            raise ConfigError(f"--node-rank {number}: another process has come as this node")
        store.set(f"nodes/{number}/entry", pack([socket.gethostname(), count, meeting.nodes]))
        failed.pop_all()
    return StorePipes(store, f"nodes/{number}/up", f"nodes/{number}/down")


def _open(url: str, meeting: Meeting) -> Store:
    return rendezvous.open_store(url, meeting.secret, meeting.until, tls=meeting.tls)
