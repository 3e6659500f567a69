"""Groups of TCP transports, their ranks threads of this process over real loopback sockets."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.transports.groups import groups, recv, send, soon
from transports import tcp
from transports.base import Transport
from transports.engine import Engine
from transports.errors import DeadlineExceeded
from transports.tcp import Options, TcpTransport
from transports.tcp.link import TcpLink
from transports.testing import run_threads

SECONDS = 60.0


def in_threads(*bodies: Callable[[], Any]) -> list[Any]:
    """Run all at once; their results."""
    return run_threads(lambda index: bodies[index](), len(bodies), timeout=2 * SECONDS)


@contextmanager
def ranks(size: int, options: Options | None = None) -> Iterator[list[TcpTransport]]:
    """Open transports of one group, closed together at the end."""
    transports = [tcp.create(group, options or Options()) for group in groups(size)]
    every(transports, lambda t: t.open(soon()))
    try:
        yield transports
    finally:
        every(transports, lambda t: t.close(time.monotonic() + 5))


def tcp_link(t: Engine) -> TcpLink:
    """The link of an open transport that reaches peers by TCP."""
    (found,) = (link for link in t.links if isinstance(link, TcpLink))
    return found


def every(transports: list[TcpTransport], body: Callable[[TcpTransport], Any]) -> list[Any]:
    return run_threads(lambda index: body(transports[index]), len(transports), timeout=2 * SECONDS)


def link_one(t: Transport) -> None:
    """Make all lanes from and to a rank."""
    peers = [peer for peer in range(t.size) if peer != t.rank]
    requests = [t.isend(peer, 9, memoryview(b"hi")) for peer in peers]
    requests += [t.irecv(peer, 9, memoryview(bytearray(2))) for peer in peers]
    for request in requests:
        request.wait(soon())


def link(transports: list[TcpTransport]) -> None:
    """Make all lanes of a group."""
    every(transports, link_one)


@contextmanager
def member(t: TcpTransport, connection: int, says: bytes) -> Iterator[socket.socket]:
    """A connection of that number from rank 1, let in already: the other end of it, which says something and stays."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        far = socket.create_connection(listener.getsockname(), timeout=SECONDS)
        near, _ = listener.accept()
    near.setblocking(False)

    def say() -> None:
        with contextlib.suppress(OSError):  # it was hung up on
            far.sendall(says)

    saying = threading.Thread(target=say)
    with far:
        with t.lock:
            assert tcp_link(t).accepted(near, 1, connection) is None
        saying.start()
        try:
            yield far
        finally:
            with contextlib.suppress(OSError):
                far.shutdown(socket.SHUT_RDWR)
            saying.join()


def arrives_posted_or_not(length: int, options: Options) -> None:
    """Send `length` bytes twice, first to a receive that is posted later than the other."""
    data = random.Random(length).randbytes(length)
    with ranks(2, options) as (a, b):

        def sender() -> None:
            for tag in (1, 2):
                send(a, 1, tag, data)

        def receiver() -> None:
            assert recv(b, 0, 2, length) == data
            assert recv(b, 0, 1, length) == data

        in_threads(sender, receiver)


def address_of(transport: TcpTransport) -> tuple[str, int]:
    return tcp_link(transport)._dialing.addresses[transport.rank]


def briefly(seconds: float) -> float:
    """A deadline for what shall not come in time."""
    return time.monotonic() + seconds


def wait_until(condition: Callable[[], bool], drive: TcpTransport | None = None) -> None:
    """Wait for a condition, driving a transport meanwhile."""
    end = soon()
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        if drive is None:
            time.sleep(0.001)
        else:
            with pytest.raises(DeadlineExceeded):
                drive.irecv(drive.rank, 99, memoryview(bytearray())).wait(briefly(0.002))
