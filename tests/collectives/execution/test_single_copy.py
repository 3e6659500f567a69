"""Large arrays read where they lie by single-copy algorithms."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import collectives as ronde
from collectives import Communicator, Config, ConfigError, connect
from collectives.algorithms import algorithms
from collectives.execution.executor import Executor
from collectives.planning.plan import Call
from tests.worlds import BOUND, SECRET, executor_of, kept_plans, world_of
from transports.onesided import Memory, Window, address
from transports.rendezvous import MemoryStore, join
from transports.shm import remote

LENDING = sorted(
    (collective, name)
    for collective in ("allreduce", "reduce_scatter", "broadcast", "allgather", "alltoall")
    for name, known in algorithms(collective).items()
    if known.single_copy
)
LARGE = 100_000
"""float32 numbers that both ways are tried for."""


def test_algorithms_that_use_single_copy() -> None:
    assert {collective for collective, _ in LENDING} == {
        *("allreduce", "reduce_scatter", "broadcast", "allgather", "alltoall")
    }


@pytest.mark.parametrize("transport", ["local", "shm", "auto"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_ranks_may_work_in_place_or_not_each_as_it_likes(transport: str, size: int) -> None:
    def body(comm: Communicator) -> None:
        for count in (1, 1000, LARGE, 300_007):
            for mask in (0, 1, 2, (1 << size) - 1):
                x = np.arange(count, dtype=np.float32) % 97 + comm.rank
                expected = (np.arange(count) % 97 * size + size * (size - 1) / 2).astype(np.float32)
                out = x if mask >> comm.rank & 1 else np.zeros_like(x)
                assert comm.allreduce(x, out=out, algorithm="single_copy") is out
                np.testing.assert_array_equal(out, expected)
                average = comm.allreduce(out, "average", algorithm="single_copy")
                np.testing.assert_array_equal(average, expected)
                sent = np.full(count, comm.rank, np.int16)
                got = sent if mask >> comm.rank & 1 else np.zeros_like(sent)
                comm.broadcast(sent, size - 1, out=got, algorithm="single_copy")
                assert (got == size - 1).all()

    with world_of(transport, size) as world:
        assert all(executor_of(comm).planner.single_copy for comm in world.communicators)
        world.run(body)


@pytest.mark.long
@pytest.mark.parametrize("transport", ["local", "shm"])
def test_both_ways_give_the_same(transport: str) -> None:
    size = 3
    order = random.Random(5)
    calls = [
        (
            order.choice(LENDING)[0],
            order.choice(("single_copy", "direct")),
            order.choice((LARGE, 120_000, 400_000)),
            order.random() < 0.2,
        )
        for _ in range(220)
    ]

    def body(comm: Communicator) -> set[tuple[str, str]]:
        fixed = np.zeros(LARGE)
        plans = [comm.plan("allreduce", fixed, out=fixed, algorithm=name) for name in ("single_copy", "direct")]
        ranks = np.arange(size, dtype=np.float32)
        for number, (name, algorithm, count, uneven) in enumerate(calls):
            count -= count % size
            part = count // size
            x = np.full(count, number + comm.rank, np.float32)
            if name == "allgather" and uneven:
                x = x[: count - 3000 * comm.rank]
                expected = np.concatenate([np.full(count - 3000 * rank, number + rank) for rank in range(size)])
            else:
                expected = {
                    "allreduce": np.full(count, (number + ranks).sum()),
                    "reduce_scatter": np.full(part, (number + ranks).sum()),
                    "broadcast": np.full(count, number),
                    "allgather": np.repeat(number + ranks, count),
                    "alltoall": np.repeat(number + ranks, part),
                }[name]
            np.testing.assert_array_equal(getattr(comm, name)(x, algorithm=algorithm), expected)
            fixed[:] = number
            plans[number % 2].run()
            assert (fixed == number * size).all()
        return {(plan.call.collective, plan.algorithm.name) for plan in kept_plans(comm) if plan.tally.calls}

    with world_of(transport, size) as world:
        used, *others = world.run(body)
    assert all(used >= {pair for pair in other if pair in LENDING} for other in others)
    assert set(LENDING) <= used
    assert {collective for collective, name in used if name.startswith("direct")} >= {name for name, _ in LENDING}


def test_a_system_without_the_permission_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, start: int, target: memoryview) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("transports.shm.remote.copy_from", refuse)

    def body(comm: Communicator) -> None:
        assert not executor_of(comm).planner.single_copy
        x = np.ones(LARGE, np.float32)
        assert (comm.allreduce(x) == 2).all()
        assert not any(plan.algorithm.single_copy for plan in kept_plans(comm))
        with pytest.raises(ValueError, match=r"algorithm='single_copy': .*memory"):
            comm.allreduce(x, algorithm="single_copy")
        assert (comm.allreduce(x) == 2).all()

    with world_of("shm", 2) as world:
        world.run(body)


def test_one_rank_that_cannot_read_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if what it reads is another process's memory, as where ranks count processes differently."""

    class Elsewhere(Window):
        """The window of rank 0; its peer exposes these bytes, and says whether it could read rank 0's."""

        ranks, index, nbytes = (0, 1), 0, 100

        def __init__(self, told: bytes, lent: bytes, fine: int) -> None:
            self.parts = [bytearray(100), bytearray(told.ljust(32, b"\0") + bytes([fine])).ljust(100, b"\0")]
            self.lent = lent.ljust(32, b"\0")

        def view(self, index: int) -> memoryview:
            return memoryview(self.parts[index])

        def read(self, index: int, piece: int, offset: int, target: memoryview) -> None:
            target[:] = self.lent

        def publish(self, epoch: int, check: int = 0) -> None: ...

        def wait(self, index: int, epoch: int, deadline: float, check: int | None = None) -> None: ...

        def expose_arrays(self, *views: memoryview) -> bool:
            return True

        def close(self) -> None: ...

    assert Elsewhere(b"probe", b"probe", 1).can_read_peers(0.0)
    assert not Elsewhere(b"probe", b"other", 1).can_read_peers(0.0)
    assert not Elsewhere(b"probe", b"probe", 0).can_read_peers(0.0)


