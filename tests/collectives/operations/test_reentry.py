"""A call in the middle of another one of its thread: in an Op, a destructor, a callback, a signal handler."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives import AbortedError, ClosedError, Communicator, DeadlineExceeded, Op, ReentryError, RondeError
from collectives.flight import CALLS
from tests.collectives.ranks import meeting_place, member
from tests.processes import run_processes
from tests.transports.tcp_ranks import wait_until
from tests.worlds import executor_of, world_of
from transports import shm

TRANSPORTS = ["local", "tcp", pytest.param("shm", marks=pytest.mark.skipif(shm.usable() is not None, reason="shm"))]
INNER: dict[str, Callable[[Communicator], Any]] = {
    "allreduce": lambda comm: comm.allreduce(np.ones(2)),
    "barrier": lambda comm: comm.barrier(),
    "allgather_object": lambda comm: comm.allgather_object(1),
    "asynchronous": lambda comm: comm.allreduce_async(np.ones(2)).wait(),
    "persistent": lambda comm: comm.plan("allreduce", np.ones(2), out=np.ones(2)).run(),
}


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("inner", [name for name in INNER if name != "asynchronous"])
def test_an_op_that_calls_a_collective(transport: str, inner: str) -> None:
    mine = threading.local()

    def body(comm: Communicator) -> None:
        refused = 0

        def combine(a: Any, b: Any) -> Any:
            nonlocal refused
            if mine.inside:
                with pytest.raises(ReentryError):
                    INNER[inner](comm)
                refused += 1
            return a + b

        mine.inside = False  # an Op is tried on zeros first
        op, x = Op(combine), np.full(3, comm.rank + 1.0)
        comm.allreduce(x, op)
        mine.inside = True
        assert comm.allreduce(x, op).tolist() == [3, 3, 3]
        mine.inside = False
        assert refused or comm.rank
        assert comm.allreduce(x).tolist() == [3, 3, 3]

    with world_of(transport, 2, compiled=("off",)) as world:
        world.run(body)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_callback_that_waits_is_refused(transport: str) -> None:
    def body(comm: Communicator) -> None:
        errors: list[BaseException] = []
        done = threading.Event()

        def again(work: Any) -> None:
            try:
                inner(comm)
            except RondeError as error:
                errors.append(error)
            done.set()

        for inner in (INNER["barrier"], INNER["asynchronous"]):  # noqa: B007
            done.clear()
            comm.barrier()
            gate = comm.compose_async(lambda peers: time.sleep(0.1) or peers.allgather(np.ones(1)), "slow")
            gate.add_done_callback(again)
            assert done.wait(30)
            gate.wait()
        assert [type(error) for error in errors] == [ReentryError, ReentryError]

    with world_of(transport, 2) as world:
        world.run(body)


@pytest.mark.parametrize("aborts", [False, True])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_call_waits_for_the_turn_within_its_timeout(transport: str, aborts: bool) -> None:
    """Another thread of the rank has the turn. The call that waits has no effect, or hears of the abort."""

    def body(comm: Communicator) -> None:
        held, gate = threading.Event(), threading.Event()

        def hold(peers: Any) -> Any:
            held.set()
            assert gate.wait(60)
            return peers.allgather(np.ones(1))

        def compose() -> None:
            with contextlib.suppress(RondeError):
                comm.compose(hold, "slow")

        other = threading.Thread(target=compose)
        other.start()
        assert held.wait(30)
        if aborts:
            threading.Timer(0.2, comm.abort, ("a test",)).start()
        begun = time.monotonic()
        with pytest.raises(AbortedError if aborts else DeadlineExceeded):
            comm.allreduce(np.ones(2), timeout=60.0 if aborts else 0.3)
        assert time.monotonic() - begun < 20
        gate.set()
        other.join(30)
        assert not other.is_alive()
        if not aborts:
            assert comm.allreduce(np.ones(2)).tolist() == [2, 2]

    with world_of(transport, 2) as world:
        world.run(body)


# Signals: the ranks are processes.


@pytest.mark.processes
@pytest.mark.parametrize("transport", ["tcp", "shm", "auto"])
@pytest.mark.parametrize("inner", ["allreduce", "persistent"])
def test_c4_a_collective_in_a_signal_handler(transport: str, inner: str, tmp_path: Path) -> None:
    with meeting_place() as url:
        found = run_processes(handler_rank_0, 2, url, transport, inner, tmp_path / "handled", timeout=60)
    assert found == [["ReentryError", [3.0, 3.0]], [[3.0, 3.0]]]


def handler_rank_0(rank: int, url: str, transport: str, inner: str, handled: Path) -> list[Any]:
    with member(rank, 2, url, transport=transport) as comm:
        seen: list[Any] = []

        def handler(*_: Any) -> None:
            try:
                INNER[inner](comm)
            except RondeError as error:
                seen.append(type(error).__name__)
            handled.touch()

        comm.barrier()
        if rank == 0:
            signal.signal(signal.SIGUSR1, handler)
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        else:
            wait_until(handled.exists)
        seen.append(comm.allreduce(np.full(2, rank + 1.0)).tolist())
        return seen


def ends_in_handler(rank: int, url: str, transport: str, handled: Path) -> tuple[str, float]:
    with member(rank, 2, url, transport=transport, timeout=100.0) as comm:
        comm.barrier()
        if rank == 1:
            wait_until(handled.exists)
        else:
            signal.signal(signal.SIGTERM, lambda *_: (comm.close(), handled.touch()))
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
        begun = time.monotonic()
        try:
            comm.allreduce(np.ones(2))
        except RondeError as error:
            return type(error).__name__, time.monotonic() - begun
        return "", 0.0


@pytest.mark.processes
@pytest.mark.parametrize("transport", ["tcp", "shm", "auto"])
def test_a_shutdown_in_a_signal_handler_ends_the_rank(transport: str, tmp_path: Path) -> None:
    with meeting_place() as url:
        found = run_processes(ends_in_handler, 2, url, transport, tmp_path / "handled", timeout=90)
    (first, _), (second, _) = found
    assert first in (AbortedError.__name__, ClosedError.__name__)
    assert second in (first, AbortedError.__name__, "")  # rank 0 may have given its part before it closed
    assert max(seconds for _, seconds in found) < 30  # not the timeout of a call


class Stop(KeyboardInterrupt):
    pass


def storm(rank: int, url: str, transport: str, compiled: str, seconds: float) -> dict[str, int]:
    """Real signals at random moments of calls, in worlds of two; rank 0 gets them."""
    counts = {"signals": 0, "aborted": 0, "whole": 0, "wrong": 0}
    made, end = random.Random(rank), time.monotonic() + seconds

    def stop(*_: Any) -> None:
        raise Stop

    signal.signal(signal.SIGALRM, stop)
    for generation in range(1 << 20):
        with member(rank, 2, url, generation=generation, transport=transport, compiled=compiled, timeout=20.0) as comm:
            try:
                for _ in range(10):
                    comm.allreduce(np.ones(4, np.float32))
                more = time.monotonic() < end or counts["signals"] < FEWEST
                if not int(comm.broadcast(np.array([more]))[0]):
                    break
                while comm.failure is None:
                    one_burst(comm, made if rank == 0 else None, counts)
            except RondeError:  # an abort may overtake what came before it
                counts["aborted"] += 1
    return counts


def one_burst(comm: Communicator, made: random.Random | None, counts: dict[str, int]) -> None:
    """Calls until a signal has come, or some more. The values tell the number of the call."""
    try:
        if made is not None:
            counts["signals"] += 1
            signal.setitimer(signal.ITIMER_REAL, made.uniform(50e-6, 2e-3))
        for _ in range(40):
            number = executor_of(comm).calls
            counts["wrong"] += comm.allreduce(np.full(4, number, np.float32)).tolist() != [2 * number] * 4
    except Stop:
        pass
    finally:
        while made is not None:
            try:
                signal.setitimer(signal.ITIMER_REAL, 0)
                break
            except Stop:
                continue
    counts["whole"] += comm.failure is None


SECONDS = float(os.environ.get("RONDE_STORM_SECONDS", "4"))
FEWEST = 11
"""Signals of a storm, however slow the machine is."""


@pytest.mark.processes
@pytest.mark.timeout(SECONDS + 120)
@pytest.mark.parametrize("compiled", ["off", "on"])
@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_c2_signals_at_random_moments(transport: str, compiled: str, capsys: pytest.CaptureFixture[str]) -> None:
    if compiled == "on":
        pytest.importorskip("numba", reason="needs the compiled interpreter")
    with meeting_place() as url:
        counts = run_processes(storm, 2, url, transport, compiled, SECONDS, timeout=SECONDS + 90)
    with capsys.disabled():
        print(transport, compiled, counts, file=sys.stderr)
    assert counts[0]["signals"] >= FEWEST
    assert counts[0]["wrong"] == counts[1]["wrong"] == 0


def near_the_wrap(comm: Communicator) -> None:
    comm.barrier()
    executor_of(comm).words[CALLS] = (1 << 39) - 5
    for number in range(20):
        x = np.full(2, float(number))
        assert comm.allreduce(x).tolist() == [2.0 * number] * 2
        assert comm.allgather(x).tolist() == [float(number)] * 4


@pytest.mark.parametrize("compiled", ["off", "on"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_calls_are_counted_beyond_2_to_the_39(transport: str, compiled: str) -> None:
    if compiled == "on":
        pytest.importorskip("numba", reason="needs the compiled interpreter")
    with world_of(transport, 2, compiled=(compiled,)) as world:
        world.run(near_the_wrap)
