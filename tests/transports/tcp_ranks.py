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

from tests.transports.groups import SECRET, groups, recv, send, soon
from transports import auth, tcp
from transports.base import Transport
from transports.engine import Engine
from transports.errors import DeadlineExceeded
from transports.packed import unpack
from transports.store import read_table
from transports.tcp import Options, TcpTransport, dialing, handshake
from transports.tcp.frames import HEADER, intro_frame
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


def address_of(transport: TcpTransport, rank: int | None = None) -> tuple[str, int]:
    """The address on which a rank listens, by default the transport's own: the peers learn it from the store."""
    table = transport.group.store.prefixed("tcp").get("addresses", soon())
    host, port = unpack(read_table(table)[transport.rank if rank is None else rank])  # type: ignore[misc]
    return host, port


def redirect(monkeypatch: pytest.MonkeyPatch, between: Callable[[tuple[str, int]], tuple[str, int]]) -> None:
    """Let the connections of rank 1 to rank 0 go to `between(address)`."""
    real = dialing.Dial

    def dial(*args: Any, rank: int, peer: int, address: tuple[str, int], **settings: Any) -> handshake.Dial:
        address = between(address) if (rank, peer) == (1, 0) else address
        return real(*args, rank=rank, peer=peer, address=address, **settings)

    monkeypatch.setattr(dialing, "Dial", dial)


def purpose(rank: int) -> bytes:
    """The purpose of the handshake of a lane to a rank of two, in its bytes."""
    return b"ronde tcp lane to rank %d of 2, generation 0" % rank


def admit(listener: socket.socket, rank: int) -> socket.socket:
    """A connection from the other one of two ranks, which was let in as if by the listener of `rank`."""
    sock, _ = listener.accept()
    sock.settimeout(SECONDS)
    server = auth.Server(SECRET, purpose(rank))
    sock.sendall(server.challenge(sock.recv(auth.HELLO_BYTES, socket.MSG_WAITALL)))
    server.verify(sock.recv(auth.PROOF_BYTES, socket.MSG_WAITALL))
    assert sock.recv(HEADER.size, socket.MSG_WAITALL) == intro_frame(1 - rank, 0)
    return sock


def last_words(sock: socket.socket, drive: TcpTransport) -> bytes:
    """Drive a transport until the other end of a connection hangs up; the bytes that came from there."""
    said = bytearray()
    sock.setblocking(False)

    def ended() -> bool:
        with contextlib.suppress(ConnectionResetError):
            try:
                while part := sock.recv(1 << 16):
                    said.extend(part)
            except BlockingIOError:
                return False
        return True

    wait_until(ended, drive)
    return bytes(said)


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
