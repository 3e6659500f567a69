"""Ten cases, each with one reason for waiting, or none: the charges and the verdict name it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from collectives.observing import Charges, Comparison, Culprit, DifferentWorlds, Kind, Link, Snapshot, judge
from tests.collectives.observing.made import MS, MadeWorld, described

Case = Callable[[], MadeWorld]
ONE_HOST = ["a"] * 4
TWO_HOSTS = ["a", "a", "b", "b"]
THREE_HOSTS = ["a", "a", "b", "b", "c", "c"]


def verdict(
    world: MadeWorld, run_delay: Mapping[int, float] | None = None, links: Mapping[tuple[str, str], Link] | None = None
) -> tuple[Culprit, ...]:
    return judge(Charges.of(Comparison(world.records())), run_delay, links)


def sleeps_at_random(hosts: list[str] = ONE_HOST, offsets: Mapping[str, int] | None = None) -> MadeWorld:
    world, dice = MadeWorld(hosts, offsets), random.Random(1)
    for _ in range(200):
        world.compute(
            *(5 + dice.random() / 10 + 10 * (rank == 2 and dice.random() < 0.3) for rank in range(len(hosts)))
        )
        world.call()
    return world


def is_always_late() -> MadeWorld:
    world, dice = MadeWorld(ONE_HOST), random.Random(2)
    for _ in range(200):
        world.compute(*(5 + dice.random() / 10 + 2 * (rank == 2) for rank in range(4)))
        world.call()
    return world


def makes_rooted_calls() -> MadeWorld:
    world, dice = MadeWorld(ONE_HOST), random.Random(3)
    for _ in range(100):
        world.compute(*(5 + dice.random() / 10 + 4 * (rank == 2) for rank in range(4)))
        world.call(described("broadcast", 4096, 2))
        world.compute(5)
        world.call(described("reduce", 4096, 0))
    return world


def waits_in_another_communicator() -> MadeWorld:
    """Rank 2 is late to the calls of one communicator, since rank 3 is late to those of the other."""
    world, dice = MadeWorld(ONE_HOST), random.Random(4)
    one, two = world.split(3, [2, 3]), world.split(5, [0, 1, 2])
    for _ in range(100):
        world.compute(*(1 + dice.random() / 10 + 10 * (rank == 3) for rank in range(4)))
        world.call(name=one)
        world.call(name=two)
    return world


def names_its_calls() -> MadeWorld:
    world, dice = MadeWorld(ONE_HOST), random.Random(5)
    named = world.split(0, [0, 1, 2, 3], "named")
    for _ in range(100):
        world.compute(*(5 + dice.random() / 10 + 3 * (rank == 2) for rank in range(4)))
        world.call(described(names="'layer1.weight' and 6 more"), named)
    return world


def is_late_at_some_sizes() -> MadeWorld:
    world, dice = MadeWorld(ONE_HOST), random.Random(6)
    for _ in range(100):
        for nbytes in (64, 4096, 1 << 20):
            world.compute(*(5 + dice.random() / 10 + 8 * (rank == 2 and nbytes == 4096) for rank in range(4)))
            world.call(described(nbytes=nbytes))
    return world


def is_even() -> MadeWorld:
    world, dice = MadeWorld(TWO_HOSTS), random.Random(7)
    for _ in range(300):
        world.compute(*(5 + dice.random() for _ in range(4)))
        world.call()
    return world


def has_a_slow_link(offsets: Mapping[str, int] | None = None) -> MadeWorld:
    """Host c has a slow link. Its calls within the host do not cross it, those of a and b neither."""
    world, dice = MadeWorld(THREE_HOSTS, offsets), random.Random(8)
    apart = world.split(3, [0, 1, 2, 3])
    inside = [world.split(5 + host, [2 * host, 2 * host + 1]) for host in range(3)]
    for _ in range(100):
        world.compute(*(5 + dice.random() / 10 for _ in range(6)))
        world.call(transfer=20)
        world.call(name=apart, transfer=1)
        for name in inside:
            world.call(name=name, transfer=0.1)
    return world


@pytest.mark.parametrize(
    "case",
    [
        sleeps_at_random,
        is_always_late,
        makes_rooted_calls,
        names_its_calls,
        is_late_at_some_sizes,
        lambda: sleeps_at_random(TWO_HOSTS, {"b": 1000 * MS}),
        lambda: sleeps_at_random(TWO_HOSTS, {"b": -1000 * MS}),
    ],
)
def test_a_late_rank_is_named(case: Case) -> None:
    (culprit,) = verdict(case())
    assert (culprit.kind, culprit.ranks) == (Kind.LATE, (2,))
    assert culprit.share > 0.9
    assert culprit.seconds > 0.1


def test_a_wait_goes_on_to_the_rank_that_computed() -> None:
    world = waits_in_another_communicator()
    (culprit,) = verdict(world)
    assert (culprit.kind, culprit.ranks) == (Kind.LATE, (3,))
    charges = Charges.of(Comparison(world.records()))
    direct = charges.waits.where(charges.waits.late == 2)
    assert direct.seconds.sum() > 1.5  # ranks 0 and 1, for rank 2
    assert set(direct.culprit[direct.ended - direct.began > MS].tolist()) == {3}


def test_the_calls_in_which_a_rank_is_late_are_named() -> None:
    (culprit,) = verdict(is_late_at_some_sizes())
    assert [call.description.nbytes for call in culprit.calls] == [4096]


def test_nobody_is_named_where_the_waits_are_even() -> None:
    assert verdict(is_even()) == ()
    assert verdict(MadeWorld(ONE_HOST)) == ()


def test_a_shared_core_is_told_apart_from_long_computing() -> None:
    shared = {0: 0.01, 1: 0.02, 2: 0.4, 3: 0.01}
    (culprit,) = verdict(is_always_late(), shared)
    assert (culprit.kind, culprit.ranks) == (Kind.SLOW_CORE, (2,))
    (culprit,) = verdict(is_always_late(), dict.fromkeys(range(4), 0.4))  # all ranks wait as long for a core
    assert culprit.kind == Kind.LATE
    (culprit,) = verdict(is_always_late(), {**shared, 2: 0.03})
    assert culprit.kind == Kind.LATE


@pytest.mark.parametrize("ahead", [-1000, 0, 1000])
def test_a_slow_link_is_named_by_the_calls_that_cross_it(ahead: int) -> None:
    (culprit,) = verdict(has_a_slow_link({"b": ahead * MS, "c": -ahead * MS}))
    assert (culprit.kind, culprit.ranks, culprit.host) == (Kind.SLOW_LINK, (4, 5), "c")
    assert culprit.calls[0].communicator == "world"


def one_communicator(transfer: float, hosts: list[str] = THREE_HOSTS) -> MadeWorld:
    world, dice = MadeWorld(hosts), random.Random(9)
    for _ in range(100):
        world.compute(*(5 + dice.random() / 10 for _ in hosts))
        world.call(transfer=transfer)
    return world


def test_a_slow_link_is_named_by_its_connections() -> None:
    assert verdict(one_communicator(20)) == ()  # the calls alone do not tell
    narrow = between(THREE_HOSTS, {("c", "a"): Link(1e-4, 1e5), ("c", "b"): Link(1e-4, 1e5)})  # what it sends alone
    (culprit,) = verdict(one_communicator(20), links=narrow)
    assert (culprit.kind, culprit.host, culprit.ranks) == (Kind.SLOW_LINK, "c", (4, 5))
    far = between(THREE_HOSTS, {("a", "b"): Link(1e-2), ("c", "a"): Link(1e-2)})
    (culprit,) = verdict(one_communicator(20), links=far)
    assert (culprit.kind, culprit.host) == (Kind.SLOW_LINK, "a")
    assert verdict(one_communicator(0.01), links=narrow) == ()  # a slow link that costs no time
    assert verdict(one_communicator(2000), links=narrow) == ()  # the link does not explain the time
    assert verdict(one_communicator(20), links=between(THREE_HOSTS)) == ()


def test_a_slow_link_between_two_hosts_is_named_by_both() -> None:
    (culprit,) = verdict(one_communicator(20), links=between(THREE_HOSTS, {("b", "a"): Link(1e-2)}))
    assert (culprit.kind, culprit.host, culprit.ranks) == (Kind.SLOW_LINK, "a and b", (0, 1, 2, 3))
    pair = one_communicator(20, TWO_HOSTS)
    (culprit,) = verdict(pair, links=between(TWO_HOSTS, {("b", "a"): Link(1e-2)}))
    assert (culprit.kind, culprit.host, culprit.ranks) == (Kind.SLOW_LINK, "a and b", (0, 1, 2, 3))
    assert verdict(pair, links=between(TWO_HOSTS)) == ()


def between(hosts: list[str], others: Mapping[tuple[str, str], Link] | None = None) -> dict[tuple[str, str], Link]:
    """Links between all hosts, fast ones but for `others`."""
    return {pair: Link(1e-4, 1e9) for pair in itertools.permutations(sorted(set(hosts)), 2)} | dict(others or {})


def test_a_slow_link_without_a_name_is_told_from_calls_within_hosts() -> None:
    world, dice = MadeWorld(TWO_HOSTS), random.Random(10)
    pairs = [world.split(3, [0, 1]), world.split(5, [2, 3])]
    for _ in range(100):
        world.compute(*(1 + dice.random() / 10 for _ in range(4)))
        for name in pairs:
            world.call(name=name, transfer=0.1)
        world.call(transfer=10)
    (culprit,) = verdict(world)
    assert (culprit.kind, culprit.ranks) == (Kind.SLOW_LINK, ())


def test_the_clocks_of_hosts_are_compared_by_their_calls() -> None:
    world = sleeps_at_random(THREE_HOSTS, {"b": 1000 * MS, "c": -500 * MS})
    found = Comparison(world.records()).offsets
    assert {host: round(offset.nanoseconds / MS) for host, offset in found.items()} == {"a": 0, "b": -1000, "c": 500}
    assert all(offset.error < MS for offset in found.values())


def test_the_dates_compare_clocks_of_hosts_that_share_no_call() -> None:
    world = MadeWorld(["a", "b"], {"b": 1000 * MS})
    one, two = world.records()
    b = Comparison([one, two]).offsets["b"]
    assert b.error >= 1000 * MS  # nothing is known of it


def test_waits_that_last_are_charged() -> None:
    world = is_even()
    world.call(without=[1])
    snapshot = Snapshot.of(world.records(read_after=60_000))
    assert snapshot.charges.shares[1] > 0.95
    (culprit,) = judge(snapshot.charges)
    assert culprit.ranks == (1,)


def test_charges_add_up() -> None:
    for case in (sleeps_at_random, makes_rooted_calls, waits_in_another_communicator, is_even):
        charges = Charges.of(Comparison(case().records()))
        total = charges.total
        assert total > 0
        assert np.isclose(charges.waited.sum(), total)
        assert np.isclose(charges.matrix().sum(), total)
        assert np.isclose(sum(charges.by_host().values()), total)
        assert np.isclose(sum(float(caused.sum()) for caused in charges.by_call().values()), total)
        assert (charges.matrix().diagonal() == 0).all()


def test_a_part_of_the_time_is_charged() -> None:
    records = sleeps_at_random().records()
    whole = Charges.of(Comparison(records))
    part = Charges.of(Comparison(records), since=whole.ended - 200 * MS)
    assert part.span < 0.25
    assert 0 < part.total < whole.total / 3


def test_records_of_two_worlds_are_refused() -> None:
    records = is_even().records()
    with pytest.raises(DifferentWorlds):
        Comparison([*records, records[0]])
    records[0].facts["world"] = "another"  # type: ignore[index]
    with pytest.raises(DifferentWorlds):
        Comparison(records)


@pytest.mark.long
def test_a_thousand_ranks() -> None:
    world, dice = MadeWorld([f"h{rank // 8}" for rank in range(1000)]), random.Random(11)
    for _ in range(5):
        world.compute(*(1 + dice.random() / 10 for _ in range(1000)))
        world.call()
    world.call(without=[777])
    snapshot = Snapshot.of(world.records(read_after=2000))
    assert snapshot.chain is not None
    assert snapshot.chain.culprit == 777
    assert snapshot.hosts[0].hostname == "h97"
    assert snapshot.hosts[0].waiting == 7
