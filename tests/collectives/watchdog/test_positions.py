"""Positions of calls: executors and messages tell them, any thread may ask."""

from __future__ import annotations

import sys
import threading
import time
from functools import partial
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from collectives.execution import CallPosition
from collectives.execution.executor import Executor
from collectives.execution.rows import BoundPlan, Row
from collectives.failure import AbortSignal
from collectives.metering.meter import Meter
from collectives.planning.plan import Plan
from tests.worlds import executor_of, kept_plans, world_of
from transports.errors import DeadlineExceeded, RondeError


def positions(comm: Communicator) -> list[CallPosition]:
    return executor_of(comm).positions.now()


def bind(comm: Communicator, plan: Plan, *rows: Row) -> None:
    """Let a plan run these rows, whatever its staging slot."""
    plan.bound[BoundPlan] = SimpleNamespace(rows=rows, joined=rows, memory=lambda *call: [])
    plan.tally.next = 1 << 60  # no call is timed


def plan_of(comm: Communicator, x: Any) -> Plan:
    plans = kept_plans(comm)
    return next(plan for plan in plans if plan.call.collective == "allreduce" and plan.call.blocks == (x.size,))


def test_each_row_has_a_position() -> None:
    def rank(comm: Communicator) -> list[list[CallPosition]]:
        executor, x = executor_of(comm), np.ones(8)
        found: list[list[CallPosition]] = []
        comm.allreduce(x)
        plan = plan_of(comm, x)

        def row(step: int, *call: Any) -> None:
            executor.counter.step = step
            found.append(positions(comm))

        bind(comm, plan, *(partial(row, step) for step in range(2)))
        for _ in range(2):
            executor.run(plan, x, np.empty_like(x), 1e9)
        comm.barrier()
        return found

    with world_of("local", 2) as world:
        found, _ = world.run(rank)
    mine = [[(place.number, place.step) for place in asked if place.caller.rank == 0] for asked in found]
    assert mine == [[(2, 0)], [(2, 1)], [(3, 0)], [(3, 1)]]
    first, second = found[2][0].text, found[3][0].text
    assert "allreduce(float64, 8 elements, op=sum), call 3" in first
    assert first != second


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_a_position_can_be_asked_for_at_every_line_of_a_call(transport: str) -> None:
    """Also where the call before had more steps."""

    def rank(comm: Communicator) -> int:
        asked: list[CallPosition | None] = []

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            asked.append(executor_of(comm).position())
            return trace

        for _ in range(3):
            comm.allreduce(np.ones(500), algorithm="ring")
            sys.settrace(trace)
            try:
                comm.allreduce(np.ones(1))
            finally:
                sys.settrace(None)
        return sum(one is not None for one in asked)

    with world_of(transport, 4, compiled=["off"]) as world:
        assert min(world.run(rank)) > 20


