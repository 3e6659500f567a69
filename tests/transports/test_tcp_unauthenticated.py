"""The TCP transport: who is let in."""

from __future__ import annotations

import dataclasses
import os
import select
import socket
import threading
import time

import pytest

from tests.transports.groups import SECRET, groups, recv, send, soon
from tests.transports.tcp_ranks import (
    SECONDS,
    address_of,
    briefly,
    every,
    in_threads,
    last_words,
    link,
    ranks,
    wait_until,
)
from transports import auth
from transports.errors import ConnectError, DeadlineExceeded, PeerLost
from transports.tcp import Options, TcpTransport, handshake
from transports.tcp.frames import HEADER, intro_frame


@pytest.mark.parametrize(("secret", "generation"), [(b"another secret!!", 0), (b"", 0), (SECRET, 1)])
def test_another_job_is_refused_and_does_not_try_again(
    secret: bytes, generation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[handshake.Dial] = []
    start = handshake.Dial.start
    monkeypatch.setattr(handshake.Dial, "start", lambda dial: begun.append(dial) or start(dial))
    members = groups(2)
    a = TcpTransport(members[0])
    b = TcpTransport(dataclasses.replace(members[1], secret=secret, generation=generation))
    in_threads(lambda: a.open(soon()), lambda: b.open(soon()))
    assert (a.authenticated, b.authenticated) == (True, bool(secret))

    stop = threading.Event()

    def serve() -> None:
        request = a.irecv(1, 1, memoryview(bytearray(3)))
        while not stop.is_set():
            with pytest.raises(DeadlineExceeded):
                request.wait(briefly(0.01))

    def intrude() -> None:
        try:
            with pytest.raises(ConnectError, match=r"rank 1 .*rank 0 \(.*\) at 127\.0\.0\.1, port"):
                send(b, 0, 1, b"abc")
        finally:
            stop.set()

    in_threads(serve, intrude)
    assert a.failure is None
    assert [dial.peer for dial in begun].count(0) == 1
    in_threads(lambda: a.close(soon()), lambda: b.close(soon()))


def test_unauthenticated_connections_are_refused_during_traffic(caplog: pytest.LogCaptureFixture) -> None:
    with ranks(2, Options(handshake_timeout=0.1)) as (a, b):
        link([a, b])
        unauthenticated = [socket.create_connection(address_of(a)) for _ in range(6)]
        ports = [connection.getsockname()[1] for connection in unauthenticated]
        unauthenticated[0].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"\r\n" * 30)
        unauthenticated[1].sendall(os.urandom(100_000))
        unauthenticated[2].sendall(auth.Client(SECRET, b"another purpose").hello)
        unauthenticated[3].close()
        unauthenticated[4].sendall(auth.MAGIC)

        def busy(t: TcpTransport) -> None:
            end = time.monotonic() + 0.3
            more = True
            while more:
                more = t.rank == 1 or time.monotonic() < end
                if t.rank == 0:
                    send(t, 1, 1, b"%d" % more)
                    assert recv(t, 1, 1, 1) == b"k"
                else:
                    more = recv(t, 0, 1, 1) == b"1"
                    send(t, 0, 1, b"k")

        every([a, b], busy)
        for connection in unauthenticated[:3] + unauthenticated[4:]:
            connection.settimeout(SECONDS)
            if connection is unauthenticated[2]:
                assert connection.recv(auth.CHALLENGE_BYTES, socket.MSG_WAITALL) == auth.REFUSAL
            try:
                assert connection.recv(1) == b""
            except ConnectionResetError:  # it had sent more than was read
                assert connection in unauthenticated[:2]
            connection.close()
        refusals = [record.getMessage() for record in caplog.records]
        for port in ports:
            assert sum(f"refused a connection from 127.0.0.1, port {port}:" in text for text in refusals) == 1


def test_a_member_that_was_away_too_long_connects_again() -> None:
    with ranks(2, Options(handshake_timeout=0.05)) as (a, b):
        away = threading.Event()

        def receiver() -> None:
            request = a.irecv(1, 1, memoryview(bytearray(3)))
            with pytest.raises(DeadlineExceeded):
                request.wait(briefly(0.15))
            away.set()
            request.wait(soon())

        def sender() -> None:
            outgoing = b.isend(0, 1, memoryview(b"abc"))
            assert away.wait(SECONDS)
            outgoing.wait(soon())

        in_threads(receiver, sender)


def intruder(target: TcpTransport, rank: int, connection: int, *frames: bytes) -> socket.socket:
    """A connection that knows the secret and says that it is `rank`, and its connection of this number."""
    sock = socket.create_connection(address_of(target), timeout=SECONDS)
    client = auth.Client(SECRET, b"ronde tcp lane to rank %d of %d, generation 0" % (target.rank, target.size))
    sock.sendall(client.hello)
    wait_until(lambda: bool(select.select([sock], [], [], 0)[0]), drive=target)
    challenge = sock.recv(auth.CHALLENGE_BYTES, socket.MSG_WAITALL)
    sock.sendall(client.answer(challenge) + intro_frame(rank, connection) + b"".join(frames))
    return sock


@pytest.mark.parametrize("rank", [0, 1, 2, 2**40])
def test_a_rank_that_cannot_be_is_refused(rank: int) -> None:
    with ranks(2) as (a, b):
        if rank == 1:
            link([a, b])
        with intruder(a, rank, 0) as sock:
            assert last_words(sock, a) == b""
        assert a.failure is None


@pytest.mark.parametrize(
    "frame", [HEADER.pack(0, 0, 77, 0), HEADER.pack(0, 0, 2, 1 << 40), HEADER.pack(0, 0, 2, 4) + b"\xc1\xc1\xc1\xc1"]
)
def test_nonsense_from_a_member_is_the_loss_of_it(frame: bytes) -> None:
    with ranks(2) as (a, _):
        late = a.irecv(1, 98, memoryview(bytearray(1)))
        with intruder(a, 1, 0, frame), pytest.raises(PeerLost, match=r"rank 0 lost rank 1 .*frame"):
            late.wait(soon())
