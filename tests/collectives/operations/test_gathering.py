"""Allgathers that run as if all parts were equal, or as in the last gathering, and end without effect if not."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from collectives import AbortedError, Communicator, MismatchError, RondeError
from collectives.algorithms import algorithms
from collectives.operations.speculation import even_call
from tests.worlds import executor_of, world_of

SIZE = 3
BY_MESSAGES = [
    (name, size)
    for name, found in algorithms("allgather").items()
    for size in (2, 3, 4, 7)
    if not found.onesided and (name != "recursive_doubling" or size in (2, 4))
]
KINDS = [np.bool_, np.int8, np.float16, np.float32, np.float64, np.complex128]


def part(rank: int, rows: int, dtype: Any) -> np.ndarray[Any, Any]:
    return (np.arange(rows * 2).reshape(rows, 2) + 10 * rank).astype(dtype)


def test_parts_of_one_kind_and_others() -> None:
    """Equal parts, each kind several times; then of one rank another size, more rows on all, and none."""

    def body(comm: Communicator) -> None:
        def gather(rows: list[int], dtype: Any) -> None:
            found = comm.allgather(part(comm.rank, rows[comm.rank], dtype))
            expected = np.concatenate([part(rank, count, dtype) for rank, count in enumerate(rows)])
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == dtype

        for _ in range(2):
            for dtype in KINDS:
                for rows in ([2, 2, 2], [2, 2, 2], [2, 2, 2], [2, 5, 2], [3, 3, 3], [0, 0, 0], [0, 0, 0]):
                    gather(rows, dtype)
            for _ in range(20):
                gather([4, 4, 4], np.float64)

    with world_of("tcp", SIZE) as world:
        world.run(body)


def test_only_the_first_of_equal_gatherings_agrees_on_sizes() -> None:
    def body(comm: Communicator) -> None:
        x, out = np.full(4, comm.rank, np.float32), np.empty((SIZE * 4), np.float32)
        for _ in range(10):
            assert comm.allgather(x, out=out) is out
            assert out.tolist() == [float(rank) for rank in range(SIZE) for _ in range(4)]
        assert comm.metrics()["parts"]["allgather"]["calls"] == 1
        comm.allgather(np.ones(1 << 21, np.int8))  # refused by all: others than before
        for _ in range(20):
            comm.allgather(np.ones(1 << 21, np.int8))  # too large to be sent on speculation
        assert comm.metrics()["parts"]["allgather"]["calls"] == 22

    with world_of("tcp", SIZE) as world:
        world.run(body)


def test_another_dtype_is_a_mismatch_after_which_all_goes_on() -> None:
    def body(comm: Communicator) -> None:
        for _ in range(3):
            comm.allgather(np.ones(4, np.float32))
        with pytest.raises(MismatchError, match=r"rank 0: \(4,\) float32; rank 1: \(4,\) float64"):
            comm.allgather(np.ones(4, np.float64 if comm.rank == 1 else np.float32))
        for _ in range(20):
            assert comm.allgather(np.full(4, comm.rank, np.float32)).sum() == 4 * sum(range(SIZE))

    with world_of("tcp", SIZE) as world:
        world.run(body)


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_rows_without_elements_are_counted(transport: str) -> None:
    def body(comm: Communicator) -> None:
        for _ in range(3):
            assert comm.allgather(np.ones((3, 0), np.float32)).shape == (3 * SIZE, 0)
        for _ in range(3):
            assert comm.allgather(np.ones((3 + comm.rank, 0), np.float32)).shape == (3 * SIZE + 3, 0)

    with world_of(transport, SIZE) as world:
        world.run(body)


@pytest.mark.parametrize("transport", ["tcp", "auto"])
@pytest.mark.parametrize("count", [1, 15, 30000])
@pytest.mark.parametrize(("algorithm", "size"), BY_MESSAGES)
def test_all_ranks_hear_of_a_refusal(algorithm: str, size: int, count: int, transport: str) -> None:
    """Whoever refuses: each rank alone, the last two, and all; by TCP, and by shared memory inside two hosts."""

    def body(comm: Communicator) -> None:
        executor, x, out = executor_of(comm), np.full(count, comm.rank, np.float32), np.empty(count * size, np.float32)
        plan = executor.planner.plan(even_call(x.dtype, x.shape, algorithm))
        for refusing in (*({rank} for rank in range(size)), set(), {size - 2, size - 1}, set(range(size))):
            if comm.rank in refusing:
                executor.refuse(plan, time.monotonic() + 60)
            else:
                assert executor.run(plan, x, out, time.monotonic() + 60) is not bool(refusing)
                assert refusing or out.tolist() == [float(rank) for rank in range(size) for _ in range(count)]
            assert comm.allreduce(np.ones(3)).tolist() == [size] * 3

    with world_of(transport, size, hosts=["a"] * (size // 2) + ["b"] * (size - size // 2)) as world:
        world.run(body)


def test_ranks_with_and_without_compiled_code_refuse_alike() -> None:
    pytest.importorskip("numba", reason="needs the compiled interpreter")

    def body(comm: Communicator) -> None:
        for count in (*[4] * 20, 5, *[6] * 20):
            rows = count + (count == 5 and comm.rank)
            assert len(comm.allgather(np.ones(rows, np.float32))) == 2 * count + (count == 5)

    with world_of("tcp", 2, compiled=["on", "off"]) as world:
        world.run(body)


@pytest.mark.parametrize("interrupted", [0, 1])
def test_a_rank_that_leaves_a_refusal_aborts(interrupted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 refuses; rank 0 hears of it."""
    together = threading.Barrier(2)  # an abort may overtake the last message of the call before

    def leave(*_: Any) -> None:
        raise KeyboardInterrupt

    def body(comm: Communicator) -> None:
        for _ in range(3):
            comm.allgather(np.ones(4))
        together.wait(30)
        if comm.rank == interrupted:
            monkeypatch.setattr(executor_of(comm), "_refuse", leave)
        with pytest.raises(KeyboardInterrupt if comm.rank == interrupted else AbortedError):
            comm.allgather(np.ones(4 + comm.rank))

    with world_of("tcp", 2) as world:
        world.run(body)


