"""Windows and files of ranks on one host."""

from __future__ import annotations

import contextvars
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontends.mpi.conftest import Run
from tests.worlds import world_of


def mpi() -> Any:
    from frontends.mpi import MPI

    return MPI


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_shared_memory_is_one_piece_that_all_ranks_see(ranks: Run, transport: str) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        window = MPI.Win.Allocate_shared(32 if node.rank == 0 else 0, 8, comm=node)
        memory, unit = window.Shared_query(0)
        shared = np.ndarray(4, "f8", memory)
        window.Fence()
        shared[node.rank] = node.rank + 1
        window.Fence()
        found = unit, shared[: node.size].tolist()
        del shared, memory
        window.Free()
        return found

    assert ranks(3, body, transport) == [(8, [1.0, 2.0, 3.0])] * 3


def test_one_sided_access_is_atomic_where_mpi_says_so(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        window = MPI.Win.Allocate(8, 8, comm=comm)
        window.Fence()
        numbers = []
        for _ in range(50):
            before = np.zeros(1, "i8")
            window.Lock(0, MPI.LOCK_SHARED)
            window.Fetch_and_op(np.ones(1, "i8"), before, 0)
            window.Unlock(0)
            numbers.append(int(before[0]))
        window.Fence()
        window.Free()
        return numbers

    found = ranks(2, body, "shm")
    assert sorted(found[0] + found[1]) == list(range(100))


def test_data_that_do_not_fit_their_target_are_refused_and_nothing_changes(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        window = MPI.Win.Allocate(32, 8, comm=comm)
        memory = np.frombuffer(window.tomemory(), "d")
        memory[:] = 1
        window.Fence()
        for call in (
            lambda: window.Accumulate(np.ones(1), 0, (0, 3, MPI.DOUBLE)),
            lambda: window.Accumulate(np.ones(3), 0, (0, 2, MPI.DOUBLE)),
            lambda: window.Get_accumulate(np.ones(2), np.ones(1), 0),
            lambda: window.Put(np.ones(3), 0, (0, 2, MPI.DOUBLE)),
            lambda: window.Get(np.zeros(1), 0, (0, 2, MPI.DOUBLE)),
            lambda: window.Put(np.zeros(1), 0, (0, 2, MPI.DOUBLE)),
            lambda: window.Get(np.zeros(2), 0, (0, 1, MPI.DOUBLE)),
            lambda: window.Accumulate(np.ones(2, np.int64), 0, (0, 2, MPI.DOUBLE)),
            lambda: window.Get_accumulate(np.ones(2, np.int64), np.ones(2), 0),
            lambda: MPI.SUM.Reduce_local(np.ones(2, np.int64), np.ones(2)),
        ):
            with pytest.raises(ValueError, match=r"bytes|float64 are combined"):
                call()
        found = memory.tolist()
        del memory
        window.Free()
        return found

    assert ranks(1, body) == [[1.0] * 4]


@pytest.mark.parametrize("size", [2**60, 2**70], ids=["beyond memory", "beyond a file"])
def test_memory_that_one_rank_cannot_make_is_an_error_of_all(ranks: Run, size: int) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        with pytest.raises(MPI.Exception) as caught:
            MPI.Win.Allocate(size if comm.rank == 0 else 0, 1, comm=comm)
        return caught.value.Get_error_class() == MPI.ERR_NO_MEM, comm.allreduce(1)

    assert ranks(2, body) == [(True, 2)] * 2


@pytest.mark.parametrize("transport", ["local", "shm"])
@pytest.mark.parametrize("call", ["Fetch_and_op", "Accumulate", "Compare_and_swap"])
def test_a_rank_that_polls_a_window_learns_that_another_one_has_given_up(call: str, transport: str) -> None:
    def body(comm: Any) -> bool:
        MPI = mpi()
        window = MPI.Win.Allocate(8, 8, comm=comm)
        if comm.rank == 1:
            comm.peers.process.world.abort("enough")
            free(window)
            return True
        window.Lock_all()
        one, before = np.ones(1, "i8"), np.empty(1, "i8")
        polls = {
            "Fetch_and_op": lambda: window.Fetch_and_op(one, before, 0, op=MPI.NO_OP),
            "Accumulate": lambda: window.Accumulate(one, 0),
            "Compare_and_swap": lambda: window.Compare_and_swap(one, one, before, 0),
        }

        def poll() -> None:
            end = time.monotonic() + 60
            while time.monotonic() < end:
                polls[call]()

        with pytest.raises(MPI.Exception, match="rank 1"):
            poll()
        free(window)
        return True

    def free(window: Any) -> None:
        with pytest.raises(mpi().Exception):
            window.Free()

    with world_of(transport, 2) as world:
        assert world.run(lambda _: body(mpi().COMM_WORLD)) == [True, True]


@pytest.mark.parametrize("end", ["method", "free"])
def test_windows_and_files_are_released_when_ranks_are_lost(tmp_path: Path, end: str) -> None:
    def body(comm: Any) -> list[bool]:
        MPI = mpi()
        window = MPI.Win.Allocate(8, 8, comm=comm)
        created = MPI.Win.Create(bytearray(8), comm=comm)
        file = MPI.File.Open(comm, tmp_path / "file", MPI.MODE_RDWR | MPI.MODE_CREATE)
        comm.Barrier()
        if comm.rank == 1:
            comm.peers.process.world.abort("enough")
        for one, call in ((window, window.Free), (created, created.Free), (file, file.Close)):
            with pytest.raises(MPI.Exception, match="enough"):
                call() if end == "method" else one.free()
        return [one == null for one, null in ((window, MPI.WIN_NULL), (created, MPI.WIN_NULL), (file, MPI.FILE_NULL))]

    with world_of("local", 2) as world:
        assert world.run(lambda _: body(mpi().COMM_WORLD)) == [[True] * 3] * 2


@pytest.mark.parametrize("call", ["Fetch_and_op", "Accumulate", "Compare_and_swap", "Write_shared"])
def test_what_is_atomic_among_ranks_is_so_among_threads_of_one(
    ranks: Run, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from frontends.mpi.segments import Segment

    inside: list[int] = []
    most = []
    lock = Segment.lock

    def slow_lock(self: Segment, place: int, *arguments: Any, **options: Any) -> None:
        lock(self, place, *arguments, **options)
        inside.append(place)
        most.append(len(inside))
        time.sleep(0.001)  # the other thread comes meanwhile
        inside.pop()

    def body(comm: Any) -> Any:
        MPI = mpi()
        window = MPI.Win.Allocate(8, 8, comm=comm)
        window.Fence()
        file = MPI.File.Open(comm, tmp_path / "file", MPI.MODE_CREATE | MPI.MODE_RDWR)
        one, other = np.ones(1, "i8"), np.ones(1, "i8")
        calls = {
            "Fetch_and_op": lambda: window.Fetch_and_op(one, np.empty(1, "i8"), 0),
            "Accumulate": lambda: window.Accumulate(one, 0),
            "Compare_and_swap": lambda: window.Compare_and_swap(one, other, np.empty(1, "i8"), 0),
            "Write_shared": lambda: file.Write_shared(one),
        }
        contexts = [contextvars.copy_context() for _ in range(2)]
        gate = threading.Barrier(2)

        def at_once() -> None:
            gate.wait(20)
            calls[call]()

        with ThreadPoolExecutor(2) as pool:
            for job in [pool.submit(context.run, at_once) for context in contexts]:
                job.result(20)
        window.Free()
        file.Close()

    monkeypatch.setattr(Segment, "lock", slow_lock)
    ranks(1, body)
    assert most == [1, 1]


@pytest.mark.parametrize(("op", "result"), [("SUM", [11.0, 0.0, 22.0]), ("REPLACE", [1.0, 0.0, 2.0])])
@pytest.mark.parametrize("method", ["Accumulate", "Raccumulate", "Get_accumulate"])
def test_numbers_are_accumulated_at_places_of_a_derived_datatype(
    ranks: Run, method: str, op: str, result: list[float]
) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        window = MPI.Win.Allocate(24, 8, comm=comm)
        memory = np.frombuffer(window.tomemory(), "f8")
        memory[:] = [10.0, 0.0, 20.0]
        target = 0, 1, MPI.DOUBLE.Create_vector(2, 1, 2)
        before = np.zeros(2)
        window.Fence()
        fetched = [before] if method == "Get_accumulate" else []
        getattr(window, method)(np.array([1.0, 2.0]), *fetched, comm.rank, target, getattr(MPI, op))
        window.Fence()
        found = memory.tolist(), before.tolist()
        del memory
        window.Free()
        return found

    before = [10.0, 20.0] if method == "Get_accumulate" else [0.0, 0.0]
    assert ranks(2, body) == [(result, before)] * 2


@pytest.mark.parametrize(("op", "result"), [("REPLACE", (5.0, 3)), ("NO_OP", (1.0, 2))])
@pytest.mark.parametrize("kind", ["DOUBLE_INT", "SHORT_INT", "TWOINT"])
def test_pairs_are_replaced_and_fetched(ranks: Run, op: str, result: tuple[float, int], kind: str) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        datatype = getattr(MPI, kind)
        window = MPI.Win.Allocate(2 * datatype.extent, datatype.extent, comm=comm)
        memory = np.frombuffer(window.tomemory(), datatype.dtype)
        memory[:] = (1, 2)
        before = np.zeros(2, datatype.dtype)
        given = np.full(2, np.array((5, 3), datatype.dtype))
        window.Fence()
        window.Get_accumulate([given, 2, datatype], [before, 2, datatype], comm.rank, op=getattr(MPI, op))
        found = memory.tolist() == [result] * 2, before.tolist() == [(1, 2)] * 2
        del memory
        window.Free()
        return found

    assert ranks(2, body) == [(True, True)] * 2


def test_an_exclusive_lock_excludes_ranks_that_are_threads(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        window = MPI.Win.Allocate_shared(8, comm=comm)
        counter = np.ndarray(1, "i8", window.Shared_query(0)[0])
        window.Fence()
        for _ in range(200):
            window.Lock(0)
            value = counter[0]
            counter[0] = value + 1
            window.Unlock(0)
        window.Fence()
        found = int(counter[0])
        window.Fence()
        del counter
        window.Free()
        return found

    assert ranks(2, body, "local") == [400, 400]


def test_files_by_offset_view_and_in_order(ranks: Run, tmp_path: Path) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        file = MPI.File.Open(comm, tmp_path / "data", MPI.MODE_CREATE | MPI.MODE_RDWR)
        columns = MPI.INT.Create_vector(2, 1, comm.size)
        file.Set_view(4 * comm.rank, MPI.INT, columns)
        file.Write_all(np.array([comm.rank, comm.rank + 10], "i4"))
        file.Sync()
        file.Set_view(0, MPI.INT)
        got, status = np.zeros(9, "i4"), MPI.Status()
        file.Read_at(1, got, status)
        file.Seek_shared(0, MPI.SEEK_END)
        file.Write_ordered(np.full(comm.rank + 1, comm.rank, "i4"))
        file.Close()
        return got[: status.Get_count(MPI.INT)].tolist()

    assert ranks(2, body) == [[1, 10, 11]] * 2
    assert np.fromfile(tmp_path / "data", "i4").tolist() == [0, 1, 10, 11, 0, 1, 1]


def test_a_new_view_begins_when_all_have_written_by_the_shared_pointer_of_the_old_one(
    ranks: Run, tmp_path: Path
) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        file = MPI.File.Open(comm, tmp_path / "file", MPI.MODE_CREATE | MPI.MODE_RDWR)
        if comm.rank == 1:
            time.sleep(0.02)
        file.Write_shared(np.full(4, comm.rank, "u1"))
        file.Set_view(0, MPI.BYTE, MPI.BYTE)
        found = file.Get_position_shared(), file.Get_size()
        file.Close()
        return found

    assert ranks(2, body) == [(0, 8)] * 2


def test_a_file_that_is_missing_is_an_error_on_all_ranks(ranks: Run, tmp_path: Path) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        with pytest.raises(MPI.Exception) as caught:
            MPI.File.Open(comm, tmp_path / "missing")
        return caught.value.Get_error_class() == MPI.ERR_NO_SUCH_FILE

    assert ranks(2, body) == [True, True]


@pytest.mark.parametrize("name", ["Set_size", "Preallocate", "Seek_shared", "Set_view", "Close", "Open"])
def test_an_error_of_a_collective_call_on_a_file_is_one_of_all_ranks(ranks: Run, tmp_path: Path, name: str) -> None:
    """The first rank alone changes the file, or one rank cannot open it."""
    path = tmp_path / "data"

    def body(comm: Any) -> Any:
        MPI = mpi()
        if name != "Open":
            mode = MPI.MODE_CREATE | MPI.MODE_WRONLY if name == "Close" else MPI.MODE_RDONLY
            if name == "Close":
                mode |= MPI.MODE_DELETE_ON_CLOSE
            elif comm.rank == 0:
                path.write_bytes(b"data")
            comm.Barrier()
            file = MPI.File.Open(comm, path, mode)
            comm.Barrier()
            if name == "Close" and comm.rank == 0:
                path.unlink()
        calls = {
            "Set_size": lambda: file.Set_size(0),
            "Preallocate": lambda: file.Preallocate(90),
            "Seek_shared": lambda: file.Seek_shared(-1),
            "Set_view": lambda: file.Set_view(-comm.rank),
            "Close": lambda: file.Close(),
            "Open": lambda: MPI.File.Open(
                comm, path if comm.rank == 0 else tmp_path / "no", MPI.MODE_CREATE | MPI.MODE_RDWR
            ),
        }
        with pytest.raises(MPI.Exception):
            calls[name]()
        if name in ("Set_size", "Preallocate", "Seek_shared", "Set_view"):
            file.Close()
        return comm.allreduce(1)

    assert ranks(2, body) == [2, 2]


def test_offsets_and_counts_may_be_short_ints_of_numpy(ranks: Run, tmp_path: Path) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        file = MPI.File.Open(comm, tmp_path / "file", MPI.MODE_CREATE | MPI.MODE_RDWR)
        file.Set_view(0, MPI.DOUBLE)
        file.Write_at(np.uint8(40), np.ones(1))
        sizes = [file.Get_size(), file.Get_byte_offset(np.uint8(40))]
        file.Seek(np.uint8(50))
        file.Write(np.ones(1))
        sizes.append(file.Get_size())
        for call in (
            file.Seek,
            file.Seek_shared,
            file.Get_byte_offset,
            lambda offset: file.Read_at(offset, np.ones(1)),
        ):
            with pytest.raises(TypeError, match=r"offset=1\.5"):
                call(1.5)
        file.Close()
        status, many = MPI.Status(), np.int32(400_000_000)
        status.Set_elements(MPI.DOUBLE, many)
        packed = MPI.DOUBLE.Pack_size(many, comm), MPI.DOUBLE.Pack_external_size("external32", many)
        return sizes, packed, status.Get_count(MPI.DOUBLE), MPI.Aint_add(np.uint8(200), np.uint8(100))

    assert ranks(1, body) == [([328, 320, 408], (3_200_000_000, 3_200_000_000), 400_000_000, 300)]


def test_a_place_before_the_beginning_of_a_file_is_refused(ranks: Run, tmp_path: Path) -> None:
    def body(comm: Any) -> None:
        MPI = mpi()
        file = MPI.File.Open(comm, tmp_path / "data", MPI.MODE_CREATE | MPI.MODE_RDWR)
        for call in (file.Read_at, file.Write_at, file.Iread_at):
            with pytest.raises(MPI.Exception) as caught:
                call(-1, bytearray(4))
            assert caught.value.Get_error_class() == MPI.ERR_ARG
        file.Close()

    ranks(1, body)


@pytest.mark.parametrize("call", ["Write", "Write_shared", "Write_ordered", "Read_shared", "Read"])
def test_parts_of_elements_of_a_view_are_refused(ranks: Run, tmp_path: Path, call: str) -> None:
    """The pointer counts elements: the next write would have been at the same place."""

    def body(comm: Any) -> Any:
        MPI = mpi()
        file = MPI.File.Open(comm, tmp_path / "data", MPI.MODE_CREATE | MPI.MODE_RDWR)
        file.Set_view(0, MPI.INT)
        with pytest.raises(MPI.Exception) as caught:
            getattr(file, call)(bytearray(6))
        found = caught.value.Get_error_class() == MPI.ERR_IO, file.Get_size(), file.Get_position_shared()
        file.Close()
        return found

    assert ranks(2, body) == [(True, 0, 0)] * 2


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_the_end_of_an_exposure_can_be_tested(ranks: Run, transport: str) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        window = MPI.Win.Allocate(8, 1, MPI.INFO_NULL, comm)
        other = comm.group.Incl([1 - comm.rank])
        if comm.rank == 0:
            window.Start(other)
            comm.Barrier()
            window.Complete()
            comm.Barrier()
            seen = []
        else:
            window.Post(other)
            seen = [window.Test()]
            comm.Barrier()
            comm.Barrier()
            while not window.Test():
                pass
        window.Free()
        return seen

    assert ranks(2, body, transport) == [[], [False]]


def test_synchronization_of_a_window_that_does_not_fit_is_refused_and_nothing_changes(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        window, everyone = MPI.Win.Allocate(8, 8, comm=comm), comm.group

        def refused(*calls: Any) -> None:
            for call in calls:
                with pytest.raises(MPI.Exception) as caught:
                    call()
                assert caught.value.Get_error_class() == MPI.ERR_RMA_SYNC

        refused(lambda: window.Unlock(0), window.Unlock_all, window.Complete, window.Wait, window.Test)
        comm.Barrier()
        if comm.rank == 0:
            window.Lock(1)
            refused(lambda: window.Lock(1), lambda: window.Unlock(0), window.Lock_all, window.Unlock_all)
            comm.send(None, 1)
            window.Put(np.ones(1), 1)
            window.Unlock(1)
        elif comm.rank == 1:
            comm.recv(source=0)
            window.Lock(1)  # it was not lost by the refused calls
            assert np.frombuffer(window.tomemory(), "d").tolist() == [1.0]
            window.Unlock(1)
        window.Lock_all()
        refused(window.Lock_all, lambda: window.Lock(0))
        window.Unlock_all()
        window.Post(everyone)
        window.Start(everyone)
        refused(lambda: window.Post(everyone), lambda: window.Start(everyone))
        window.Complete()
        window.Wait()
        refused(window.Complete, window.Wait, window.Test)
        window.Free()
        return True

    assert ranks(2, body, "shm") == [True] * 2


def test_access_outside_of_an_epoch_is_refused_and_nothing_changes(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        window, other = MPI.Win.Allocate(8, 8, comm=comm), 1 - comm.rank
        one, word = np.ones(1), np.ones(1, "i8")
        access = [
            lambda rank=other: window.Put(one, rank),
            lambda: window.Get(np.empty(1), other),
            lambda: window.Accumulate(one, other),
            lambda: window.Get_accumulate(one, np.empty(1), other),
            lambda: window.Fetch_and_op(one, np.empty(1), other),
            lambda: window.Compare_and_swap(word, word, np.empty(1, "i8"), other),
            lambda: window.Rput(one, other),
            lambda: window.Rget(np.empty(1), other),
            lambda: window.Raccumulate(one, other),
            lambda: window.Rget_accumulate(one, np.empty(1), other),
        ]
        flushes = [window.Flush_all, window.Flush_local_all, lambda: window.Flush(other)]
        flushes.append(lambda: window.Flush_local(other))

        def refused(*calls: Any) -> None:
            for call in calls:
                with pytest.raises(MPI.Exception) as caught:
                    call()
                assert caught.value.Get_error_class() == MPI.ERR_RMA_SYNC

        everyone, alone = window.Get_group(), window.Get_group().Incl([comm.rank])
        refused(*access, *flushes)
        window.Fence()
        refused(*flushes)
        window.Lock(comm.rank)  # no epoch has begun, since there was no access
        refused(*access, window.Fence, lambda: window.Start(alone), flushes[-1])
        window.Flush(comm.rank)
        window.Unlock(comm.rank)
        refused(*access)
        window.Post(alone)
        refused(window.Fence)
        window.Start(alone)
        refused(*access, *flushes, window.Fence, lambda: window.Lock(other), window.Lock_all)
        window.Put(one, comm.rank)
        window.Complete()
        window.Wait()
        window.Fence()
        window.Put(one, comm.rank)
        refused(lambda: window.Lock(other), window.Lock_all, lambda: window.Start(everyone))
        refused(lambda: window.Post(everyone))
        window.Fence(MPI.MODE_NOSUCCEED)
        refused(*access)
        window.Lock_all()
        refused(lambda: window.Unlock(other), window.Fence)
        access[0]()
        window.Unlock_all()
        window.Put(None, MPI.PROC_NULL)
        window.Free()
        return True

    assert ranks(2, body) == [True] * 2


def test_a_window_needs_a_unit_and_ranks_that_have_a_part_of_it(ranks: Run) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        found = []
        for make in (MPI.Win.Allocate, MPI.Win.Allocate_shared, MPI.Win.Create):
            for unit in (0, -1):
                with pytest.raises(MPI.Exception) as caught:
                    make(8 if make != MPI.Win.Create else bytearray(8), unit if comm.rank == 1 else 1, comm=comm)
                found.append(caught.value.Get_error_class() == MPI.ERR_DISP)
        window = MPI.Win.Create(bytearray(8), comm=MPI.COMM_SELF)
        stranger = comm.group.Incl([1 - comm.rank])
        for call in (window.Post, window.Start):
            with pytest.raises(MPI.Exception) as caught:
                call(stranger)
            found.append(caught.value.Get_error_class() == MPI.ERR_GROUP)
        window.Free()
        return all(found)

    assert ranks(2, body) == [True] * 2


def test_windows_and_files_need_ranks_of_one_group(ranks: Run, tmp_path: Path) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        two = comm.Split(comm.rank).Create_intercomm(0, comm, 1 - comm.rank)
        made = [lambda make=make: make(8, comm=two) for make in (MPI.Win.Allocate, MPI.Win.Allocate_shared)]
        for call in (*made, lambda: MPI.Win.Create(None, comm=two), lambda: MPI.File.Open(two, tmp_path / "file")):
            with pytest.raises(TypeError, match="must be an Intracomm"):
                call()
        return two.allgather(comm.rank)

    assert ranks(2, body) == [[1], [0]]


def test_a_window_that_cannot_be_made_leaves_nothing_open(ranks: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from frontends.mpi.peers import Peers

    made, closed = [], []
    twin, close = Peers.twin, Peers.close

    def counted(self: Peers) -> Peers:
        found = twin(self)
        made.append(found)
        return found

    def told(self: Peers) -> None:
        closed.append(self)
        close(self)

    def body(comm: Any) -> None:
        MPI = mpi()
        for size in (-1, 1 << 62):
            with pytest.raises(MPI.Exception):
                MPI.Win.Allocate(size if comm.rank == 1 else 8, comm=comm)

    monkeypatch.setattr(Peers, "twin", counted)
    monkeypatch.setattr(Peers, "close", told)
    ranks(2, body)
    assert len(made) == 4
    assert set(made) == set(closed)


def test_a_sequential_file_is_accessed_by_the_shared_pointer_alone(ranks: Run, tmp_path: Path) -> None:
    def body(comm: Any) -> Any:
        MPI = mpi()
        file = MPI.File.Open(comm, tmp_path / "data", MPI.MODE_CREATE | MPI.MODE_WRONLY | MPI.MODE_SEQUENTIAL)
        file.Write_ordered(np.full(2, comm.rank, "u1"))
        found = []
        for call in (
            lambda: file.Write(b"x"),
            lambda: file.Write_all(b"x"),
            lambda: file.Write_at(0, b"x"),
            lambda: file.Seek(0),
            lambda: file.Seek_shared(0),
            file.Get_position,
            file.Get_position_shared,
            lambda: file.Set_size(0),
            lambda: file.Preallocate(9),
        ):
            with pytest.raises(MPI.Exception) as caught:
                call()
            found.append(caught.value.Get_error_class() == MPI.ERR_UNSUPPORTED_OPERATION)
        with pytest.raises(MPI.Exception) as caught:
            file.Set_view(0, MPI.INT)
        found.append(caught.value.Get_error_class() == MPI.ERR_ARG)
        file.Set_view(MPI.DISPLACEMENT_CURRENT, MPI.INT)
        found.append(file.Get_view()[0] == 2 * comm.size)
        file.Write_ordered(np.full(1, 7 + comm.rank, "i4"))
        file.Close()
        return all(found)

    assert ranks(2, body) == [True] * 2
    assert (tmp_path / "data").read_bytes() == bytes([0, 0, 1, 1, 7, 0, 0, 0, 8, 0, 0, 0])


def test_a_file_that_is_read_only_keeps_its_size_and_has_no_current_displacement(ranks: Run, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"1234")

    def body(comm: Any) -> Any:
        MPI = mpi()
        file = MPI.File.Open(comm, tmp_path / "data")
        found = []
        for call in (
            lambda: file.Set_size(0),
            lambda: file.Preallocate(9),
            lambda: file.Set_view(MPI.DISPLACEMENT_CURRENT, MPI.INT),
        ):
            with pytest.raises(MPI.Exception) as caught:
                call()
            found.append(caught.value.Get_error_class())
        file.Close()
        return found == [MPI.ERR_READ_ONLY, MPI.ERR_READ_ONLY, MPI.ERR_ARG]

    assert ranks(2, body) == [True] * 2
    assert (tmp_path / "data").read_bytes() == b"1234"
