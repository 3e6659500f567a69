"""Communicators that nothing refers to any more are released, and want of descriptors is told (c5_dropped_splits)."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import resource
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import collectives as ronde
from collectives import Communicator, DeadlineExceeded, RondeError
from collectives.metering import Meter
from tests.processes import run_processes
from tests.worlds import World, world_of
from transports.exposing import Exposures
from transports.shm.segments import Segment

TIMEOUT = 120.0


def descriptors() -> int:
    """Those that stay: other threads open files of the store for a moment. Without those by which processes are
    watched, which come some time after `init`."""
    counts = []
    for _ in range(20):
        found = 0
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):
                found += "pidfd" not in os.readlink(f"/proc/self/fd/{name}")
        counts.append(found)
        time.sleep(0.005)
    return min(counts)


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


def use_up(comm: Communicator, who: int) -> tuple[str, str] | list[float]:
    """Make splits, and use them, with hardly a descriptor left on one rank, or on all (-1)."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if who in (-1, comm.rank):
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors() + 4, limit[1]))
    kept, sums = [], []
    try:
        for _ in range(20):
            kept.append(comm.split(0, comm.rank))
        for part in kept:
            assert part is not None
            sums.append(float(part.allreduce(np.array([comm.rank + 1.0]))[0]))
    except RondeError as error:
        return type(error).__name__, str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    return sums


@pytest.mark.processes
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc")
@pytest.mark.parametrize("who", [-1, 0, 1])
def test_c5_dropped_splits_want_of_descriptors_has_one_end_on_all_ranks(tmp_path: Any, who: int) -> None:
    """A rank that cannot make the window: all send messages. One that cannot attach to it: all raise its error."""
    found = run_processes(in_world, 2, 2, f"file://{tmp_path}", "shm", use_up, who, timeout=TIMEOUT)
    raised = [isinstance(one, tuple) and "ulimit -n" in one[1] for one in found]
    if who == 1 or (who == -1 and any(raised)):  # of both, either is the first that has none left
        assert all(raised)
    else:
        assert found == [[3.0] * 20] * 2


def split_often(comm: Communicator) -> tuple[int, int, int, list[float]]:
    """Descriptors before and after 100 splits, and after a collective of each of ten of them."""
    comm.split(0)
    comm.barrier()
    before = descriptors()
    kept = [comm.split(0, -comm.rank) for _ in range(100)]
    after = descriptors()
    sums = []
    for part in kept[:10]:
        assert part is not None
        sums.append(float(part.allreduce(np.array([comm.rank + 1.0]))[0]))
    return before, after, descriptors(), sums


@pytest.mark.processes
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc")
def test_a_split_has_no_descriptor_before_its_first_collective(tmp_path: Any) -> None:
    for before, after, used, sums in run_processes(
        in_world, 2, 2, f"file://{tmp_path}", "shm", split_often, timeout=TIMEOUT
    ):
        assert after <= before
        assert used <= after + 10
        assert sums == [3.0] * 10


