"""The TCP transport: traffic, aborts, losses and endings. What every transport promises is in test_conformance."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_processes
from tests.transports.groups import group_of_processes, groups, recv, send, soon
from tests.transports.tcp_ranks import (
    SECONDS,
    address_of,
    arrives_posted_or_not,
    briefly,
    every,
    in_threads,
    link,
    link_one,
    ranks,
    tcp_link,
    wait_until,
)
from transports import tcp
from transports.errors import AbortedError, ClosedError, ConfigError, DeadlineExceeded, PeerLost, RondeError
from transports.packed import pack
from transports.rendezvous.file import FileStore
from transports.tcp import Options, TcpTransport, sockets
from transports.testing import Leaks


@pytest.mark.parametrize("length", [0, 1, 4095, 4096, 16384, 16361, 100_000, 3_000_000])
def test_any_length_arrives_posted_or_not(length: int) -> None:
    arrives_posted_or_not(length, Options())


def test_a_send_to_self_wakes_the_thread_that_waits() -> None:
    with ranks(2) as (a, _):

        def sender() -> None:
            wait_until(lambda: a.driver.asleep)
            send(a, 0, 1, b"abc")

        in_threads(lambda: recv(a, 0, 1, 3), sender)


@pytest.mark.long
def test_big_frames_both_ways_do_not_deadlock() -> None:
    length = 64 << 20
    with ranks(2) as transports:

        def exchange(t: TcpTransport) -> None:
            data, into = memoryview(bytes([t.rank + 1]) * length), memoryview(bytearray(length))
            outgoing = t.isend(1 - t.rank, 0, data)
            outgoing.wait(soon()) if t.rank else None
            t.irecv(1 - t.rank, 0, into).wait(soon())
            outgoing.wait(soon())
            assert into == bytes([2 - t.rank]) * length

        every(transports, exchange)


def test_many_unexpected_frames() -> None:
    with ranks(3) as (a, b, c):

        def sender(t: TcpTransport) -> None:
            requests = [t.isend(2, tag, memoryview(b"%d %4d" % (t.rank, tag))) for tag in range(3000)]
            for request in requests:
                request.wait(soon())
            assert recv(t, 2, 1, 2) == b"ok"

        def receiver() -> None:
            for tag in reversed(range(3000)):
                for peer in (0, 1):
                    assert recv(c, peer, tag, 6) == b"%d %4d" % (peer, tag)
            for peer in (0, 1):
                send(c, peer, 1, b"ok")

        in_threads(lambda: sender(a), lambda: sender(b), receiver)


def test_after_a_deadline_the_request_is_still_in_flight() -> None:
    with ranks(2) as (a, b):
        into = bytearray(3)
        request = b.irecv(0, 1, memoryview(into))
        with pytest.raises(DeadlineExceeded, match=r"3 bytes with tag 0x1 from rank 0 .*not connected") as caught:
            request.wait(briefly(0.01))
        assert (caught.value.rank, caught.value.peer) == (1, 0)
        outgoing = a.isend(1, 1, memoryview(b"abc"))
        with pytest.raises(DeadlineExceeded, match="not connected"):
            outgoing.wait(briefly(-1))
        in_threads(lambda: outgoing.wait(soon()), lambda: request.wait(soon()))
        assert into == b"abc"


def test_an_abort_wakes_every_rank_and_the_first_cause_wins() -> None:
    with ranks(4) as transports:
        link(transports)

        def body(t: TcpTransport) -> str:
            request = t.irecv((t.rank + 1) % 4, 3, memoryview(bytearray(8)))
            if t.rank == 2:
                wait_until(lambda: all(other.driver.asleep for other in transports if other is not t))
                t.abort(AbortedError("rank 2 has had enough", rank=2))
                t.abort(AbortedError("something later"))
            for _ in range(2):
                with pytest.raises(AbortedError) as caught:
                    request.wait(soon())
            with pytest.raises(AbortedError):
                t.isend(0, 0, memoryview(b""))
            assert t.failure is not None
            return f"{caught.value.message} {caught.value.rank}"

        assert every(transports, body) == ["rank 2 has had enough 2"] * 4


def test_an_abort_in_the_middle_of_a_frame_is_reported_by_the_other_ranks() -> None:
    """Rank 0 sends to 1 only, and not all of it: 1 sees the connection end, and hears the cause by way of 2."""
    with ranks(3) as (a, b, c):
        for source, destination in ((a, b), (c, a), (b, c)):
            into = memoryview(bytearray(2))
            request, outgoing = destination.irecv(source.rank, 9, into), source.isend(destination.rank, 9, into)
            in_threads(lambda r=request: r.wait(soon()), lambda o=outgoing: o.wait(soon()))  # type: ignore[misc]
        huge = a.isend(1, 1, memoryview(bytearray(32 << 20)))
        assert not huge.test()
        a.abort(AbortedError("out of memory on rank 0", rank=0))

        def listen(t: TcpTransport) -> None:
            with pytest.raises(AbortedError, match="out of memory on rank 0"):
                recv(t, 0, 5, 1)

        in_threads(lambda: listen(b), lambda: listen(c))


def test_abort_before_open_and_close_without_open() -> None:
    a = TcpTransport(groups(1)[0])
    with pytest.raises(ClosedError, match="not open"):
        a.isend(0, 0, memoryview(b""))
    a.abort(AbortedError("changed my mind"))
    with pytest.raises(AbortedError, match="changed my mind"):
        a.open(soon())
    a.close(soon())
    a.close(soon())


@pytest.mark.processes
def test_a_killed_process_is_lost_on_every_rank(tmp_path: Path) -> None:
    run_processes(bereave, 3, str(tmp_path), timeout=3 * SECONDS, dying=[1])


def bereave(rank: int, directory: str) -> None:
    store = FileStore(directory)
    transport = TcpTransport(group_of_processes(rank, 3, store))
    transport.open(soon())
    link_one(transport)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerLost, match=r"lost rank 1 \(localhost, pid \d+\)") as caught:
        recv(transport, 2 - rank, 7, 1)
    assert caught.value.peer == 1
    transport.close(soon())
    store.close()


def test_a_closed_peer_is_an_error_only_for_waits_on_it() -> None:
    with ranks(3) as (a, b, c):
        link([a, b, c])
        gone = threading.Event()

        def leave() -> None:
            for peer in (0, 2):
                send(b, peer, 1, b"last words")
            b.close(soon())
            gone.set()
            with pytest.raises(ClosedError, match=r"rank 1 .*closed"):
                b.isend(0, 0, memoryview(b""))

        def stay() -> None:
            assert recv(c, 0, 2, 5) == b"still"
            assert recv(c, 1, 1, 10) == b"last words"
            send(c, 0, 3, b"here")

        def miss() -> None:
            wait_until(gone.is_set, drive=a)
            send(a, 2, 2, b"still")
            assert recv(a, 2, 3, 4) == b"here"
            assert a.failure is None
            with pytest.raises(PeerLost, match=r"rank 1 \(.*\) closed .*rank 0\b"):
                recv(a, 1, 4, 1)

        in_threads(leave, stay, miss)


@pytest.mark.parametrize("options", [Options(), Options(connections=3, spread_bytes=1)])
def test_frames_sent_before_the_close_arrive(options: Options) -> None:
    length = 20 << 20
    with ranks(2, options) as (a, b):

        def leave() -> None:
            outgoing = [a.isend(1, tag, memoryview(bytes([tag]) * length)) for tag in range(2)]
            a.close(soon())
            assert [request.test() for request in outgoing] == [True, True]

        def stay() -> None:
            for tag in range(2):
                assert recv(b, 0, tag, length) == bytes([tag]) * length
            b.close(soon())  # until then the other cannot know that all was read

        in_threads(leave, stay)


def test_a_close_that_cannot_flush_says_so_and_releases_everything() -> None:
    with ranks(2) as (a, b):
        request = a.isend(1, 0, memoryview(bytes(10)))
        with pytest.raises(DeadlineExceeded, match=r"34 bytes|58 bytes") as caught:
            a.close(briefly(0.05))
        assert "rank 1 (localhost, pid" in str(caught.value)
        with pytest.raises(ClosedError):
            request.wait(soon())
        with pytest.raises(PeerLost):
            b.isend(0, 0, memoryview(b"x")).wait(soon())


def test_close_ends_the_waits_of_other_threads() -> None:
    with ranks(3) as (a, b, c):
        link([a, b, c])
        gone = threading.Event()

        def waiting() -> None:
            with pytest.raises(ClosedError):
                recv(a, 1, 1, 1)

        def closing() -> None:
            wait_until(lambda: a.driver.asleep and a.driver.followers == 1)
            a.close(soon())
            gone.set()

        def staying(t: TcpTransport) -> None:
            wait_until(gone.is_set, drive=t)

        in_threads(waiting, waiting, closing, lambda: staying(b), lambda: staying(c))


def test_many_threads_may_wait_on_one_transport() -> None:
    """Eight conversations at once on two transports, each with its own tags, lengths and ways to wait."""
    with ranks(2) as transports:

        def talk(t: TcpTransport, tag: int) -> None:
            dice = random.Random(tag)
            for turn in range(60):
                length = dice.choice([0, 4, 300, 5000, 200_000])
                data = bytes([tag, turn]) * length
                requests = [t.isend(1 - t.rank, tag, memoryview(data), turn)]
                into = bytearray(2 * length)
                requests.insert(dice.randrange(2), t.irecv(1 - t.rank, tag, memoryview(into), turn))
                for request in requests:
                    if dice.random() < 0.3:
                        wait_until(request.test)
                    request.wait(soon())
                assert into == data

        in_threads(*[lambda t=t, tag=tag: talk(t, tag) for t in transports for tag in range(8)])


def test_a_sender_waits_when_no_more_unexpected_frames_are_kept() -> None:
    with ranks(2, Options(max_parked_bytes=1000)) as (a, b):

        def sender() -> None:
            for tag in range(5):
                send(a, 1, tag, bytes([tag]) * 600)
            send(a, 1, 5, bytes(5_000_000))

        def receiver() -> None:
            late = b.irecv(0, 4, memoryview(bytearray(600)))
            with pytest.raises(DeadlineExceeded, match="max_parked_bytes"):
                late.wait(briefly(0.1))
            assert b.match_queue.unexpected_bytes == 600
            for tag in range(4):
                assert recv(b, 0, tag, 600) == bytes([tag]) * 600
            late.wait(soon())
            assert recv(b, 0, 5, 5_000_000) == bytes(5_000_000)

        in_threads(sender, receiver)


def test_open_names_the_rank_that_is_missing() -> None:
    transports = [TcpTransport(group) for group in groups(3)[:2]]

    def attempt(t: TcpTransport) -> None:
        with pytest.raises(DeadlineExceeded, match=r"rank 2 \(localhost, pid \d+\)") as caught:
            t.open(briefly(0.1))
        assert caught.value.peer == 2
        with pytest.raises(ClosedError):
            t.open(soon())

    every(transports, attempt)


def test_ipv6() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 loopback: {error}")
    with ranks(2, Options(interface="::1")) as transports:
        link(transports)
        assert address_of(transports[0])[0] == "::1"


def test_there_is_no_thread_and_an_abort_leaves_nothing_behind() -> None:
    threads = threading.active_count()
    with Leaks(), ranks(3) as transports:
        link(transports)
        assert threading.active_count() == threads
        transports[0].isend(1, 1, memoryview(bytes(8 << 20)))
        transports[1].isend(0, 1, memoryview(bytes(8 << 20)))
        transports[2].abort(RondeError("enough"))


@pytest.mark.parametrize(
    "setting",
    [
        {"peer_timeout": 0},
        {"handshake_timeout": 0},
        {"handshake_timeout": 1e-9},
        {"socket_buffer_bytes": -1},
        {"max_parked_bytes": -1},
        {"connections": -2},
        {"connections": 65},
        {"spread_bytes": 0},
        {"spin_us": -2},
    ],
)
def test_options_out_of_range_are_refused(setting: dict[str, Any]) -> None:
    (name,) = setting
    with pytest.raises(ConfigError, match=f"{name}={setting[name]}: "):
        Options(**setting)


@pytest.mark.long
def test_a_peer_that_does_not_read_for_long_is_not_lost() -> None:
    """Its window is closed for longer than peer_timeout: it computes."""
    length = 16 << 20
    with ranks(2, Options(peer_timeout=1)) as (a, b):
        in_threads(lambda: send(a, 1, 0, b"hi"), lambda: recv(b, 0, 0, 2))

        def busy() -> None:
            time.sleep(2.3)
            assert recv(b, 0, 1, length) == bytes(length)

        in_threads(lambda: send(a, 1, 1, bytes(length)), busy)


def test_a_peer_that_never_connected_is_lost_too() -> None:
    """The waiting rank is not notified: it checks by itself."""
    group = groups(2)[0]
    a = TcpTransport(group)
    with socket.socket() as ended:
        ended.bind(("127.0.0.1", 0))
        group.store.prefixed("tcp").put_row("addresses", 1, 2, pack(ended.getsockname()))
        a.open(soon())
        with pytest.raises(PeerLost, match=r"rank 0 .*rank 1 .*refused"):
            recv(a, 1, 0, 1)
        a.close(soon())


@pytest.mark.long
def test_a_peer_that_is_awaited_for_long_comes_all_the_same() -> None:
    """The connection that the rank which waits has made does no harm."""
    with ranks(2) as (a, b):

        def late() -> None:
            time.sleep(1.6)
            send(b, 0, 0, b"hi")

        in_threads(lambda: recv(a, 1, 0, 2), late)
        in_threads(lambda: send(a, 1, 1, b"ho"), lambda: recv(b, 0, 1, 2))


@pytest.mark.parametrize("peer_timeout", [1, 2.5, 86400])
def test_any_peer_timeout_can_be_asked_of_the_system(peer_timeout: float) -> None:
    with ranks(2, Options(peer_timeout=peer_timeout)) as transports:
        link(transports)


def test_other_settings_work_too() -> None:
    assert tcp.usable() is None
    with ranks(2, Options(socket_buffer_bytes=65536, spin_us=0, interface="127.0.0.1", peer_timeout=1)) as transports:
        link(transports)


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="this system does not let one choose")
def test_connections_inside_a_host_are_not_paced() -> None:
    with ranks(2) as transports:
        link(transports)
        for t in transports:
            lane = tcp_link(t).lane_to(1 - t.rank)
            assert lane.sock is not None
            chosen = lane.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
            assert chosen.rstrip(b"\0") == b"reno"


@pytest.mark.skipif(not hasattr(socket, "TCP_CONGESTION"), reason="this system does not let one choose")
def test_connections_inside_a_host_are_never_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that has begun with BBR is paced for good, even if its congestion control changes afterwards."""
    chosen = []

    class Socket(socket.socket):
        def connect(self, address: Any) -> None:
            if self.type == socket.SOCK_STREAM:
                chosen.append(self.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0"))
            super().connect(address)

    monkeypatch.setattr(sockets.socket, "socket", Socket)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sockets.dial("127.0.0.1", listener.getsockname()[1], 0).close()
    assert chosen == [b"reno"]
