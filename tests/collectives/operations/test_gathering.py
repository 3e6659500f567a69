"""Allgathers by messages: small parts that are as in the last gathering travel with what is to be agreed on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from collectives import Communicator, MismatchError
from tests.worlds import world_of

SIZE = 3
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
        comm.allgather(np.ones(1 << 18, np.int8))  # too large to travel with their headers
        comm.allgather(np.ones(1 << 18, np.int8))
        assert comm.metrics()["parts"]["allgather"]["calls"] == 3

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
