"""The cost of a shrink, counted in a simulated world of 10,000 ranks on 157 hosts: no processes, no sockets."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from collectives import PeerLost
from collectives.membership.agreement import SurvivorAgreement
from collectives.membership.duty import LAPSE_SECONDS, SIGN_SECONDS, Duty
from tests.counting import CountingStore
from transports.base import Group, Member
from transports.rendezvous.memory import MemoryStore
from transports.store import Store

SIZE = 10_000
PER_HOST = 64
HOSTS = -(-SIZE // PER_HOST)
MEMBERS = tuple(Member(f"host {rank // PER_HOST}", f"node{rank // PER_HOST}", 1 + rank) for rank in range(SIZE))


@pytest.fixture
def store() -> Iterator[CountingStore]:
    store = CountingStore(MemoryStore())
    yield store
    store.close()


def duties(store: Store, rank: int) -> tuple[Duty, Duty]:
    """Those of a rank in the agreement: as the scout of its host, and as the coordinator."""
    agreement = store.prefixed("shrink")
    return Duty(agreement.prefixed(f"scout/{MEMBERS[rank].host}"), rank), Duty(agreement.prefixed("coordinator"), rank)


def agreements(store: CountingStore, lost: set[int]) -> list[SurvivorAgreement]:
    """The parts of all ranks but the lost ones, after they have arrived."""
    failure = PeerLost("gone", peer=min(lost)) if lost else None
    made = [SurvivorAgreement(Group(rank, MEMBERS, store), failure, 5.0) for rank in range(SIZE) if rank not in lost]
    for agreement in made:
        agreement.arrive()
    return made


@pytest.mark.long
@pytest.mark.parametrize("lost", [set(), {5_000}, set(range(64, 128))], ids=["none", "a rank", "a host"])
def test_shrink_costs_few_requests_per_rank(store: CountingStore, lost: set[int]) -> None:
    made = agreements(store, lost)
    for rank in lost:  # as the scouts of other hosts, or the ranks themselves, would report it
        store.inner.put_row("shrink/lost", rank, SIZE, b"its process ended")
    assert store.requests == {"put_row": SIZE - len(lost)}
    assert store.sent == 0
    decisions = []
    spent = []
    for agreement in made[:1] + made[1::37]:  # all others do the same
        before = store.total
        decisions.append(agreement.decide(time.monotonic(), 30.0))
        spent.append(store.total - before)
        agreement.close()
    decision = decisions[0]
    assert all(other == decision for other in decisions[1:])
    assert set(decision.left_out) == lost
    assert decision.staying == tuple(rank for rank in range(SIZE) if rank not in lost)
    coordinator, *others = spent
    assert coordinator <= 14, "two duties at most twice, and two looks of five requests"
    assert set(others) == {1}, "the decision"
    assert store.received < SIZE * 64


def test_others_wait_with_three_requests(store: CountingStore) -> None:
    """The ranks that come before the last one: the coordinator, the scout of another host, and a rank beside it."""
    assert [duty.held(100.0) for duty in duties(store, 0)] == [True, True]
    store.requests.clear()
    assert [duty.held(100.0) for duty in duties(store, PER_HOST)] == [True, False]
    assert store.requests == {"set_default": 2, "add": 1}
    store.requests.clear()
    assert not duties(store, PER_HOST + 1)[0].held(100.0)
    assert store.requests == {"set_default": 1}


def test_duty_passes_on_when_its_holder_gives_no_sign() -> None:
    store = MemoryStore()
    ranks = [Duty(store, rank) for rank in range(4)]
    now = 100.0
    assert [duty.held(now) for duty in ranks] == [True, False, False, False]
    while now < 110.0:  # the holder gives signs
        now += SIGN_SECONDS
        assert [duty.held(now) for duty in ranks] == [True, False, False, False]
    gone = now
    while not any(duty.held(now) for duty in ranks[1:]):  # now it does not
        assert now < gone + 2 * LAPSE_SECONDS
        now += SIGN_SECONDS
    assert [duty.held(now) for duty in ranks[1:]] == [True, False, False]
    for _ in range(20):
        now += SIGN_SECONDS
        assert [duty.held(now) for duty in ranks[1:]] == [True, False, False]


def test_duty_is_not_taken_by_a_rank_that_did_not_run_itself() -> None:
    store = MemoryStore()
    holder, other = Duty(store, 0), Duty(store, 1)
    assert holder.held(100.0)
    assert not other.held(100.0)
    assert not other.held(101.0)
    assert not other.held(200.0)


def test_duty_costs_one_request_in_half_a_second(store: CountingStore) -> None:
    holder, other = Duty(store, 0), Duty(store, 1)
    for tenth in range(100):
        holder.held(100.0 + tenth / 10)
        other.held(100.0 + tenth / 10)
    assert store.requests["add"] <= 20
    assert store.requests["peek"] <= 20
    assert store.requests["set_default"] == 2


def test_second_coordinator_finishes_what_the_first_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectives.membership.duty.LAPSE_SECONDS", 0.05)
    monkeypatch.setattr("collectives.membership.duty.SIGN_SECONDS", 0.01)
    monkeypatch.setattr("collectives.membership.agreement.IDLE_SECONDS", 0.02)
    store = MemoryStore()
    members = MEMBERS[:3]
    made = [SurvivorAgreement(Group(rank, members, store), None, 0.0) for rank in range(3)]
    for agreement in made:
        agreement.arrive()
    assert all(duty.held(time.monotonic()) for duty in duties(store, 0))  # it is heard of no more
    decision = made[1].decide(time.monotonic(), 30.0)
    assert decision.staying == (0, 1, 2)
    assert decision.by == 1
    assert made[2].decide(time.monotonic(), 30.0) == decision
    for agreement in made:
        agreement.close()
