"""Windows whose parts are accessed by their own ranks: of the program's memory, and of ranks of several hosts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from frontends.mpi import places
from tests.frontends.mpi.conftest import Run
from tests.worlds import world_of


def mpi() -> Any:
    from frontends.mpi import MPI

    return MPI


def created(comm: Any, memory: Any) -> Any:
    return mpi().Win.Create(memory, 8, comm=comm), 0


def dynamic(comm: Any, memory: Any) -> Any:
    window = mpi().Win.Create_dynamic(comm=comm)
    window.Attach(memory)
    return window, mpi().Get_address(memory)


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
@pytest.mark.parametrize("make", [created, dynamic])
def test_access_to_memory_of_the_program(ranks: Run, make: Callable[..., Any], transport: str) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        memory = np.zeros(6)
        window, base = make(comm, memory)
        places = [0 if make is created else address for address in comm.allgather(base)]
        step = 1 if make is created else 8
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        pairs = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
        window.Fence()
        window.Put(np.array([1.0, 2.0]) + comm.rank, right, (places[right], 1, pairs))
        window.Fence()
        found = np.zeros(2)
        window.Get(found, right, (places[right], 1, pairs))
        window.Accumulate(np.full(1, 10.0), 0, (places[0] + 4 * step, 1, MPI.DOUBLE))
        window.Fence()
        before = np.zeros(1)
        window.Get_accumulate(np.full(1, 5.0), before, right, (places[right] + 5 * step, 1, MPI.DOUBLE), MPI.REPLACE)
        window.Compare_and_swap(np.full(1, 7.0), np.full(1, 9.0), before, comm.rank, places[comm.rank] + 5 * step)
        window.Fence()
        window.Free()
        total = 10.0 * comm.size if comm.rank == 0 else 0.0
        assert memory.tolist() == [left + 1.0, 0.0, left + 2.0, 0.0, total, 5.0]
        return found.tolist()

    assert ranks(3, body, transport) == [[rank + 1.0, rank + 2.0] for rank in range(3)]


def test_a_rank_that_makes_no_call_serves_its_window(ranks: Run) -> None:
    come = threading.Event()

    def body(comm: Any) -> Any:
        MPI = mpi()
        window = MPI.Win.Create(np.full(1, 3.0) if comm.rank == 1 else None, 8, comm=comm)
        found = np.zeros(1)
        if comm.rank == 0:
            window.Lock(1)
            window.Get(found, 1)
            window.Unlock(1)
            come.set()
        else:
            assert come.wait(60)
        window.Free()
        return found.tolist()

    assert ranks(2, body) == [[3.0], [0.0]]


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_a_counter_has_each_number_once(ranks: Run, transport: str) -> None:
    def body(comm: Any) -> Any:
        window = mpi().Win.Create(np.zeros(1, "i8") if comm.rank == 0 else None, 8, comm=comm)
        numbers = []
        for _ in range(20):
            before = np.zeros(1, "i8")
            window.Lock(0, mpi().LOCK_SHARED)
            window.Fetch_and_op(np.ones(1, "i8"), before, 0)
            window.Unlock(0)
            numbers.append(int(before[0]))
        window.Free()
        return numbers

    found = ranks(3, body, transport)
    assert sorted(number for numbers in found for number in numbers) == list(range(60))


def test_a_lock_excludes_the_others(ranks: Run) -> None:
    """Without it two ranks would read the same number, and one of the sums would be lost."""

    def body(comm: Any) -> Any:
        memory = np.zeros(1)
        window = mpi().Win.Create(memory, 8, comm=comm)
        for _ in range(10):
            seen = np.zeros(1)
            window.Lock(0)
            window.Get(seen, 0)
            window.Put(seen + 1, 0)
            window.Unlock(0)
        window.Lock_all()
        window.Unlock_all()
        comm.Barrier()
        window.Free()
        return memory[0]

    assert ranks(3, body)[0] == 30


def test_an_error_at_the_target_is_raised_at_the_origin_and_the_window_goes_on(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        memory = np.zeros(2)
        window = MPI.Win.Create(memory, 8, comm=comm)
        without = MPI.Win.Create_dynamic(comm=comm)
        window.Fence()
        without.Fence()
        other = 1 - comm.rank
        with pytest.raises(ValueError, match="bytes 8 to 32 of a buffer of 16"):
            window.Put(np.ones(3), other, (1, 3, MPI.DOUBLE))
        with pytest.raises(MPI.Exception) as caught:
            without.Get(np.zeros(1), other, 4096)
        assert caught.value.Get_error_class() == MPI.ERR_RMA_RANGE
        for call, kind in (
            (lambda: window.Attach(memory), MPI.ERR_RMA_FLAVOR),
            (lambda: without.Detach(memory), MPI.ERR_RMA_ATTACH),
        ):
            with pytest.raises(MPI.Exception) as caught:
                call()
            assert caught.value.Get_error_class() == kind
        window.Put(np.ones(2), other)
        window.Fence()
        without.Free()
        window.Free()
        return memory.tolist()

    assert ranks(2, body) == [[1.0, 1.0]] * 2


def test_a_rank_maps_no_memory_of_the_program_of_another(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        window = mpi().Win.Create(np.zeros(1), 8, comm=comm)
        found = [len(window.Shared_query(rank)[0]) for rank in (0, 1, mpi().PROC_NULL)]
        window.Free()
        return found

    assert ranks(2, body) == [[8, 0, 8], [0, 8, 0]]


def test_windows_of_ranks_of_several_hosts() -> None:
    def body(_: Any) -> Any:
        MPI = mpi()
        comm = MPI.COMM_WORLD
        with pytest.raises(NotImplementedError, match="several hosts share"):
            MPI.Win.Allocate_shared(8, comm=comm)
        window = MPI.Win.Allocate(8 * comm.size, 8, comm=comm)
        window.Fence()
        for rank in range(comm.size):
            window.Put(np.full(1, comm.rank + 1.0), rank, comm.rank)
        window.Fence()
        found = np.frombuffer(window.tomemory(), "d").tolist()
        window.Free()
        return found

    with world_of("tcp", 3, hosts=["a", "a", "b"]) as world:
        assert world.run(body) == [[1.0, 2.0, 3.0]] * 3


def test_a_lost_rank_ends_access_and_threads() -> None:
    def body(_: Any) -> bool:
        MPI = mpi()
        comm = MPI.COMM_WORLD
        window = MPI.Win.Create(np.zeros(1), 8, comm=comm)
        window.Fence()
        if comm.rank == 1:
            comm.peers.process.world.abort("enough")

        def get_for_ever() -> None:
            while True:
                window.Get(np.zeros(1), 1 - comm.rank)

        with pytest.raises(MPI.Exception, match="enough"):
            get_for_ever()
        with pytest.raises(MPI.Exception):
            window.Free()
        return True

    with world_of("local", 2) as world:
        assert world.run(body) == [True, True]
    assert "ronde-mpi-window" not in [thread.name for thread in threading.enumerate()]


def test_no_rank_ends_before_the_threads_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, slow = threading.Event(), []
    close = places.Keeper.close

    def close_late(keeper: Any) -> None:
        if threading.current_thread() in slow:
            ended.wait(0.2)
        close(keeper)

    monkeypatch.setattr(places.Keeper, "close", close_late)

    def body(_: Any) -> bool:
        comm = mpi().COMM_WORLD
        if comm.rank == 0:
            slow.append(threading.current_thread())
        mpi().Win.Create(np.zeros(1), 8, comm=comm).Free()
        if comm.rank == 0:
            return bool(comm.sendrecv(True, 0, source=0))
        comm.peers.process.world.close()
        ended.set()
        return True

    with world_of("local", 2) as world:
        assert world.run(body) == [True, True]
