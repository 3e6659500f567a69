"""The TCP listener when more connect than it lets in at once, and members that are cut for it."""

from __future__ import annotations

import contextlib
import select
import socket
import time

import pytest

from tests.security.test_intruder import is_cut
from tests.transports.groups import SECRET, groups, soon
from tests.transports.tcp_ranks import (
    SECONDS,
    address_of,
    admit,
    briefly,
    in_threads,
    link,
    purpose,
    ranks,
    wait_until,
)
from transports import auth
from transports.errors import DeadlineExceeded
from transports.packed import pack
from transports.tcp import Options, TcpTransport, handshake, listener
from transports.tcp.frames import GOODBYE_FRAME, HEADER, data_header

PATIENT = Options(handshake_timeout=3600.0)


def connect(target: TcpTransport) -> socket.socket:
    return socket.create_connection(address_of(target), timeout=SECONDS)


def let_in(target: TcpTransport) -> socket.socket:
    """A stranger who was challenged, and says nothing more."""
    sock = connect(target)
    sock.sendall(auth.Client(SECRET, purpose(0)).hello)
    wait_until(lambda: bool(select.select([sock], [], [], 0)[0]), drive=target)
    assert len(sock.recv(auth.CHALLENGE_BYTES, socket.MSG_WAITALL)) == auth.CHALLENGE_BYTES
    return sock


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_UNAUTHENTICATED", 4)
    monkeypatch.setattr(listener, "CROWDED_SECONDS", 0.05)


@pytest.mark.usefixtures("crowded")
def test_a_crowd_does_not_keep_members_out() -> None:
    with ranks(2, PATIENT) as (a, b), contextlib.ExitStack() as opened:
        crowd = [opened.enter_context(connect(a)) for _ in range(12)]
        link([a, b])
        for stranger in crowd[:9]:  # 12 and the member, less the 4 that may stay
            assert is_cut(stranger) == b""
        assert a.failure is None


@pytest.mark.usefixtures("crowded")
def test_a_crowd_that_fits_is_left_in_peace() -> None:
    with ranks(2, PATIENT) as (a, _), contextlib.ExitStack() as opened:
        crowd = [opened.enter_context(let_in(a)) for _ in range(4)]
        with pytest.raises(DeadlineExceeded):
            a.irecv(1, 1, memoryview(bytearray(1))).wait(briefly(0.2))
        assert select.select(crowd, [], [], 0)[0] == [], "none was cut"


def test_waiting_for_room_ends_when_a_stranger_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_UNAUTHENTICATED", 1)
    monkeypatch.setattr(listener, "CROWDED_SECONDS", 3600.0)
    with ranks(2, PATIENT) as (a, b):
        with let_in(a):
            coming, going = a.irecv(1, 1, memoryview(bytearray(3))), b.isend(0, 1, memoryview(b"abc"))
            for request in (going, coming):
                with pytest.raises(DeadlineExceeded):
                    request.wait(briefly(0.05))
        in_threads(lambda: coming.wait(soon()), lambda: going.wait(soon()))


def test_a_member_that_was_cut_in_the_middle_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client was away while the server challenged it and hung up: it finds both afterwards."""
    monkeypatch.setattr(handshake, "CROWDED_SECONDS", 0.05)
    group = groups(2)[1]
    b = TcpTransport(group, Options(handshake_timeout=0.05))
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(SECONDS)
        in_threads(
            lambda: group.store.prefixed("tcp").gather("addresses", 0, 2, pack(server.getsockname()), soon()),
            lambda: b.open(soon()),
        )
        going = b.isend(0, 1, memoryview(b"abc"))
        with server.accept()[0] as first:
            wait_until(lambda: bool(select.select([first], [], [], 0)[0]), drive=b)
            hello = first.recv(auth.HELLO_BYTES, socket.MSG_WAITALL)
            first.sendall(auth.Server(SECRET, purpose(0)).challenge(hello))
        time.sleep(0.05)

        def listen() -> bytes:
            with admit(server, 0) as second:
                frame = second.recv(HEADER.size + 3, socket.MSG_WAITALL)
                second.sendall(GOODBYE_FRAME)
                return frame

        _, frame = in_threads(lambda: (going.wait(soon()), b.close(soon())), listen)
    assert frame == data_header(1, 0, 3) + b"abc"
