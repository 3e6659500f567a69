"""Virtual time: that it follows the model, and that the cost formulas of the algorithms agree with it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest

from collectives.algorithms import algorithms
from collectives.planning.cost_model import Model, predict
from collectives.proof.all_ranks import ProofError
from collectives.proof.network import Network
from collectives.proof.simulator import simulate, simulate_on
from collectives.schedule.contracts import SPECS
from collectives.schedule.program import Kind
from collectives.schedule.steps import Geometry, inp, out, recv, send, settle

ALL = [found for collective in SPECS for found in algorithms(collective).values()]
MODEL = Model(alpha=25e-6, beta=0.8e-9, gamma=0.15e-9, copy=0.1e-9, inter_alpha=60e-6, inter_beta=1.6e-9, alone=1.0)
WIRE = replace(MODEL, gamma=0.0, copy=0.0)
"""25 us and 10 Gb/s, where computing costs nothing."""


def seconds(collective: str, name: str, size: int, nbytes: int, model: Model = WIRE, **more: int) -> float:
    return simulate(algorithms(collective)[name], size, nbytes, model, **more).seconds  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("collective", SPECS)
def test_the_cost_formulas_agree_with_the_simulation(collective: str) -> None:
    """Within a factor of 1.75, for latency and bandwidth, with and without segments, inside a host and across; ranks of
    a host share its link."""
    for tested, size in product(algorithms(collective).values(), (2, 3, 4, 5, 8, 13)):
        spread = [tuple(rank // 4 for rank in range(size)), tuple(rank % 2 for rank in range(size))]
        for hosts in spread if tested.multihost else [()]:
            for segments, nbytes in product((1, 4) if tested.segmented else (1,), (8192, 10_000_000)):
                predicted = predict(tested, Geometry(0, size, 0, segments, hosts), nbytes, MODEL)
                network = Network.of(MODEL, hosts, size)
                if hosts:
                    network = replace(network, nic=network.flow)
                run = simulate_on(network, tested, nbytes, segments=segments, hosts=hosts)
                assert run.seconds / 1.75 <= predicted <= run.seconds * 1.75, (
                    tested.name,
                    size,
                    hosts,
                    segments,
                    nbytes,
                )


def test_one_rank_sends_nothing() -> None:
    for tested in ALL:
        run = simulate(tested, 1, 1000, MODEL)
        assert run.waiting == (0.0,)
        assert all(entry.kind is Kind.COPY for entry in run.activity)
        assert run.seconds in (0.0, pytest.approx(1000 * MODEL.copy))
        assert tested.cost(Geometry(0, 1))[:2] == (0, 0)


def test_textbook_times() -> None:
    """Hockney's model worked out by hand for eight ranks and a million bytes."""
    a, b = WIRE.alpha, WIRE.beta * 1_000_000
    assert seconds("broadcast", "binomial", 8, 1_000_000) == pytest.approx(3 * (a + b))
    assert seconds("broadcast", "chain", 8, 1_000_000, segments=10) == pytest.approx(16 * (a + b / 10))
    for size, rounds in ((2, 1), (3, 2), (8, 3), (12, 4), (13, 4), (33, 6)):
        optimum = (10 - 1 + rounds) * (a + b / 10)
        assert seconds("broadcast", "circulant", size, 1_000_000, segments=10) == pytest.approx(optimum)
    assert seconds("broadcast", "scatter_allgather", 8, 1_000_000) == pytest.approx(10 * a + b * 14 / 8)
    assert seconds("allreduce", "recursive_doubling", 8, 1_000_000) == pytest.approx(3 * (a + b))
    assert seconds("allreduce", "ring", 8, 1_000_000) == pytest.approx(14 * (a + b / 8))
    assert seconds("allreduce", "halving_doubling", 8, 1_000_000) == pytest.approx(6 * a + b * 14 / 8)
    assert seconds("gather", "linear", 8, 1_000_000) == pytest.approx(7 * (a + b / 8))
    assert seconds("alltoall", "pairwise", 8, 1_000_000) == pytest.approx(7 * (a + b / 8))
    assert seconds("barrier", "dissemination", 8, 0) == pytest.approx(3 * a)