@pytest.mark.parametrize("transport", ["local", "shm"])
def test_a_split_makes_its_window_before_its_first_collective(transport: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever that is; `split`, `subset` and messages make none."""
    made: list[str] = []
    expose = Exposures.expose

    def counted(self: Any, key: str, *arguments: Any) -> Any:
        made.append(key)
        return expose(self, key, *arguments)

    def split(comm: Communicator) -> list[Communicator]:
        parts = [comm.split(0, -comm.rank) for _ in range(9)] + [comm.subset([1, 0])]
        part = parts[0]
        assert part is not None
        assert part.sendrecv(np.array([part.rank]), 1 - part.rank).tolist() == [1 - part.rank]
        return [part for part in parts if part is not None]

    def use(comm: Communicator, parts: list[Communicator]) -> None:
        rank, first, second = parts[0].rank, np.array([1.0]), np.array([1.0, 2.0])
        calls: list[tuple[Any, Any]] = [
            (lambda one: one.allreduce(np.array([rank + 1.0]), "average").tolist(), [1.5]),
            (lambda one: one.allgather(np.full(rank + 1, rank)).tolist(), [0, 1, 1]),
            (lambda one: one.allgather(np.array([rank])).tolist(), [0, 1]),
            (lambda one: one.broadcast_object(rank), 0),
            (lambda one: [x.tolist() for x in one.grouped_allreduce([first, second])], [[2.0], [2.0, 4.0]]),
            (lambda one: one.alltoall(np.arange(4)).tolist(), [2 * rank, 2 * rank + 1] * 2),
            (lambda one: one.allreduce_async(np.array([1.0])).wait().tolist(), [2.0]),
            (lambda one: one.allreduce_async(np.array([1.0]), name="n").wait().tolist(), [2.0]),
            (lambda one: one.plan("allreduce", first, "average").run().tolist(), [1.0]),
            (lambda one: one.empty((3,)).tolist(), [0.0] * 3),
        ]
        for part, (call, result) in zip(parts, calls, strict=True):
            for _ in range(3):
                assert call(part) == result

    with world_of(transport, 2) as world:
        monkeypatch.setattr(Exposures, "expose", counted)
        found = world.run(split)
        assert made == []  # nor does the world, which has made its own in `init`
        use_all = dict(zip(range(2), found, strict=True))
        world.run(lambda comm: use(comm, use_all[comm.rank]))
        assert made


@pytest.mark.parametrize("compiled", ["off", "auto"])
def test_a_split_without_room_for_its_window_sends_messages(compiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every first call gives the right result, also if it was planned while the window was counted on."""

    def none_left(nbytes: int, directory: str = "") -> Segment:
        raise OSError(errno.ENOSPC, "No space left on device")

    def body(comm: Communicator) -> None:
        x = np.array([comm.rank + 1.0, 1.0], np.float32)
        calls: list[tuple[Any, Any]] = [
            (lambda one: one.allreduce(x, "average").tolist(), [1.5, 1.0]),
            (lambda one: one.allreduce_async(x, "average").wait().tolist(), [1.5, 1.0]),
            (lambda one: one.allreduce_async(x, "average", name="n").wait().tolist(), [1.5, 1.0]),
            (lambda one: one.broadcast_async(x, 1, name="n").wait().tolist(), [2.0, 1.0]),
            (lambda one: one.plan("allreduce", x, "average").run().tolist(), [1.5, 1.0]),
            (lambda one: one.allgather(x).tolist(), [1.0, 1.0, 2.0, 1.0]),
            (lambda one: one.allgather(x[: comm.rank + 1]).tolist(), [1.0, 2.0, 1.0]),
            (lambda one: one.reduce_scatter(x, "average").tolist(), [[1.5], [1.0]][comm.rank]),
            (lambda one: one.scan(x).tolist(), [[1.0, 1.0], [3.0, 2.0]][comm.rank]),
            (lambda one: one.allreduce(np.ones(300_000, np.float32), "average").sum(), 300_000),
        ]
        for call, result in calls:
            part = comm.split(0)
            assert part is not None
            for _ in range(3):
                assert call(part) == result

    with world_of("shm", 2, compiled=[compiled]) as world:
        monkeypatch.setattr(Segment, "create", none_left)
        world.run(body)


@pytest.mark.long
def test_a_late_rank_is_named_by_those_that_wait_for_it_in_the_first_call() -> None:
    def body(comm: Communicator) -> None:
        part = comm.split(0)
        assert part is not None
        if comm.rank == 0:
            with pytest.raises(DeadlineExceeded) as caught:
                part.allreduce(np.ones(3), timeout=0.3)
            assert caught.value.rank == 1 or caught.value.peer == 1
        else:
            with pytest.raises(RondeError):
                part.recv(np.ones(3), 0)

    with world_of("shm", 2) as world:
        world.run(body)


@pytest.fixture
def two() -> Any:
    with world_of("local", 2) as world:
        yield world


def open_ones(meters: list[weakref.ref[Meter]]) -> int:
    """The number of splits, by their meters, of which anything is kept."""
    gc.collect()
    return sum(meter() is not None for meter in meters)


def test_a_dropped_split_is_released_by_the_next_one(two: World) -> None:
    def body(comm: Communicator) -> list[int]:
        seen, meters = [], []
        for _ in range(5):
            part = comm.split(0)
            assert part is not None
            part.allreduce(np.ones(3))
            meters.append(weakref.ref(part.meter))
            seen.append(open_ones(meters))
            del part
            gc.collect()
        return seen

    for seen in two.run(body):
        assert max(seen) <= 2


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
        closed = weakref.ref(part.meter)
        part.close()
        part.close()
        del part
        gc.collect()
        part = comm.split(0)
        assert part is not None
        return open_ones([closed, weakref.ref(part.meter)])

    assert two.run(body) == [1, 1]


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="mapped memory is counted in /proc")
@pytest.mark.parametrize("compiled", ["off", "auto"])
def test_a_closed_split_keeps_no_memory_until_the_garbage_collection(compiled: str) -> None:
    """Programs of training turn it off."""

    def segments() -> int:
        with open("/proc/self/maps") as lines:
            return sum("ronde-" in line for line in lines)

    def body(comm: Communicator) -> None:
        part = comm.split(0)
        assert part is not None
        part.allreduce(np.ones(3))
        part.allreduce_async(np.ones(3), name="named").wait()
        part.broadcast_object(1)
        part.close()

    with world_of("shm", 2, compiled=[compiled]) as world:
        world.run(lambda comm: comm.barrier())
        before = segments()
        gc.disable()
        try:
            world.run(body)
            assert segments() == before
        finally:
            gc.enable()