def unreadable() -> memoryview:
    """Memory of this process that the kernel does not read for others: the page that it keeps the time on."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("[vvar]"):
            start = int(line.split("-")[0], 16)
            return memoryview((ctypes.c_char * 4096).from_address(start)).cast("B")
    pytest.skip("this system shows no page of such memory")


def test_memory_that_cannot_be_exposed_is_reported() -> None:
    def readable(*views: memoryview) -> bool:
        return remote.readable(views)

    fine, page = memoryview(bytearray(100)), unreadable()
    assert readable(fine)
    assert readable(fine, memoryview(b""))
    assert readable()
    assert not readable(page)
    assert not readable(fine, page)
    with pytest.raises(OSError, match="Bad address"):
        remote.copy_from(os.getpid(), address(page), memoryview(bytearray(10)))


def test_memory_of_numpys_allocator_is_not_probed() -> None:
    x = np.zeros((3, 4))
    assert all(remote.on_heap(memory) for memory in (x, x.reshape(-1), x.reshape(-1)[2:][1:]))
    others: list[Memory] = [np.frombuffer(bytearray(10), np.uint8), memoryview(bytearray(10)), memoryview(x)]
    assert not any(remote.on_heap(memory) for memory in others)
    assert not remote.on_heap(np.frombuffer(unreadable(), np.uint8)[5:])


def test_addresses_of_all_kinds_of_memory() -> None:
    for memory in (np.zeros(3), np.zeros(3, ml_dtypes.bfloat16), memoryview(bytearray(3)), np.zeros(0)):
        array = np.asarray(memory)
        assert address(memory) == array.ctypes.data
        array.flags.writeable = False
        assert address(array) == array.ctypes.data
    text = memoryview(b"abc")
    assert address(text) == np.frombuffer(text, np.uint8).ctypes.data


@pytest.mark.parametrize("transport", ["shm", "auto"])
def test_copies_are_exposed_of_unreadable_memory(transport: str) -> None:
    """Memory of this kind stands for that of a device. Rank 0 alone has it."""

    def body(comm: Communicator) -> None:
        plain = np.arange(4096, dtype=np.uint8)
        x = np.frombuffer(unreadable(), np.uint8) if comm.rank == 0 else plain
        for algorithm in ("single_copy", "direct"):
            found = comm.allgather(x, algorithm=algorithm)
            np.testing.assert_array_equal(found[4096:], np.tile(plain, comm.size - 1))
            same = comm.broadcast(x, algorithm=algorithm)
            others = comm.allreduce(same if comm.rank else np.zeros_like(same), "max")
            assert comm.rank == 0 or (others == same).all()  # the page changes between the two reads of rank 0

    with world_of(transport, 3) as world:
        assert all(executor_of(comm).planner.single_copy for comm in world.communicators)
        world.run(body)


@pytest.mark.parametrize("in_place", [True, False])
def test_copies_take_the_place_of_arrays(monkeypatch: pytest.MonkeyPatch, in_place: bool) -> None:
    """Also where a result is read by others, in the calls of every kind; and nothing is taken that has failed."""
    monkeypatch.setattr("transports.shm.remote.on_heap", lambda memory: False)
    monkeypatch.setattr("transports.shm.remote.readable", lambda pieces: False)

    def body(comm: Communicator) -> None:
        x = np.arange(1000.0) + comm.rank
        out = x if in_place else np.zeros_like(x)
        step = comm.plan("allreduce", x, out=out, algorithm="single_copy")
        for number in range(3):
            x[:] = np.arange(1000.0) + comm.rank + number
            assert step.run() is out
            np.testing.assert_array_equal(out, 3 * (np.arange(1000.0) + number + 1))
        large = np.full(LARGE, comm.rank + 1.0, np.float32)
        both = [comm.plan("allreduce", large, out=large, algorithm=name) for name in ("single_copy", "direct")]
        for number in range(120):
            large[:] = comm.rank + number
            both[number % 2].run()
            assert (large == 3 * number + 3).all()
        assert (comm.alltoall(large[: 3 * 30_000]).reshape(3, -1) == 3 * number + 3).all()
        parts = comm.reduce_scatter(np.arange(3 * LARGE) + comm.rank, algorithm="single_copy")
        np.testing.assert_array_equal(parts, 3 * (np.arange(LARGE) + comm.rank * LARGE) + 3)

    with world_of("shm", 3) as world:
        world.run(body)


@pytest.mark.long
def test_copies_stay_until_no_rank_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 notices before rank 0 that rank 2 has another shape, and has no use for its copy any more."""
    count = 6 << 20  # NumPy gives it back to the system at once
    copy_from, run, gone, slow = remote.copy_from, Executor.run, threading.Event(), threading.local()
    monkeypatch.setattr("transports.shm.remote.on_heap", lambda memory: False)
    monkeypatch.setattr("transports.shm.remote.readable", lambda pieces: False)

    def read_late(*arguments: Any) -> None:
        assert not hasattr(slow, "rank") or gone.wait(20)
        copy_from(*arguments)

    def leave(executor: Executor, *arguments: Any) -> bool:
        well = run(executor, *arguments)
        if executor.rank == 1 and not well:
            gone.set()
        return well

    def body(comm: Communicator) -> bool:
        executor, mine = executor_of(comm), count - 10 * (comm.rank == 2)
        call = Call("allgather", np.dtype(np.float64), (mine,), algorithm="single_copy", shape=(mine,))
        x, out = np.full(mine, comm.rank), np.empty(3 * mine)
        comm.barrier()
        if comm.rank == 0:
            slow.rank = 0
        return executor.run(executor.planner.plan(call), x.astype(np.float64), out, time.monotonic() + 30)

    with world_of("shm", 3, compiled=("off",) * 3) as world:
        monkeypatch.setattr("transports.shm.remote.copy_from", read_late)
        monkeypatch.setattr(Executor, "run", leave)
        assert world.run(body) == [False] * 3
        assert gone.is_set()


def compute() -> bool:
    comm = ronde.world()
    for count in (1000, LARGE, 3_000_000):
        x = np.full(count, comm.rank + 1.0)
        for _ in range(12):
            assert (comm.allreduce(x) == 6).all()
        assert (comm.allreduce(x, algorithm="single_copy") == 6).all() or not executor_of(comm).planner.single_copy
    return executor_of(comm).planner.single_copy


@pytest.mark.processes
def test_processes_read_each_other() -> None:
    assert len(set(ronde.run(compute, np=3, transport="shm", timeout=60))) == 1


def test_ranks_that_measure_differently_are_named() -> None:
    store = MemoryStore()

    def error(rank: int) -> str:
        deadline = time.monotonic() + BOUND
        group = join(rank, 3, store, secret=SECRET, deadline=deadline)
        with pytest.raises(ConfigError) as raised:
            connect(group, Config.load({"transport": "local", "calibrate": rank != 1}, environment={}), deadline)
        return str(raised.value)

    with ThreadPoolExecutor(3) as pool:
        texts = list(pool.map(error, range(3)))
    for text in texts:  # that of a rank that hears of another's error before it compares is the other's
        assert "calibrate and the table of rules: must be the same on all ranks" in text
        assert "rank 1" in text
