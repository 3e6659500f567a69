"""The measurement of links between hosts: alike on all ranks, left out where it is not needed, and used."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from collectives import Communicator
from collectives.algorithms import algorithms
from collectives.execution import link as measuring
from collectives.execution.link import links_of
from collectives.planning import Model, Rules, Selector, told_apart
from collectives.planning.cost_model import crossing
from collectives.planning.select import Demand
from collectives.schedule import Geometry
from tests.worlds import world_of
from transports.base import LinkCost

HOSTS = ("a", "a", "b", "b", "c")
FOUR_BY_TWO = Geometry(0, 8, hosts=(0, 0, 1, 1, 2, 2, 3, 3))


def test_all_ranks_get_the_same_figures() -> None:
    def body(comm: Communicator) -> tuple[LinkCost | None, LinkCost | None]:
        np.testing.assert_array_equal(comm.allreduce(np.ones(1000)), np.full(1000, 5.0))
        child = comm.split(comm.rank % 2)
        assert child is not None
        return comm.link, child.link

    with world_of("tcp", 5, hosts=HOSTS, calibrate=True) as world:
        found = world.run(body)
    assert len({parent for parent, _ in found}) == 1
    for cost, child in found:
        assert cost is not None
        assert child is not None
        assert cost.latency == child.latency > 0  # the split has what its parent has measured
        assert cost.per_byte == child.per_byte > 0


@pytest.mark.parametrize("hosts", [(), HOSTS])
def test_nothing_is_measured_on_one_host_or_without_calibration(hosts: tuple[str, ...]) -> None:
    with world_of("tcp", 5, hosts=hosts, calibrate=not hosts) as world:
        assert world.run(lambda comm: comm.link) == [None] * 5


def test_rules_that_tell_it_are_not_measured(tmp_path: Path) -> None:
    table = tmp_path / "rules.toml"
    table.write_text("[[costs]]\ninter_alpha = 1e-4\ninter_beta = 1e-8\n")
    with world_of("tcp", 5, hosts=HOSTS, calibrate=True, rules=str(table)) as world:
        assert world.run(lambda comm: comm.link) == [None] * 5
    table.write_text("[[costs]]\ninter_alpha = 1e-4\n")
    assert not Rules.read(str(table)).tells_link("tcp")


def sizes_and_cost(seconds: Callable[[int], float]) -> tuple[list[int], LinkCost]:
    """The measurement where a message of some bytes takes the given time, and one to the other host no longer."""
    sizes: list[int] = []

    class Exchange:
        hosts, place = 2, 0

        def __init__(self, *arguments: object) -> None: ...

        def round_trip(self) -> float:
            return 2 * seconds(0)

        def arrival(self, nbytes: int) -> float:
            sizes.append(nbytes)
            return seconds(nbytes)

    class Trial:
        rank = 1

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "_Exchange", Exchange)
        patch.setattr(measuring, "maximum", lambda trial, seconds, deadline: seconds)
        return sizes, measuring.measure_link(None, Trial(), (0, 1), 0.0)  # type: ignore[arg-type]


def test_larger_messages_are_sent_until_one_takes_long_enough() -> None:
    sizes, cost = sizes_and_cost(lambda nbytes: 1e-4 + nbytes * 42e-9)
    assert sizes == [1 << 17] * 2 + [1 << 19] * 2
    assert cost == LinkCost(pytest.approx(1e-4, rel=0.01), pytest.approx(42e-9))


def test_windows_of_tcp_that_open_slowly_over_a_long_way_do_not_count() -> None:
    """Bytes beyond the window wait for a round trip; each that has been sent doubles the window."""
    window = 16384

    def seconds(nbytes: int) -> float:
        nonlocal window
        trips, left = 1, nbytes - window
        while left > 0:
            window *= 2
            trips, left = trips + 1, left - window
        return (trips - 0.5) * 0.04 + nbytes * 42e-9

    sizes, cost = sizes_and_cost(seconds)
    assert max(sizes) == 1 << 21
    assert cost == LinkCost(pytest.approx(0.02, rel=1e-3), pytest.approx(42e-9))


@pytest.mark.parametrize(
    ("name", "expected", "targets"),
    [("ring", 1.75, 1), ("hierarchical", 1.5, 1), ("halving_doubling", 1.5, 2), ("recursive_doubling", 4.0, 2)],
)
def test_bytes_that_cross_the_link_of_a_host(name: str, expected: float, targets: int) -> None:
    """Counted by hand for four hosts of two ranks, which share the link of their host."""
    assert crossing(algorithms("allreduce")[name], FOUR_BY_TWO) == (pytest.approx(expected), targets, 0)


def test_a_link_is_as_fast_as_the_faster_one_of_its_two_messages() -> None:
    assert links_of([1, 2, 1, 1]) == ()
    assert links_of([1, 1.1, 4, 3]) == pytest.approx((4 / 3, 4 / 3, 4, 4 / 3))  # to host 2 and from it
    assert links_of([3, 1, 1.1, 4]) == pytest.approx((4 / 3, 4 / 3, 4 / 3, 4))
    assert links_of([1, 9, 1, 1]) == pytest.approx((9, 9, 1, 1))  # from host 0 to host 1 alone: one of the two ends
    assert links_of([4, 1]) == ()


def test_links_differ_by_powers_of_three() -> None:
    assert told_apart([1.0, 2.8, 1.3]) == ()
    assert told_apart([0.9, 9.0, 4.0, 2.5, 0.0]) == pytest.approx((1.0, 9.0, 9.0, 3.0, 9 / 729))
    assert told_apart([0.0, 0.0]) == ()


def test_hosts_of_a_split_keep_their_links() -> None:
    selector = Selector(Model(), Rules(), "tcp")
    selector.use_link(LinkCost(1e-4, 4e-8, (1e-8, 4e-8, 2e-8)))
    child = selector.on_hosts((2, 0))
    assert child.link == LinkCost(1e-4, 4e-8, (2e-8, 1e-8))
    assert selector.link == LinkCost(1e-4, 4e-8, (1e-8, 4e-8, 2e-8))


def chosen(size: int, nbytes: int, links: tuple[float, ...]) -> str:
    selector = Selector(Model(), Rules(), "tcp")
    selector.use_link(LinkCost(3e-5, 160e-9, links))
    geometry = Geometry(0, size, hosts=tuple(range(size)))
    return selector.choose(Demand("allreduce", geometry, nbytes, nbytes)).algorithm.name


@pytest.mark.parametrize("nbytes", [1 << 16, 1 << 20, 1 << 24])
@pytest.mark.parametrize("size", [4, 8])
def test_a_slow_host_is_a_leaf_of_both_trees(size: int, nbytes: int) -> None:
    """N crosses its link there, and 2 (p - 1) / p N around the ring."""
    assert chosen(size, nbytes, (40e-9,) * (size - 1) + (160e-9,)) == "double_tree"


def test_hosts_that_are_alike_need_no_table() -> None:
    for size, nbytes in product((2, 4, 5, 8, 16), (4, 1 << 13, 1 << 16, 1 << 20, 1 << 24)):
        assert chosen(size, nbytes, (160e-9,) * size) == chosen(size, nbytes, ()) != "double_tree"


def test_slow_links_are_crossed_by_as_few_bytes_as_possible() -> None:
    selector = Selector(Model(), Rules(), "tcp")
    selector.use_link(LinkCost(1e-4, 42e-9))  # 200 Mbit/s
    for nbytes in (1 << 16, 1 << 20, 1 << 24):
        chosen = selector.choose(Demand("allreduce", FOUR_BY_TWO, nbytes, nbytes)).algorithm
        assert crossing(chosen, FOUR_BY_TWO)[0] == pytest.approx(1.5), nbytes


def test_messages_over_slow_links_go_to_one_rank_and_in_segments() -> None:
    """Halving and doubling sends the same bytes in fewer rounds, but to different ranks in turn."""
    selector = Selector(Model(), Rules(), "tcp")
    selector.use_link(LinkCost(1e-4, 42e-9))
    for hosts, expected in (((0, 1, 2, 3), "ring"), (FOUR_BY_TWO.hosts, "hierarchical")):
        geometry = Geometry(0, len(hosts), hosts=hosts)
        choice = selector.choose(Demand("allreduce", geometry, 1 << 18, 1 << 18))
        assert choice.algorithm.name == expected
        assert choice.segments > 1
