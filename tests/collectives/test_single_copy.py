"""Large arrays read where they lie, and the contest between that and staging."""

from __future__ import annotations

import errno
import random

import numpy as np
import pytest

import collectives as ronde
from collectives import Communicator
from collectives.algorithms import algorithms
from collectives.contest import MAX_STAY, MIN_STAY, Contest
from tests.worlds import world_of
from transports.onesided import Window

LENDING = sorted(
    (collective, name)
    for collective in ("allreduce", "reduce_scatter", "broadcast", "allgather", "alltoall")
    for name, known in algorithms(collective).items()
    if known.lends
)
LARGE = 100_000
"""float32 numbers that both ways are tried for."""


def test_what_lends() -> None:
    assert {collective for collective, _ in LENDING} == {
        *("allreduce", "reduce_scatter", "broadcast", "allgather", "alltoall")
    }


@pytest.mark.parametrize("transport", ["local", "shm", "auto"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_may_work_in_place_or_not_each_as_it_likes(transport: str, size: int) -> None:
    def body(comm: Communicator) -> None:
        for count in (1, 1000, LARGE, 300_007):
            for mask in (0, 1, 2, (1 << size) - 1):
                x = np.arange(count, dtype=np.float32) % 97 + comm.rank
                expected = (np.arange(count) % 97 * size + size * (size - 1) / 2).astype(np.float32)
                out = x if mask >> comm.rank & 1 else np.zeros_like(x)
                assert comm.allreduce(x, out=out, algorithm="single_copy") is out
                np.testing.assert_array_equal(out, expected)
                average = comm.allreduce(out, "average", algorithm="single_copy")
                np.testing.assert_array_equal(average, expected)
                sent = np.full(count, comm.rank, np.int16)
                got = sent if mask >> comm.rank & 1 else np.zeros_like(sent)
                comm.broadcast(sent, size - 1, out=got, algorithm="single_copy")
                assert (got == size - 1).all()

    with world_of(transport, size) as world:
        assert all(comm._executor.planner.lends for comm in world.communicators)
        world.run(body)


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_both_ways_are_tried_and_give_the_same(transport: str) -> None:
    size = 3
    order = random.Random(5)
    calls = [
        (order.choice(LENDING)[0], order.choice((LARGE, 120_000, 400_000)), order.random() < 0.2) for _ in range(220)
    ]

    def body(comm: Communicator) -> set[tuple[str, str]]:
        fixed = np.zeros(LARGE)
        plan = comm.plan("allreduce", fixed, out=fixed)
        ranks = np.arange(size, dtype=np.float32)
        for number, (name, count, uneven) in enumerate(calls):
            count -= count % size
            part = count // size
            x = np.full(count, number + comm.rank, np.float32)
            if name == "allgather" and uneven:
                x = x[: count - 3000 * comm.rank]
                expected = np.concatenate([np.full(count - 3000 * rank, number + rank) for rank in range(size)])
            else:
                expected = {
                    "allreduce": np.full(count, (number + ranks).sum()),
                    "reduce_scatter": np.full(part, (number + ranks).sum()),
                    "broadcast": np.full(count, number),
                    "allgather": np.repeat(number + ranks, count),
                    "alltoall": np.repeat(number + ranks, part),
                }[name]
            np.testing.assert_array_equal(getattr(comm, name)(x), expected)
            fixed[:] = number
            plan.run()
            assert (fixed == number * size).all()
        return {
            (plan.call.collective, found.algorithm.name)
            for plan in comm._executor.planner._plans.values()
            for found in (plan, *plan.rivals)
            if found.tally.calls
        }

    with world_of(transport, size) as world:
        used, *others = world.run(body)
    assert all(used >= {pair for pair in other if pair in LENDING} for other in others)
    assert set(LENDING) <= used
    assert {collective for collective, name in used if name.startswith("direct")} >= {name for name, _ in LENDING}


def test_a_system_that_does_not_allow_it_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, start: int, target: memoryview) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("transports.shm.remote.copy_from", refuse)

    def body(comm: Communicator) -> None:
        assert not comm._executor.planner.lends
        x = np.ones(LARGE, np.float32)
        assert (comm.allreduce(x) == 2).all()
        assert not any(plan.rivals for plan in comm._executor.planner._plans.values())
        with pytest.raises(
            ValueError, match=r"algorithm='single_copy': it needs ranks that may read each other's memory"
        ):
            comm.allreduce(x, algorithm="single_copy")
        assert (comm.allreduce(x) == 2).all()

    with world_of("shm", 2) as world:
        world.run(body)


def test_one_rank_that_cannot_read_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if what it reads is another process's memory, as where ranks count processes differently."""

    class Elsewhere(Window):
        """The window of rank 0, whose peer tells and lends these bytes, and says this of what it could read itself."""

        ranks, index, nbytes = (0, 1), 0, 100

        def __init__(self, told: bytes, lent: bytes, fine: int) -> None:
            self.parts = [bytearray(100), bytearray(told.ljust(32, b"\0") + bytes([fine])).ljust(100, b"\0")]
            self.lent = lent.ljust(32, b"\0")

        def view(self, index: int) -> memoryview:
            return memoryview(self.parts[index])

        def read(self, index: int, piece: int, offset: int, target: memoryview) -> None:
            target[:] = self.lent

        def publish(self, epoch: int, check: int = 0) -> None: ...

        def wait(self, index: int, epoch: int, deadline: float, check: int | None = None) -> None: ...

        def lend(self, *views: memoryview) -> None: ...

        def close(self) -> None: ...

    assert Elsewhere(b"probe", b"probe", 1).can_lend(0.0)
    assert not Elsewhere(b"probe", b"other", 1).can_lend(0.0)
    assert not Elsewhere(b"probe", b"probe", 0).can_lend(0.0)


def test_the_faster_one_stays_for_a_while() -> None:
    def go(contest: Contest, seconds: tuple[float, float]) -> list[int]:
        turns = []
        while contest.settled:
            turns.append(contest.turn)
            contest.ran(seconds[contest.turn])
            if len(turns) > 2 * MAX_STAY:
                break
        return turns

    contest = Contest()
    assert sorted(go(contest, (2.0, 1.0))) == [0, 0, 1, 1]
    assert contest.times.tolist() == [2.0, 1.0]
    contest.settle()
    later = go(contest, (2.0, 3.0))
    assert later[:MIN_STAY] == [1] * MIN_STAY
    assert sorted(later[MIN_STAY:]) == [0, 1]
    assert contest.times.tolist() == [2.0, 3.0]
    contest.settle()
    assert go(contest, (1e-6, 1.0))[:MIN_STAY] == [0] * MIN_STAY
    contest.settle()
    assert go(contest, (1e-6, 1.0))[: MAX_STAY + 1].count(0) >= MAX_STAY


def compute() -> bool:
    comm = ronde.world()
    for count in (1000, LARGE, 3_000_000):
        x = np.full(count, comm.rank + 1.0)
        for _ in range(12):
            assert (comm.allreduce(x) == 6).all()
        assert (comm.allreduce(x, algorithm="single_copy") == 6).all() or not comm._executor.planner.lends
    return comm._executor.planner.lends


def test_processes_read_each_other() -> None:
    assert len(set(ronde.run(compute, np=3, transport="shm", timeout=60))) == 1
