"""Where a rank is, read from its stack."""

from __future__ import annotations

import dataclasses
import gc
import sys
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from collectives.bind import Bound
from collectives.contest import Contest
from collectives.execute import Executor
from collectives.meter import Meter
from collectives.parts import Writer
from collectives.plan import Plan
from collectives.whereabouts import Place, _in_collective, places, stack_of
from tests.worlds import world_of
from transports.errors import DeadlineExceeded, RondeError


def test_a_call_is_at_one_place_also_where_two_plans_compete() -> None:
    """And at the step of the function that it runs its steps by."""

    def rank(comm: Communicator) -> list[list[Place]]:
        executor, x = comm._executor, np.ones(8)
        found: list[list[Place]] = []
        comm.allreduce(x)
        ready = comm._ready.find("allreduce", x, "sum", None)
        assert ready is not None
        plan = ready.plan
        rivals = dataclasses.replace(plan, rivals=(plan, plan), contest=Contest())
        writer = Writer()
        look = writer.name(lambda: found.append(places(executor.alarm)))
        for _ in range(2):
            writer.step(f"{look}()")
        for turn in range(plan.turns):
            plan.bound[turn] = Bound((writer.draft().part(),))
        plan.tally.next = 1 << 60  # no call is timed, which is done step by step
        executor.repeat(ready, x, None, 1e9)
        executor.repeat(ready._replace(plan=rivals), x, None, 1e9)
        comm.barrier()
        return found

    with world_of("local", 2) as world:
        found, _ = world.run(rank)
    mine = [[(place.number, place.step) for place in asked if place.executor.rank == 0] for asked in found]
    assert mine == [[(2, 0)], [(2, 1)], [(3, 0)], [(3, 1)]]
    first, second = found[2][0].text, found[3][0].text
    assert "allreduce(float64, 8 elements, op=sum), call 3" in first
    assert first != second


def test_where_a_rank_gives_up_is_where_it_was_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it was looked at before it was, and is asked afterwards."""
    found: list[tuple[int, int]] = []
    give_up = Executor._give_up

    def look(executor: Executor, plan: Plan, at: int, error: RondeError) -> RondeError:
        if executor.rank == 0:
            frame = sys._getframe(1)
            (early,) = _in_collective(at, **frame.f_locals)
            (place,) = [place for place in places(executor.alarm) if place.executor is executor]
            found.append((early.step, place.step))
        return give_up(executor, plan, at, error)

    def rank(comm: Communicator) -> None:
        x = np.ones(8)
        comm.allreduce(x)
        ready = comm._ready.find("allreduce", x, "sum", None)
        assert ready is not None
        last = len(ready.plan.program.instructions) - 1
        writer = Writer()
        for _ in range(last):
            writer.step("pass")
        writer.step(f"{writer.name(fail)}()")
        for turn in range(ready.plan.turns):
            ready.plan.bound[turn] = Bound((writer.draft().part(),))
        with pytest.raises(RondeError):
            comm.allreduce(x)
        if comm.rank == 0:
            assert found == [(last, last)]

    def fail() -> None:
        raise DeadlineExceeded("too late")

    monkeypatch.setattr(Executor, "_give_up", look)
    with world_of("local", 2) as world:
        world.run(rank)


def test_a_call_without_steps_is_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[Place]] = []
    ended = Meter.ended

    def look(meter: Meter, *arguments: Any) -> None:
        found.append(places(comm._executor.alarm))
        ended(meter, *arguments)

    with world_of("local", 1) as world:
        (comm,) = world.communicators
        monkeypatch.setattr(Meter, "ended", look)
        x = np.ones(3)
        world.run(lambda comm: comm.allreduce(x, out=x))
    assert found == [[]]


def test_an_error_tells_the_step_of_the_function_that_it_comes_from() -> None:
    def rank(comm: Communicator) -> str:
        x = np.ones(8)
        for _ in range(4):
            comm.allreduce(x)
        plan = next(iter(comm._executor.planner._plans.values()))
        plan.tally.next = 1 << 60
        if comm.rank:
            return ""
        with pytest.raises(DeadlineExceeded) as caught:
            comm.allreduce(x)
        return str(caught.value)

    with world_of("local", 2, timeout=0.3) as world:
        text, _ = world.run(rank)
    assert "allreduce(float64, 8 elements, op=sum), call 5" in text
    assert "rank 0 waits for rank 1" in text


def test_who_looks_keeps_no_frames() -> None:
    """They would keep the arrays of whoever is looked at, until the collector finds them."""
    looked, over = threading.Event(), threading.Event()
    kept: list[weakref.ref[Sized]] = []

    def work() -> None:
        array = Sized()
        kept.append(weakref.ref(array))
        looked.set()
        over.wait(10)

    thread = threading.Thread(target=work)
    collects = gc.isenabled()
    gc.disable()
    try:
        thread.start()
        looked.wait(10)
        with world_of("local", 1) as world:
            assert world.run(lambda comm: places(comm._executor.alarm)) == [[]]
        assert "over.wait(10)" in stack_of(thread.ident or 0)
        over.set()
        thread.join()
        assert kept[0]() is None
    finally:
        if collects:
            gc.enable()
    assert gc.isenabled() == collects


class Sized:
    """Stands for an array."""


def test_the_collector_is_left_as_it_was() -> None:
    gc.disable()
    try:
        stack_of(threading.get_ident())
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert "test_the_collector_is_left_as_it_was" in stack_of(threading.get_ident())
    assert gc.isenabled()


def test_the_stack_of_a_thread_that_has_ended() -> None:
    assert stack_of(0) == "  its thread has ended\n"
