"""Allgathers that run as if all parts were equal, or as in the last gathering, and end without effect if not."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from collectives import AbortedError, Communicator, MismatchError
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
        comm.allgather(np.ones(1 << 19, np.int8))  # refused by all: others than before
        for _ in range(20):
            comm.allgather(np.ones(1 << 19, np.int8))  # too large to be sent on speculation
        assert comm.metrics()["parts"]["allgather"]["calls"] == 22

    with world_of("tcp", SIZE) as world:
        world.run(body)


def test_another_dtype_is_a_mismatch_after_which_all_goes_on() -> None:
    def body(comm: Communicator) -> None:
        for _ in range(3):
            comm.allgather(np.ones(4, np.float32))
        with pytest.raises(MismatchError, match="may differ in their first dimension only"):
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
