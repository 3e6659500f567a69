"""Over TCP, a short frame that is awaited in the same call is taken without a request, if it arrives next."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.transports.groups import groups, recv, soon
from tests.transports.tcp_ranks import briefly, every, in_threads, link, member, ranks, tcp_link, wait_until
from transports.errors import AbortedError, DeadlineExceeded, MismatchError, PeerLost, RondeError
from transports.matching import MatchQueue, Receive
from transports.tcp import Options, TcpTransport
from transports.tcp.frames import data_header
from transports.tcp.incoming import Incoming

PATIENT = range(10**9)


@contextmanager
def told(says: bytes, glances: range = PATIENT) -> Iterator[tuple[TcpTransport, socket.socket]]:
    """Rank 0, which looks for long, and the other end of its lane from rank 1, which says something."""
    with ranks(2, Options(peer_timeout=1)) as (t, _):
        t.loop.glances = glances
        with member(t, 0, says) as far:
            t.loop.due = time.monotonic() + 100  # the loop does not serve all peers meanwhile
            yield t, far


def frame(tag: int, payload: bytes, check: int = 0) -> bytes:
    return data_header(tag, check, len(payload)) + payload


def take(t: TcpTransport, tag: int, length: int, deadline: float | None = None) -> bytes:
    buffer = bytearray(length)
    t.recv(1, tag, memoryview(buffer), deadline or soon())
    return bytes(buffer)


def without_match_queue(patch: pytest.MonkeyPatch) -> None:
    """Fail where the match_queue is used."""
    for name in ("add", "arrive", "deliver"):
        patch.setattr(MatchQueue, name, None)


def waiting_bytes(t: TcpTransport) -> int:
    """The received bytes of a lane that were not read."""
    sock = tcp_link(t).lane_from(1).sock
    assert sock is not None
    try:
        return len(sock.recv(1 << 16, socket.MSG_PEEK))
    except BlockingIOError:
        return 0


@pytest.mark.parametrize("length", [0, 5, 16_384])
def test_the_match_queue_is_not_used(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = bytes(range(256)) * (length // 256) + bytes(length % 256)
    with told(frame(7, payload)) as (t, _), monkeypatch.context() as patch:
        without_match_queue(patch)
        assert take(t, 7, length) == payload


def test_later_frames_are_kept() -> None:
    with told(frame(7, b"one") + frame(8, b"two") + frame(7, b"three")[:10]) as (t, far):
        wait_until(lambda: waiting_bytes(t) == 64)
        assert take(t, 7, 3) == b"one"
        assert take(t, 8, 3) == b"two"
        far.sendall(frame(7, b"three")[10:])
        assert take(t, 7, 5) == b"three"


def test_earlier_frames_are_kept() -> None:
    with told(frame(8, b"two") + frame(7, b"one")) as (t, _):
        assert take(t, 7, 3) == b"one"
        assert take(t, 8, 3) == b"two"


@pytest.mark.parametrize("split", [1, 23, 24, 30, 40_000])
def test_it_may_come_in_parts(split: int) -> None:
    whole = frame(7, b"0123456789" * 10_000)
    with told(whole[:split], range(5)) as (t, far):
        with pytest.raises(DeadlineExceeded):
            take(t, 7, 100_000, briefly(0.02))
        far.sendall(whole[split:] + frame(7, b"next"))
        assert take(t, 7, 4) == b"next"


def test_the_rest_of_it_goes_to_its_place() -> None:
    payload, buffer = b"0123456789" * 10_000, bytearray(100_000)
    whole = frame(7, payload)
    with told(whole[:50_000], range(5)) as (t, far):

        def finish() -> None:
            wait_until(lambda: not tcp_link(t).lane_from(1).is_clear)
            far.sendall(whole[50_000:])

        in_threads(lambda: t.recv(1, 7, memoryview(buffer), soon()), finish)
        assert buffer == payload


def test_a_long_frame_is_read_without_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    payload, buffer = b"0123456789" * 10_000, bytearray(100_000)
    with told(frame(7, payload) + frame(7, b"next")) as (t, _):
        with monkeypatch.context() as patch:
            patch.setattr(t.driver, "wait", None)
            patch.setattr(tcp_link(t), "send", lambda *_: t.sent)  # the lane to the peer is not connected
            t.sendrecv(1, 1, 7, memoryview(b""), memoryview(buffer), soon())
        assert buffer == payload
        assert take(t, 7, 4) == b"next"


def test_a_peer_that_sends_for_long_does_not_keep_the_others_waiting() -> None:
    payload, buffer = bytes(range(256)) * 4096, bytearray(1 << 20)
    with ranks(2) as (a, b):
        link([a, b])
        b.isend(0, 7, memoryview(payload))
        receive = Receive(1, 7, memoryview(buffer), 0)
        with a.lock:
            a.loop.due = 0.0
            wait_until(lambda: tcp_link(a).fetch(receive))
            assert not receive.done, "all peers are to be served first"
        waiting = b.irecv(0, 8, memoryview(bytearray(1)))
        a.isend(1, 8, memoryview(b"x"))
        in_threads(lambda: waiting.wait(soon()), lambda: wait_until(lambda: receive.done, a))
        assert buffer == payload


def test_a_receive_posted_before_comes_first() -> None:
    with told(frame(7, b"one") + frame(7, b"two")) as (t, _):
        first = bytearray(3)
        request = t.irecv(1, 7, memoryview(first))
        assert take(t, 7, 3) == b"two"
        request.wait(soon())
        assert first == b"one"


@pytest.mark.parametrize(("check", "length"), [(1, 3), (0, 4)])
def test_another_check_or_length_is_a_mismatch(check: int, length: int) -> None:
    with told(frame(7, b"one", check) + frame(7, b"two")) as (t, _):
        with pytest.raises(MismatchError):
            take(t, 7, length)
        assert take(t, 7, 3) == b"two"


@pytest.mark.parametrize("said", [b"", frame(7, b"0123456789")[:30]])
def test_a_connection_that_ends_is_a_lost_peer(said: bytes) -> None:
    with told(said) as (t, far):
        far.shutdown(socket.SHUT_WR)
        with pytest.raises(PeerLost):
            take(t, 7, 10)


def test_who_is_interrupted_in_the_middle_aborts(monkeypatch: pytest.MonkeyPatch) -> None:
    with told(frame(7, b"0123456789")[:30]) as (t, _):

        def interrupt(*_: Any) -> int:
            raise KeyboardInterrupt

        monkeypatch.setattr(Incoming, "expect", interrupt)
        with pytest.raises(KeyboardInterrupt):
            take(t, 7, 10)
        assert isinstance(t.failure, AbortedError)


def test_all_connections_are_seen_to_in_time() -> None:
    """However fast one exchange follows the other: an abort comes by another connection."""
    with ranks(3) as transports:
        link(transports)
        cause = AbortedError("enough", rank=2)

        def body(t: TcpTransport) -> None:
            t.loop.glances = PATIENT
            if t.rank == 2:
                return
            data, view = memoryview(b"data"), memoryview(bytearray(4))
            for turn in range(1_000_000):
                t.sendrecv(1 - t.rank, 1 - t.rank, 7, data, view, soon())
                if turn == 100 and t.rank == 0:
                    transports[2].abort(cause)

        for t, error in zip(transports, every(transports, lambda t: error_of(body, t)), strict=True):
            assert t.rank == 2 or "enough" in str(error)


def error_of(body: Any, t: TcpTransport) -> RondeError | None:
    try:
        body(t)
    except RondeError as error:
        return error
    return None


def test_the_unsent_rest_is_sent_during_the_receive() -> None:
    with ranks(2, Options(socket_buffer_bytes=4096)) as transports:
        link(transports)
        for t in transports:
            t.loop.glances = PATIENT

        def body(t: TcpTransport) -> None:
            data, view = memoryview(bytes([t.rank + 1]) * 900_000), memoryview(bytearray(900_000))
            for _ in range(3):
                sending = t.sendrecv(1 - t.rank, 1 - t.rank, 7, data, view, soon())
                assert view == bytes([2 - t.rank]) * 900_000
                sending.wait(soon())

        every(transports, body)


def test_a_transport_that_is_closed_or_not_open_says_so() -> None:
    (lonely,) = (TcpTransport(group) for group in groups(1))
    with pytest.raises(RondeError, match="not open"):
        lonely.recv(0, 1, memoryview(bytearray(1)), soon())
    with ranks(2) as (a, b):
        link([a, b])
        every([a, b], lambda t: t.close(soon()))
        with pytest.raises(RondeError, match="closed"):
            a.recv(1, 1, memoryview(bytearray(1)), soon())
        with pytest.raises(RondeError, match="closed"):
            a.sendrecv(1, 1, 1, memoryview(b"x"), memoryview(bytearray(1)), soon())


def test_a_frame_to_the_rank_itself() -> None:
    with ranks(1) as (t,):
        view = memoryview(bytearray(3))
        t.sendrecv(0, 0, 1, memoryview(b"abc"), view, soon()).wait(soon())
        assert view == b"abc"
        t.isend(0, 1, memoryview(b"def")).wait(soon())
        assert recv(t, 0, 1, 3) == b"def"
