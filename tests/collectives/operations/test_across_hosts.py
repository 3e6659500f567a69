"""Algorithms for ranks on several hosts equal NumPy, whatever hosts the ranks are on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from collectives.algorithms import algorithms
from collectives.schedule import SPECS
from tests.worlds import World

CASES = [
    (collective, name) for collective in SPECS for name, found in algorithms(collective).items() if found.multihost
]


def expected(collective: str, parts: list[Any], rank: int, root: int) -> Any:
    size = len(parts)
    total = np.add.reduce(parts)
    if collective in ("reduce", "gather") and rank != root:
        return None
    return {
        "allreduce": lambda: total,
        "reduce": lambda: total,
        "broadcast": lambda: parts[root],
        "allgather": lambda: np.concatenate(parts),
        "gather": lambda: np.concatenate(parts),
        "reduce_scatter": lambda: np.array_split(total, size)[rank],
        "scatter": lambda: np.array_split(parts[root], size)[rank],
        "alltoall": lambda: np.concatenate([np.array_split(part, size)[rank] for part in parts]),
    }[collective]()


def call(comm: Communicator, collective: str, name: str, x: Any, root: int) -> Any:
    if collective == "scatter":
        return comm.scatter(x if comm.rank == root else None, root, algorithm=name)
    rooted = {"root": root} if SPECS[collective].rooted else {}
    return getattr(comm, collective)(x, algorithm=name, **rooted)


@pytest.mark.parametrize("compiled", ["off", "auto"])
@pytest.mark.parametrize("hosts", ["aabb", "abab", "abbb", "aabccb"])
def test_every_algorithm_for_hosts(hosts: Sequence[str], compiled: str) -> None:
    size = len(hosts)

    def body(comm: Communicator) -> None:
        for collective, name in CASES:
            for rows in (size, 31 * size):
                parts = [np.arange(rows, dtype=np.float32) + 1000 * rank for rank in range(size)]
                for root in (0, size - 1):
                    if collective == "barrier":
                        comm.barrier(algorithm=name)
                        continue
                    result = call(comm, collective, name, parts[comm.rank].copy(), root)
                    np.testing.assert_array_equal(result, expected(collective, parts, comm.rank, root))

    assert {collective for collective, _ in CASES} == set(SPECS) - {"scan", "exscan"}
    world = World("local", size, hosts=[*hosts], compiled=[compiled])
    try:
        world.run(body)
    finally:
        world.close()
