"""The TCP listener when more connect than it lets in at once, and members that are cut for it."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest

from tests.security.test_intruder import is_cut
from tests.transports.groups import recv, soon
from tests.transports.tcp_ranks import SECONDS, address_of, briefly, in_threads, link, ranks, tcp_link, wait_until
from transports.errors import ConnectError, DeadlineExceeded
from transports.tcp import Options, TcpTransport, handshake, listener

PATIENT = Options(handshake_timeout=3600.0)


def connect(target: TcpTransport) -> socket.socket:
    return socket.create_connection(address_of(target), timeout=SECONDS)


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
        for _ in range(4):
            opened.enter_context(connect(a))
        wait_until(lambda: len(tcp_link(a)._listener._unauthenticated) == 4, drive=a)
        with pytest.raises(DeadlineExceeded):
            a.irecv(1, 1, memoryview(bytearray(1))).wait(briefly(0.2))
        assert len(tcp_link(a)._listener._unauthenticated) == 4


def test_waiting_for_room_ends_when_a_stranger_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "MAX_UNAUTHENTICATED", 1)
    monkeypatch.setattr(listener, "CROWDED_SECONDS", 3600.0)
    with ranks(2, PATIENT) as (a, b):
        with connect(a):
            wait_until(lambda: len(tcp_link(a)._listener._unauthenticated) == 1, drive=a)
            coming, going = a.irecv(1, 1, memoryview(bytearray(3))), b.isend(0, 1, memoryview(b"abc"))
            for request in (going, coming):
                with pytest.raises(DeadlineExceeded):
                    request.wait(briefly(0.05))
        in_threads(lambda: coming.wait(soon()), lambda: going.wait(soon()))


def test_a_member_that_was_cut_in_the_middle_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client was away while the server challenged it and hung up: it finds both afterwards."""
    monkeypatch.setattr(handshake, "CROWDED_SECONDS", 0.05)
    with ranks(2, Options(handshake_timeout=0.05)) as (a, b):
        going = b.isend(0, 1, memoryview(b"abc"))
        wait_until(lambda: all(dial._client is not None for dial in tcp_link(b)._dialing.dials), drive=b)
        before = tcp_link(a)._listener._refusals
        wait_until(lambda: tcp_link(a)._listener._refusals > before, drive=a)
        time.sleep(0.05)
        in_threads(lambda: going.wait(soon()), lambda: recv(a, 1, 1, 3))


def test_who_is_refused_at_once_does_not_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[handshake.Dial] = []
    start = handshake.Dial.start

    def counted(dial: handshake.Dial) -> None:
        begun.append(dial)
        start(dial)

    monkeypatch.setattr(handshake.Dial, "start", counted)
    with ranks(2) as (a, b):
        monkeypatch.setattr(tcp_link(a)._listener, "_purpose", b"another one")
        going = b.isend(0, 1, memoryview(b"abc"))
        wait_until(lambda: all(dial._client is not None for dial in tcp_link(b)._dialing.dials), drive=b)
        wait_until(lambda: tcp_link(a)._listener._refusals == 1, drive=a)
        with pytest.raises(ConnectError, match="it refused: it belongs to another job or generation"):
            going.wait(soon())
        assert len(begun) == 1
