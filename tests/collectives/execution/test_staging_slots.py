"""Calls stage their data at places in the window that are used in turn."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from collectives.algorithms import algorithms
from collectives.execution.rows import BoundPlan
from collectives.planning.cost_model import Model
from collectives.planning.plan import Call, Plan, Planner
from collectives.planning.rules import Rules
from collectives.planning.select import Selector
from collectives.schedule.contracts import SPECS
from collectives.schedule.steps import Geometry
from tests.worlds import executor_of, kept_plans, world_of

STAGE = 1 << 20


def plan_of(rank: int, size: int, collective: str, algorithm: str, count: int, stage: int = STAGE) -> Plan:
    planner = Planner(Geometry(rank, size), Selector(Model(1e-6, 1e-9), Rules(), "x"), stage, [].append)
    op = "sum" if SPECS[collective].reduces else None
    return planner.plan(Call(collective, np.dtype(np.float32), (count,), op, algorithm=algorithm))


STAGING = [
    (collective, name)
    for collective in SPECS
    for name, known in algorithms(collective).items()
    if known.stage_chunks(2) and collective != "barrier"
]


@pytest.mark.parametrize(("collective", "name"), STAGING)
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_staging_slots_lie_in_their_half_and_hold_the_staged_data(collective: str, name: str, size: int) -> None:
    segmented = algorithms(collective)[name].segmented
    for count in (1, 1000, 5000, 10_000, 30_000, *((100_000, 1_000_003) if segmented else ())):
        plans = [plan_of(rank, size, collective, name, count) for rank in range(size)]
        assert len({(plan.staging_slots, plan.slot_stride) for plan in plans}) == 1
        slots, stride = plans[0].staging_slots, plans[0].slot_stride
        assert slots >= 2
        assert slots % 2 == 0  # so that the halves alternate from plan to plan too
        needed = max(plan.program.stage for plan in plans) * 4
        assert (slots // 2 - 1) * stride + needed <= STAGE
        assert needed <= stride


def test_small_calls_keep_their_slot_and_large_ones_rotate() -> None:
    assert plan_of(0, 2, "allreduce", "direct", 1).staging_slots == 2
    assert plan_of(0, 2, "allreduce", "direct", 4096).staging_slots == 2
    assert plan_of(0, 2, "allreduce", "direct", 1 << 14).staging_slots == 2 * 16  # of 64 KiB each in a half of 1 MiB
    assert plan_of(0, 4, "allreduce", "direct", 1 << 14).staging_slots == 2 * 8  # all ranks' together have 4 MiB
    assert plan_of(0, 2, "allreduce", "direct", 1 << 14, 1 << 26).staging_slots == 2 * 16  # in a larger stage too
    assert plan_of(0, 2, "allreduce", "direct", 1 << 22).staging_slots == 2


@pytest.mark.long
@pytest.mark.parametrize("transport", ["local", "shm"])
@pytest.mark.parametrize("size", [2, 3])
def test_mixed_calls_get_their_own_data(transport: str, size: int) -> None:
    """Sizes from some bytes to more than the stage, in one random order: every call has places of its own."""
    order = random.Random(size)
    counts = [1, 700, 4500, 9000, 20_000, 60_000, 150_000, 600_000]
    calls = [
        (order.choice(["allreduce", "broadcast", "allgather", "alltoall"]), order.choice(counts)) for _ in range(300)
    ]

    def body(comm: Communicator) -> None:
        persistent = {}
        for number, (name, count) in enumerate(calls):
            count -= count % size if name == "alltoall" else 0
            part = count // size
            x = np.full(count, 100.0 * number + comm.rank, np.float32)
            if name == "alltoall":
                x += np.arange(count) // max(part, 1) * 10
            result: Any = getattr(comm, name)(x)
            ranks = np.arange(size, dtype=np.float32)
            expected = {
                "allreduce": np.full(count, (100.0 * number + ranks).sum()),
                "broadcast": np.full(count, 100.0 * number),
                "allgather": np.repeat(100.0 * number + ranks, count),
                "alltoall": np.repeat(100.0 * number + ranks + 10 * comm.rank, part),
            }[name]
            np.testing.assert_array_equal(result, expected)
            plan, y = persistent.setdefault(number % 3, prepared(comm, (20_000, 40_000, 80_000)[number % 3]))
            y[...] = number + comm.rank
            plan.run()
            assert (y == number * size + size * (size - 1) / 2).all()

    with world_of(transport, size) as world:
        world.run(body)


def prepared(comm: Communicator, count: int) -> Any:
    y = np.zeros(count)
    return comm.plan("allreduce", y, out=y), y


def test_a_plan_goes_through_all_its_places() -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(1 << 14, np.float32)
        for _ in range(80):
            comm.allreduce(x)
        plan = next(plan for plan in kept_plans(comm) if plan.call.blocks == (1 << 14,))
        bound = plan.bound[BoundPlan]
        memory = [array for slot in range(plan.staging_slots) for array in bound.memory(slot, x, x)[2:]]
        assert len({array.ctypes.data for array in memory}) == 2 * plan.staging_slots  # the own stage and the other's
        executor_of(comm).forget_plans()
        assert not kept_plans(comm)
        assert (comm.allreduce(x) == 2).all()

    with world_of("local", 2) as world:
        world.run(body)
