"""Communicators that nothing refers to any more are released, and want of descriptors is told (c5_dropped_splits)."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import collectives as ronde
from collectives import Communicator, RondeError
from tests.processes import run_processes
from tests.worlds import World, world_of

TIMEOUT = 120.0


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def in_world(rank: int, size: int, store: str, transport: str, body: Callable[..., Any], *args: Any) -> Any:
    comm = ronde.init(rank=rank, size=size, store=store, transport=transport, config={"compiled": "off"})
    try:
        return body(comm, *args)
    finally:
        comm.close(5.0)


def drop_many(comm: Communicator, count: int) -> list[int]:
    seen = []
    for number in range(count):
        part = comm.split(0, comm.rank)
        assert part is not None
        part.allreduce(np.ones(2))
        if number % 3 == 0:
            part.allreduce_async(np.ones(2), name="named").wait()
        if number == 10:
            seen.append(descriptors())
    until = time.monotonic() + TIMEOUT / 2

    def holds_more() -> bool:
        mine = descriptors() > seen[0] + 10 and time.monotonic() < until
        return bool(comm.allreduce(np.array([float(mine)]), "max")[0])

    while holds_more():
        comm.split(0, comm.rank)  # releases those whose threads have ended by now
    return [*seen, descriptors()]


@pytest.mark.processes
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc")
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_c5_dropped_splits_hold_no_descriptors(tmp_path: Any, transport: str) -> None:
    for early, late in run_processes(in_world, 2, 2, f"file://{tmp_path}", transport, drop_many, 60, timeout=TIMEOUT):
        assert late <= early + 10


def use_up(comm: Communicator, who: int) -> tuple[str, str] | None:
    """Make splits with hardly a descriptor left on one rank, or on all (-1)."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if who in (-1, comm.rank):
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 4, limit[1]))
    kept = []
    try:
        for _ in range(20):
            kept.append(comm.split(0, comm.rank))
    except RondeError as error:
        return type(error).__name__, str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    return None


@pytest.mark.processes
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc")
@pytest.mark.parametrize("who", [-1, 0, 1])
def test_c5_dropped_splits_want_of_descriptors_is_an_error_of_all_ranks(tmp_path: Any, who: int) -> None:
    found = run_processes(in_world, 2, 2, f"file://{tmp_path}", "shm", use_up, who, timeout=TIMEOUT)
    for error in found:
        assert error is not None
        assert "ulimit -n" in error[1]


@pytest.fixture
def two() -> Any:
    with world_of("local", 2) as world:
        yield world


def open_ones(comm: Communicator) -> int:
    return len(comm._family.communicators)


def test_a_dropped_split_is_released_by_the_next_one(two: World) -> None:
    def body(comm: Communicator) -> list[int]:
        seen = []
        for _ in range(5):
            part = comm.split(0)
            assert part is not None
            part.allreduce(np.ones(3))
            seen.append(open_ones(comm))
            del part
            gc.collect()
        return seen

    for seen in two.run(body):
        assert max(seen) <= 3


def test_a_persistent_call_keeps_its_communicator(two: World) -> None:
    def body(comm: Communicator) -> list[float]:
        part = comm.split(0)
        assert part is not None
        call = part.plan("allreduce", np.ones(3))
        del part
        gc.collect()
        comm.split(0)
        comm.split(0)
        return [call.run()[0] for _ in range(2)]

    assert two.run(body) == [[2.0, 2.0]] * 2


def test_operations_in_flight_end_on_a_dropped_communicator(two: World) -> None:
    def body(comm: Communicator) -> list[float]:
        part = comm.split(0)
        assert part is not None
        works = [part.allreduce_async(np.ones(3)), part.allreduce_async(np.ones(3), name="named")]
        del part
        gc.collect()
        comm.split(0)
        return [work.wait(60.0)[0] for work in works]

    assert two.run(body) == [[2.0, 2.0]] * 2


def test_a_closed_split_is_not_released_again(two: World) -> None:
    def body(comm: Communicator) -> int:
        part = comm.split(0)
        assert part is not None
        part.close()
        part.close()
        del part
        gc.collect()
        comm.split(0)
        return open_ones(comm)

    assert two.run(body) == [2, 2]
