"""Mismatched calls in which every rank waits, so that no frame shows the mismatch: the ranks compare notes."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collectives import Communicator, MismatchError
from collectives.failure import mismatched_calls
from collectives.failure.mismatched_calls import find_mismatch
from collectives.planning.rules import Rule
from collectives.watchdog import watchdog as watch
from tests.worlds import world_of
from transports.rendezvous.memory import MemoryStore

Calls = Callable[[Communicator], Any]


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LISTEN_SECONDS", 0.05)
    monkeypatch.setattr(watch, "STUCK_SECONDS", 0.04)


def different_roots(comm: Communicator) -> None:
    """Every rank waits for the next one."""
    comm.broadcast(np.zeros(4), root=(comm.rank + 1) % comm.size, algorithm="binomial")


def one_rank_ahead(comm: Communicator) -> None:
    """Rank 0 has sent data that no rank takes. It waits in its second call for ranks that are in their first."""
    comm.broadcast(np.zeros(4), root=[0, 2, 1][comm.rank])
    comm.broadcast(np.zeros(4), root=1)


@pytest.mark.parametrize("transport", ["local", "tcp", "shm"])
def test_broadcast_with_different_roots_raises_a_table_on_every_rank(transport: str) -> None:
    def body(comm: Communicator) -> list[str]:
        with pytest.raises(MismatchError, match=r"call 1 of rank \d was broadcast\(float64, 4 ") as caught:
            different_roots(comm)
        assert isinstance(comm.failure, MismatchError)
        return str(caught.value).splitlines()[1:-1]

    with world_of(transport, 3) as world:
        tables = world.run(body)
    assert tables[0] == tables[1] == tables[2]
    for rank, row in enumerate(tables[0]):
        root = (rank + 1) % 3
        call = f"broadcast(float64, 4 elements, root={root}, algorithm=binomial), its call 1"
        assert f"rank {rank}: {call}, called from {__file__}:" in row


@pytest.mark.parametrize(
    "framework",
    ["torch.distributed.distributed_c10d", "tensorflow.python.eager", "jax._src", "typing_extensions", "warnings"],
)
def test_the_table_names_the_line_of_the_program_not_of_the_framework(framework: str) -> None:
    frames: dict[str, Any] = {"__name__": framework}
    exec("def through(call, array):\n    call(array)", frames)

    def body(comm: Communicator) -> str:
        with pytest.raises(MismatchError, match="do not fit together") as caught:
            frames["through"](comm.allreduce, np.zeros(3 + comm.rank))
        return str(caught.value)

    with world_of("local", 2) as world:
        for text in world.run(body):
            assert text.count(f"called from {__file__}:") == 2


def test_broadcast_of_a_rank_ahead_is_found_by_its_last_calls() -> None:
    """Rank 0 has completed a call with other arguments, in which the other ranks still wait."""

    def body(comm: Communicator) -> str:
        with pytest.raises(MismatchError, match="do not fit together") as caught:
            one_rank_ahead(comm)
        return str(caught.value)

    with world_of("tcp", 3) as world:
        texts = world.run(body)
    for text in texts:
        assert "rank 0: broadcast(float64, 4 elements, root=1), its call 2, called from" in text
        assert "rank 1: broadcast(float64, 4 elements, root=2), its call 1, called from" in text
        assert "rank 2: broadcast(float64, 4 elements, root=1), its call 1, called from" in text


@pytest.mark.parametrize("transport", ["local", "tcp", "shm"])
@pytest.mark.parametrize("call", ["allreduce", "broadcast", "reduce", "scan", "adasum"])
def test_a_rank_without_elements_does_not_go_on(transport: str, call: str) -> None:
    """It exchanged nothing, and later calls went wrong."""

    def body(comm: Communicator) -> str:
        x = np.ones(0 if comm.rank == 0 else 5)

        def calls() -> None:
            comm.allreduce(x, "adasum") if call == "adasum" else getattr(comm, call)(x)
            comm.barrier()  # a rank that only sends has returned

        with pytest.raises(MismatchError, match="do not fit together") as caught:
            calls()
        return str(caught.value)

    with world_of(transport, 4) as world:
        for text in world.run(body):
            assert "rank 0: " in text
            assert " 0 elements" in text.splitlines()[1]


@pytest.mark.parametrize("transport", ["local", "tcp"])
def test_the_table_has_the_algorithms_of_ranks_that_make_the_same_call(transport: str) -> None:
    """Their rule tables differ."""

    def body(comm: Communicator) -> str:
        rules = (Rule("allreduce", "tree" if comm.rank == 0 else "ring"),)
        comm._selector._rules = rules
        with pytest.raises(MismatchError, match="do not fit together") as caught:
            comm.allreduce(np.ones(1000))
        return str(caught.value)

    with world_of(transport, 2) as world:
        for text in world.run(body):
            assert "its call 1, by tree in 1 segments, called from" in text
            assert "its call 1, by ring in 1 segments, called from" in text


def test_calls_without_elements_are_calls() -> None:
    def body(comm: Communicator) -> list[tuple[int, ...]]:
        x = np.ones((0, 2))
        found = [comm.allreduce(x), comm.broadcast(x), comm.scan(x), comm.reduce_scatter(x), comm.allgather(x)]
        found += [comm.alltoall(x), comm.allreduce(x, "adasum"), comm.allreduce(x, reproducible=True)]
        return [each.shape for each in found]

    for transport in ("local", "tcp", "shm"):
        with world_of(transport, 3) as world:
            assert world.run(body) == [[(0, 2)] * 8] * 3


@pytest.mark.long
def test_split_groups_are_compared_separately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mismatched_calls, "_TABLE_SECONDS", 3.0)  # on a busy machine a rank may be late by a second
    matched = threading.Barrier(4)

    def body(comm: Communicator) -> list[str]:
        group = comm.split(comm.rank % 2)
        assert group is not None
        if comm.rank % 2:  # the calls of this group match, but all ranks share one transport
            group.barrier()
            group.allreduce(np.zeros(3))
        matched.wait(30.0)  # the mismatch of the other group ends every call of this one
        with pytest.raises(MismatchError) as caught:
            comm.barrier() if comm.rank % 2 else different_roots(group)
        return str(caught.value).splitlines()[1:-1]

    with world_of("local", 4) as world:
        tables = world.run(body)
    assert tables[0] == tables[2]
    assert [", root=1," in tables[0][0], ", root=0," in tables[0][1]] == [True, True]
    assert not any("allreduce" in row for row in tables[0])


@pytest.mark.parametrize("transport", ["local", "tcp", "shm"])
def test_sizes_that_may_differ_are_not_a_mismatch(transport: str) -> None:
    """An allgather tries to do without the sizes of the others. Its ranks compare it when one is late later on."""
    gate = threading.Barrier(3)

    def body(comm: Communicator) -> float:
        assert len(comm.allgather(np.ones(3 + 100 * comm.rank))) == 309
        gate.wait(20.0)
        if comm.rank == 2:
            threading.Event().wait(0.5)
        return float(comm.allreduce(1.0))

    with world_of(transport, 3) as world:
        assert world.run(body) == [3.0] * 3


@pytest.mark.long
def test_slow_ranks_are_not_a_mismatch() -> None:
    def body(comm: Communicator) -> None:
        for turn in range(6):
            if comm.rank == turn % 3:
                threading.Event().wait(
                    0.3
                )  # the others are compared with each other, and with this rank's earlier calls
            np.testing.assert_array_equal(comm.broadcast(np.full(4, comm.rank), root=turn % 3), np.full(4, turn % 3))
            if comm.rank:
                comm.send(np.zeros(1), 0)
            else:
                for src in (1, 2):
                    comm.recv(np.zeros(1), src)
            assert comm.allreduce(turn) == 3 * turn

    with world_of("local", 3) as world:
        world.run(body)
        assert world.sound


def test_notes_with_equal_numbers_are_compared() -> None:
    store = MemoryStore()
    ranks = (5, 7, 9)

    def at(rank: int, *calls: tuple[int, int, str]) -> MismatchError | None:
        return find_mismatch(store, "key", ranks, rank, calls)

    assert at(0, (1, 11, "a"), (2, 22, "b")) is None
    assert at(0, (1, 11, "a"), (2, 22, "b")) is None
    assert at(1, (2, 22, "b"), (3, 33, "c")) is None
    assert at(2, (9, 99, "z")) is None
    assert at(0, (3, 34, "d")) is None  # it has read the note of rank 2 only
    error = at(1, (2, 22, "b"), (3, 33, "c"))
    assert error is not None
    assert error.message == "call 3 of rank 0 was d, that of rank 1 c"
    assert (error.rank, error.peer) == (7, 5)
    assert find_mismatch(store, "another key", ranks, 2, [(3, 0, "e")]) is None
