"""Costs of liveness, aborts and mismatches in simulated worlds of 10,000 ranks on 157 hosts: requests are counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from collectives import AbortedError, MismatchError
from collectives.execution import CallPosition, CallPositions
from collectives.failure import AbortSignal, mismatch, mismatched_calls, wake
from collectives.flight import FlightRecord
from collectives.watchdog import Watchdog, stall_report
from collectives.watchdog.liveness import FarHosts, HostHeartbeat, NextHost, ranks_by_host
from tests.counting import CountingStore
from transports.base import Group, Member
from transports.local import Options, create
from transports.rendezvous.memory import MemoryStore

if TYPE_CHECKING:
    from collectives.execution.positions import Caller

SIZE = 10_000
PER_HOST = 64
HOSTS = -(-SIZE // PER_HOST)
HEARTBEAT = 5.0
MEMBERS = tuple(Member(f"host {rank // PER_HOST}", f"node{rank // PER_HOST}", 1 + rank) for rank in range(SIZE))


@pytest.fixture
def store() -> Iterator[CountingStore]:
    store = CountingStore(MemoryStore())
    yield store
    store.close()


class Clock:
    """A clock that the test advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr("collectives.watchdog.liveness.time.monotonic", lambda: self.now)


def next_host(rank: int, store: CountingStore) -> NextHost:
    return NextHost(Group(rank, MEMBERS, store), store, HEARTBEAT, lambda ranks: wake(store, ranks))


