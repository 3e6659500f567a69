"""Asynchronous calls in machine code: the same results, order and failures as without, and no need of Python's lock."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import collectives as ronde
from collectives import Communicator, DeadlineExceeded, MismatchError
from collectives.jit import JobRing, MachineCode, load
from tests.worlds import World, world_of
from transports.errors import AbortedError, ClosedError, RondeError

pytest.importorskip("numba", reason="half of these tests need the compiled interpreter")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the ring sleeps by futex(2)")


@pytest.fixture(params=["on", "off", "both"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    settings = ["on", "off"] if request.param == "both" else [request.param]
    with world_of("shm", 2, compiled=settings, timeout=20.0) as found:
        yield found


@pytest.fixture
def ring_world() -> Iterator[World]:
    with world_of("shm", 2, compiled=["on"], timeout=20.0) as found:
        yield found


def test_jobs_of_both_kinds_keep_their_order(world: World) -> None:
    def body(comm: Communicator) -> None:
        rng, works = np.random.default_rng(3), []
        for index in range(700):  # more than the ring holds
            x = np.full(int(rng.integers(1, 5000)), index + comm.rank, np.float64)
            match rng.integers(12):
                case 0:
                    works.append((comm.broadcast_object_async(index, index % 2), index))
                case 1:  # no table: combined by more than one loop
                    works.append((comm.allreduce_async(x.astype(complex), "prod"), index * (index + 1)))
                case 2:
                    assert comm.allreduce(x)[-1] == 2 * index + 1
                case 3:
                    works.append((comm.broadcast_async(x, index % 2), index + index % 2))
                case 4:
                    works.append((comm.plan("allreduce", x, "max", out=x).start(), index + 1))
                case _:
                    works.append((comm.allreduce_async(x, out=x if index % 2 else None), 2 * index + 1))
        for work, expected in works:
            assert np.all(np.asarray(work.wait()) == expected)
            assert work.test()

    world.run(body)


def busy(calls: int) -> list[float]:
    """Seconds until an allreduce is over, beside a loop that lets another thread run Python every three seconds. A call
    whose peer is late, on a busy machine, is left to Python."""
    world, seconds = ronde.world(), []
    x = np.ones(16384, np.float32)
    for _ in range(20):
        world.allreduce_async(x, out=x.copy()).wait()
    sys.setswitchinterval(3.0)
    for _ in range(calls):
        began = time.perf_counter()
        work = world.allreduce_async(x, out=x)
        while not work.test():
            assert time.perf_counter() - began < 30
        seconds.append(time.perf_counter() - began)
    sys.setswitchinterval(0.005)
    assert x[7] == 2.0**calls
    return seconds


@pytest.mark.processes
def test_beside_a_busy_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDE_COMPILED", "on")  # a busy machine has not always loaded the code when `init` returns
    first, second = ronde.run(functools.partial(busy, 60), 2, transport="shm", timeout=120.0)
    assert np.median(first + second) < 3.0, "the thread has waited for Python's lock"


def test_callbacks(world: World) -> None:
    def body(comm: Communicator) -> None:
        called: list[tuple[int, int]] = []
        x = np.ones(100)
        comm.allreduce_async(x).wait()
        works = [comm.allreduce_async(x) for _ in range(50)]
        for index, work in enumerate(works):
            for time_ in range(2):
                work.add_done_callback(lambda done, key=(index, time_): called.append(key) if done.test() else None)
        over = threading.Event()
        works[-1].add_done_callback(lambda _: over.set())
        assert over.wait(20)
        assert sorted(called) == [(index, time_) for index in range(50) for time_ in range(2)]
        works[0].add_done_callback(lambda _: called.clear())
        assert not called

    world.run(body)


def test_a_wait_has_a_timeout_of_its_own(world: World) -> None:
    def body(comm: Communicator) -> float:
        x = np.ones(100)
        comm.allreduce_async(x).wait()
        if comm.rank == 1:
            comm.recv(np.zeros(1), src=0, timeout=20)
            return float(comm.allreduce(x)[0])
        work = comm.allreduce_async(x)
        began = time.monotonic()
        for seconds in (0.0, 0.07):
            with pytest.raises(DeadlineExceeded, match="still in flight"):
                work.wait(seconds)
        assert time.monotonic() - began < 10
        comm.send(np.ones(1), 1)
        return float(work.wait()[0])

    assert world.run(body) == [2.0, 2.0]


def test_a_peer_that_does_not_come(world: World) -> None:
    def body(comm: Communicator) -> str:
        x = np.ones(100)
        comm.allreduce_async(x).wait()
        if comm.rank == 1:
            with pytest.raises(RondeError) as caught:
                comm.recv(np.zeros(1), src=0, timeout=20)
        else:
            works = [comm.allreduce_async(x, timeout=0.3) for _ in range(3)]
            with pytest.raises(DeadlineExceeded, match="others staged") as caught:
                works[0].wait()
            for work in works[1:]:
                with pytest.raises(RondeError):
                    work.wait()
        return str(caught.value)

    texts = world.run(body)
    assert all("allreduce(float64, 100 elements, op=sum)" in text for text in texts), texts


def test_another_call_is_a_mismatch(world: World) -> None:
    def body(comm: Communicator) -> None:
        comm.allreduce_async(np.ones(100)).wait()
        work = comm.allreduce_async(np.ones(100 + comm.rank))
        with pytest.raises(MismatchError, match="elements"):
            work.wait()

    world.run(body)


def test_an_abort_ends_jobs_in_flight(world: World) -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(100)
        comm.allreduce_async(x).wait()
        if comm.rank == 1:
            time.sleep(0.1)
            comm.abort("enough")
            return
        works = [comm.allreduce_async(x) for _ in range(3)]
        for work in works:
            with pytest.raises(AbortedError, match="enough"):
                work.wait()

    world.run(body)


def test_close_ends_jobs_in_flight() -> None:
    def body(comm: Communicator) -> list[Any]:
        comm.allreduce_async(np.ones(100)).wait()
        return [comm.allreduce_async(np.full(100, index)) for index in range(20)]

    with world_of("shm", 2, compiled=["on"]) as ranks:
        works = [work for rank in ranks.run(body) for work in rank]
    assert [work.wait(0)[0] for work in works] == [2 * index for index in range(20)] * 2
    with pytest.raises(ClosedError):
        ranks.communicators[0].allreduce_async(np.ones(100))


def test_calls_are_counted_and_timed(ring_world: World) -> None:
    def body(comm: Communicator) -> None:
        x = np.ones(20000)
        for _ in range(200):
            comm.allreduce_async(x).wait()
        counted = comm.metrics()["collectives"]["allreduce"]
        assert counted["calls"] == 200
        assert 0 < counted["seconds"] < 200
        assert sum(comm.metrics()["waited"].values()) > 0

    ring_world.run(body)


@pytest.mark.long
def test_an_idle_thread_costs_nothing(ring_world: World) -> None:
    def body(comm: Communicator) -> float:
        comm.allreduce_async(np.ones(100)).wait()
        clock = time.pthread_getcpuclockid(comm.compose_async(lambda _: threading.get_ident(), "its thread").wait())
        began = time.clock_gettime(clock)
        time.sleep(0.3)
        return time.clock_gettime(clock) - began

    assert max(ring_world.run(body)) < 0.001


def test_the_server_returns_when_it_is_called() -> None:
    code = load(time.monotonic() + 600)
    assert isinstance(code, MachineCode), code
    ring, passes = JobRing(code), []

    def serve() -> None:
        for _ in range(3):
            passes.append(ring.serve())

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    time.sleep(0.05)
    assert not passes
    assert ring.ended(0, 0)
    began = time.monotonic()
    assert not ring.ended(1, 20_000_000)
    assert time.monotonic() - began > 0.015
    ring.call(1)
    server.join(20)
    assert passes == [None] * 3
