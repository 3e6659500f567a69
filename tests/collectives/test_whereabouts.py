"""Where a rank is, read from its stack."""

from __future__ import annotations

import dataclasses

import numpy as np

from collectives import Communicator
from collectives.contest import Contest
from collectives.whereabouts import Place, places
from tests.worlds import world_of


def test_a_call_is_at_one_place_also_where_two_plans_compete() -> None:
    def rank(comm: Communicator) -> tuple[list[list[Place]], int]:
        executor, x = comm._executor, np.ones(8)
        found: list[list[Place]] = []
        comm.allreduce(x)
        ready = comm._ready.find("allreduce", x, "sum", None)
        assert ready is not None
        plan = ready.plan
        rivals = dataclasses.replace(plan, rivals=(plan, plan), contest=Contest())
        calls = plan.bound[0].calls
        last = calls.pop()
        calls.append(lambda: (found.append(places(executor.alarm)), last()))
        executor.repeat(ready, x, None, 1e9)
        executor.repeat(ready._replace(plan=rivals), x, None, 1e9)
        return found, len(calls) - 1

    with world_of("local", 1) as world:
        ((found, at),) = world.run(rank)
    assert [[(place.number, place.step) for place in asked] for asked in found] == [[(2, at)], [(3, at)]]
    assert "allreduce(float64, 8 elements, op=sum), call 3" in found[1][0].text
