"""The TCP transport: large messages in pieces over several connections."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator

import pytest

from tests.transports.groups import backend_of, groups, recv, send, soon
from tests.transports.tcp_ranks import (
    arrives_posted_or_not,
    briefly,
    every,
    in_threads,
    last_words,
    link,
    member,
    ranks,
    tcp_link,
    wait_until,
)
from tests.transports.test_tcp_unauthenticated import intruder
from transports.errors import AbortedError, DeadlineExceeded, PeerLost
from transports.tcp import Options, TcpTransport
from transports.tcp.frames import GOODBYE_FRAME, HEADER, MAX_CONNECTIONS, PIECE_BYTES, piece_header, spread_frame
from transports.tcp.lanes import Lane
from transports.tcp.outgoing import Outgoing
from transports.tcp.reassembly import InboundStripe
from transports.tcp.striping import OutboundStripe
from transports.testing import Leaks, check_transport

ALL = Options(connections=3, spread_bytes=1)
"""Everything is spread."""
LENGTH = 3 * PIECE_BYTES + 5


@pytest.mark.long
def test_the_contract_is_kept_when_everything_is_spread() -> None:
    check_transport(backend_of("tcp", connections=3, spread_bytes=1), sizes=(2, 3))


@pytest.mark.parametrize("length", [1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, LENGTH, 20 << 20])
@pytest.mark.parametrize("connections", [1, 4])
def test_any_length_arrives_posted_or_not(length: int, connections: int) -> None:
    arrives_posted_or_not(length, Options(connections=connections, spread_bytes=1))


def test_large_and_small_messages_with_one_tag_stay_in_order() -> None:
    lengths = [LENGTH, 0, 7, PIECE_BYTES, 1, 5 * PIECE_BYTES, 3, 3] * 4
    with ranks(2, Options(connections=3, spread_bytes=1000)) as transports:

        def exchange(t: TcpTransport) -> None:
            payloads = [bytes([index]) * length for index, length in enumerate(lengths)]
            outgoing = [t.isend(1 - t.rank, 1, memoryview(payload), index) for index, payload in enumerate(payloads)]
            for index, payload in enumerate(payloads):
                assert recv(t, 1 - t.rank, 1, len(payload), index) == payload
            for request in outgoing:
                request.wait(soon())

        every(transports, exchange)


def lanes_of(transport: TcpTransport, kind: type[Lane]) -> list[Lane]:
    return [lane for lane in tcp_link(transport).lanes if isinstance(lane, kind)]


def connections_of(transport: TcpTransport, peer: int) -> tuple[int, int]:
    """Lanes of pieces to and from a peer."""
    to, back = (lanes_of(transport, kind) for kind in (OutboundStripe, InboundStripe))
    return sum(lane.peer == peer for lane in to), sum(lane.peer == peer for lane in back)


def let_in(a: TcpTransport, b: TcpTransport, connections: int) -> None:
    """Until all connections that rank 0 is making to rank 1 are lanes at both ends."""
    in_threads(
        lambda: wait_until(lambda: all(lane.sock for lane in tcp_link(a).lanes), drive=a),
        lambda: wait_until(lambda: connections_of(b, 0)[1] == connections, drive=b),
    )


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system has no such limit")
def test_the_system_accepts_little_before_it_can_send_it() -> None:
    """Else it takes a whole message of some pieces at once, and a slow connection has as many of them as a fast one."""
    with ranks(2, Options(connections=2, spread_bytes=LENGTH)) as (a, b):
        link([a, b])
        in_threads(lambda: send(a, 1, 1, bytes(LENGTH)), lambda: recv(b, 0, 1, LENGTH))
        let_in(a, b, 2)
        stripes = [stripe.sock for stripe in lanes_of(a, OutboundStripe)]
        unsent = [sock and sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) for sock in stripes]
        assert unsent == [1 << 17] * 2


def test_connections_are_made_when_something_large_is_sent_and_once() -> None:
    with ranks(2, Options(connections=3, spread_bytes=LENGTH)) as (a, b):
        link([a, b])
        in_threads(lambda: send(a, 1, 1, bytes(LENGTH - 1)), lambda: recv(b, 0, 1, LENGTH - 1))
        assert connections_of(a, 1) == (0, 0)
        for _ in range(2):
            in_threads(lambda: send(a, 1, 1, bytes(LENGTH)), lambda: recv(b, 0, 1, LENGTH))
        let_in(a, b, 3)
        assert connections_of(a, 1) == (3, 0)


def test_each_end_has_its_own_settings() -> None:
    members = groups(2)
    a = TcpTransport(members[0], Options(connections=0))
    b = TcpTransport(members[1], Options(connections=5, spread_bytes=1))
    every([a, b], lambda t: t.open(soon()))

    def exchange(t: TcpTransport) -> None:
        outgoing = t.isend(1 - t.rank, 0, memoryview(bytes([t.rank]) * (4 << 20)))
        assert recv(t, 1 - t.rank, 0, 4 << 20) == bytes([1 - t.rank]) * (4 << 20)
        outgoing.wait(soon())
        t.close(soon())

    every([a, b], exchange)
    assert (connections_of(a, 1), connections_of(b, 0)) == ((0, 5), (5, 0))


def test_by_default_only_other_hosts_have_a_connection_for_pieces() -> None:
    members = groups(3, ["east", "west", "west"])
    transports = [TcpTransport(group, Options(interface="127.0.0.1")) for group in members]
    every(transports, lambda t: t.open(soon()))

    def exchange(t: TcpTransport) -> None:
        others = [peer for peer in range(3) if peer != t.rank]
        outgoing = [t.isend(peer, 0, memoryview(bytes(1 << 20))) for peer in others]
        for peer in others:
            assert recv(t, peer, 0, 1 << 20) == bytes(1 << 20)
        for request in outgoing:
            request.wait(soon())
        t.close(soon())

    every(transports, exchange)
    assert [connections_of(transports[1], peer)[0] for peer in (0, 2)] == [1, 0]


@pytest.mark.parametrize("connection", [0, 1, 2])
def test_the_loss_of_any_connection_is_that_of_the_peer(connection: int) -> None:
    with ranks(2, Options(connections=2, spread_bytes=1)) as (a, b):
        in_threads(lambda: send(a, 1, 1, bytes(LENGTH)), lambda: recv(b, 0, 1, LENGTH))
        let_in(a, b, 2)
        sock = lanes_of(a, Outgoing)[connection].sock
        assert sock is not None
        sock.shutdown(socket.SHUT_RDWR)

        def lose(t: TcpTransport) -> None:
            with pytest.raises(PeerLost, match=r"rank \d lost rank \d .*GOODBYE"):
                recv(t, 1 - t.rank, 1, LENGTH)

        every([a, b], lose)


def test_a_closed_peer_fails_only_waits_on_it() -> None:
    """Also when its lanes of pieces are seen to end before the other one."""
    with ranks(3, ALL) as (a, b, c):
        link([a, b, c])
        gone = threading.Event()

        def leave() -> None:
            b.close(soon())
            gone.set()

        def stay(t: TcpTransport) -> None:
            wait_until(gone.is_set, drive=t)
            never = t.irecv(t.rank, 98, memoryview(bytearray(1)))
            with pytest.raises(DeadlineExceeded):
                never.wait(briefly(0.4))  # longer than a loss is kept to oneself
            assert t.failure is None
            outgoing = t.isend(2 - t.rank, 3, memoryview(bytes(LENGTH)))
            assert len(recv(t, 2 - t.rank, 3, LENGTH)) == LENGTH
            outgoing.wait(soon())

        in_threads(leave, lambda: stay(a), lambda: stay(c))


def test_a_close_that_cannot_flush_says_so() -> None:
    with ranks(2, ALL) as (a, b):
        a.isend(1, 0, memoryview(bytes(LENGTH)))
        with pytest.raises(DeadlineExceeded, match=rf"{LENGTH + HEADER.size} bytes for rank 1 "):
            a.close(briefly(0.05))
        with pytest.raises(PeerLost):
            recv(b, 0, 0, LENGTH)


def test_an_abort_arrives_during_a_large_message() -> None:
    """There are but two ranks: nobody else could tell."""
    with Leaks(), ranks(2, ALL) as (a, b):
        link([a, b])
        assert not a.isend(1, 1, memoryview(bytes(64 << 20))).test()
        a.abort(AbortedError("out of memory on rank 0", rank=0))
        with pytest.raises(AbortedError, match="out of memory on rank 0"):
            recv(b, 0, 1, 64 << 20)


@pytest.fixture
def alone() -> Iterator[TcpTransport]:
    """Rank 0 of two, of which the other one has connected only as the test says."""
    with ranks(2, Options(spin_us=0)) as (a, b):
        yield a
        for t in (a, b):
            t.abort(AbortedError("the test is over"))


def test_a_piece_is_read_to_its_place_and_counted(alone: TcpTransport) -> None:
    buffer = bytearray(LENGTH)
    request = alone.irecv(1, 7, memoryview(buffer))
    with member(alone, 0, spread_frame(7, 0, LENGTH)), member(alone, 2, piece(0, PIECE_BYTES, PIECE_BYTES)):
        wait_until(lambda: buffer.endswith(b"x", 0, 2 * PIECE_BYTES), drive=alone)
        assert buffer == bytes(PIECE_BYTES) + b"x" * PIECE_BYTES + bytes(LENGTH - 2 * PIECE_BYTES)
        with pytest.raises(DeadlineExceeded, match=rf"{PIECE_BYTES} of {LENGTH} bytes .* pieces"):
            request.wait(briefly(0))


# A member that says what makes no sense


def piece(serial: int, offset: int, length: int, fill: bytes = b"x") -> bytes:
    return piece_header(serial, offset, length) + fill * length


@pytest.mark.parametrize(("connection", "again"), [(MAX_CONNECTIONS + 1, False), (2**32 - 1, False), (3, True)])
def test_a_connection_that_cannot_be_is_refused(connection: int, again: bool) -> None:
    with ranks(2, ALL) as (a, b):
        if again:
            in_threads(lambda: send(a, 1, 1, bytes(LENGTH)), lambda: recv(b, 0, 1, LENGTH))
            let_in(a, b, 3)
        with intruder(b, 0, connection) as sock:
            assert last_words(sock, b) == b""
        assert b.failure is None


ANNOUNCED = spread_frame(1, 0, LENGTH)
WHOLE = b"".join(piece(0, at, min(PIECE_BYTES, LENGTH - at)) for at in range(0, LENGTH, PIECE_BYTES))


@pytest.mark.parametrize(
    ("main", "pieces", "complaint"),
    [
        (ANNOUNCED, piece_header(0, LENGTH, 1), f"1 bytes at {LENGTH} are not a piece .*{LENGTH} bytes"),
        (ANNOUNCED, piece_header(0, 2**63, PIECE_BYTES), "not a piece"),
        (ANNOUNCED, piece_header(0, 1, PIECE_BYTES), "not a piece"),
        (ANNOUNCED, piece_header(0, 0, PIECE_BYTES - 1), "not a piece"),
        (ANNOUNCED, piece_header(0, 0, 2**64 - 1), "not a piece"),
        (ANNOUNCED, piece_header(0, 0, 0), "not a piece"),
        (ANNOUNCED, piece_header(0, 3 * PIECE_BYTES, PIECE_BYTES), "not a piece"),
        (ANNOUNCED, piece(0, 0, PIECE_BYTES) * 2, "piece at 0 .*twice"),
        (ANNOUNCED, WHOLE + piece(0, 0, PIECE_BYTES), "piece of message 0,"),
        (ANNOUNCED, piece(2**32 - 1, 0, PIECE_BYTES), "piece of message 4294967295,"),
        (spread_frame(1, 0, 0), b"", "empty message"),
        (piece(0, 0, PIECE_BYTES), b"", "control frame of kind 5"),
        (b"", ANNOUNCED, "connection .*no announcements"),
        (b"", HEADER.pack(1, 0, 0, 5) + b"hello", "frame of kind 0"),
        (ANNOUNCED + GOODBYE_FRAME, b"", f"{LENGTH} bytes .*missing"),
    ],
    ids=itertools.count(),
)
def test_invalid_pieces_are_the_loss_of_their_sender(
    alone: TcpTransport, main: bytes, pieces: bytes, complaint: str
) -> None:
    request = alone.irecv(1, 1, memoryview(bytearray(LENGTH)))
    late = alone.irecv(1, 98, memoryview(bytearray(1)))
    with member(alone, 0, main), member(alone, 1, pieces), pytest.raises(PeerLost, match=complaint):
        late.wait(soon())
    assert request.done == pieces.startswith(WHOLE)


def test_a_piece_of_a_message_that_is_never_announced(alone: TcpTransport) -> None:
    late = alone.irecv(1, 98, memoryview(bytearray(1)))
    with member(alone, 1, piece(5, 0, PIECE_BYTES)):
        wait_until(lambda: any(lane.held for lane in tcp_link(alone).lanes), drive=alone)
        assert alone.failure is None  # it may still be announced
        with (
            member(alone, 0, GOODBYE_FRAME),
            pytest.raises(PeerLost, match="not announced"),
        ):
            late.wait(soon())


def test_pieces_may_come_before_their_message_is_announced(alone: TcpTransport) -> None:
    """By a connection that is let in before the one for all messages, too."""
    with member(alone, 1, WHOLE):
        wait_until(lambda: any(lane.held for lane in tcp_link(alone).lanes), drive=alone)
        with member(alone, 0, ANNOUNCED):
            assert recv(alone, 1, 1, LENGTH) == b"x" * LENGTH
