"""Process sets: subsets of the world with communicators of their own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from collectives import (
    ClosedError,
    MismatchError,
    ProcessSet,
    add_process_set,
    global_process_set,
    init,
    remove_process_set,
    shutdown,
    world,
)
from collectives.process_sets import add_given
from tests.worlds import World, Worlds, world_of

PATIENCE = 30.0


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    with_worlds = Worlds()
    yield with_worlds
    with_worlds.close()


@pytest.fixture
def four(worlds: Worlds) -> World:
    return worlds.get("local", 4)


def total(comm: Any, name: str | None = None) -> float:
    return float(comm.allreduce_async(np.float64(world().rank), name=name).wait(PATIENCE))


def test_a_set_computes_for_itself_in_the_order_of_the_worlds_ranks(four: World) -> None:
    def body(comm: Any) -> Any:
        odd = add_process_set([3, 1])
        assert odd.ranks == [1, 3]
        assert odd.included() is (comm.rank in (1, 3))
        assert odd.size() == 2
        if not odd.included():
            result = None
        else:
            gathered = odd.communicator.allgather(np.array([comm.rank]))
            result = odd.rank(), gathered.tolist(), total(odd.communicator), total(odd.communicator, "x")
        assert remove_process_set(odd)
        return result

    assert four.run(body) == [None, (0, [1, 3], 4.0, 4.0), None, (1, [1, 3], 4.0, 4.0)]


def test_every_rank_may_list_the_members_in_its_own_order(four: World) -> None:
    def body(comm: Any) -> Any:
        given = [[0, 1, 3], [3, 0, 1], [1, 3, 0], [1, 0, 3]][comm.rank]
        three = add_process_set(given)
        assert three == ProcessSet([3, 1, 0])
        assert hash(three) == hash(ProcessSet([3, 1, 0]))
        gathered = three.communicator.allgather(np.array([comm.rank])).tolist() if three.included() else None
        assert remove_process_set(ProcessSet(given[::-1]))
        return gathered

    assert four.run(body) == [[0, 1, 3], [0, 1, 3], None, [0, 1, 3]]


def test_sets_do_not_wait_for_each_other(four: World) -> None:
    gate = threading.Event()

    def body(comm: Any) -> Any:
        low, all_but_last, pair = (add_process_set(ranks) for ranks in ([0, 1], [0, 1, 2], [2, 3]))
        if comm.rank in (0, 1):
            stuck = all_but_last.communicator.allreduce_async(np.float64(1), name="x")  # rank 2 comes late
            free = total(low.communicator, "x"), total(low.communicator)
            assert not stuck.test()
            if comm.rank == 0:
                gate.set()
        elif comm.rank == 2:
            assert gate.wait(PATIENCE)
            stuck = all_but_last.communicator.allreduce_async(np.float64(1), name="x")
            free = total(pair.communicator, "x"), total(pair.communicator)
        else:
            stuck, free = None, (total(pair.communicator, "x"), total(pair.communicator))
        assert stuck is None or stuck.wait(PATIENCE) == 3
        for process_set in (low, all_but_last, pair):
            remove_process_set(process_set)
        return free

    assert four.run(body) == [(1.0, 1.0), (1.0, 1.0), (5.0, 5.0), (5.0, 5.0)]


def test_the_global_set_is_the_world(four: World) -> None:
    def body(comm: Any) -> None:
        assert global_process_set.communicator is comm
        assert global_process_set.process_set_id == 0
        assert global_process_set.ranks == [0, 1, 2, 3]
        assert (global_process_set.rank(), global_process_set.size()) == (comm.rank, 4)
        assert global_process_set.included()
        assert ProcessSet([0, 1, 2, 3]).communicator is ProcessSet([2, 3, 1, 0]).communicator is comm
        assert not remove_process_set(global_process_set)

    four.run(body)


def test_without_a_world_nothing_is_known() -> None:
    for process_set, ranks in ((global_process_set, None), (ProcessSet([1, 0]), [0, 1])):
        assert process_set.ranks == ranks
        assert process_set.process_set_id is None
        assert process_set.size() is process_set.rank() is process_set.included() is None
        with pytest.raises(ValueError, match=r"ronde\.init\(\)"):
            process_set.communicator  # noqa: B018


@pytest.mark.parametrize("bad", [[], [0, 0], [-1], [0, 4]])
def test_bad_ranks_are_refused_before_anything_is_done(four: World, bad: list[int]) -> None:
    def body(comm: Any) -> float:
        with pytest.raises(ValueError, match="ranks="):
            add_process_set(bad)
        return total(comm)

    assert four.run(body) == [6.0] * 4


@pytest.mark.parametrize("bad", [[0.5], ["a"], [True], 5])
def test_ranks_are_ints(bad: list[Any]) -> None:
    with pytest.raises(TypeError, match=r"ranks=.*: .*ints"):
        ProcessSet(bad)


def test_what_is_no_process_set_is_refused(four: World) -> None:
    def body(comm: Any) -> float:
        with pytest.raises(TypeError, match=r"process_set=\[0, 2\]: must be"):
            remove_process_set([0, 2])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="process_sets=7: must be"):
            add_given(7)  # type: ignore[arg-type]
        return total(comm)

    assert four.run(body) == [6.0] * 4


def test_a_set_is_added_once(four: World) -> None:
    def body(comm: Any) -> None:
        pair = add_process_set(ProcessSet([2, 0]))
        for again in ([0, 2], pair, [3, 2, 1, 0]):
            with pytest.raises(ValueError, match=r"ranks=.*process set"):
                add_process_set(again)
        if comm.rank == 1:
            with pytest.raises(ValueError, match=r"\[0, 2\].*: rank 1 "):
                pair.communicator  # noqa: B018
            with pytest.raises(ValueError, match=r"rank 1 .*\[0, 2\]"):
                pair.rank()
        first = pair.process_set_id
        assert remove_process_set(pair)
        assert not remove_process_set(pair)
        assert pair.process_set_id is None
        assert pair.included() is (comm.rank in (0, 2))
        add_process_set(pair)
        assert pair.process_set_id == first == 1
        assert remove_process_set(pair)

    four.run(body)


def test_different_ranks_are_a_mismatch_that_the_world_survives(four: World) -> None:
    def body(comm: Any) -> float:
        with pytest.raises(MismatchError) as caught:
            add_process_set([0, 1] if comm.rank != 2 else [2, 0])
        assert "rank 0: add_process_set([0, 1])" in str(caught.value)
        assert "rank 2: add_process_set([0, 2])" in str(caught.value)
        assert not comm.process_sets
        return total(comm)

    assert four.run(body) == [6.0] * 4


def test_removing_a_set_ends_its_operations_in_flight() -> None:
    def body(comm: Any) -> str | None:
        pair = add_process_set([0, 1])
        work = pair.communicator.allreduce_async(np.ones(3), name="alone") if comm.rank == 1 else None
        remove_process_set(pair)
        if work is None:
            return None
        with pytest.raises(ClosedError) as caught:
            work.wait(PATIENCE)
        return str(caught.value)

    with world_of("local", 3) as three:
        text = three.run(body)[1]
        assert "'alone'" in text
        assert "rank 0 closed without submitting it" in text


def test_threads_may_share_a_set(four: World) -> None:
    shared = ProcessSet([0, 2])

    def body(comm: Any) -> float | None:
        assert add_process_set(shared) is shared
        result = total(shared.communicator) if shared.included() else None
        remove_process_set(shared)
        return result

    assert four.run(body) == [2.0, None, 2.0, None]


def test_init_adds_sets_and_shutdown_closes_them() -> None:
    alone, twice = ProcessSet([0]), ProcessSet([0])
    comm = init(transport="local", process_sets=[alone, twice, [0]])
    try:
        assert alone.communicator is twice.communicator is comm
    finally:
        shutdown()
    assert alone.process_set_id is None
    with pytest.raises(ValueError, match=r"ranks=\[1\]: .* 0 to 0"):
        init(transport="local", process_sets=[[0], [1]])
    assert global_process_set.ranks is None
    shutdown()
