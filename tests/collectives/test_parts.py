"""Parts of programs: their text, where they are, and what they do."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from collectives.algorithms import algorithms
from collectives.parts import Mark, Part, Writer, step_at, step_of
from tests.worlds import world_of

NOTHING = np.empty(0)


def run(part: Part, source: Any = NOTHING, target: Any = NOTHING, epoch: int = 0, mark: Mark | None = None) -> None:
    part(source, target, epoch, 0, 0.0, [], mark)


def test_a_piece_is_cut_once_and_a_value_has_one_name() -> None:
    writer = Writer()
    stage = np.zeros(2)
    half = writer.piece("target", 2, 4)
    writer.step(f"{half}[...] = {writer.name(stage)}")
    assert writer.piece("target", 2, 4) == half
    assert writer.name(stage) == writer.name(stage)
    writer.step(f"{half}[...] += {writer.name(stage)} + epoch")
    x = np.zeros(4)
    stage[:] = 3
    run(writer.draft().part(), target=x, epoch=10)
    assert x.tolist() == [0, 0, 16, 16]


def test_the_same_steps_are_compiled_once() -> None:
    made = []
    for size in (3, 5):
        writer = Writer()
        writer.step(f"{writer.name(np.zeros(size))}[...] = source")
        made.append(writer.draft().part())
    assert made[0] is not made[1]
    assert made[0].__code__ is made[1].__code__  # type: ignore[attr-defined]


def test_a_draft_moves_to_other_places_of_the_stage() -> None:
    writer = Writer()
    here, there, fixed = np.zeros(1), np.zeros(1), np.zeros(1)
    writer.step(f"{writer.name(here, 'own')}[...] = source", f"{writer.name(fixed)}[...] = source")
    run(writer.draft().moved({"own": there}.__getitem__), source=np.ones(1))
    assert (here[0], there[0], fixed[0]) == (0, 1, 1)


def test_a_step_is_found_by_its_line() -> None:
    looked = []

    def look() -> None:
        frame = sys._getframe(1)
        looked.append(step_at(frame.f_code, frame.f_lineno))
        if len(looked) == 3:
            raise KeyError(3)

    writer = Writer()
    for _ in range(4):
        writer.step(f"{writer.name(look)}()")
    with pytest.raises(KeyError) as caught:
        run(writer.draft().part())
    assert looked == [0, 1, 2]
    assert step_of(caught.value.__traceback__) == 2
    assert step_at(run.__code__, 3) is None
    assert step_of(None) == 0


def test_marks_are_behind_the_steps() -> None:
    done: list[int] = []
    writer = Writer()
    for number in range(3):
        writer.step(f"{writer.name(done.append)}({writer.name(number)})")
    run(writer.draft().part(), mark=lambda: done.append(-len(done)))
    assert done == [0, -1, 1, -3, 2, -5]


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("transport", ["local", "shm"])
def test_every_algorithm_gives_the_same_timed_or_not_and_in_every_turn(transport: str, size: int) -> None:

    def body(comm: Communicator) -> int:
        compared = 0
        for collective in ("allreduce", "reduce", "reduce_scatter", "broadcast", "allgather", "alltoall"):
            for name, known in algorithms(collective).items():
                if known.native or known.multihost or (known.lends and not comm._executor.planner.lends):
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
            plan = executor._recent[executor.calls % len(executor._recent)]
            assert plan is not None
            assert len(plan.bound[0].parts) == 1 or len(plan.program.instructions) > 32
            plan.tally.next = 1 << 60 if number % 2 else 0
            x += 1
        return 1

    with world_of(transport, size) as world:
        assert min(world.run(body)) > 40


def expected(comm: Communicator, collective: str, x: Any) -> Any:
    """What a collective makes of arrays full of a number that is one greater on each rank."""
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