def test_another_collective_is_a_mismatch_on_all_ranks() -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(4, np.float32)
        for _ in range(3):
            comm.allgather(x)
        with pytest.raises(MismatchError, match=r"rank 1: allreduce"):
            comm.allreduce(x) if comm.rank == 1 else comm.allgather(x)

    with world_of("tcp", 2) as world:
        world.run(body)


# ---- sizes that all ranks know


def agreed(comm: Communicator) -> None:
    rank, size = comm.rank, comm.size
    rows = [2 * each + 1 for each in range(size)]
    rows[-1] = 0
    parts = [np.full((count, 3), each, np.float32) for each, count in enumerate(rows)]
    everything = np.concatenate(parts)
    comm.reset_metrics()
    for _ in range(2):
        assert np.array_equal(comm.allgather(parts[rank], expected=rows, agreed=True), everything)
        into = np.zeros_like(everything)
        assert comm.allgather_async(parts[rank], out=into, expected=rows, agreed=True).wait() is into
        assert np.array_equal(into, everything)
        even = comm.allgather(np.array([rank]), expected=[1] * size, agreed=True)
        assert even.tolist() == [*range(size)]
        spread = np.zeros((size, 2), even.dtype)[:, 0]  # the arrays of rank 0 alone are used as they are
        x, place = [(np.array([rank]), None), (np.array([rank]), spread), (np.array(rank), None)][rank]
        assert comm.allgather(x, out=place, expected=[1] * size, agreed=True).tolist() == [*range(size)]
        got = comm.gather(parts[rank], 1, expected=rows, agreed=True)
        assert (got is None) == (rank != 1)
        assert got is None or np.array_equal(got, everything)
        mine = np.zeros_like(parts[rank])
        comm.scatter(everything if rank == 0 else None, counts=rows, out=mine, agreed=True)
        assert np.array_equal(mine, parts[rank])
        splits = [rank + each for each in range(size)]
        x = np.repeat(np.arange(size), splits)
        result, came = comm.alltoall(x, splits, expected=splits, return_splits=True, agreed=True)
        assert result.tolist() == [rank] * sum(splits)
        assert came.tolist() == splits
    found = comm.metrics()
    assert all(not part["calls"] for part in found["parts"].values()), "sizes were exchanged"
    for method, options in (
        (comm.allgather, {}),
        (comm.gather, {}),
        (comm.allgather, {"expected": [5] * size}),
        (comm.allgather, {"expected": rows, "out": np.zeros((1, 3), np.float32)}),
        (comm.scatter, {}),
        (comm.scatter, {"counts": rows, "out": np.zeros((50, 3), np.float32)}),
        (comm.alltoall, {"splits": [1] * size}),
        (comm.alltoall, {"expected": [1] * size}),
    ):
        given = everything if method == comm.scatter else np.zeros((size, 3), np.float32)
        with pytest.raises(ValueError, match=r"expected|counts|out|splits"):
            method(parts[rank] if "out" in options and method != comm.scatter else given, agreed=True, **options)
    comm.barrier()


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_sizes_that_all_ranks_know_take_one_exchange(transport: str) -> None:
    with world_of(transport, 3) as world:
        world.run(agreed)


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_known_sizes_that_differ_abort(transport: str) -> None:
    def body(comm: Communicator) -> None:
        rows = [1, 2] if comm.rank == 0 else [2, 2]

        def call() -> None:
            comm.allgather(np.zeros((rows[comm.rank], 2)), expected=rows, agreed=True)
            comm.barrier()

        with pytest.raises(RondeError):
            call()
        assert isinstance(comm.failure, RondeError)

    with world_of(transport, 2) as world:
        world.run(body)


