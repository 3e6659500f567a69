"""Parts of programs: their text, where they are, and what they do."""

from __future__ import annotations

import linecache
import traceback
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from collectives.algorithms import algorithms
from collectives.execution import step_functions
from collectives.execution.step_functions import StepFunction, StepHook, StepWriter
from tests.worlds import world_of

NOTHING = np.empty(0)


def run(
    function: StepFunction, source: Any = NOTHING, target: Any = NOTHING, epoch: int = 0, hook: StepHook | None = None
) -> None:
    function(source, target, epoch, 0, 0.0, [], hook)


def test_a_piece_is_cut_once_and_a_value_has_one_name() -> None:
    writer = StepWriter()
    stage = np.zeros(2)
    half = writer.piece("target", 2, 4)
    writer.step(f"{half}[...] = {writer.name(stage)}")
    assert writer.piece("target", 2, 4) == half
    assert writer.name(stage) == writer.name(stage)
    writer.step(f"{half}[...] += {writer.name(stage)} + epoch")
    x = np.zeros(4)
    stage[:] = 3
    run(writer.template().function(), target=x, epoch=10)
    assert x.tolist() == [0, 0, 16, 16]


def test_the_same_steps_are_compiled_once() -> None:
    made = []
    for size in (3, 5):
        writer = StepWriter()
        writer.step(f"{writer.name(np.zeros(size))}[...] = source")
        made.append(writer.template().function())
    assert made[0] is not made[1]
    assert made[0].__code__ is made[1].__code__  # type: ignore[attr-defined]


def test_a_template_moves_to_other_places_of_the_stage() -> None:
    writer = StepWriter()
    here, there, fixed = np.zeros(1), np.zeros(1), np.zeros(1)
    writer.step(f"{writer.name(here, 'own')}[...] = source", f"{writer.name(fixed)}[...] = source")
    run(writer.template().moved({"own": there}.__getitem__), source=np.ones(1))
    assert (here[0], there[0], fixed[0]) == (0, 1, 1)


def test_a_traceback_shows_the_text_of_a_step() -> None:
    writer = StepWriter()
    for index in range(4):
        writer.step(f"{writer.name([1, 2, 0, 3])}[{index}] / {writer.name([1, 2, 0, 3])}[{index}]")
    with pytest.raises(ZeroDivisionError) as caught:
        run(writer.template().function())
    frame = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert frame.line is not None
    assert frame.line.endswith("[2]")


def test_the_text_of_steps_is_forgotten_with_them() -> None:
    before = set(linecache.cache)
    for number in range(2 * step_functions._REMEMBERED):
        writer = StepWriter()
        writer.step(f"{writer.name(NOTHING)}, {number}")
        writer.template()
    assert len(set(linecache.cache) - before) <= step_functions._REMEMBERED


def test_marks_are_behind_the_steps() -> None:
    done: list[int] = []
    writer = StepWriter()
    for number in range(3):
        writer.step(f"{writer.name(done.append)}({writer.name(number)})")
    run(writer.template().function(), hook=lambda: done.append(-len(done)))
    assert done == [0, -1, 1, -3, 2, -5]


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
                if known.native or known.multihost or (known.single_copy and not comm._executor.planner.single_copy):
                    continue
                for count, dtype in ((1, "float32"), (size, "int16"), (7 * size, "float64"), (600 * size, "float32")):
                    if count > 1 or collective not in ("reduce_scatter", "alltoall"):
                        compared += compare(comm, collective, name, np.full(count, comm.rank + 1, dtype))
        return compared

    def compare(comm: Communicator, collective: str, name: str, x: Any) -> int:
        executor, call = comm._executor, getattr(comm, collective)
        for number in range(4):
            try:
                result = call(x, algorithm=name)
            except ValueError:  # it is not for so many ranks; on all of them
                return 0
            if result is not None:
                np.testing.assert_array_equal(result, expected(comm, collective, x))
            plan = executor._recent_plan(executor.calls)
            assert plan is not None
            if executor.table(plan) is not None:
                tables.add((collective, name))
            else:
                assert len(plan.bound[0].functions) == 1 or len(plan.program.instructions) > 32
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