def test_ring_and_recursive_doubling_change_places_where_the_formulas_say() -> None:
    """(2 (p - 1) - log2 p) a B / (log2 p - 2 (p - 1) / p), about 275 kB for eight ranks, 25 us, 10 Gb/s."""
    crossover = 275_000
    for nbytes in (crossover // 4, crossover * 9 // 10):
        assert seconds("allreduce", "recursive_doubling", 8, nbytes) < seconds("allreduce", "ring", 8, nbytes)
    for nbytes in (crossover * 11 // 10, crossover * 4):
        assert seconds("allreduce", "recursive_doubling", 8, nbytes) > seconds("allreduce", "ring", 8, nbytes)
    geometry = Geometry(0, 8)
    ring, doubling = (
        predict(algorithms("allreduce")[which], geometry, crossover, WIRE) for which in ("ring", "recursive_doubling")
    )
    assert ring == pytest.approx(doubling, rel=0.001)


def test_segments_let_combining_overlap_with_sending() -> None:
    slow = replace(MODEL, gamma=0.6e-9)
    whole = seconds("allreduce", "ring", 4, 10_000_000, slow)
    assert seconds("allreduce", "ring", 4, 10_000_000, slow, segments=8) < 0.85 * whole
    assert seconds("broadcast", "chain", 8, 10_000_000, segments=16) < 0.3 * seconds(
        "broadcast", "chain", 8, 10_000_000
    )


def test_hierarchical_algorithms_pay_across_slow_links() -> None:
    hosts = tuple(rank % 2 for rank in range(8))
    far = replace(MODEL, inter_alpha=1e-3, inter_beta=10e-9)
    for collective in ("allreduce", "broadcast", "reduce", "allgather"):
        aware = simulate(algorithms(collective)["hierarchical"], 8, 1_000_000, far, hosts=hosts).seconds
        flat = simulate(
            algorithms(collective)["ring" if collective.startswith("all") else "chain"], 8, 1_000_000, far, hosts=hosts
        ).seconds
        assert aware < flat / 2


def test_time_adds_up() -> None:
    run = simulate(algorithms("allreduce")["ring"], 5, 1_000_000, MODEL, segments=3)
    assert len(run.finish) == len(run.busy) == len(run.waiting) == 5
    for finish, busy, waiting in zip(run.finish, run.busy, run.waiting, strict=True):
        assert finish == pytest.approx(busy + waiting)
    assert run.seconds == max(run.finish) == pytest.approx(max(entry.end for entry in run.activity))
    combining = [entry.end - entry.begin for entry in run.activity if entry.kind is Kind.REDUCE]
    assert sum(combining) == pytest.approx(sum(run.busy)) == pytest.approx(4 * 1_000_000 * MODEL.gamma)


def test_a_rank_sends_and_receives_one_message_at_a_time() -> None:
    run = simulate(algorithms("alltoall")["linear"], 6, 100_000, MODEL)
    sends = [entry for entry in run.activity if entry.kind is Kind.SEND]
    assert len(sends) == 30
    for rank in range(6):
        for ends in ([e for e in sends if e.rank == rank], [e for e in sends if e.peer == rank]):
            assert all(before.end <= after.begin + 1e-12 for before, after in pairwise(ends))


def test_the_same_run_takes_the_same_time() -> None:
    tested = algorithms("allreduce")["direct_segmented"]
    assert simulate(tested, 7, 12345, MODEL, segments=4) == simulate(tested, 7, 12345, MODEL, segments=4)


def test_calls_that_cannot_be_simulated_are_refused() -> None:
    tested = algorithms("broadcast")["binomial"]
    with pytest.raises(ValueError, match=r"nbytes=-1: .*0 or more"):
        simulate(tested, 2, -1, MODEL)
    with pytest.raises(ValueError, match="root=5"):
        simulate(tested, 2, 1, MODEL, root=5)

    def stuck(g: Geometry):  # type: ignore[no-untyped-def]
        yield send(1 - g.rank, inp(0), "away")
        yield settle("hold")
        yield recv(1 - g.rank, out(0), "in")

    with pytest.raises(ProofError, match=r"deadlock: rank 0 .*'away' .*rank 1"):
        simulate(replace(algorithms("allreduce")["tree"], generate=stuck), 2, 8, MODEL)
