"""Training steps in virtual time: fusion, batches, and communication beside computation."""

from __future__ import annotations

import dataclasses

import pytest

from collectives.operations import Signature
from collectives.proof import Topology
from collectives.simulation import Gradient, TrainingStep, predict_call, predict_step

NETWORK = Topology().network(8)
SMALL, LARGE = 1 << 12, 1 << 22
MUCH = 64 << 20


def step(*gradients: tuple[float, int], computation: float = 0.0) -> TrainingStep:
    """A step of gradients (ready, bytes)."""
    made = tuple(
        Gradient(f"g{number}", ready, Signature("allreduce", ("uint8",), ((nbytes,),), "sum"))
        for number, (ready, nbytes) in enumerate(gradients)
    )
    return TrainingStep(made, max(computation, *(gradient.ready for gradient in made)))


def seconds(nbytes: int) -> float:
    return predict_call(NETWORK, "allreduce", nbytes).seconds


def test_one_gradient_takes_negotiation_and_its_allreduce() -> None:
    found = predict_step(NETWORK, step((0.01, LARGE)), fusion=MUCH)
    one_way = 50e-6 + 6 * 20e-6  # the last of seven messages that occupy rank 0
    assert found.communication == pytest.approx(seconds(LARGE))
    assert found.exposed == pytest.approx(2 * one_way + seconds(LARGE))
    assert found.efficiency(0.01) == pytest.approx(0.01 / found.seconds)


def test_the_fusion_that_runs() -> None:
    """Small gradients go together up to the limit, and large ones alone."""
    together = step((0.0, SMALL), (0.0, SMALL), (0.0, LARGE), (0.0, SMALL))
    assert predict_step(NETWORK, together, fusion=MUCH).calls == 2
    assert predict_step(NETWORK, together, fusion=2 * SMALL).calls == 3
    assert predict_step(NETWORK, together, fusion=0).calls == 4
    packed = 2 * 3 * SMALL * NETWORK.costs.copy
    expected = seconds(3 * SMALL) + packed + seconds(LARGE)
    assert predict_step(NETWORK, together, fusion=MUCH).communication == pytest.approx(expected)


def test_gradients_gather_while_a_batch_runs() -> None:
    apart = [(0.05 * number, SMALL) for number in range(4)]
    assert predict_step(NETWORK, step(*apart), fusion=MUCH).calls == 4
    assert seconds(80 * LARGE) > 0.15
    assert predict_step(NETWORK, step((0.0, 80 * LARGE), *apart[1:]), fusion=MUCH).calls == 2


def test_computation_hides_communication() -> None:
    found = predict_step(NETWORK, step((0.0, LARGE), computation=1.0), fusion=MUCH)
    assert (found.seconds, found.exposed, found.efficiency(1.0)) == (1.0, 0.0, 1.0)
    assert found.communication > 0


def test_the_slowest_host_sets_the_pace() -> None:
    slow = dataclasses.replace(NETWORK, slow=(*NETWORK.slow[:-1], 2.0))
    found = predict_step(slow, step((0.5, SMALL), computation=1.0), fusion=MUCH)
    assert found.computation == 2.0
    assert found.efficiency(1.0) == 0.5


def test_no_communication_where_nothing_is_sent() -> None:
    assert predict_step(NETWORK, step((0.0, 0), computation=1.0), fusion=MUCH).communication == 0


def test_grouped_arrays_are_fused_by_array() -> None:
    call = Signature("grouped_allreduce", ("float32", "float64", "float32"), ((2,), (3,), (4,)), "sum")
    found = predict_step(NETWORK, TrainingStep((Gradient("g", 0.0, call),), 0.0), fusion=MUCH)
    assert found.calls == 2  # one for each dtype


def test_an_algorithm_that_cannot_run_there() -> None:
    with pytest.raises(ValueError, match="windowed"):
        predict_step(NETWORK, step((0.0, SMALL)), fusion=MUCH, algorithm="windowed")