@pytest.mark.long
def test_a_host_costs_three_requests_per_second_and_its_other_ranks_none(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    first = [next_host(ranks[0], store) for ranks in ranks_by_host(Group(0, MEMBERS, store)).values()]
    others = [next_host(rank, store) for rank in (1, PER_HOST - 1, PER_HOST + 1, SIZE - 1)]
    assert len(first) == HOSTS
    assert all(host.beats for host in first)
    assert not any(host.beats or host.due < float("inf") for host in others)
    for host in first:
        host.send()
    store.requests.clear()
    for _ in range(100):  # ten seconds
        clock.now += 0.1
        for host in first:
            if host.due <= clock.now:
                assert host.tick(clock.now) is None
    assert store.total <= 10 * 3 * HOSTS + 3 * HOSTS
    assert store.requests["set"] == 0, "no host was asked"


def test_a_host_whose_first_rank_ended_answers_when_it_is_asked(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    watcher, gone = next_host(0, store), next_host(PER_HOST, store)
    other = next_host(PER_HOST + 5, store)
    gone.send()
    store.inner.set(f"left/{PER_HOST}", b"")
    asked = 0
    for _ in range(300):
        clock.now += 0.1
        if watcher.due <= clock.now:
            assert watcher.tick(clock.now) is None
        if store.inner.delete(f"wakeup/{PER_HOST + 5}"):
            asked += 1
            other.send()
    assert 5 <= asked <= 20, "once in two seconds"
    assert store.requests["set"] == asked * PER_HOST, "every rank but the one that closed, and a report"


def test_a_host_that_does_not_answer_is_lost_in_time(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    watcher = next_host(0, store)
    next_host(PER_HOST, store).send()
    began, lost = clock.now, None
    while lost is None:
        clock.now += 0.1
        if watcher.due <= clock.now:
            lost = watcher.tick(clock.now)
    assert 0.8 * HEARTBEAT <= clock.now - began <= HEARTBEAT
    assert lost.peer == PER_HOST
    assert f"rank {PER_HOST + 31} " in lost.message
    assert lost.message.count("rank") == 1 + 32, "the names of 32 ranks, and that there are more"
    assert "and 32 more" in lost.message


def test_a_look_at_all_far_hosts_is_one_request(store: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    for host in range(HOSTS):
        store.inner.add(f"beats/{host}", 1)
    woken: list[int] = []
    far = FarHosts(Group(0, MEMBERS, store), store, HEARTBEAT, woken.extend)
    known = set(range(SIZE)) - {200, 201, 9_999}
    lost: dict[int, str] = {}
    looks = 0
    while not lost:
        clock.now += 0.1
        store.inner.add("beats/156", 1)
        lost = far.silent(known)
        looks += 1
    assert store.requests == {"peek_all": looks}
    assert set(lost) == {200, 201}
    assert set(woken) == {200, 201}
    assert not far.silent(set(range(SIZE)))
    assert store.requests == {"peek_all": looks}


@pytest.mark.parametrize(("answers", "seconds"), [(False, 0.4), (True, 0.8)])
def test_a_regroup_goes_on_from_the_silence_that_was_reported(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch, answers: bool, seconds: float
) -> None:
    """The host is asked at once, and if it answers, its silence is measured anew."""
    clock = Clock(monkeypatch)
    watcher, silent = next_host(0, store), next_host(PER_HOST, store)
    silent.send()
    while store.peek("silent/1") is None:  # after 0.4 of the setting
        clock.now += 0.1
        if watcher.due <= clock.now:
            assert watcher.tick(clock.now) is None
    woken: list[int] = []
    far = FarHosts(Group(1, MEMBERS, store), store, HEARTBEAT, woken.extend)
    began = clock.now
    while not (lost := far.silent(set(range(SIZE)) - {PER_HOST + 5})):
        assert woken, "it is asked at once"
        if answers:
            silent.send()
            answers = False
        clock.now += 0.1
    assert set(lost) == set(woken) == {PER_HOST + 5}
    assert (seconds - 0.11) * HEARTBEAT <= clock.now - began <= (seconds + 0.1) * HEARTBEAT


def test_a_host_beats_while_its_only_rank_asks_all_others(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow store takes seconds for the questions and the answers of a stall report."""
    clock, members = Clock(monkeypatch), tuple(Member(f"host {rank}", "node", 1) for rank in range(200))
    group = Group(0, members, store)
    positions, signal = CallPositions(), AbortSignal(create(group, Options()), FlightRecord())
    watchdog = Watchdog(group, signal, positions, heartbeat=HEARTBEAT, stall=1.0)
    caller = SimpleNamespace(key="world", meter=SimpleNamespace(count=lambda name: None), stalled=None)
    position = CallPosition(cast("Caller", caller), 1, 1, "a call", tuple(range(200)))
    watched, silences = HostHeartbeat(0, HEARTBEAT), []

    def slow(method: str, value: bytes = b"") -> None:
        clock.now += 0.05
        silences.append(watched.silence(store.inner.peek("watch/beats/0"), clock.now, clock.now) or 0.0)

    monkeypatch.setattr(store, "_count", slow)
    watchdog._next_host.send()  # as each watchdog does when it starts
    reporter = watchdog._stalls
    assert reporter.consider(position, 2.0, 0, clock.now)
    reporter.report(clock.now + stall_report.COLLECT_SECONDS)
    assert caller.stalled is not None
    assert len(silences) * 0.05 > 4 * HEARTBEAT
    assert max(silences) < HEARTBEAT / 4


def test_a_rank_waits_for_wakeups_by_one_request_and_an_abort_is_one(store: CountingStore) -> None:
    members = MEMBERS[:2]
    signals = [AbortSignal(create(Group(rank, members, store), Options()), FlightRecord()) for rank in range(2)]
    for _ in range(5):
        assert not signals[0].wait(0.001)
    assert store.requests == {"awaited": 1}
    store.requests.clear()
    signals[1].raise_abort(AbortedError("enough", rank=1))
    assert store.requests == {"set_default": 1}
    assert signals[0].wait(10.0)
    signals[0].poll()
    assert isinstance(signals[0].failure, AbortedError)
    store.requests.clear()
    for _ in range(5):
        assert not signals[0].wait(0.001), "the cause wakes it once"
    assert store.requests == {"awaited": 1}
    signals[1].notify([0])
    assert signals[0].wait(10.0)
    for signal in signals:
        signal.stop_waiting()


def test_a_cause_that_cannot_be_read_wakes_once(store: CountingStore) -> None:
    signal = AbortSignal(create(Group(0, MEMBERS[:2], store), Options()), FlightRecord())
    store.inner.set("cause/first", b"\xc1")
    assert signal.wait(10.0)
    signal.poll()
    assert signal.failure is None
    assert not signal.wait(0.001)
    signal.stop_waiting()


def test_a_table_of_mismatched_calls_costs_two_requests_and_is_short(store: CountingStore) -> None:
    for rank in range(SIZE - 1):
        call = b"broadcast(root=1)" if rank == 7 else b"broadcast(root=0)"
        store.inner.put_row("mismatch/world", rank, SIZE, call + b"\0ring\0train.py:1")
    error = mismatch(store, "world", SIZE - 1, SIZE, "broadcast(root=0)", "ring", "a test")
    assert isinstance(error, MismatchError)
    assert store.requests == {"put_row": 1, "get": 1}
    assert str(error).splitlines()[1:3] == [
        "  ranks 0-6, 8-9998: broadcast(root=0), called from train.py:1",
        "  rank 7: broadcast(root=1), called from train.py:1",
    ]
    assert len(str(error)) < 1000


def test_ranks_that_write_no_line_are_found_by_a_third_request(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mismatched_calls, "_TABLE_SECONDS", 0.01)
    began = time.monotonic()
    error = mismatch(store, "world", 0, SIZE, "barrier()", "tree", "a test")
    assert store.requests == {"put_row": 1, "get": 1, "rows": 1}
    assert "ranks 1-9999: in no call" in str(error)
    assert time.monotonic() - began < 10
