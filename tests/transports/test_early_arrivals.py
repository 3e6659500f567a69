"""The delay of large frames that arrive before their receive."""

from __future__ import annotations

import math

import pytest

from tests.transports.groups import recv, send
from tests.transports.tcp_ranks import in_threads, ranks, tcp_link, wait_until
from transports.tcp import Options, early_arrivals
from transports.tcp.early_arrivals import EarlyArrivals

LARGE = 10 << 20


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, to be set."""
    now = [100.0]
    monkeypatch.setattr(early_arrivals.time, "monotonic", lambda: now[0])
    return now


def test_an_early_frame_is_delayed_as_long_as_its_copy_would_take(clock: list[float]) -> None:
    left = EarlyArrivals()
    assert left.due == math.inf
    assert left.holds(1, LARGE, awaited=False)
    assert 0.001 < left.due - 100 < 0.1
    clock[0] = left.due - 0.001
    assert left.holds(1, LARGE, awaited=False)
    clock[0] = left.due
    assert not left.holds(1, LARGE, awaited=False)
    assert left.due == math.inf


def test_one_whose_receive_is_posted_is_read_at_once_and_the_next_is_waited_for_as_long(clock: list[float]) -> None:
    left = EarlyArrivals()
    assert left.holds(1, LARGE, awaited=False)
    due = left.due
    clock[0] += 0.001
    assert not left.holds(1, LARGE, awaited=True)
    assert left.holds(1, LARGE, awaited=False)
    assert left.due == pytest.approx(due + 0.001)


def test_each_peer_has_its_own_time_and_small_frames_none(clock: list[float]) -> None:
    left = EarlyArrivals()
    assert not left.holds(1, 1000, awaited=False)
    assert left.holds(1, LARGE, awaited=False)
    clock[0] += 0.001
    assert left.holds(2, LARGE, awaited=False)
    clock[0] = left.due
    assert not left.holds(1, LARGE, awaited=False)
    assert left.holds(2, LARGE, awaited=False)


@pytest.mark.parametrize("connections", [0, 2])
def test_a_receive_that_is_posted_meanwhile_needs_no_copy(connections: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_arrivals, "_COST", 1.0)  # for ever
    with ranks(2, Options(connections=connections)) as (a, b):

        def receive() -> None:
            wait_until(lambda: any(lane.held for lane in tcp_link(b).lanes), drive=b)
            assert recv(b, 0, 1, LARGE) == bytes(LARGE)
            assert b.match_queue.unexpected_frames == 0

        in_threads(lambda: send(a, 1, 1, bytes(LARGE)), receive)
