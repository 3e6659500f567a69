"""The vector engine agrees with the exact one, and the symmetries that it builds on are true."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from collectives.algorithms import Algorithm, Symmetry, algorithms
from collectives.proof import Topology
from collectives.proof.all_ranks import count_blocks, lower_ranks
from collectives.proof.network import Far, Hosts, Switch
from collectives.proof.simulator import simulate_on
from collectives.schedule.contracts import SPECS
from collectives.schedule.program import Kind, Program
from collectives.schedule.steps import Geometry
from collectives.simulation.vector import simulate_vector, symmetry_of

SYMMETRIC = [
    found
    for collective in SPECS
    for found in algorithms(collective).values()
    if found.symmetry(Geometry(0, 8, 0, 1, (0, 0, 0, 0, 1, 1, 1, 1))) is not None
]
EXACT = [found for found in SYMMETRIC if found.name != "circulant"]


def equal_blocks(tested: Algorithm, size: int) -> int:
    return 5 * count_blocks(tested, size)


def test_which_algorithms_have_a_symmetry() -> None:
    names = {
        "ring",
        "hierarchical",
        "host_pipeline",
        "circulant",
        "halving_doubling",
        "recursive_doubling",
    }
    assert {found.name for found in SYMMETRIC if found.collective == "allreduce"} == names
    assert {found.collective for found in SYMMETRIC} == {"allreduce", "reduce_scatter", "allgather"}


@pytest.mark.parametrize("tested", SYMMETRIC, ids=lambda tested: f"{tested.collective}-{tested.name}")
def test_the_program_of_one_rank_stands_for_its_kind(tested: Algorithm) -> None:
    """Same steps, same sizes, peers in the same relation. A run of blocks that wraps around may be cut in two."""
    for size in (2, 3, 4, 5, 6, 8, 12, 13, 24, 31, 64):
        each = 4 if size % 4 == 0 else 1
        hosts = tuple(rank // each for rank in range(size)) if tested.multihost else ()
        symmetry = tested.symmetry(Geometry(0, size, 0, 1, hosts))
        assert symmetry is not None
        blocks = [5] * count_blocks(tested, size)
        programs = lower_ranks(tested, size, hosts=hosts, sizes=blocks).programs
        assert sorted(rank for kind in symmetry.kinds for rank in kind) == list(range(size))
        for kind in symmetry.kinds:
            told = [described(symmetry, int(rank), programs[rank]) for rank in kind]
            assert all(one == told[0] for one in told), (size, kind)


def described(symmetry: Symmetry, rank: int, program: Program) -> object:
    """The steps with sizes and relations to peers; their sums, where messages may be cut in two."""
    steps = []
    total: Counter[object] = Counter()
    for step in program.instructions:
        span = step.a if step.kind is Kind.SEND else step.dst
        length = 0 if span is None else span.stop - span.start
        relation = symmetry.relation(rank, step.peer) if step.peer >= 0 else ()
        if relation:
            assert symmetry.peers(relation)[rank] == step.peer
        steps.append((step.kind, relation, step.request, length))
        if step.kind in (Kind.SEND, Kind.RECV, Kind.REDUCE):
            total[step.kind, relation] += length
    return total if symmetry.wraps else steps


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_vector_and_exact_engine_agree(data: st.DataObject) -> None:
    """To nine digits: a ring on any hosts, one rank on each of hosts that are alike, hosts that can be turned."""
    tested = data.draw(st.sampled_from(EXACT))
    each = data.draw(st.integers(1, 3))
    count = data.draw(st.integers(1 + (each == 1), 4))
    far = Far(data.draw(st.floats(20e-6, 100e-6)), data.draw(st.floats(1e-6, 20e-6)))
    nics = st.floats(1e7, 1e10)
    if each == 1 and tested.name == "ring":
        kinds = [
            Hosts(1, 1, data.draw(nics), 1, data.draw(st.floats(0.5, 4)), data.draw(st.floats(0, 1e-3)))
            for _ in range(count)
        ]
    else:
        kinds = [Hosts(count, each, data.draw(nics), data.draw(st.integers(1, 2)))]
    network = Topology(tuple(kinds), far).network(each * count)
    symmetry = symmetry_of(network, tested)
    assume(each == 1 or symmetry is None or symmetry.turns)
    segments = data.draw(st.integers(1, 2)) if tested.segmented else 1
    size = network.size * count_blocks(tested, network.size) * 6 * data.draw(st.integers(1, 20_000))
    exact = np.array(simulate_on(network, tested, size, segments=segments).finish)
    for whole in (False, True):
        times = simulate_vector(network, tested, size, segments=segments, whole=whole)
        if times is None:
            assert symmetry is None
            assert network.size == 1
        else:
            np.testing.assert_allclose(times, exact, rtol=1e-9)


def test_circulant_is_near_the_exact_engine() -> None:
    for each, size in ((1, 6), (1, 13), (2, 12), (4, 16)):
        network = Topology((Hosts(ranks=each),)).network(size)
        for nbytes in (size * 1000, size * 100_000):
            tested = algorithms("allreduce")["circulant"]
            exact = simulate_on(network, tested, nbytes).seconds
            times = simulate_vector(network, tested, nbytes)
            assert times is not None
            assert abs(times.max() / exact - 1) < 0.2, (each, size, nbytes)


def test_ten_thousand_ranks() -> None:
    """Few operations: what one rank does, times the arrays of all."""
    network = Topology((Hosts(ranks=8),)).network(10_000)
    finish = {}
    for name in ("halving_doubling", "hierarchical", "circulant"):
        times = simulate_vector(network, algorithms("allreduce")[name], 1 << 28)
        assert times is not None
        assert len(times) == 10_000
        finish[name] = float(times.max())
    nic = network.nic[0]
    assert finish["hierarchical"] > 2 * (1 << 28) * nic * 1249 / 1250
    assert finish["hierarchical"] < finish["circulant"]


def test_an_uplink_is_shared() -> None:
    tested = algorithms("allreduce")["recursive_doubling"]
    free = Topology((Hosts(ranks=1, nic=1e9),)).network(4)
    narrow = Topology((Hosts(ranks=1, nic=1e9),), switch=Switch(hosts=2, uplink=1e9)).network(4)
    for network, units in ((free, 2), (narrow, 3)):  # the second round crosses: two messages share the uplink
        exact = simulate_on(network, tested, 1_000_000).seconds
        times = simulate_vector(network, tested, 1_000_000)
        assert times is not None
        assert exact == pytest.approx(times.max(), rel=1e-9)
        assert exact == pytest.approx(units * 1e-3 + 2 * 50e-6 + 2 * 1e6 * network.costs.gamma, rel=1e-9)