# ---- read-only memory


def from_read_only_memory(comm: Communicator) -> None:
    for count in (1, 1000, 3_000_000):
        x = np.arange(count, dtype=np.float32) * (comm.rank + 1)
        x.flags.writeable = comm.rank != 1
        for _ in range(3):
            if comm.rank == 1:
                assert comm.broadcast(x, 1, out=x) is x
                assert comm.broadcast_async(x, 1, out=x, name="n").wait() is x
            else:
                comm.broadcast(x, 1, out=x)
                comm.broadcast_async(x, 1, out=x, name="n").wait()
            assert x[-1] == 2 * (count - 1)
    x = np.zeros(3)
    x.flags.writeable = False
    with pytest.raises(ValueError, match="out"):
        comm.allreduce(x, out=x)
    if comm.rank != 1:
        with pytest.raises(ValueError, match="out"):
            comm.broadcast(x, 1, out=x)
    comm.barrier()


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
@pytest.mark.parametrize("compiled", ["off", "auto"])
def test_the_root_broadcasts_in_place_from_read_only_memory(transport: str, compiled: str) -> None:
    with world_of(transport, 2, compiled=[compiled]) as world:
        world.run(from_read_only_memory)


@pytest.mark.parametrize("transport", ["local", "shm", "tcp"])
def test_objects_around_the_length_of_their_first_part(transport: str) -> None:
    """Short ones of all ranks travel in one exchange; one that is long makes a second one, of all."""
    lengths = (0, 1, 500, 1990, 2016, 2017, 2032, 2033, 5000, 70_000)

    def body(comm: Communicator) -> list[object]:
        found: list[object] = []
        for length in lengths:
            mine = bytes([comm.rank]) * length
            for long in range(comm.size):
                one = mine if comm.rank == long else comm.rank
                found.append(comm.allgather_object(one))
                found.append(comm.gather_object(one, long))
                found.append(comm.broadcast_object(one if comm.rank == long else None, long))
            arrays = comm.allgather_object({"x": np.full(length, comm.rank, np.longdouble)})
            assert [(one["x"] == rank).all() and len(one["x"]) == length for rank, one in enumerate(arrays)]
            assert all(one["x"].flags.aligned for one in (comm.broadcast_object(arrays[0], 1),))
        return found

    with world_of(transport, 3) as world:
        for rank, found in enumerate(world.run(body)):
            expected: list[object] = []
            for length in lengths:
                for long in range(3):
                    each = [bytes([long]) * length if peer == long else peer for peer in range(3)]
                    expected += each, each if rank == long else None, each[long]
            assert found == expected
