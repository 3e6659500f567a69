"""The work of a first call, counted in functions of Python: a call of a new shape is planned, not searched for."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from benchmarks.first_calls import PARTS, main
from collectives import Communicator
from collectives.algorithms import algorithms
from collectives.arrays import Array
from collectives.planning import Call, Plan, Planner, Rules, Selector
from collectives.planning.cost_model import Model
from collectives.schedule import Geometry
from tests.worlds import World

MOST = {"off": 340, "on": 380}
"""Functions of an allreduce of a new shape, without those of a wait for the other rank; 550 and 706 before November
2026."""


def functions_of(run: Any, *args: Any) -> list[str]:
    """The functions of Python that a call of `run` enters in this thread, but for those of the transport: they depend
    on the other rank."""
    entered: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and not frame.f_globals.get("__name__", "").startswith("transports."):
            entered.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        run(*args)
    finally:
        sys.setprofile(None)
    return entered


def count_first_calls(comm: Communicator, first: int) -> int:
    """The functions of the first call of a new shape, the fewest of some."""

    def array(size: int) -> Array:
        return np.ones(size, np.float32)

    for size in range(first, first + 4):
        comm.allreduce(array(size))
    return min(len(functions_of(comm.allreduce, array(first + 10 + index))) for index in range(10))


@pytest.mark.parametrize("compiled", ["off", "on"])
def test_a_first_call_enters_few_functions(compiled: str) -> None:
    if compiled == "on":
        pytest.importorskip("numba", reason="needs the compiled interpreter")
    transport = "shm" if compiled == "on" else "local"
    world = World(transport, 2, compiled=(compiled,))
    try:
        found = world.run(count_first_calls, 100)
    finally:
        world.close()
    assert max(found) <= MOST[compiled], found


def planner(size: int = 4, stage: int = 1 << 20) -> Planner:
    """A planner of ranks on one host."""

    def ignore(plan: Plan) -> None:
        """No plan is noted."""

    return Planner(Geometry(0, size, hosts=(0,) * size), Selector(Model(), Rules(), "shm"), stage, ignore)


def test_a_new_size_costs_no_search_among_algorithms() -> None:
    """The first size alone pays for the parts that do not depend on it."""
    made = planner()

    def call(count: int) -> Call:
        return Call("allreduce", np.dtype(np.float32), (count,), "sum")

    searched = functions_of(made.plan, call(1000))
    counted = functions_of(made.plan, call(1001))
    assert "obstacle" in searched
    assert not {"obstacle", "terms", "algorithms", "crossing"} & set(counted)
    assert len(counted) < 7 * len(algorithms("allreduce")) + 60, counted


def test_plans_of_other_sizes_are_those_of_a_planner_of_their_own() -> None:
    """Nothing of a size stays in what is kept for the next one."""
    made = planner()
    for count in (1, 7, 1 << 18, 64, (1 << 22) + 3, 1000, 0):
        call = Call("allreduce", np.dtype(np.float32), (count,), "sum", alias=0)
        found, alone = made.plan(call), planner().plan(call)
        assert (found.algorithm.name, found.geometry, found.program) == (
            alone.algorithm.name,
            alone.geometry,
            alone.program,
        )
        assert (found.check, found.staging_slots, found.slot_stride) == (
            alone.check,
            alone.staging_slots,
            alone.slot_stride,
        )


@pytest.mark.processes
def test_the_benchmark_prints_its_parts(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.first_calls.SHAPES", 2)
    monkeypatch.setenv("RONDE_COMPILED", "off")
    monkeypatch.setenv("RONDE_CALIBRATE", "0")
    assert main(["--transports", "local", "--compiled", "off", "--collectives", "allreduce"]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert all(part in head for part in PARTS)
    assert [row.split("|")[2].strip() for row in rows] == ["allreduce"] * 3
