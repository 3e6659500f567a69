"""Arrays that ranks share: right results with nothing staged, and what happens when they are given otherwise."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from collectives import AbortedError, Communicator, DeadlineExceeded, MismatchError, PeerLost, RendezvousError
from collectives.algorithms import algorithms
from tests.worlds import executor_of, kept_plans, world_of
from transports.local.exposing import Exposures

SHARED = ["local", "shm", "auto"]
DTYPES = [np.dtype(name) for name in ("float32", "int64", "bool", "complex64", "float16")] + [
    np.dtype(ml_dtypes.bfloat16)
]
WINDOWED = ["allreduce", "reduce_scatter", "allgather", "alltoall"]


def used(comm: Communicator) -> set[str]:
    """Collectives of the communicator that worked in windows."""
    done = comm.metrics()["collectives"]
    return {
        collective
        for collective, total in done.items()
        if any(algorithms(collective)[name].windows for name in total["algorithms"])
    }


def numbers(rank: int, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    return (np.random.default_rng(rank).integers(0, 5, count)).astype(dtype)


def compute(comm: Communicator, count: int, dtype: np.dtype[Any]) -> None:
    """Every collective that knows windows, on arrays in them; what goes in stays as it is."""
    rank, size = comm.rank, comm.size
    op = "max" if dtype.kind == "b" else "sum"
    given = [numbers(peer, count, dtype) for peer in range(size)]
    wanted = np.maximum.reduce(given) if op == "max" else np.sum(given, axis=0).astype(dtype)
    x, y = comm.empty(count, dtype), comm.empty((count,), dtype)
    assert x.shape == (count,)
    assert x.dtype == dtype
    assert not x.any()
    x[...] = given[rank]
    assert comm.allreduce(x, op, out=y) is y
    np.testing.assert_array_equal(y, wanted)
    np.testing.assert_array_equal(x, given[rank])
    comm.barrier()
    np.testing.assert_array_equal(comm.allreduce(x, op, out=x), wanted)
    x[...] = given[rank]
    np.testing.assert_array_equal(comm.allreduce_async(x[1:], op, out=y[1:]).wait(), wanted[1:])
    comm.barrier()
    root = size - 1
    np.testing.assert_array_equal(comm.broadcast(x, root, out=x), given[root])
    y[...] = 0
    np.testing.assert_array_equal(comm.broadcast(given[rank], root, out=y), given[root])
    comm.barrier()
    x[...] = given[rank]
    part = len(np.array_split(wanted, size)[rank])
    before = sum(len(piece) for piece in np.array_split(wanted, size)[:rank])
    np.testing.assert_array_equal(comm.reduce_scatter(x, op), wanted[before : before + part])
    if count % size == 0:
        rows = [peer.reshape(size, -1)[rank] for peer in given]
        np.testing.assert_array_equal(comm.alltoall(x), np.concatenate(rows))
    whole = comm.empty((size, count), dtype)
    comm.allgather(given[rank][None], out=whole)
    np.testing.assert_array_equal(whole, given)
    comm.barrier()


@pytest.mark.parametrize("transport", SHARED)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_results(transport: str, size: int) -> None:
    def rank(comm: Communicator) -> None:
        for dtype in DTYPES:
            for count in (1, 12, 100_008):
                compute(comm, count, dtype)
        assert used(comm) == (set(WINDOWED) if size > 1 else set())

    with world_of(transport, size) as world:
        world.run(rank)


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_results_in_the_memory_that_other_ranks_read(transport: str) -> None:
    """A contribution that the result would be written over is copied first."""
    size, rows = 3, 30_000

    def body(comm: Communicator) -> None:
        x = comm.empty(size * rows)
        for at in range(size):
            x[:] = np.arange(size * rows) + comm.rank
            out = x[at * rows : (at + 1) * rows]
            comm.reduce_scatter(x, out=out)
            np.testing.assert_array_equal(out, 3.0 * np.arange(size * rows).reshape(size, -1)[comm.rank] + 3)
        assert "reduce_scatter" not in used(comm)
        comm.reduce_scatter(x)
        assert "reduce_scatter" in used(comm)

    with world_of(transport, size) as world:
        world.run(body)


def test_where_memory_cannot_be_shared_arrays_are_ordinary() -> None:
    def rank(comm: Communicator) -> None:
        compute(comm, 12, np.dtype(np.float32))
        assert used(comm) == set()

    with world_of("tcp", 2) as world:
        world.run(rank)
    with world_of("auto", 4, hosts="aabb") as world:
        world.run(rank)


def test_valid_and_invalid_shapes() -> None:
    def rank(comm: Communicator) -> None:
        assert comm.empty(()).shape == ()
        assert comm.empty((2, 0, 3)).shape == (2, 0, 3)
        assert comm.empty(np.int64(3), "int8").dtype == np.int8
        square = comm.empty((3, 3))
        square[...] = 1
        np.testing.assert_array_equal(comm.allreduce(square, out=square), np.full((3, 3), comm.size))
        with pytest.raises(ValueError, match=r"shape=\(2, -1\): .*0 or more"):
            comm.empty((2, -1))
        with pytest.raises(TypeError, match="dtype object"):
            comm.empty(3, object)
        comm.barrier()

    with world_of("local", 2) as world:
        world.run(rank)


def test_named_and_in_groups_and_in_process_sets() -> None:
    def rank(comm: Communicator) -> None:
        half = comm.split(0)
        assert half is not None
        for one in (comm, half):
            x, y = one.empty(1000), one.empty(1000)
            x[...] = y[...] = one.rank + 1
            one.allreduce_async(x, out=x, name="x").wait()
            one.grouped_allreduce([x, y], out=[x, y])
            np.testing.assert_array_equal(x, np.full(1000, 6.0 * one.size))
            np.testing.assert_array_equal(y, np.full(1000, 6.0))
        half.close()

    with world_of("shm", 3) as world:
        world.run(rank)


@pytest.mark.parametrize("name", ["float32", "float16"])
def test_reproducible_results_have_the_bits_of_other_algorithms(name: str) -> None:
    def rank(comm: Communicator) -> None:
        private = np.random.default_rng(comm.rank).standard_normal(3001).astype(name)
        shared = comm.empty(3001, name)
        shared[...] = private
        wanted = comm.allreduce(private, "average", reproducible=True)
        assert comm.allreduce(shared, "average", out=shared, reproducible=True).tobytes() == wanted.tobytes()
        shared[...] = private
        if name == "float32":
            comm.allreduce(shared, "average", out=shared, algorithm="windowed")
            assert shared.tobytes() == wanted.tobytes()

    with world_of("local", 5) as world:
        world.run(rank)


def test_the_place_of_a_plain_call_is_looked_up_once() -> None:
    pytest.importorskip("numba", reason="only the compiled interpreter compares addresses")

    def rank(comm: Communicator) -> None:
        windows = executor_of(comm).windows
        look_up = windows.offsets
        looked: list[Any] = []

        def offsets(*call: Any) -> Any:
            looked.append(call)
            return look_up(*call)

        shared, private = comm.empty(1000), np.zeros(1000)
        windows.offsets = offsets  # type: ignore[method-assign]
        for number, x in enumerate((shared, private)):
            for _ in range(3):
                comm.allreduce(x, out=x)
                assert len(looked) == number + 1

    with world_of("local", 2, compiled=["on"]) as world:
        world.run(rank)


@pytest.mark.parametrize("compiled", ["auto", "off"])
def test_calls_that_differ_only_in_the_place_of_their_arrays(compiled: str) -> None:
    def rank(comm: Communicator) -> None:
        def algorithm(x: Any, other: Any = None) -> str:
            out = x if other is None else other
            before = dict(comm.metrics()["collectives"].get("allreduce", {}).get("algorithms", {}))
            x[...] = comm.rank
            comm.allreduce(x, out=out)
            np.testing.assert_array_equal(out, np.full(out.shape, sum(range(comm.size))))
            after = comm.metrics()["collectives"]["allreduce"]["algorithms"]
            (name,) = (name for name, calls in after.items() if calls > before.get(name, 0))
            return str(name)

        private = np.zeros((2, 1 << 17))
        ordinary = algorithm(private[0])
        for _ in range(2):
            shared = comm.empty((2, 1 << 17))
            for _ in range(2):
                assert algorithm(private[0]) == ordinary
                assert algorithm(shared[1]) == "windowed"
                assert algorithm(shared[0]) == "windowed"
                assert algorithm(shared[0], shared[1]) == "windowed"
                assert algorithm(shared[0], private[0]) == ordinary
                assert algorithm(private[0], private[1]) == ordinary
                assert algorithm(private[0], shared[1]) == ordinary
            del shared
        gc.collect()
        comm.empty(10)
        assert algorithm(private[0]) == ordinary

    with world_of("local", 2, compiled=[compiled]) as world:
        world.run(rank)


@pytest.mark.parametrize(("transport", "slices"), [("shm", False), ("local", True)])
def test_all_or_none_must_be_in_windows_and_at_the_same_place(transport: str, slices: bool) -> None:
    def rank(comm: Communicator) -> None:
        shared = comm.empty(1000)
        if slices:
            x = shared[comm.rank : comm.rank + 10]
        else:
            x = shared if comm.rank else np.zeros(1000)
        with pytest.raises(MismatchError, match=r"in windows 1\+8, 1\+8" if slices else r"in windows 1\+0, 1\+0"):
            comm.allreduce(x, out=x)

    with world_of(transport, 2) as world:
        world.run(rank)


def test_ranks_must_ask_for_one_size() -> None:
    def rank(comm: Communicator) -> None:
        with pytest.raises(MismatchError, match=r"80\d\d bytes, .*8000 to 8008"):
            comm.empty(1000 + comm.rank)
        compute(comm, 12, np.dtype(np.float32))

    with world_of("shm", 2) as world:
        world.run(rank)


def test_memory_is_released_when_all_ranks_have_dropped_it() -> None:
    def rank(comm: Communicator) -> None:
        kept = comm.empty(10)
        dropped = comm.empty(1 << 16)
        view = dropped[5:] if comm.rank else None
        comm.allreduce(dropped, out=dropped)
        del dropped
        gc.collect()
        comm.empty(10)
        assert len(executor_of(comm).windows.pieces) == 3, "rank 1 still looks at it"
        del view
        comm.empty(10)
        gc.collect()
        comm.empty(10)
        assert len(executor_of(comm).windows.pieces) <= 3
        kept[...] = 1
        np.testing.assert_array_equal(comm.allreduce(kept, out=kept), np.full(10, comm.size))

    with world_of("shm", 2) as world:
        world.run(rank)


def test_facts_about_an_array_are_not_used_for_the_next_one_with_its_identity() -> None:
    def rank(comm: Communicator) -> None:
        shared, ids, windows = comm.empty(1000), set(), executor_of(comm).windows
        for start in range(0, 1000, 100):
            for _ in range(2):  # found out, and remembered
                piece = shared[start : start + 100]
                ids.add(id(piece))
                places = windows.offsets("allreduce", piece, piece)
                assert places == ((1, 8 * start),) * 2
                assert windows.offsets("allreduce", piece, piece) == places
                del piece
        assert len(ids) < 10, "no identity was used again"

    with world_of("local", 2) as world:
        world.run(rank)


def test_named_windows_are_made_in_any_order_and_released_by_themselves() -> None:
    def rank(comm: Communicator) -> None:
        made: dict[str, Any] = {}
        names = "abc" if comm.rank else "cab"
        with ThreadPoolExecutor(3) as threads:
            for name in names:
                threads.submit(lambda name=name: made.update({name: comm.empty(ord(name), name=name)}))
            comm.empty(3)
        for name in "abc":
            x = made[name]
            x[...] = comm.rank + 1
            comm.allreduce_async(x, out=x, name="sum").wait()
            np.testing.assert_array_equal(x, np.full(ord(name), 3.0))
        calls = [plan.call for plan in kept_plans(comm, named=True)]
        assert {call.windows[0].window for call in calls if call.windows} == {-4, -3, -2}
        del x
        made.clear()
        gc.collect()
        comm.barrier()
        comm.empty(3)
        assert len(executor_of(comm).windows.pieces) == 5, "what was made by name goes when something is made by name"
        comm.empty(3, name="d")
        assert len(executor_of(comm).windows.pieces) == 3

    with world_of("shm", 2) as world:
        world.run(rank)


def test_named_windows_of_different_shapes() -> None:
    def rank(comm: Communicator) -> None:
        with pytest.raises(MismatchError, match=r"empty\(float64 \(11,\)\)"):
            comm.empty(10 + comm.rank, name="a")
        assert comm.empty(10, name="a").shape == (10,)

    with world_of("local", 2) as world:
        world.run(rank)


@pytest.mark.parametrize("transport", SHARED)
def test_who_has_joined_gives_zeros_where_the_others_have_their_arrays(transport: str) -> None:
    def rank(comm: Communicator) -> None:
        x, y = comm.empty(100_000), comm.empty(10)
        x[...] = y[...] = comm.rank + 1
        if comm.rank == 1:
            del x
            assert comm.join() in (0, 2)
            return
        comm.allreduce_async(x, out=x, name="x").wait()
        np.testing.assert_array_equal(x, np.full(100_000, 4.0))
        comm.allreduce_async(y, out=y, name="y").wait()
        z, p = comm.allreduce_async(x, name="z"), np.ones(3)
        np.testing.assert_array_equal(z.wait(), np.full(100_000, 8.0))
        comm.grouped_allreduce_async([x, p, y], "average", out=[x, p, y], name="group").wait()
        assert (x[0], p[0], y[0]) == pytest.approx((8 / 3, 2 / 3, 8 / 3))
        comm.join()

    with world_of(transport, 3) as world:
        world.run(rank)


def test_named_calls_must_agree_on_windows_and_nothing_else_is_lost() -> None:
    def rank(comm: Communicator) -> None:
        shared = comm.empty(1000)
        x = shared if comm.rank else np.zeros(1000)
        with pytest.raises(MismatchError, match=r"rank 1: allreduce\(float64 \(1000,\), op=sum, in windows 1\+0\)"):
            comm.allreduce_async(x, out=x, name="x").wait()
        comm.allreduce_async(shared, out=shared, name="x").wait()

    with world_of("shm", 2) as world:
        world.run(rank)


def test_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def rank(comm: Communicator) -> None:
        with pytest.raises(RendezvousError, match=r"make window"):
            comm.empty(10)
        with pytest.raises(RendezvousError, match=r"make window"):
            comm.empty(10, name="x")
        assert comm.allreduce(1) == comm.size

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with world_of("shm", 2) as world:
        world.run(lambda comm: comm.barrier_async(name="the engine stages").wait())
        monkeypatch.setattr("transports.shm.segments.Segment.create", full)
        world.run(rank)
        monkeypatch.undo()


def test_who_does_not_come_when_a_window_is_made_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both by those that meet before it, and by those that were lost to it in between."""

    def late(comm: Communicator) -> str:
        if comm.rank == 1:
            return ""
        with pytest.raises(DeadlineExceeded) as caught:
            comm.empty(3, timeout=0.1)
        assert caught.value.peer == 1
        return str(caught.value)

    with world_of("local", 2) as world:
        assert "[in allgather(" in world.run(late)[0]
    gone, here = threading.Event(), threading.local()

    def lost(comm: Communicator) -> str:
        here.rank = comm.rank
        with pytest.raises((PeerLost, AbortedError)) as caught:
            comm.empty(3)
        return str(caught.value)

    def expose(exposures: Exposures, *_: object) -> None:
        if here.rank == 1:
            gone.set()
            raise PeerLost("rank 1 lost rank 0", rank=1, peer=0)
        assert gone.wait(10)
        raise AbortedError("rank 1 aborted", rank=1)

    with world_of("local", 2) as world:
        world.run(lambda comm: comm.barrier())
        monkeypatch.setattr(Exposures, "expose", expose)
        assert all("in empty(24 bytes)" in text for text in world.run(lost))
        monkeypatch.undo()


def test_arrays_outlive_the_communicator() -> None:
    def rank(comm: Communicator) -> Any:
        x = comm.empty(100)
        x[...] = comm.rank
        return x

    with world_of("shm", 2) as world:
        arrays = world.run(rank)
    for number, array in enumerate(arrays):
        np.testing.assert_array_equal(array, np.full(100, number))


def test_windowed_cannot_be_forced_on_other_arrays() -> None:
    assert all(algorithms(name)["windowed"].windows for name in WINDOWED)

    def rank(comm: Communicator) -> None:
        with pytest.raises(ValueError, match=r"windows: .*Communicator\.empty"):
            comm.allreduce(np.zeros(10), algorithm="windowed")
        comm.barrier()

    with world_of("local", 2) as world:
        world.run(rank)
