"""Rows as functions of Python, and as tables: the same results; the hook between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from collectives.algorithms import algorithms
from collectives.execution.rows import BoundPlan
from tests.worlds import executor_of, newest_plan, world_of


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_a_hook_is_called_before_the_first_row_and_after_every_row(transport: str) -> None:
    def body(comm: Communicator) -> int:
        x, executor, called = np.ones(5), executor_of(comm), []
        comm.allreduce(x)
        executor.overlap = lambda plan, source, target: lambda: called.append(0)
        comm.allreduce(x)
        executor.overlap = None
        plan = newest_plan(comm)
        assert plan is not None
        return len(called) - len(plan.program.instructions)

    with world_of(transport, 2, compiled=["off"]) as world:
        assert world.run(body) == [1, 1]


@pytest.mark.parametrize("transport", ["local", "tcp"])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_rows_that_stand_alone_do_the_same(transport: str, size: int) -> None:
    def body(comm: Communicator) -> None:
        for collective, count in (("allreduce", 40 * size), ("allgather", 40), ("alltoall", 40 * size)):
            x = np.arange(count) + comm.rank
            result = getattr(comm, collective)(x)
            plan = newest_plan(comm)
            assert plan is not None
            bound = plan.bound[BoundPlan]
            assert len(bound.single_rows) == len(bound.rows) == len(plan.program.instructions)
            bound.joined = bound.single_rows
            assert (getattr(comm, collective)(x) == result).all()

    with world_of(transport, size, compiled=["off"]) as world:
        world.run(body)


@pytest.mark.long
@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize(
    ("transport", "compiled"), [("local", ["off"]), ("shm", ["off"]), ("shm", ["on"]), ("shm", ["on", "off"])]
)
def test_every_algorithm_gives_the_same_timed_or_not_and_in_every_turn(
    transport: str, compiled: list[str], size: int
) -> None:
    if "on" in compiled:
        pytest.importorskip("numba", reason="the compiled interpreter needs Numba")
    tables = set()

    def body(comm: Communicator) -> int:
        compared = 0
        for collective in ("allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "alltoall"):
            for name, known in algorithms(collective).items():
                if known.native or known.multihost or (known.single_copy and not executor_of(comm).planner.single_copy):
                    continue
                for count, dtype in ((1, "float32"), (size, "int16"), (7 * size, "float64"), (600 * size, "float32")):
                    if count > 1 or collective not in ("reduce_scatter", "alltoall"):
                        compared += compare(comm, collective, name, np.full(count, comm.rank + 1, dtype))
        return compared

    def compare(comm: Communicator, collective: str, name: str, x: Any) -> int:
        executor, call = executor_of(comm), getattr(comm, collective)
        for number in range(4):
            try:
                result = call(x, algorithm=name)
            except ValueError:  # it is not for so many ranks; on all of them
                return 0
            if result is not None:
                np.testing.assert_array_equal(result, expected(comm, collective, x))
            plan = newest_plan(comm)
            assert plan is not None
            if executor.table(plan) is not None:
                tables.add((collective, name))
            else:
                assert len(plan.bound[BoundPlan].rows) == len(plan.program.instructions)
            plan.tally.next = 1 << 60 if number % 2 else 0
            x += 1
        return 1

    with world_of(transport, size, compiled=compiled) as world:
        assert min(world.run(body)) > 40
    assert (len(tables) >= 8) == ("on" in compiled)


def expected(comm: Communicator, collective: str, x: Any) -> Any:
    """The result of a collective on constant arrays, whose value is one greater on each next rank."""
    size, first = comm.size, x.dtype.type(x[0] - comm.rank)
    numbers = np.arange(size, dtype=x.dtype) + first
    part = len(x) // size
    return {
        "allreduce": np.full(len(x), numbers.sum()),
        "reduce": np.full(len(x), numbers.sum()),
        "reduce_scatter": np.full(part, numbers.sum()),
        "broadcast": np.full(len(x), first),
        "allgather": np.repeat(numbers, len(x)),
        "alltoall": np.repeat(numbers, part),
    }[collective]
