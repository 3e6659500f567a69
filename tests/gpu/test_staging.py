"""Arrays of GPUs through the host's memory: segments, their order, and what overlaps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collectives import Communicator, DeadlineExceeded
from collectives.algorithms import algorithms
from collectives.gpu import devices
from collectives.gpu import overlap as staging
from collectives.planning.plan import Call
from collectives.schedule.program import Kind
from collectives.schedule.steps import Buf
from tests.gpu.bodies import host
from tests.gpu.gpus import Gpus, gpus
from tests.gpu.machine import Work
from tests.worlds import executor_of


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "SEGMENT_BYTES", 1 << 12)


def test_segments_cover_the_array() -> None:
    for count in (0, 1, 1023, 1024, 1025, 10_000, 1_000_000):
        for itemsize in (1, 4, 16):
            found = staging.segments(count, itemsize)
            assert [start for start, _ in found] == [0, *(stop for _, stop in found[:-1])][: len(found)]
            assert sum(stop - start for start, stop in found) == count
            assert len(found) <= staging.MAX_SEGMENTS
    assert staging.segments(3000, 4) == [(0, 1024), (1024, 2048), (2048, 3000)]


def copies(some: Gpus, device: int, begin: int) -> list[str]:
    """The copies from and to a device since the log had `begin` entries."""
    log = list(some.machine.log)[begin:]
    return [what for kind, what, where, *_ in log if kind == "enqueue" and what in ("d2h", "h2d") and where == device]


def test_copies_back_begin_before_the_last_step() -> None:
    """On a ring the own block is final long before the last one comes."""
    seen: list[str] = []

    def body(comm: Communicator, cupy: Any) -> None:
        count = 64 * 1024
        x = cupy.asarray(np.full(count, comm.rank, np.float32))
        cupy.cuda.Stream.null.synchronize()
        transport, begin = comm.transport, len(some.machine.log)
        isend = transport.isend
        if comm.rank == 0:

            def sending(*args: Any, **kwargs: Any) -> Any:
                seen.extend(["|", *copies(some, 0, begin)[sum(one != "|" for one in seen) :]])
                return isend(*args, **kwargs)

            transport.isend = sending  # type: ignore[method-assign]
        y = comm.allreduce(x, algorithm="ring")
        if comm.rank == 0:
            del transport.isend  # type: ignore[method-assign]
            seen.extend(copies(some, 0, begin)[sum(one != "|" for one in seen) :])
        np.testing.assert_array_equal(host(y), np.full(count, 3))

    with gpus() as some, some.world(3, "local") as world:
        some.run(world, body)
    assert seen.count("d2h") == 64
    assert seen.count("h2d") == 64
    last = len(seen) - 1 - seen[::-1].index("|")
    assert "h2d" in seen[:last]


def test_a_step_waits_for_its_own_segments_only() -> None:
    """The first send leaves while later segments have not come from the GPU."""

    def body(comm: Communicator, cupy: Any) -> bool:
        count = 64 * 1024
        x = cupy.asarray(np.full(count, comm.rank, np.float32))
        cupy.cuda.Stream.null.synchronize()
        release, fetched = None, 0
        enqueue = some.machine.enqueue

        def slow(stream: int, work: Work, device: int | None = None) -> None:
            nonlocal release, fetched
            if work.what == "d2h" and some.machine.device == 0:
                fetched += 1
                if fetched == 40:  # the rest of the copies waits
                    release = some.machine.gate(stream)
            enqueue(stream, work, device)

        early = False
        if comm.rank == 0:
            some.machine.enqueue = slow  # type: ignore[method-assign]
            isend = comm.transport.isend

            def sending(*args: Any, **kwargs: Any) -> Any:
                nonlocal early, release
                if release is not None:
                    early = True
                    release()
                    release = None
                return isend(*args, **kwargs)

            comm.transport.isend = sending  # type: ignore[method-assign]
        y = comm.allreduce(x, algorithm="ring")
        np.testing.assert_array_equal(host(y), np.full(count, 3))
        return early

    with gpus() as some, some.world(3, "local") as world:
        assert some.run(world, body)[0] is True


def test_every_algorithm_woven() -> None:
    """Copies woven into any plan, in place and not, give what the host gives."""

    def body(comm: Communicator, cupy: Any) -> None:
        count = 3 * 4096 + 7
        parts = [np.random.default_rng(rank).integers(0, 9, count).astype(np.float32) for rank in range(comm.size)]
        x = cupy.asarray(parts[comm.rank])
        for collective in ("allreduce", "reduce", "broadcast", "reduce_scatter", "allgather", "gather", "alltoall"):
            for name, known in algorithms(collective).items():
                if known.multihost or known.windows:
                    continue
                options: dict[str, Any] = {"root": 2} if collective in ("reduce", "broadcast", "gather") else {}
                given, mine = x, parts[comm.rank]
                if collective in ("alltoall", "reduce_scatter"):
                    given, mine = x[: count // 3 * 3], mine[: count // 3 * 3]
                found = getattr(comm, collective)(given, algorithm=name, **options)
                expected = getattr(comm, collective)(mine, algorithm=name, **options)
                assert (found is None) is (expected is None), (collective, name)
                if found is not None:
                    np.testing.assert_array_equal(host(found), expected, err_msg=f"{collective} {name}")

    with gpus() as some, some.world(3, "local") as world:
        some.run(world, body)


def test_every_segment_that_is_written_goes_back_once_and_after_its_last_step() -> None:
    def body(comm: Communicator, cupy: Any) -> None:
        planner = executor_of(comm).planner
        for name, known in algorithms("allreduce").items():
            if known.multihost or known.windows:
                continue
            plan = planner.plan(Call("allreduce", np.dtype(np.float32), (20_000,), "sum", 0, 0, name))
            mirror = staging.Mirror(cupy.empty((20_000,), np.float32))
            behind = staging.last_written(mirror, plan.program.instructions)
            numbers = sorted(number for numbers in behind.values() for number in numbers)
            assert numbers == list(range(len(mirror.segments))), name
            for at, step in enumerate(plan.program.instructions):
                writes = step.dst is not None and step.dst.buf is Buf.OUT and step.kind is not Kind.RECV
                for number in mirror.touched(step.dst.start, step.dst.stop) if writes and step.dst else ():
                    assert max(where for where, found in behind.items() if number in found) >= at

    with gpus() as some, some.world(2, "local") as world:
        some.run(world, body)


def test_the_gpu_may_hang_but_the_host_does_not() -> None:
    def body(comm: Communicator, cupy: Any) -> None:
        x = cupy.asarray(np.ones(50_000, np.float32))
        release = some.machine.gate(0) if comm.rank == 0 else None
        with pytest.raises(DeadlineExceeded):
            comm.allreduce(x, timeout=0.3)
        if release is not None:
            release()

    with gpus() as some, some.world(2, "local") as world:
        some.run(world, body)


def test_page_locked_memory_is_kept_until_it_was_copied_from() -> None:
    """The host goes on while the GPU has yet to copy the result; the fake finds what is copied from lost memory."""

    def body(comm: Communicator, cupy: Any) -> None:
        for count in (10, 20_000):
            x = cupy.asarray(np.ones(count, np.float32))
            stream = cupy.cuda.Stream()
            cupy.cuda.Stream.null.synchronize()
            release = hold_copies_back(some, stream.ptr)
            held = [comm.allreduce(x, stream=stream)]
            comm.allreduce(np.zeros(count, np.float32))
            assert not stream.done
            release()
            held += [comm.allreduce(x, stream=stream) for _ in range(20)]
            with stream:
                for found in held:
                    np.testing.assert_array_equal(host(found), np.full(count, 2))

    with gpus() as some, some.world(2, "local") as world:
        some.run(world, body)
    assert some.machine.violations == []


def hold_copies_back(some: Gpus, handle: int) -> Callable[[], None]:
    """Hold a stream back as soon as a copy to the GPU is enqueued there; what is returned lets it go on."""
    enqueue, gates = some.machine.enqueue, list[Callable[[], None]]()

    def holding(stream: int, work: Work, device: int | None = None) -> None:
        if work.what == "h2d" and stream == handle and not gates:
            gates.append(some.machine.gate(stream))
        enqueue(stream, work, device)

    some.machine.enqueue = holding  # type: ignore[method-assign]

    def release() -> None:
        (gate,) = gates
        gate()

    return release


def test_events_that_never_happen_are_not_waited_for_for_ever() -> None:
    class Never:
        done = False

    with pytest.raises(DeadlineExceeded, match=r"GPU .*: a copy"):
        devices.wait_until_done(Never(), time.monotonic() + 0.05, lambda: None, "a copy")


def test_a_call_that_was_planned_for_a_mirror_serves_the_host() -> None:
    """The plan of an allgather names another way for parts that are unequal: in the memory of the call that uses it."""

    def body(comm: Communicator, cupy: Any) -> None:
        for _ in range(3):
            assert (
                host(comm.allgather(cupy.asarray(np.full(3, comm.rank, np.float32)))).tolist() == [0.0] * 3 + [1.0] * 3
            )
        mine = np.full(3 + comm.rank, comm.rank, np.float32)
        assert comm.allgather(mine).tolist() == [0.0] * 3 + [1.0] * 4

    with gpus(2, nccl=False) as some:
        for transport in ("local", "shm"):
            with some.world(2, transport) as world:
                some.run(world, body)