def test_failed_call_keeps_its_position_until_the_error_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait chain is asked for while the call gives up."""
    found: list[tuple[int, int]] = []
    give_up = AbortSignal.fail

    def look(signal: AbortSignal, *error: Any) -> RondeError:
        executor = executor_of(world.communicators[0])
        if executor.abort_signal is signal:
            (place,) = [place for place in executor.positions.now() if place.caller is executor]
            found.append((place.number, place.step))
        return give_up(signal, *error)

    def rank(comm: Communicator) -> None:
        x = np.ones(8)
        comm.allreduce(x)
        plan = plan_of(comm, x)
        last = len(plan.program.instructions) - 1
        bind(comm, plan, lambda *call: fail(comm, last))
        with pytest.raises(RondeError):
            comm.allreduce(x)
        if comm.rank == 0:
            assert found == [(2, last)]
        assert positions(comm) == []

    def fail(comm: Communicator, step: int) -> None:
        executor_of(comm).counter.step = step
        raise DeadlineExceeded("too late")

    monkeypatch.setattr(AbortSignal, "fail", look)
    with world_of("local", 2) as world:
        world.run(rank)


def test_call_without_instructions_has_no_position(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[list[CallPosition]] = []
    ended = Meter.ended

    def look(meter: Meter, *arguments: Any) -> None:
        found.append(positions(comm))
        ended(meter, *arguments)

    with world_of("local", 1) as world:
        (comm,) = world.communicators
        monkeypatch.setattr(Meter, "ended", look)
        x = np.ones(3)
        world.run(lambda comm: comm.allreduce(x, out=x))
    assert found == [[]]


@pytest.mark.long
def test_error_of_a_compiled_call_names_the_call_and_the_awaited_rank() -> None:
    def rank(comm: Communicator) -> str:
        x = np.ones(8)
        for _ in range(4):
            comm.allreduce(x)
        plan = next(iter(kept_plans(comm)))
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


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_every_rank_that_waits_tells_which_instruction_waits_for_which_rank(transport: str) -> None:
    """Also in the steps of one compiled part: a chain of ranks, each of which waits for the one before."""
    over = threading.Event()

    def rank(comm: Communicator) -> int | None:
        x = np.ones(8)
        comm.broadcast(x, algorithm="chain")
        if comm.rank == 0:
            assert over.wait(20)
            comm.broadcast(x, algorithm="chain")
            return None
        call = comm.broadcast_async(x, algorithm="chain")
        ends = time.monotonic() + 20
        while not (mine := positions(comm)) and time.monotonic() < ends:
            time.sleep(0.01)
        (place,) = mine
        comm.send(np.ones(1), 0)
        call.wait()
        assert place.number == 2
        assert f"rank {comm.rank} waits " in place.text
        return place.awaits

    def first(comm: Communicator) -> int | None:
        if comm.rank == 0:
            messages = [comm.recv_async(np.zeros(1), peer) for peer in (1, 2)]
            waiter = threading.Thread(target=lambda: [message.wait() for message in messages] and over.set())
            waiter.start()
        return rank(comm)

    with world_of(transport, 3) as world:
        assert world.run(first) == [None, 0, 1]


def test_message_has_a_position_while_it_is_awaited() -> None:
    def rank(comm: Communicator) -> list[CallPosition]:
        message = comm.recv_async(np.zeros(1), 1 - comm.rank)
        assert positions(comm) == []
        waiter = threading.Thread(target=message.wait)
        waiter.start()
        ends = time.monotonic() + 20
        while not (mine := positions(comm)) and time.monotonic() < ends:
            time.sleep(0.01)
        comm.barrier()
        comm.send(np.zeros(1), 1 - comm.rank)
        waiter.join()
        assert positions(comm) == []
        return mine

    with world_of("local", 2) as world:
        for number, mine in enumerate(world.run(rank)):
            (place,) = mine
            assert (place.number, place.peers, place.awaits) == (0, (1 - number,), 1 - number)
            assert place.text == f"a call to receive from rank {1 - number}"


@pytest.mark.parametrize("call", ["recv", "probe"])
def test_receive_from_any_rank_has_a_position_that_awaits_none(call: str) -> None:
    def rank(comm: Communicator) -> list[CallPosition]:
        waiter = threading.Thread(target=getattr(comm, call))
        waiter.start()
        ends = time.monotonic() + 20
        while not (mine := positions(comm)) and time.monotonic() < ends:
            time.sleep(0.01)
        comm.barrier()
        sending = comm.send_async(np.zeros(1), (comm.rank + 1) % 3)
        waiter.join()
        if call == "probe":
            comm.recv()
        sending.wait()
        assert positions(comm) == []
        return mine

    doing = {"recv": "a call to receive from any rank", "probe": "a call to probe for a message from any rank"}[call]
    with world_of("local", 3) as world:
        for (place,) in world.run(rank):
            assert (place.number, place.peers, place.awaits, place.text) == (0, (0, 1, 2), None, doing)


def test_closed_communicator_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.local()
    monkeypatch.setattr(Executor, "position", lambda executor: asked.keys.append(executor.key))

    def rank(comm: Communicator) -> None:
        group = comm.split(0)
        assert group is not None
        for number in (4, 2):  # each has an executor for plain calls and one for named ones
            asked.keys = []
            positions(comm)
            assert len(asked.keys) == number
            group.close()

    with world_of("local", 2) as world:
        world.run(rank)
