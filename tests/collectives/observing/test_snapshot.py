"""Snapshots of made records: the call of each rank, for whom it waits, and the chain of waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collectives.flight import FAILED
from collectives.observing import Chain, Snapshot, explain
from tests.collectives.observing.made import ORDERED, MadeWorld, described


def test_ranks_in_a_call_wait_for_the_one_that_computes() -> None:
    world = MadeWorld(["a", "a", "b"])
    for _ in range(10):
        world.compute(2)
        world.call()
    world.compute(1, 2, 3)
    world.call(described("barrier", 0), without=[2])
    snapshot = Snapshot.of(world.records(read_after=500))
    assert [rank.waits_for for rank in snapshot.ranks] == [(2,), (2,), ()]
    first, _, late = snapshot.ranks
    assert first.call is not None
    assert (first.call.communicator, first.call.number, first.call.description.collective) == ("world", 11, "barrier")
    assert first.waits == pytest.approx(0.502, abs=0.01)
    assert late.call is None
    assert late.last is not None
    assert late.last.collective == "allreduce"
    assert snapshot.chain == Chain((0, 2), circle=False)
    assert [host.hostname for host in snapshot.hosts] == ["b", "a"]
    assert snapshot.hosts[1].waiting == 2
    assert snapshot.slowest[0].count == 10


@pytest.mark.parametrize(
    ("collective", "root", "without", "waits"),
    [
        ("allgather", -1, [1], [(1,), (), (1,), (1,)]),
        ("alltoall", -1, [1, 2], [(1, 2), (), (), (1, 2)]),
        ("broadcast", 1, [1], [(1,), (), (1,), (1,)]),
        ("broadcast", 1, [2], [(), (), (), ()]),
        ("scatter", 0, [0], [(), (0,), (0,), (0,)]),
        ("reduce", 3, [1], [(), (), (), (1,)]),
        ("gather", 3, [3], [(), (), (), ()]),
        ("scan", -1, [1], [(), (), (1,), (1,)]),
    ],
)
def test_for_whom_ranks_wait(collective: str, root: int, without: list[int], waits: list[tuple[int, ...]]) -> None:
    world = MadeWorld(["a"] * 4)
    world.call()
    world.call(described(collective, 64, root), without=without)
    assert [rank.waits_for for rank in Snapshot.of(world.records()).ranks] == waits


def test_a_chain_goes_through_communicators() -> None:
    world = MadeWorld(["a"] * 4)
    one, two, three = world.split(3, [0, 1]), world.split(5, [1, 2]), world.split(7, [2, 3])
    for name in (one, two, three):
        world.call(name=name)
    world.call(name=one, without=[1])
    world.compute(1)
    world.call(name=two, without=[2])
    world.compute(1)
    world.call(name=three, without=[3])
    snapshot = Snapshot.of(world.records())
    assert snapshot.chain == Chain((0, 1, 2, 3), circle=False)
    assert snapshot.charges.waits.culprit[snapshot.charges.waits.rank == 0].max() == 3


def test_a_circle_is_a_deadlock() -> None:
    world = MadeWorld(["a"] * 2)
    one, two = world.split(3, [0, 1]), world.split(5, [0, 1])
    for name in (one, two):
        world.call(name=name)
    world.call(name=one, without=[1])
    world.call(name=two, without=[0])
    snapshot = Snapshot.of(world.records())
    assert snapshot.chain is not None
    assert snapshot.chain.circle
    assert set(snapshot.chain.ranks) == {0, 1}


def test_a_rank_that_died_in_a_call_is_waited_for() -> None:
    world = MadeWorld(["a"] * 3)
    world.call()
    for rank in world.ranks:
        rank.calls["0-0"].append((2, rank.now, 0, described()))
        rank.newest["0-0"] = 2
    snapshot = Snapshot.of(world.records(alive={1: False}, state={0: FAILED}))
    assert [rank.waits_for for rank in snapshot.ranks] == [(1,), (), (1,)]


def test_a_record_that_was_read_before_says_nothing_of_later_calls() -> None:
    world = MadeWorld(["a"] * 2)
    world.call()
    early = world.records(read_after=0)[0]
    for _ in range(3):
        world.compute(1)
        world.call()
    world.call(without=[0])
    late = world.records()[1]
    assert Snapshot.of([early, late]).ranks[1].waits_for == ()


def test_ranks_without_a_record_are_missing() -> None:
    world = MadeWorld(["a"] * 3)
    world.call()
    world.call(without=[2])
    snapshot = Snapshot.of(world.records()[:2])
    assert snapshot.missing == (2,)
    assert [rank.waits_for for rank in snapshot.ranks] == [(), ()]


def test_rates_are_those_of_the_last_second() -> None:
    world = MadeWorld(["a"] * 2)
    for _ in range(300):
        world.compute(9)
        world.call(described(nbytes=1000), transfer=1)
    first = Snapshot.of(world.records(read_after=0)).ranks[0]
    assert first.calls_per_second == pytest.approx(100, rel=0.05)
    assert first.bytes_per_second == pytest.approx(100_000, rel=0.05)
    assert first.communicating == pytest.approx(0.1, rel=0.05)
    later = Snapshot.of(world.records(read_after=2000)).ranks[0]
    assert later.calls_per_second == 0
    assert later.seconds == pytest.approx(2.0, rel=0.05)


def test_ranks_whose_kept_calls_lie_far_apart_have_no_difference() -> None:
    """One of them was killed long before, or its record is damaged: a table of all calls between does not fit into
    memory."""
    world = MadeWorld(["h", "h"])
    world.call()
    first, second = world.records()
    calls = second.calls[ORDERED]
    later = replace(calls, newest=1 << 40, numbers=calls.numbers + ((1 << 40) - 1))
    far = replace(second, calls={ORDERED: later})
    assert explain([first, far]).difference is None
