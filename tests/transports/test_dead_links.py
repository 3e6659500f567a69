"""Detection of dead links by stuck connections and traffic on others. Tests with real networks are in tests/netns."""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import cast

import pytest

from transports.tcp import dead_links, sockets
from transports.tcp.dead_links import Link, LinkHealth, fail_dead_links

LIMIT = 5.0


class FakeLine:
    """A connection to a rank, stuck for some time and silent for some."""

    closed = False

    def __init__(self, peer: int, stuck: float, unheard: float) -> None:
        self.peer = peer
        self.sock: object = object()
        self.health = self
        self.error: Exception | None = None
        self._seen = stuck, unheard

    def look(self, sock: object, now: float) -> tuple[float, float]:
        return self._seen

    def fail(self, error: Exception) -> None:
        self.error = error


def given_up(links: Sequence[FakeLine]) -> list[bool]:
    """The links that are declared dead. Ranks 0 and 1 are on one host, 2 on another."""
    fail_dead_links([cast(Link, link) for link in links], lambda peer: "a" if peer < 2 else "b", LIMIT, 100.0)
    return [link.error is not None for link in links]


@pytest.mark.parametrize(
    ("stuck", "unheard", "lost"), [(0, 60, False), (4.9, 60, False), (14.9, 4.9, False), (5, 5, True)]
)
def test_a_host_is_lost_when_a_connection_is_stuck_and_nothing_is_heard(
    stuck: float, unheard: float, lost: bool
) -> None:
    assert given_up([FakeLine(0, stuck, unheard)]) == [lost]


@pytest.mark.parametrize("size", [0, 8, math.inf])
def test_p3_short_statistics_prove_nothing(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short:
        def getsockopt(self, level: int, option: int, wanted: int) -> bytes:
            return b"\1" * int(min(size, wanted - 1))

    monkeypatch.setattr(dead_links, "_TCP_INFO", 11)
    health = LinkHealth()
    for now in (1.0, 100.0):
        assert health.look(cast(socket.socket, Short()), now) == (0.0, math.inf)


def test_answers_from_other_ranks_of_the_host_count() -> None:
    assert given_up([FakeLine(0, 6, 6), FakeLine(1, 0, 0.5), FakeLine(2, 6, 6)]) == [False, False, True]


def test_a_single_stuck_connection_gets_more_time_and_another_message() -> None:
    links = [FakeLine(0, 15, 15), FakeLine(1, 0, 0.5)]
    assert given_up(links) == [True, False]
    assert "connection for 15 s, but on others" in str(links[0].error)


def test_closed_ones_are_not_looked_at() -> None:
    closed, unconnected = FakeLine(0, 6, 6), FakeLine(0, 6, 6)
    closed.closed, unconnected.sock = True, None
    assert given_up([closed, unconnected]) == [False, False]


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        near = opened.enter_context(socket.create_connection(listener.getsockname()))
        yield near, opened.enter_context(listener.accept()[0])


@pytest.mark.skipif(sys.platform != "linux", reason="what TCP knows is read on Linux only")
def test_a_connection_whose_peer_answers_is_not_stuck(connection: tuple[socket.socket, socket.socket]) -> None:
    near, far = connection
    health = LinkHealth()
    near.sendall(b"x")
    assert far.recv(1) == b"x"
    stuck, unheard = health.look(near, 100.0)
    assert stuck == 0
    assert unheard < 10


class Statistics:
    """A socket with the given TCP_INFO."""

    def __init__(self, repetitions: int, pause: float, sent: float, answer: float, probes: int = 0) -> None:
        """Seconds between repetitions, since data was sent, and since an answer came. `probes`: those of a closed
        window since the last answer."""
        self._info = struct.pack(
            "8B13I",
            1,
            0,
            repetitions,
            probes,
            *[0] * 4,
            int(pause * 1e6),
            *[0] * 8,
            int(sent * 1e3),
            0,
            99999,
            int(answer * 1e3),
        )

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        return self._info[:size]


@pytest.mark.skipif(sys.platform != "linux", reason="the layout of TCP_INFO is Linux's")
def test_the_time_in_which_nobody_looked_does_not_count() -> None:
    sock, health = cast(socket.socket, Statistics(3, 3.2, 2.0, 2.1)), LinkHealth()
    found = [health.look(sock, now)[0] for now in (100.0, 100.4, 103.0, 103.4)]
    assert found == pytest.approx([0.2, 0.6, 0.2, 0.6])


@pytest.mark.skipif(sys.platform != "linux", reason="the layout of TCP_INFO is Linux's")
@pytest.mark.parametrize(
    ("pause", "sent", "answer", "stuck"),
    [(3.2, 2.0, 2.0, False), (3.2, 2.0, 2.1, True), (0.2, 1.0, 0.5, True), (3.2, 3.0, 2.9, False)],
    ids=["answered", "unanswered", "a repetition that could not be sent", "answered late"],
)
def test_a_connection_whose_repetitions_are_answered_is_not_stuck(
    pause: float, sent: float, answer: float, stuck: bool
) -> None:
    """Its peer has no room: pauses between repetitions grow beyond any limit."""
    health, info = LinkHealth(), Statistics(3, pause, sent, answer)
    seconds = [health.look(cast(socket.socket, info), now)[0] for now in (10.0, 10.4, 10.8, 11.2, 11.6, 12.0)]
    assert (seconds[-1] > 2) == stuck


@pytest.mark.skipif(sys.platform != "linux", reason="the layout of TCP_INFO is Linux's")
@pytest.mark.parametrize(
    ("looks", "stuck"),
    [
        ([(1, 0.45), (1, 0.9), (1, 1.6)], 0.0),  # Linux answers one probe in half a second
        ([(1, 0.45), (1, 0.9), (2, 1.3)], 0.85),
        ([(1, 0.9), (1, 1.6)], 0.7),
        ([(2, 0.6), (2, 1.3)], 0.7),
        ([(1, 0.45), (0, 0.05), (1, 0.9), (1, 1.6)], 0.7),
    ],
    ids=["one soon after an answer", "confirmed", "one late", "two", "answered in between"],
)
def test_a_probe_soon_after_an_answer_proves_nothing(
    looks: list[tuple[int, float]], stuck: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`looks`: the probes without an answer, and the seconds since the last answer."""
    monkeypatch.setattr(dead_links, "_LONGEST_GAP", 1.0)
    health, now, before = LinkHealth(), 10.0, 0.0
    for probes, answer in looks:
        now += answer - before
        before = answer
        seconds, _ = health.look(cast(socket.socket, Statistics(0, 0.2, 5.0, answer, probes)), now)
    assert seconds == pytest.approx(stuck + 0.2 if stuck else 0.0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads options by their names on Linux")
@pytest.mark.parametrize("limit", [0.5, 1.0, 2.5, 3.4, 5.0, 12.0, 61.0])
def test_an_idle_connection_survives_a_network_that_was_gone_for_less_than_the_limit(limit: float) -> None:
    """Its last probe is sent after the limit, and its end comes one pause later."""
    with socket.socket() as sock:
        sockets.tune(sock, limit)
        first, pause, probes = (
            sock.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
    last = first + (probes - 1) * pause
    assert probes >= 2
    assert limit <= last <= max(limit + pause, 2.0)
